"""Pass rates come from samples that are there, and choose and order prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from trl import GRPOConfig

from trl_r1.data.difficulty import buckets, filter_by_pass_rate, pass_rates
from trl_r1.reasoning_format import get_format
from trl_r1.stages.grpo.rollouts import RolloutStore
from trl_r1.tasks import DatasetSource, load_rows
from trl_r1.training.data import RolloutPlan, schedule_prompts

FMT = get_format("zero")
# Of four samples each: question and how many were right.
RIGHT = {"easy": 4, "medium": 2, "hard": 1, "never": 0}


def samples(**extra: Any) -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": FMT.prompt(text), "reward_math_answer": float(i < count), **extra}
            for text, count in RIGHT.items()
            for i in range(4)
        ]
    )


def problems(*more: str) -> Dataset:
    texts = [*RIGHT, *more]
    return Dataset.from_list([{"prompt": get_format("r1").prompt(text)} for text in texts])


def asked(rows: Dataset) -> list[str]:
    return [prompt[-1]["content"] for prompt in rows["prompt"]]


def test_rates_are_shares_of_right_samples_and_hold_for_another_format() -> None:
    rates = pass_rates(samples())
    assert rates.rates == {"easy": 1.0, "medium": 0.5, "hard": 0.25, "never": 0.0}
    assert set(rates.num_samples.values()) == {4}
    assert rates.of(problems("new"))[:4].tolist() == [1.0, 0.5, 0.25, 0.0]
    assert np.isnan(rates.of(problems("new"))[4])


def test_limits_are_included_and_unknown_rows_go() -> None:
    kept = filter_by_pass_rate(problems("new"), pass_rates(samples()), 0.25, 0.5)
    assert asked(kept) == ["medium", "hard"]
    assert kept["pass_rate"][:] == [0.5, 0.25]
    everything = filter_by_pass_rate(problems("new"), pass_rates(samples()))
    assert everything["pass_rate"][-1] is None


def test_orders_put_unknown_rows_last() -> None:
    rates = pass_rates(samples())
    rows = problems("new")
    easiest = filter_by_pass_rate(rows, rates, order="easiest_first")
    assert asked(easiest) == ["easy", "medium", "hard", "never", "new"]
    hardest = filter_by_pass_rate(rows, rates, order="hardest_first")
    assert asked(hardest) == ["never", "hard", "medium", "easy", "new"]


def test_no_row_within_the_limits_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"between 0\.9 and 0\.95; 1 of 5 are not known"):
        filter_by_pass_rate(problems("new"), pass_rates(samples()), 0.9, 0.95)


def test_the_column_is_the_reward_that_says_what_is_right() -> None:
    assert pass_rates(samples(reward_think_format=1.0)).columns == ("reward_math_answer",)
    both = samples(reward_code_tests=None)
    assert pass_rates(both).rates["medium"] == 0.5
    rated = Dataset.from_dict({"problem": ["a", "b"], "pass_rate": [0.3, None]})
    assert pass_rates(rated).rates == {"a": 0.3}
    scored = Dataset.from_dict({"problem": ["a", "a"], "reward": [0.4, 1.0]})
    assert pass_rates(scored).rates == {"a": 0.5}
    assert pass_rates(scored, min_score=0.4).rates == {"a": 1.0}
    unclear = Dataset.from_dict({"problem": ["a"], "reward_x": [1.0], "reward_y": [0.0]})
    with pytest.raises(ValueError, match=r"can't tell .* one of reward_x, reward_y"):
        pass_rates(unclear)
    assert pass_rates(unclear, "reward_x").rates == {"a": 1.0}


def test_samples_that_could_not_be_graded_do_not_count() -> None:
    rows = Dataset.from_dict({"problem": ["a", "a", "b"], "score": [1.0, None, None]})
    assert pass_rates(rows).rates == {"a": 1.0}


def test_buckets_count_each_rate_once() -> None:
    values = np.array([0.0, 0.25, 0.5, 0.9, 1.0, np.nan])
    counts = buckets(values)
    assert sum(counts.values()) == 6
    assert counts == {
        "0 (never)": 1, "0 to 0.25": 1, "0.25 to 0.5": 1, "0.5 to 0.75": 0, "0.75 to 1": 1,
        "1 (always)": 1, "not known": 1,
    }  # fmt: skip


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    """What a GRPO stage leaves."""
    rows = Dataset.from_list(
        [{"prompt": FMT.prompt(text), "pass_rate": 0.9} for text in RIGHT for _ in range(4)]
    )
    store = RolloutStore(tmp_path / "rollouts", ["math_answer", "think_format"], rows.features)
    rewards = [[float(i < count), 1.0] for count in RIGHT.values() for i in range(4)]
    store.write(0, 0, list(rows), ["x"] * 16, [[1]] * 16, {1}, rewards, [1.0] * 16, [0.0] * 16)
    return tmp_path / "rollouts"


@pytest.fixture
def source(tmp_path: Path, rollouts: Path) -> dict[str, Any]:
    path = tmp_path / "gsm8k.jsonl"
    lines = [json.dumps({"question": text, "answer": "1\n#### 1"}) for text in RIGHT]
    path.write_text("\n".join(lines), encoding="utf-8")
    return {"dataset_name": str(path), "task": "gsm8k", "pass_rates": str(rollouts)}


def test_a_source_is_filtered_by_the_rollouts_of_an_earlier_run(source: dict[str, Any]) -> None:
    rows = load_rows(DatasetSource(**source, min_pass_rate=0.1, max_pass_rate=0.9), FMT)
    assert asked(rows) == ["medium", "hard"]
    few = load_rows(DatasetSource(**source, order="easiest_first", num_rows=3), FMT)
    rates = few["pass_rate"][:]
    assert len(rates) == 3
    assert rates == sorted(rates, reverse=True)
    with pytest.raises(ValueError, match="need pass_rates"):
        load_rows(DatasetSource(task="gsm8k", dataset_name=source["dataset_name"],
                                min_pass_rate=0.1), FMT)  # fmt: skip


def test_rl_goes_from_easy_to_hard_again_and_again(source: dict[str, Any], tmp_path: Path) -> None:
    args = GRPOConfig(
        output_dir=str(tmp_path), bf16=False, report_to="none", per_device_train_batch_size=2,
        num_generations=2,
    )  # fmt: skip
    ordered = DatasetSource(**source, order="easiest_first")
    rows, _ = schedule_prompts([ordered], FMT, 0, RolloutPlan.from_args(args), max_steps=6)
    assert asked(rows) == ["easy", "medium", "hard", "never", "easy", "medium"]
