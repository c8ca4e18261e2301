"""Rewards start when completions exist, and TRL gets the results as if it had called them."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from grpo_cases import SGD, SMALL, TINY, Case, made_up_reward, make_trainer, weights_of
from trl import GRPOTrainer

from trl_r1.stages.grpo import R1GRPOTrainer
from trl_r1.stages.grpo.overlapped_grading import COMPLETION_IDS, COMPLETIONS


class Deferred:
    """A reward with a `submit` that notes what happens to it in `events`."""

    def __init__(self, events: list[str], error: str = "") -> None:
        self.__name__ = "deferred"
        self.events, self.error, self.given = events, error, {}
        self.verdicts: list[str] = []

    def __call__(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return self.submit(completions, **kwargs).result()

    def submit(self, completions: list[Any], **kwargs: Any) -> Deferred:
        self.events.append("submit")
        self.given = {"completions": completions, **kwargs}
        self.verdicts = ["ok"] * len(completions)
        return self

    def result(self) -> list[float]:
        self.events.append("result")
        if self.error:
            raise RuntimeError(self.error)
        self.given["log_metric"]("seen", float(len(self.given["completions"])))
        return made_up_reward(**self.given)

    def cancel(self) -> None:
        self.events.append("cancel")


def case(rewards: Any, **settings: Any) -> Case:
    return replace(Case({**SGD, "max_steps": 2, **settings}, SMALL, TINY), rewards=rewards)


def test_rewards_start_before_the_reference_pass_and_end_after_it() -> None:
    events: list[str] = []
    trainer = make_trainer(R1GRPOTrainer, case(Deferred(events), max_steps=1, beta=0.04))
    score = trainer.ref_model.forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        events.append("reference")
        return score(*args, **kwargs)

    trainer.ref_model.forward = noted
    trainer.train()
    assert events[0] == "submit"
    assert events[-1] == "result"
    assert set(events[1:-1]) == {"reference"}


def test_it_is_given_what_trl_gives_and_trains_the_same() -> None:
    updates, given, logs = [], [], []
    for trainer_class in (GRPOTrainer, R1GRPOTrainer):
        reward = Deferred([])
        trainer = make_trainer(trainer_class, case([made_up_reward, reward], beta=0.04))
        before = weights_of(trainer)
        trainer.train()
        updates.append(weights_of(trainer) - before)
        given.append(reward.given)
        logs.append(trainer.state.log_history[0])
    theirs, ours = given
    assert theirs.keys() == ours.keys()
    for name in ("prompts", "completions", "completion_ids", "dead"):
        assert theirs[name] == ours[name]
    assert isinstance(ours["trainer_state"], type(theirs["trainer_state"]))
    assert (updates[0] - updates[1]).norm() < 1e-4 * updates[0].norm()
    for name in ("rewards/deferred/mean", "rewards/made_up_reward/mean", "seen", "reward"):
        assert logs[0][name] == pytest.approx(logs[1][name])


def test_a_reward_without_submit_runs_when_trl_runs_it() -> None:
    events: list[str] = []

    def plain(completions: list[Any], **_: Any) -> list[float]:
        events.append("plain")
        return [0.0] * len(completions)

    make_trainer(R1GRPOTrainer, case([plain, Deferred(events)], max_steps=1)).train()
    assert events == ["submit", "plain", "result"]


def test_rewards_that_were_started_are_cancelled_when_a_pass_fails() -> None:
    events: list[str] = []
    trainer = make_trainer(R1GRPOTrainer, case(Deferred(events), beta=0.04))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    trainer.ref_model.forward = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert events == ["submit", "cancel"]
    assert trainer._started is None
    assert [reward.__name__ for reward in trainer.reward_funcs] == ["deferred"]


def test_an_error_of_a_reward_reaches_the_user() -> None:
    trainer = make_trainer(R1GRPOTrainer, case(Deferred([], error="a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        trainer.train()


def test_other_completions_than_those_started_with_are_graded_anew() -> None:
    events: list[str] = []
    trainer = make_trainer(R1GRPOTrainer, case(Deferred(events)))
    rows = [{"prompt": "w4", "dead": False}] * 8
    prompts = ["w4"] * 8
    given = (rows, prompts, ["w5", "w6"] * 4, [[5], [6]] * 4)
    trainer._rows_to_grade = rows
    trainer._generate(prompts)
    rewards = trainer._calculate_rewards(*given)
    assert events == ["submit", "cancel", "submit", "result"]
    assert torch.equal(rewards[:, 0], torch.tensor([0.0, 0.25] * 4))


def test_completions_are_where_trl_returns_them() -> None:
    *_, returned = inspect.getsource(GRPOTrainer._generate).strip().splitlines()
    names = [name.strip() for name in returned.strip().removeprefix("return").split(",")]
    assert names[COMPLETIONS] == "completions"
    assert names[COMPLETION_IDS] == "completion_ids"
