"""Tasks: what turns a set of problems into rows that every stage can use.

A row has `prompt` (a list of messages), `solution` (the gold answer, a string) and `task` (the
task's name, by which rewards route). Rows for SFT also have `completion` (a list of one assistant
message). Preference pairs have `prompt`, `chosen` and `rejected`, each a list of messages.

A task is a module of this package that defines `TASK`; it is imported on demand and imports nothing
heavy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

TASKS: dict[str, str] = {
    "digit_sums": "trl_r1.tasks.digit_sums",
    "small_talk": "trl_r1.tasks.small_talk",
    "small_talk_preferences": "trl_r1.tasks.small_talk_preferences",
    "word_problems": "trl_r1.tasks.word_problems",
    "gsm8k": "trl_r1.tasks.gsm8k",
    "reasoning_gym": "trl_r1.tasks.gym",
    "general_chat": "trl_r1.tasks.general_chat",
    "general_chat_preferences": "trl_r1.tasks.general_chat_preferences",
}


@dataclass(frozen=True)
class DatasetSource:
    """Where rows come from: one entry of a recipe's `datasets:`.

    Attributes:
        dataset_name: `@stage`, a Hub id, a local data file or a folder; None for a task that makes
            its own rows.
        task: name in `TASKS`; turns source rows into the columns above. None where the rows have
            them already.
        split: split of the source.
        num_rows: rows taken, after a shuffle by `seed`; None for all. Required by tasks that make
            rows.
        seed: of the shuffle, or of a task that makes its rows.
        args: keyword arguments of the task.
        share: part of the mixture, 0..1; None for as many rows as the source has.
        from_step: optimizer step from which RL draws from it.
    """

    dataset_name: str | None = None
    task: str | None = None
    split: str = "train"
    num_rows: int | None = None
    seed: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None
    from_step: int = 0


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: its key in `TASKS` and the value of its rows' `task` column.
        kind: `reasoning` rows get the reasoning format and a rule reward; `general` rows neither;
            `preference` rows are pairs.
        rows: builds the rows, `rows(source, fmt) -> Dataset`. A task that makes its rows takes them
            from `source.seed` and `source.split` alone, so that train and test never overlap.
        makes_rows: it needs no `dataset_name`, and needs `num_rows`.
        default_source: Hub id used where `dataset_name` is not given; None where there is none.
        columns: columns of its rows, for checks that build nothing.
        grader: reference of the reward (as in `rewards:` `use`) that says whether an answer is
            right: 1.0.
        arguments: allowed keys of `args`.
    """

    name: str
    kind: Literal["reasoning", "general", "preference"]
    rows: Callable[[DatasetSource, ReasoningFormat], Dataset]
    makes_rows: bool = False
    default_source: str | None = None
    columns: tuple[str, ...] = ("prompt", "solution", "task")
    grader: str = "math_answer"
    arguments: tuple[str, ...] = ()


def load_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: for an unknown name, with the known ones.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    task: Task = importlib.import_module(TASKS[name]).TASK
    return task


def read_source(source: DatasetSource, default: str | None = None) -> Dataset:
    """The rows of `source.dataset_name` (or `default`) as they are: a data file, a folder or a Hub
    id.

    Raises:
        ValueError: where there is neither, or the source can't be read; it says which.
    """
    from datasets import load_dataset

    name = source.dataset_name or default
    if not name:
        raise ValueError("dataset_name is missing")
    path = Path(name).expanduser()
    if path.is_file():
        loader = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}.get(
            path.suffix
        )
        if loader is None:
            raise ValueError(
                f"{path}: can't read {path.suffix!r} files; use .jsonl, .json, .parquet or .csv"
            )
        if _is_blank(path):
            raise ValueError(f"{path} is empty")
        return load_dataset(loader, data_files={source.split: str(path)}, split=source.split)
    return load_dataset(str(path) if path.is_dir() else name, split=source.split)


def _is_blank(path: Path) -> bool:
    with path.open("rb") as file:
        return all(not chunk.strip() for chunk in iter(lambda: file.read(1 << 16), b""))


def load_rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """The rows of a source, through its task where it names one.

    Args:
        source: where from, and how many.
        fmt: response format of reasoning prompts and targets.

    Raises:
        ValueError: for an unknown task or a source that can't be read.
    """
    rows = load_task(source.task).rows(source, fmt) if source.task else read_source(source)
    if source.num_rows is not None and source.num_rows < len(rows):
        rows = rows.shuffle(seed=source.seed).select(range(source.num_rows))
    return rows
