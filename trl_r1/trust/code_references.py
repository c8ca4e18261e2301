"""The code that the YAML files of a folder name, found without reading them as recipes.

Any text that looks like code is taken, wherever it stands: a file that is no valid recipe yet may
be one after a word is mended. Modules are looked up as `import` would find them, but none is
imported, nor the packages above it.
"""

from __future__ import annotations

import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_r1.pipeline.yaml_files import read_mapping
from trl_r1.trust.withholding import is_ours

Place = tuple[str | int, ...]
# Keys whose value may be `package.module:function`; elsewhere that may be a data set's config.
_REFERENCE_KEYS = frozenset(("use", "grader", "prepare"))
_CLASS_KEYS = frozenset(("worker_cls", "worker_extension_cls", "logits_processors"))
_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[^:]*))?", re.DOTALL)
_MODULE = re.compile(r"(?P<module>[^\W\d][\w.]*):(?P<name>[^\W\d]\w*)")
_CLASS = re.compile(r"(?P<module>[^\W\d][\w.]*)[.:](?P<name>[^\W\d]\w*)")


@dataclass(frozen=True)
class CodeReference:
    """A place where a YAML file names code.

    Attributes:
        where: file and key, `mine/02_zero.yaml: rewards[1].use`.
        text: as written.
        name: the function named; empty where there is none.
        files: the files it may stand for: of a module also those of the packages above it, which
            importing it runs.
        note: what it is where there is no file.
    """

    where: str
    text: str
    name: str
    files: tuple[Path, ...]
    note: str = ""


def yaml_values(folder: Path, shown: str) -> Iterator[tuple[str, Path, Place, Any]]:
    """Every value of the YAML files of a folder, and of those they name, with its place.

    Yields:
        The file as it is to be called, its folder, the keys and indices that lead to the value, and
        the value: a text, a number, a truth value.
    """
    try:
        waiting = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml"))
    except OSError:
        return  # told by the check
    names = {path: f"{shown}/{path.name}" for path in waiting}
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop(0)
        key = _resolved(path)
        if key is None or key in seen:
            continue
        seen.add(key)
        values, _ = read_mapping(path, "")
        called = names.get(path, str(path))
        for place, value in leaves(values):
            yield called, path.parent, place, value
            if isinstance(value, str) and value.lower().endswith((".yaml", ".yml")):
                waiting += existing(value, (path.parent, folder, Path.cwd()))


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The values inside of a value, with what leads to them."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*place, str(key)))
    elif isinstance(value, (list, tuple, set)):
        for index, item in enumerate(value):
            yield from leaves(item, (*place, index))
    else:
        yield place, value


def code_references(
    values: Iterable[tuple[str, Path, Place, Any]], folder: Path
) -> list[CodeReference]:
    """The code that values name.

    Args:
        values: from `yaml_values`.
        folder: of the pipeline.
    """
    found: list[CodeReference] = []
    for called, own_folder, place, value in values:
        if isinstance(value, str):
            where = f"{called}: {place_text(place)}"
            found += _references(value.strip(), where, place, (own_folder, folder, Path.cwd()))
    return found


def _references(
    text: str, where: str, place: Place, folders: Sequence[Path]
) -> Iterator[CodeReference]:
    keys = {part for part in place if isinstance(part, str)}
    if (match := _FILE.fullmatch(text)) and "://" not in text:
        files = tuple(existing(match["file"], folders))
        note = "" if files else "there is no such file"
        yield CodeReference(where, text, match["name"] or "", files, note)
    elif keys & _REFERENCE_KEYS and (match := _MODULE.fullmatch(text)):
        if not is_ours(match["module"]):
            files, note = module_files(match["module"])
            yield CodeReference(where, text, match["name"], files, note)
    elif keys & _CLASS_KEYS and (match := _CLASS.fullmatch(text)):
        files, note = module_files(match["module"])
        yield CodeReference(where, text, match["name"], files, note)


def module_files(module: str) -> tuple[tuple[Path, ...], str]:
    """The files that importing a module runs, and what it is where that is not plain source."""
    files: list[Path] = []
    note, path = "", None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:length]), path)
        if spec is None:
            return tuple(files), f"no module {'.'.join(parts[:length])!r} is installed"
        origin, path = spec.origin, spec.submodule_search_locations
        if origin in ("built-in", "frozen"):
            note = "a part of Python itself"
        elif origin is not None and Path(origin).suffix == ".py":
            files.append(Path(origin))
        elif origin is not None:
            note = f"compiled: {origin}"
    if parts[0] in sys.stdlib_module_names:
        note = "a module of Python's own library"
    return tuple(files), note


def _spec(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, path) if find else None
        except (ImportError, ValueError, OSError):
            continue
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def existing(text: str, folders: Sequence[Path]) -> list[Path]:
    """The files that a path may mean, in each of some folders; what is no file counts, too."""
    found: dict[Path, Path] = {}
    try:
        path = Path(text).expanduser()
        for candidate in (folder / path for folder in folders):
            if candidate.exists() or candidate.is_symlink():
                found.setdefault(_resolved(candidate) or candidate, candidate)
    except (OSError, RuntimeError, ValueError):  # too long, `~` of an unknown user, a zero byte
        return []
    return list(found.values())


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return None


def place_text(place: Place) -> str:
    """The place of a value in words: `rewards[1].use`."""
    words = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
    return words.lstrip(".")


def override_values(
    overrides: Iterable[Any], folder: Path
) -> Iterator[tuple[str, Path, Place, Any]]:
    """The values of `--set` in the form of `yaml_values`."""
    for override in overrides:
        for place, value in leaves(override.value, tuple(override.keys)):
            yield override.where, folder, place, value
