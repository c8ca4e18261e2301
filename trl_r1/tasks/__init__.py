"""Tasks: what turns a set of problems into rows that every stage can use.

A row has `prompt` (a list of messages), `solution` (the gold answer, a string) and `task` (the
task's name, by which rewards route). Rows for SFT also have `completion` (a list of one assistant
message). Preference pairs have `prompt`, `chosen` and `rejected`, each a list of messages.

A task that makes its rows is a module of this package that defines `TASK`. Known sets of problems
are declarations in `known_sets`, and a user's own is a YAML file of the same fields (`task_file`).
All are imported on demand and import nothing heavy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trl_r1.tasks.sources import read_source

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

TASKS: dict[str, str] = {
    "digit_sums": "trl_r1.tasks.digit_sums",
    "small_talk": "trl_r1.tasks.small_talk",
    "small_talk_preferences": "trl_r1.tasks.small_talk_preferences",
    "word_problems": "trl_r1.tasks.word_problems",
    "reasoning_gym": "trl_r1.tasks.gym",
    "general_chat": "trl_r1.tasks.general_chat",
    "general_chat_preferences": "trl_r1.tasks.general_chat_preferences",
    # Mathematics.
    "gsm8k": "trl_r1.tasks.gsm8k",
    "math": "trl_r1.tasks.known_sets:MATH",
    "math_500": "trl_r1.tasks.known_sets:MATH_500",
    "aime_2024": "trl_r1.tasks.known_sets:AIME_2024",
    "aime_2025": "trl_r1.tasks.known_sets:AIME_2025",
    "dapo_math": "trl_r1.tasks.known_sets:DAPO_MATH",
    "deepscaler": "trl_r1.tasks.known_sets:DEEPSCALER",
    "openr1_math": "trl_r1.tasks.known_sets:OPENR1_MATH",
    "numina_math": "trl_r1.tasks.known_sets:NUMINA_MATH",
    "numina_math_1_5": "trl_r1.tasks.known_sets:NUMINA_MATH_1_5",
    # Code.
    "human_eval": "trl_r1.tasks.known_sets:HUMAN_EVAL",
    "mbpp": "trl_r1.tasks.known_sets:MBPP",
    "apps": "trl_r1.tasks.known_sets:APPS",
    "live_code_bench": "trl_r1.tasks.known_sets:LIVE_CODE_BENCH",
    # Multiple choice.
    "mmlu": "trl_r1.tasks.known_sets:MMLU",
    "mmlu_pro": "trl_r1.tasks.known_sets:MMLU_PRO",
    "gpqa_diamond": "trl_r1.tasks.known_sets:GPQA_DIAMOND",
    "arc_challenge": "trl_r1.tasks.known_sets:ARC_CHALLENGE",
    # Instructions and chat.
    "ifeval": "trl_r1.tasks.known_sets:IFEVAL",
    "smoltalk": "trl_r1.tasks.known_sets:SMOLTALK",
}

# Tasks of YAML files that this process has read, by name.
_from_files: dict[str, Task] = {}


@dataclass(frozen=True)
class DatasetSource:
    """Where rows come from: one entry of a recipe's `datasets:`.

    Attributes:
        dataset_name: `@stage`, a Hub id (`owner/name`, or `owner/name:config`), a local data file
            or a folder; None for a task that makes its own rows or has a source of its own.
        task: name in `TASKS`, or a YAML file that declares one; turns source rows into the columns
            above. None where the rows have them already.
        split: split of the source.
        num_rows: rows taken, after a shuffle by `seed`; None for all. Required by tasks that make
            rows.
        seed: of the shuffle, or of a task that makes its rows.
        args: keyword arguments of the task.
        share: part of the mixture, 0..1; None for as many rows as the source has.
        from_step: optimizer step from which RL draws from it.
        pass_rates: samples that say how hard prompts are: `@zero/rollouts`, `@data/samples`, a
            file, a folder or a Hub id; see `trl_r1.data.difficulty`.
        pass_rate_column: the reward, score or rate in them; found where it is None.
        min_pass_rate: lowest pass rate of a row, 0 to 1; with a limit, rows without one are left
            out.
        max_pass_rate: highest pass rate of a row.
        order: how RL goes through the rows: at random, or by pass rate.
    """

    dataset_name: str | None = None
    task: str | None = None
    split: str = "train"
    num_rows: int | None = None
    seed: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None
    from_step: int = 0
    pass_rates: str | None = None
    pass_rate_column: str | None = None
    min_pass_rate: float | None = None
    max_pass_rate: float | None = None
    order: Literal["random", "easiest_first", "hardest_first"] = "random"


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


def load_task(name: str, folder: Path | None = None) -> Task:
    """The task of that name, or of that YAML file.

    Args:
        name: a name in `TASKS`, the name of a task whose file was read, or a path.
        folder: where a relative path starts; the working directory by default.

    Raises:
        ValueError: for an unknown name, with the known ones, and a file that declares no task.
    """
    task = find_task(name, folder)
    if task is None:
        raise ValueError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    return task


def find_task(name: str | None, folder: Path | None = None) -> Task | None:
    """The task of that name or YAML file; None where no task has the name.

    Raises:
        ValueError: a file that can't be read, or declares no task.
    """
    if name is None:
        return None
    if is_task_file(name):
        from trl_r1.tasks.task_file import read_task_file

        path = Path(name).expanduser()
        task = read_task_file(folder / path if folder and (folder / path).exists() else path)
        _from_files[task.name] = task
        return task
    if name not in TASKS:
        return _from_files.get(name)
    module, _, attribute = TASKS[name].partition(":")
    found: Task = getattr(importlib.import_module(module), attribute or "TASK")
    return found


def is_task_file(name: str | None) -> bool:
    """Whether a source's `task` is a file."""
    return name is not None and name.endswith((".yaml", ".yml"))


def is_task_name(name: str) -> bool:
    """Whether a name given for data is a task's, or its YAML file, and no file of rows.

    Raises:
        ValueError: a YAML file that declares no task.
    """
    if is_task_file(name):
        return find_task(name) is not None
    return not Path(name).expanduser().exists() and find_task(name) is not None


def load_rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """The rows of a source, through its task where it names one, within its pass rates.

    Args:
        source: where from, and how many.
        fmt: response format of reasoning prompts and targets.

    Raises:
        ValueError: for an unknown task, a source that can't be read, or no row within the pass
            rates.
    """
    rows = load_task(source.task).rows(source, fmt) if source.task else read_source(source)
    if source.pass_rates is not None:
        rows = _within_pass_rates(rows, source)
    elif source.order != "random" or (source.min_pass_rate, source.max_pass_rate) != (None, None):
        raise ValueError("min_pass_rate, max_pass_rate and order need pass_rates: samples to judge")
    if source.num_rows is not None and source.num_rows < len(rows):
        rows = rows.shuffle(seed=source.seed).select(range(source.num_rows))
        if source.order != "random":
            rows = rows.sort("pass_rate", reverse=source.order == "easiest_first")
    return rows


def _within_pass_rates(rows: Dataset, source: DatasetSource) -> Dataset:
    from trl_r1.data.difficulty import filter_by_pass_rate, pass_rates

    samples = read_source(DatasetSource(dataset_name=source.pass_rates))
    try:
        rates = pass_rates(samples, source.pass_rate_column)
    except ValueError as error:
        raise ValueError(f"pass_rates: {source.pass_rates}: {error}") from error
    return filter_by_pass_rate(
        rows, rates, source.min_pass_rate, source.max_pass_rate, source.order
    )
