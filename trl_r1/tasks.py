"""Tasks: what turns a set of problems into rows that every stage can use.

A row has `prompt` (a list of messages), `solution` (the gold answer, a string) and `task` (the task's name, by
which rewards route). Rows for SFT also have `completion` (a list of one assistant message). Preference pairs have
`prompt`, `chosen` and `rejected`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat
    from trl_r1.training.arguments import DatasetSource


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: its key in `TASKS` and the value of its rows' `task` column.
        kind: `reasoning` rows get the reasoning format and a rule reward; `general` rows neither; `preference` rows
            are pairs.
        rows: builds the rows, `rows(source, fmt) -> Dataset`; generators take their rows from `source.seed` and
            `source.split` alone, so that splits never overlap.
        needs_source: whether `dataset_name` is required (False where the task makes its rows or has a default id).
        columns: columns of its rows, for checks that build nothing.
        grader: reference of the reward that says whether an answer is right.
        arguments: allowed keys of `args`.
    """

    name: str
    kind: Literal["reasoning", "general", "preference"]
    rows: Callable[[DatasetSource, ReasoningFormat], Dataset]
    needs_source: bool = False
    columns: tuple[str, ...] = ("prompt", "solution", "task")
    grader: str = "math_answer"
    arguments: tuple[str, ...] = ()


TASKS: dict[str, Task] = {}


def load_rows(source: Any, fmt: Any) -> Any:
    raise NotImplementedError
