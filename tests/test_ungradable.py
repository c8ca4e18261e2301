"""Rows that can't be graded are found when data is loaded, for every reward that can tell."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from conftest import stage_context
from datasets import Dataset

from trl_r1.rewards.code_tests import code_tests_reward
from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.stages import RewardSpec, grpo
from trl_r1.verification.loading import build_reward
from trl_r1.verification.pool import RewardPool
from trl_r1.verification.pooled_reward import pooled
from trl_r1.verification.ungradable import (
    in_words,
    ungradable_rows,
    warn_of_ungradable_rows,
)

GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "train.jsonl"
ROWS = [
    {"prompt": "?", "task": "math", "solution": "4", "tests": None},
    {"prompt": "?", "task": "math", "solution": "", "tests": None},
    {"prompt": "?", "task": "code", "solution": "", "tests": ["assert f(1) == 2"]},
    {"prompt": "?", "task": "code", "solution": "", "tests": ["assert ) =="]},
    {"prompt": "?", "task": "code", "solution": "", "tests": []},
    {"prompt": "?", "task": "math", "solution": r"\boxed{5", "tests": None},
]


def _bound(use: str, task: str) -> Any:
    return build_reward(RewardSpec(use=use, tasks=(task,)))


def test_rows_are_named_by_the_reward_that_applies_to_them() -> None:
    rewards = [_bound("math_answer", "math"), _bound("code_tests", "code")]
    faults = ungradable_rows(rewards, Dataset.from_list(ROWS))
    assert [(fault.row, fault.reward) for fault in faults] == [
        (1, "math_answer_reward"),
        (3, "code_tests_reward"),
        (4, "code_tests_reward"),
        (5, "math_answer_reward"),
    ]
    assert str(faults[0]) == "row 1 is not gradable because it is empty"
    assert "tests are not understood: SyntaxError" in faults[1].reason
    assert faults[2].reason == "not gradable because it has no tests"


def test_functions_and_pooled_rewards_are_asked_too_and_unknown_ones_left_alone() -> None:
    def mine(completions: list[str], **kwargs: Any) -> list[float]:
        raise AssertionError("not to be called")

    assert len(ungradable_rows([mine, math_answer_reward], ROWS)) == 5
    assert ungradable_rows([code_tests_reward], ROWS[2:3]) == []
    with RewardPool(num_workers=1) as pool:
        assert len(ungradable_rows([pooled("math_answer", pool=pool)], ROWS)) == 5


def test_a_warning_counts_them_and_names_the_first(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"solution": str(n) if n % 10 else ""} for n in range(100)]
    with caplog.at_level(logging.WARNING):
        faults = warn_of_ungradable_rows([math_answer_reward], rows)
    assert len(faults) == 10
    assert "10 of 100 rows (10.0%) can't be graded by reward 'math_answer_reward'" in caplog.text
    assert "row 0 is not gradable because it is empty" in caplog.text
    assert "and 5 more; mend these rows or leave them out" in caplog.text
    assert in_words(faults[:1], 100).startswith("1 of 100 rows (1.0%)")


def test_nothing_is_said_where_all_can_be_graded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert warn_of_ungradable_rows([math_answer_reward], ROWS[:1]) == []
    assert caplog.text == ""


def test_every_gold_answer_of_gsm8k_can_be_graded() -> None:
    if not GSM8K.exists():
        pytest.skip("shared/data/gsm8k is not beside the repository")
    lines = GSM8K.read_text(encoding="utf-8").splitlines()
    rows = [{"solution": json.loads(line)["answer"]} for line in lines]
    assert ungradable_rows([math_answer_reward], Dataset.from_list(rows)) == []


def test_a_stage_says_how_many_of_its_prompts_cannot_be_graded(
    tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"prompt": f"{n}+1=?", "solution": str(n + 1) if n % 2 else ""} for n in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    context = stage_context(
        tmp_path / "out",
        grpo,
        tiny_model_dir,
        [{"dataset_name": str(file)}],
        {},
        (RewardSpec("math_answer"),),
        per_device_train_batch_size=8,
        num_generations=2,
        max_completion_length=4,
        max_steps=1,
    )
    with caplog.at_level(logging.WARNING):
        details = grpo.run(context).details
    assert (details["prompts"], details["ungradable"]) == (4, 2)
    assert "2 of 4 rows (50.0%) can't be graded by reward 'math_answer_reward'" in caplog.text
