"""Rows for a rehearsal: a handful of a recipe's own, or stand-ins where those can't be had.

A recipe's own rows are read by the same adapters as in the run. Where the Hub is away, rows that
are ready for use stand in, of the columns that the task or the stage promises; what its adapter
makes of the real set is then not rehearsed, and the notes say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import OfflineModeIsEnabled

from trl_r1.pipeline.references import is_reference
from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.tasks import DatasetSource, Task, find_task, load_rows

NUM_ROWS = 8

_SUMS = [(12, 30), (7, 8), (25, 17), (40, 2), (9, 9), (100, 23), (64, 36), (5, 50)]


class RowsError(Exception):
    """A source's rows are there and can't be used."""


def small_source(
    source: Mapping[str, Any], kind: str, fmt: ReasoningFormat, folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """An entry of `datasets:` that gives a handful of rows.

    Args:
        source: the entry, its paths absolute.
        kind: what the stage takes: `prompts`, `targets` or `pairs`.
        fmt: response format of the stage.
        folder: for stand-in rows.

    Returns:
        The entry to rehearse with, and notes on what stands in.

    Raises:
        RowsError: the rows are there and can't be read, with what is wrong.
    """
    small = {**source, "min_pass_rate": None, "max_pass_rate": None}
    if small.get("from_step"):
        small["from_step"] = 1
    small = {key: value for key, value in small.items() if value is not None}
    if is_reference(source.get("dataset_name")):
        small.pop("num_rows", None)
        return small, []
    task = find_task(source.get("task"))
    if task is not None and task.makes_rows:
        small["num_rows"] = min(int(source.get("num_rows") or NUM_ROWS), NUM_ROWS)
        return small, []
    known = DatasetSource.__dataclass_fields__
    wanted = {k: v for k, v in source.items() if k in known and k not in _NOT_OF_READING}
    try:
        rows = load_rows(DatasetSource(**wanted), fmt)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if _is_hub_away(error):
            return _stand_in(small, task, kind, fmt, folder)
        raise RowsError(" ".join(str(error).split())) from error
    if not len(rows):
        raise RowsError(f"{source.get('dataset_name') or source.get('task')} gives no rows")
    small["num_rows"] = min(len(rows), NUM_ROWS)
    return small, []


def _is_hub_away(error: BaseException | None) -> bool:
    """Whether a connection failed somewhere below; a set that is not there is another matter."""
    while error is not None:
        if isinstance(error, (ConnectionError, OfflineModeIsEnabled)):
            return True
        error = error.__cause__ or error.__context__
    return False


# What is of the mixture, not of the rows; pass rates may come from a stage.
_NOT_OF_READING = ("share", "from_step", "pass_rates", "pass_rate_column", "min_pass_rate",
                   "max_pass_rate", "order")  # fmt: skip


def _stand_in(
    small: dict[str, Any], task: Task | None, kind: str, fmt: ReasoningFormat, folder: Path
) -> tuple[dict[str, Any], list[str]]:
    name = str(small.get("dataset_name") or small.get("task"))
    rows = [_row(i, task, kind, fmt) for i in range(NUM_ROWS)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir())):03d}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    kept = {k: v for k, v in small.items() if k not in ("task", "args", "num_rows")}
    kept["dataset_name"] = str(path)
    return kept, [f"{name}: the Hub is away; made-up rows stand in"]


def _row(number: int, task: Task | None, kind: str, fmt: ReasoningFormat) -> dict[str, Any]:
    one, other = _SUMS[number % len(_SUMS)]
    question, answer = f"What is {one} + {other}?", str(one + other)
    if kind == "pairs":
        return {
            "prompt": [{"role": "user", "content": question}],
            "chosen": [{"role": "assistant", "content": f"It is {answer}."}],
            "rejected": [{"role": "assistant", "content": "Why do you ask?"}],
        }
    is_general = task is not None and task.kind == "general"
    row: dict[str, Any] = {
        "prompt": [{"role": "user", "content": question}] if is_general else fmt.prompt(question),
        "solution": answer,
        "task": task.name if task is not None else "stand_in",
        "language": "en",
    }
    if task is not None and "tests" in task.columns:
        row["tests"] = [f"assert {one} + {other} == {answer}"]
    if kind == "targets":
        text = f"It is {answer}."
        target = text if is_general else fmt.render(f"{one} and {other} make {answer}.", text)
        row["completion"] = [{"role": "assistant", "content": target}]
    return row
