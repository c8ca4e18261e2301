"""GSM8K: grade-school word problems of two to eight steps (Cobbe et al., 2021), with people's
solutions.

The source is `openai/gsm8k` on the Hub, a folder with `train.jsonl` and `test.jsonl`, or one file.
Rows carry the human steps as a `completion`, so they serve RL, evaluation and SFT alike.
"""

from __future__ import annotations

import re
from typing import Any

from trl_r1.tasks.columns import ColumnTask

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


def _prepared(row: dict[str, Any], split: str) -> dict[str, Any]:
    steps, answer = split_solution(row["answer"])
    return {**row, "steps": steps, "answer": answer}


TASK = ColumnTask(
    name="gsm8k",
    source="openai/gsm8k:main",
    prompt="{question}",
    reasoning="{steps}",
    prepare=_prepared,
    needs=("question", "answer"),
).task()
