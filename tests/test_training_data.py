"""Mixtures have the shares asked for; RL draws each source from its step on, in a fixed order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from trl_r1.reasoning_format import get_format
from trl_r1.tasks import DatasetSource
from trl_r1.training.data import RolloutPlan, load_mixture, schedule_prompts

FMT = get_format("zero_bare")


@pytest.fixture
def make_source(tmp_path: Path) -> Any:
    def make(name: str, num_rows: int, **settings: Any) -> DatasetSource:
        rows: list[dict[str, Any]] = [
            {"prompt": [{"role": "user", "content": f"{name} {i}"}], "task": name, "index": i}
            for i in range(num_rows)
        ]
        if name == "sums":
            rows = [{**row, "solution": str(i)} for i, row in enumerate(rows)]
        Dataset.from_list(rows).to_parquet(tmp_path / f"{name}.parquet")
        return DatasetSource(dataset_name=str(tmp_path / f"{name}.parquet"), **settings)

    return make


def counts(rows: Dataset) -> dict[str, int]:
    return dict(Counter(rows["task"]))


def test_sources_without_shares_give_all_their_rows(make_source: Any) -> None:
    mixture = load_mixture([make_source("sums", 30), make_source("talk", 10)], FMT, seed=0)
    assert counts(mixture) == {"sums": 30, "talk": 10}
    # A column that only one source has is None in the other's rows.
    assert {row["solution"] is None for row in mixture if row["task"] == "talk"} == {True}


def test_shares_of_all_sources_give_the_largest_mixture_without_repeats(make_source: Any) -> None:
    sources = [make_source("sums", 300, share=0.75), make_source("talk", 50, share=0.25)]
    mixture = load_mixture(sources, FMT, seed=0)
    assert counts(mixture) == {"sums": 150, "talk": 50}
    assert len({(r["task"], r["index"]) for r in mixture}) == 200


def test_a_share_beside_a_free_source_is_a_share_of_the_whole(make_source: Any) -> None:
    sources = [make_source("sums", 60), make_source("talk", 10, share=0.25)]
    assert counts(load_mixture(sources, FMT, seed=0)) == {"sums": 60, "talk": 20}


def test_a_mixture_is_shuffled_by_its_seed(make_source: Any) -> None:
    source = make_source("sums", 50)
    first, again, other = (load_mixture([source], FMT, seed)["index"] for seed in (0, 0, 1))
    assert list(first) == list(again)
    assert list(first) != list(other)
    assert sorted(first) == list(range(50))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.5, 0.4), "add up to 0.9, not to 1"),
        ((1.0, None), "add up to 1, which leaves nothing"),
        ((1.5, None), "share 1.5 is not between 0 and 1"),
    ],
)
def test_shares_that_do_not_add_up_are_an_error(
    make_source: Any, shares: tuple[float, float | None], message: str
) -> None:
    sources = [
        make_source(name, 8, share=share)
        for name, share in zip(("sums", "talk"), shares, strict=True)
    ]
    with pytest.raises(ValueError, match=message):
        load_mixture(sources, FMT, seed=0)


def plan(tmp_path: Path, **settings: Any) -> RolloutPlan:
    args = GRPOConfig(output_dir=str(tmp_path), bf16=False, report_to="none", **settings)
    return RolloutPlan.from_args(args)


def test_general_prompts_appear_only_from_their_step(make_source: Any, tmp_path: Path) -> None:
    sources = [make_source("sums", 40, share=0.75), make_source("talk", 9, share=0.25, from_step=3)]
    steps = plan(tmp_path, per_device_train_batch_size=16, num_generations=2)  # 8 prompts a step
    rows, max_steps = schedule_prompts(sources, FMT, 0, steps, max_steps=7)
    assert max_steps == 7
    assert len(rows) == 7 * 8
    by_step = [counts(rows.select(range(8 * i, 8 * i + 8))) for i in range(7)]
    assert by_step[:3] == [{"sums": 8}] * 3
    assert by_step[3:] == [{"sums": 6, "talk": 2}] * 4


def test_a_source_without_a_share_gets_what_is_left(make_source: Any, tmp_path: Path) -> None:
    sources = [make_source("sums", 40), make_source("talk", 9, share=0.25, from_step=1)]
    steps = plan(tmp_path, per_device_train_batch_size=16, num_generations=2)  # 8 prompts a step
    rows, _ = schedule_prompts(sources, FMT, 0, steps, max_steps=3)
    by_step = [counts(rows.select(range(8 * i, 8 * i + 8))) for i in range(3)]
    assert by_step == [{"sums": 8}, {"sums": 6, "talk": 2}, {"sums": 6, "talk": 2}]


def test_uneven_shares_hold_over_time(make_source: Any, tmp_path: Path) -> None:
    sources = [make_source("sums", 40, share=0.9), make_source("talk", 9, share=0.1)]
    steps = plan(tmp_path, per_device_train_batch_size=8, num_generations=2)  # 4 prompts a step
    rows, _ = schedule_prompts(sources, FMT, 0, steps, max_steps=50)
    assert counts(rows) == {"sums": 180, "talk": 20}


def test_a_source_is_gone_through_before_it_repeats(make_source: Any, tmp_path: Path) -> None:
    steps = plan(tmp_path, per_device_train_batch_size=8, num_generations=2)
    rows, _ = schedule_prompts([make_source("sums", 12)], FMT, 0, steps, max_steps=6)
    assert sorted(rows["index"][:12]) == list(range(12))
    assert sorted(rows["index"][12:]) == list(range(12))
    assert list(rows["index"][:12]) != list(rows["index"][12:])


def test_without_max_steps_the_epochs_count(make_source: Any, tmp_path: Path) -> None:
    steps = plan(tmp_path, per_device_train_batch_size=8, num_generations=2)  # 4 prompts a step
    _, max_steps = schedule_prompts([make_source("sums", 40)], FMT, 0, steps, -1, num_epochs=1.6)
    assert max_steps == 16


def test_rl_that_has_nothing_to_begin_with_is_an_error(make_source: Any, tmp_path: Path) -> None:
    steps = plan(tmp_path, per_device_train_batch_size=8, num_generations=2)
    with pytest.raises(ValueError, match="no source begins at step 0"):
        schedule_prompts([make_source("sums", 4, from_step=1)], FMT, 0, steps, max_steps=2)


PLANS = {
    "one generation an update": {},
    "two generations an update": {"steps_per_generation": 1, "gradient_accumulation_steps": 2},
    "one generation for two updates": {"steps_per_generation": 2},
    "two iterations": {"num_iterations": 2},
    "all at once": {
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
    },
}


@pytest.mark.parametrize("case", list(PLANS))
def test_trl_uses_the_prompts_in_the_steps_they_are_scheduled_for(
    make_source: Any, tmp_path: Path, tiny_model_dir: Path, case: str
) -> None:
    sources = [make_source("sums", 10), make_source("talk", 10, from_step=2)]
    args = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        bf16=False,
        use_cpu=True,
        report_to="none",
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=2,
        max_steps=8,
        shuffle_dataset=False,
        save_strategy="no",
        gradient_checkpointing=False,
        **PLANS[case],
    )
    steps = RolloutPlan.from_args(args)
    rows, _ = schedule_prompts(sources, FMT, 0, steps, max_steps=8)
    seen: list[tuple[int, str]] = []

    def reward(completions: list[Any], prompts: list[Any], trainer_state: Any, **kw: Any) -> Any:
        for prompt in prompts[::2]:
            seen.append((trainer_state.global_step, prompt[0]["content"]))
        return [0.0] * len(completions)

    trainer = GRPOTrainer(str(tiny_model_dir), reward, args=args, train_dataset=rows)
    trainer.train()
    assert [text for _, text in seen] == [row["prompt"][0]["content"] for row in rows]
    first_talk = min(step for step, text in seen if text.startswith("talk"))
    assert first_talk == min(
        step for step in (steps.first_update(g) for g in range(99)) if step >= 2
    )
