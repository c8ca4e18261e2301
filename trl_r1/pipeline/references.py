"""`@name` and `@name/artifact`: how a recipe says that it goes on from an earlier stage.

What `@hub:org/name` means is said in `trl_r1.hub.references`.

Also the paths of a recipe: relative ones are looked for beside the recipe first, then in the
working directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_r1.hub.references import find_hub_folder, is_hub_reference, parse_hub_reference

# What kind of thing an artifact folder holds; a name that is not here is a kind of its own.
_KINDS = {"student": "model", "rollouts": "dataset", "samples": "dataset"}
MODEL_KINDS = ("model", "adapter")


@dataclass(frozen=True)
class Reference:
    """A reference as it stands in a recipe.

    Attributes:
        place: keys and indices that lead to it, as (`datasets`, 0, `dataset_name`).
        text: as written, `@zero/rollouts`.
    """

    place: tuple[str | int, ...]
    text: str

    @property
    def stage(self) -> str:
        return self.text[1:].partition("/")[0]

    @property
    def artifact(self) -> str | None:
        """The artifact's name; None for the stage's main one."""
        return self.text.partition("/")[2] or None

    @property
    def key(self) -> str:
        """The place in words, `datasets[0].dataset_name`."""
        words = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.place)
        return words.lstrip(".")


def artifact_kind(artifact: str) -> str:
    """The kind of an artifact by its name: `model`, `adapter`, `dataset`, `reward_model`."""
    return _KINDS.get(artifact, artifact)


def is_reference(value: Any) -> bool:
    """Whether a value refers to a stage; `@hub:org/name` refers to the Hub instead."""
    return isinstance(value, str) and value.startswith("@") and not is_hub_reference(value)


def is_model_key(key: str) -> bool:
    """Whether a key names a model, by its ending."""
    return key == "model" or key.endswith(("model_name_or_path", "_model"))


def find_references(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[Reference]:
    """Every reference inside a value."""
    if is_reference(value):
        yield Reference(place, value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from find_references(item, (*place, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from find_references(item, (*place, index))


def replace_texts(value: Any, replace: Callable[[str], str]) -> Any:
    """A copy of a value with every text put through `replace`."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        return {key: replace_texts(item, replace) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(replace_texts(item, replace) for item in value)
    return value


def find_path(text: str, folder: Path) -> Path | None:
    """The absolute path of an existing file or folder that a recipe names, or None.

    Args:
        text: as the recipe has it; of `@hub:org/name` the folder in the Hub's cache, once fetched.
        folder: the recipe's folder.
    """
    if is_hub_reference(text):
        return find_hub_folder(text)
    try:
        path = Path(text).expanduser()
        for candidate in (folder / path, Path.cwd() / path):
            if candidate.exists():
                return candidate.resolve()
    except (OSError, RuntimeError, ValueError):
        # Too long for a name, `~` of an unknown user, a folder that is not ours: none is there.
        return None
    return None


def outside_name(text: str, folder: Path) -> str:
    """What libraries call a model or data set from outside the run: its folder, or its Hub id."""
    path = find_path(text, folder)
    if path is not None:
        return str(path)
    return parse_hub_reference(text).repo_id if is_hub_reference(text) else text


def looks_like_path(text: str, folder: Path) -> bool:
    """Whether a name that does not exist here was meant as a path, not as an id on the Hub."""
    path = Path(text)
    if text.startswith(("/", "./", "../", "~")) or text.count("/") != 1:
        return "/" in text or path.suffix in (".json", ".jsonl", ".parquet", ".csv")
    if path.suffix in (".json", ".jsonl", ".parquet", ".csv"):
        return True
    try:
        return any((base / path.parent).is_dir() for base in (folder, Path.cwd()))
    except OSError:
        return False
