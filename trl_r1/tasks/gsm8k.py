"""GSM8K: grade-school word problems of two to eight steps (Cobbe et al., 2021), with people's
solutions.

The source is `openai/gsm8k` on the Hub, a folder with `train.jsonl` and `test.jsonl`, or one file.
Rows carry the human steps as a `completion`, so they serve RL, evaluation and SFT alike.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.tasks import DatasetSource, Task, read_source

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

HUB_ID, _HUB_CONFIG = "openai/gsm8k", "main"
_ANSWER_MARK = "####"
# `48/2 = <<48/2=24>>24`: the calculator's part is no part of what the person wrote.
_CALCULATOR = re.compile(r"<<[^>]*>>")


def split_solution(text: str) -> tuple[str, str]:
    """The steps and the answer of a GSM8K `answer`, without calculator marks and commas.

    Raises:
        ValueError: where there is no final answer after `####`.
    """
    steps, _, answer = _CALCULATOR.sub("", text).rpartition(_ANSWER_MARK)
    answer = answer.strip().replace(",", "")
    if not steps.strip() or not answer:
        raise ValueError(f"no answer after {_ANSWER_MARK} in {text[-80:]!r}")
    return steps.strip(), answer


def to_row(row: dict[str, Any], fmt: ReasoningFormat) -> dict[str, Any]:
    """A row of the source with the task's columns."""
    steps, answer = split_solution(row["answer"])
    final = answer if fmt.profile == "answer_tags" else f"\\boxed{{{answer}}}"
    return {
        "prompt": fmt.prompt(row["question"]),
        "completion": [{"role": "assistant", "content": fmt.render(steps, final)}],
        "solution": answer,
        "task": "gsm8k",
        "language": "en",
    }


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """The rows of a split.

    Raises:
        ValueError: where the source can't be read, or is not GSM8K.
    """
    from datasets import Dataset

    table = _read(source)
    if missing := {"question", "answer"} - set(table.column_names):
        raise ValueError(
            f"gsm8k: {source.dataset_name or HUB_ID} has no column {', '.join(sorted(missing))}; "
            f"it has {', '.join(table.column_names)}"
        )
    made = []
    for index, row in enumerate(table):
        try:
            made.append(to_row(row, fmt))
        except ValueError as error:
            name = source.dataset_name or HUB_ID
            raise ValueError(f"gsm8k: row {index} of {name}, {source.split}: {error}") from error
    return Dataset.from_list(made)


def _read(source: DatasetSource) -> Dataset:
    name = source.dataset_name or HUB_ID
    path = Path(name).expanduser()
    if path.is_dir():
        file = path / f"{source.split}.jsonl"
        if file.is_file():
            return read_source(replace(source, dataset_name=str(file)))
    if path.exists() or name != HUB_ID:
        return read_source(source, HUB_ID)
    from datasets import load_dataset

    try:
        return load_dataset(HUB_ID, _HUB_CONFIG, split=source.split)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"gsm8k: {HUB_ID} can't be loaded ({type(error).__name__}: {error}); without the Hub "
            "point `dataset_name` (or `sources: {gsm8k: ...}` in pipeline.yaml) at a folder that "
            "holds train.jsonl and test.jsonl"
        ) from error


TASK = Task(
    name="gsm8k",
    kind="reasoning",
    rows=rows,
    default_source=HUB_ID,
    columns=("prompt", "completion", "solution", "task", "language"),
)
