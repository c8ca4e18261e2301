"""Reading the YAML files of a pipeline folder: plain mappings in, mistakes beside them.

Keys written twice are mistakes here; plain YAML would keep the last one silently. What a key means
is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from trl_r1.pipeline.mistakes import Mistake
from trl_r1.trust.secrets import remember_in

STAGE_FILE = re.compile(r"(?P<number>\d+)_(?P<name>[a-z][a-z0-9_]*)\.yaml")
PIPELINE_FILE = "pipeline.yaml"


# A recipe of a hundred stages has a few thousand values; anchors can make billions of ten lines.
_MAX_VALUES = 100_000
_MAX_DEPTH = 40
_MAX_BYTES = 1 << 20


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers keys written twice, and says where a value can't be read."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.duplicates: list[tuple[int, str]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value != "<<":
                if key_node.value in seen:
                    self.duplicates.append((key_node.start_mark.line + 1, key_node.value))
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # as the date 2024-13-45
            raise yaml.constructor.ConstructorError(
                None, None, f"{str(node.value)[:40]!r} can't be read: {error}", node.start_mark
            ) from error


def parse_yaml(text: str, where: str) -> tuple[Any, list[Mistake]]:
    """The value of a YAML text and the mistakes in it; None where it can't be read.

    Args:
        text: the text.
        where: what mistakes call it.
    """
    loader = None
    try:
        # The loader already reads the first characters, so it may fail here.
        loader = _Loader(text)
        value = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        hint = next((hint for text, hint in _HINTS.items() if text in problem), "")
        return None, [Mistake(where, f"not YAML{line}: {problem}{hint}")]
    except RecursionError:
        return None, [Mistake(where, f"nested too deeply; {_MAX_DEPTH} levels are allowed")]
    finally:
        if loader is not None:
            loader.dispose()
    if message := _size_fault(value):
        return None, [Mistake(where, message)]
    return value, [
        Mistake(where, f"key {key!r} is written twice (again in line {line}); keep one")
        for line, key in loader.duplicates
    ]


_HINTS = {
    "character '@'": '; a reference stands in quotes: "@name"',
    "character '\\t'": "; indent with spaces, not with tabs",
}


def _size_fault(value: Any) -> str | None:
    """What is wrong with a value that holds itself, or is too deep or too large to go through.

    An anchor that is used often is one object in memory, but a million in every copy of it.
    """
    sizes: dict[int, int] = {}
    open_ones: set[int] = set()

    def size(item: Any, depth: int) -> int:
        if not isinstance(item, (dict, list, set)):
            return 1
        if id(item) in sizes:
            return sizes[id(item)]
        if id(item) in open_ones:
            raise ValueError("an anchor (&name) holds itself (*name); write the value out")
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested too deeply; {_MAX_DEPTH} levels are allowed")
        open_ones.add(id(item))
        inner = item.values() if isinstance(item, dict) else item
        sizes[id(item)] = 1 + sum(size(part, depth + 1) for part in inner)
        open_ones.discard(id(item))
        return sizes[id(item)]

    try:
        total = size(value, 0)
    except ValueError as error:
        return str(error)
    return f"holds {total} values; {_MAX_VALUES} are allowed" if total > _MAX_VALUES else None


def read_mapping(path: Path, where: str) -> tuple[dict[str, Any], list[Mistake]]:
    """The mapping of a YAML file, and the mistakes in it; empty where it can't be read."""
    if path.exists() and not path.is_file():
        return {}, [Mistake(where, "is not a file")]  # reading a pipe would wait for ever
    try:
        if path.exists() and path.stat().st_size > _MAX_BYTES:
            return {}, [Mistake(where, f"is larger than {_MAX_BYTES >> 20} MiB; is it a recipe?")]
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return {}, [Mistake(where, "not a text file in UTF-8")]
    except OSError as error:
        return {}, [Mistake(where, f"can't be read: {error.strerror}")]
    value, mistakes = parse_yaml(text, where)
    if mistakes and value is None:
        return {}, mistakes
    if value is None:
        value = {}
    if not isinstance(value, dict):
        return {}, [*mistakes, Mistake(where, "should hold `key: value` lines")]
    remember_in(value)
    odd = [key for key in value if not isinstance(key, str)]
    mistakes += [Mistake(where, f"key {key!r} should be text") for key in odd]
    return {key: item for key, item in value.items() if isinstance(key, str)}, mistakes


def stage_files(folder: Path, shown: str) -> tuple[list[Path], list[Mistake]]:
    """The stage files of a folder in running order, and the files that look like one but aren't.

    Args:
        folder: the pipeline folder.
        shown: its name in mistakes.
    """
    files, mistakes = [], []
    numbers: dict[int, str] = {}
    names: dict[str, str] = {}
    try:
        listed = sorted(folder.iterdir(), key=_running_order)
    except OSError as error:
        return [], [Mistake(shown, f"can't be read: {error.strerror}")]
    for path in listed:
        if path.name == PIPELINE_FILE or path.name.startswith(".") or path.is_dir():
            continue
        if path.suffix.lower() not in (".yaml", ".yml"):
            continue  # a reward file, data, a README
        where = f"{shown}/{path.name}"
        match = STAGE_FILE.fullmatch(path.name)
        if match is None:
            if not _declares_a_task(path, where):
                mistakes.append(Mistake(where, _renaming_hint(path)))
            continue
        number, name = int(match["number"]), match["name"]
        if name in names:
            mistakes.append(
                Mistake(
                    where,
                    f"stage {name!r} is already {names[name]}; both would write to the folder "
                    f"{name!r}: rename one",
                )
            )
            continue
        if number in numbers:
            mistakes.append(
                Mistake(
                    where,
                    f"number {match['number']} is taken by {numbers[number]}; "
                    "numbers give the running order",
                )
            )
        numbers[number] = names[name] = path.name
        files.append(path)
    return files, mistakes


def _declares_a_task(path: Path, where: str) -> bool:
    """Whether it is a task of the user's own, which lies beside the stages that name it."""
    values, _ = read_mapping(path, where)
    return "prompt" in values and "stage" not in values


def _running_order(path: Path) -> tuple[int, str]:
    match = STAGE_FILE.fullmatch(path.name)
    return (int(match["number"]) if match else -1, path.name)


def _renaming_hint(path: Path) -> str:
    if path.stem == "pipeline":
        return f"should be called {PIPELINE_FILE}"
    stem = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_")
    example = stem if re.match(r"\d+_[a-z]", stem) else f"01_{stem.lstrip('0123456789_') or 'name'}"
    return (
        f"not a stage file; a stage file is a number, an underscore and a name in small letters: "
        f"{example}.yaml"
    )
