"""Sources of a mixture as the command line writes them: `PATH[,key=value...]`.

Left out: the mixing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl_r1.data.mixing import MixtureSource

_SOURCE_KEYS = {
    "share": float,
    "num_rows": int,
    "max_rows": int,
    "kind": str,
    "name": str,
    "task": str,
    "split": str,
}


def mixture_source(text: str, format_name: str) -> MixtureSource:
    """A source as the command line names it.

    Args:
        text: `PATH[,key=value...]`; a task's name is a path, too.
        format_name: reasoning format of a task's rows.

    Raises:
        ValueError: for a key or value that is wrong, or rows that can't be read.
    """
    from trl_r1.data.mixing import MixtureSource
    from trl_r1.data.output import read_rows
    from trl_r1.reasoning_format import get_format
    from trl_r1.tasks import DatasetSource, is_task_name, load_rows

    path, pairs = split_source(text)
    values = _source_values(text, pairs)
    task = values.pop("task", None)
    split = values.pop("split", "train")
    if task is None and is_task_name(path):
        task = path
    if task is None:
        rows = read_rows(path, split)
    else:
        name = None if task == path else path
        source = DatasetSource(dataset_name=name, task=task, split=split)
        rows = load_rows(source, get_format(format_name))
    if values.get("kind") not in (None, "reasoning", "general"):
        raise ValueError(f"{text}: kind is reasoning or general")
    return MixtureSource(name=values.pop("name", _short_name(path)), rows=rows, **values)


def split_source(text: str) -> tuple[str, list[str]]:
    """The path of a source, which may have commas where it exists, and its `key=value` pairs."""
    parts = text.split(",")
    paths = (",".join(parts[:end]) for end in range(len(parts), 1, -1))
    path = next((path for path in paths if Path(path).expanduser().exists()), parts[0])
    return path, [pair for pair in text[len(path) + 1 :].split(",") if pair]


def _source_values(text: str, pairs: Sequence[str]) -> dict[str, Any]:
    from trl_r1.pipeline.mistakes import suggestion

    values: dict[str, Any] = {}
    for pair in pairs:
        key, is_pair, value = pair.partition("=")
        if not is_pair and key in _SOURCE_KEYS:
            raise ValueError(f"{text}: {key} has no value; write {key}=...")
        if not is_pair or key not in _SOURCE_KEYS:
            hint = suggestion(key, _SOURCE_KEYS) or f"; known: {', '.join(_SOURCE_KEYS)}"
            raise ValueError(f"{text}: unknown key {key!r}{hint}")
        try:
            values[key] = _SOURCE_KEYS[key](value)
        except ValueError as error:
            raise ValueError(f"{text}: {key} is no number: {value!r}") from error
        if key == "share" and not 0 < values[key] <= 1:
            raise ValueError(f"{text}: share is {value}; it is over 0 and at most 1")
        if key in ("num_rows", "max_rows") and values[key] < 1:
            raise ValueError(f"{text}: {key} is {value}; it has to be at least 1")
    return values


# Names of files and folders that say nothing of what is in them.
_ANY_DATA = {"dataset", "samples", "rollouts", "data", "train", "test", "validation", "rows"}


def _short_name(path: str) -> str:
    """What to call a source: its file or folder, the stage of an artifact, the Hub's name."""
    parts = [Path(part).name.split(".")[0] for part in Path(path).parts]
    telling = [part for part in parts if part and part not in _ANY_DATA]
    return (telling or parts or [path])[-1]


def short_names(paths: Sequence[str]) -> list[str]:
    """A name for each path; the path itself where two have the same."""
    names = [_short_name(path) for path in paths]
    return [
        path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)
    ]
