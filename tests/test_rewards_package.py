"""The package of rewards: what it exports, TRL's rewards among it, and how recipes name those."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trl.rewards

import trl_r1.rewards as rewards
from trl_r1.pipeline.check_rewards import reward_faults
from trl_r1.stages import RewardSpec
from trl_r1.verification.loading import build_reward, builtin_rewards, load_reward
from trl_r1.verification.trl_rewards import SUMMARIES

COMPLETIONS = [r"\boxed{\frac{1}{3}}", r"\boxed{2}"]
GOLD = r"\boxed{\frac{1}{3}}"


def test_every_reward_is_exported_by_name() -> None:
    own = {f"{name}_reward" for name in builtin_rewards()}
    assert {name for name in rewards.__all__ if name.startswith("get_")} == {
        "get_repetition_penalty_reward",
        "get_soft_overlong_punishment",
    }
    assert {name for name in rewards.__all__ if not name.startswith("get_")} == own
    for name in rewards.__all__:
        assert callable(getattr(rewards, name))
        assert name in (rewards.__doc__ or "")
        assert name in dir(rewards)
    assert rewards.get_soft_overlong_punishment is trl.rewards.get_soft_overlong_punishment
    with pytest.raises(AttributeError, match="no attribute 'accuracy_reward'"):
        _ = rewards.accuracy_reward


def test_importing_the_rewards_imports_neither_torch_nor_trl() -> None:
    names = ", ".join(f"{name}_reward" for name in builtin_rewards())
    code = f"import sys; from trl_r1.rewards import {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "trl", "transformers", "reasoning_gym"} & set(done.stdout.split())


def test_every_reward_of_trl_is_listed() -> None:
    shipped = {name for name in dir(trl.rewards) if name.endswith(("_reward", "_punishment"))}
    assert set(SUMMARIES) == shipped
    assert all(name in (rewards.__doc__ or "") for name in shipped)


@pytest.mark.parametrize("form", ["plain text", "messages"])
def test_a_reward_of_trl_is_a_reward_by_its_reference(form: str) -> None:
    completions = [
        text if form == "plain text" else [{"role": "assistant", "content": text}]
        for text in COMPLETIONS
    ]
    accuracy = load_reward("trl.rewards:accuracy_reward")
    assert accuracy(prompts=["?"] * 2, completions=completions, solution=[GOLD] * 2) == [1.0, 0.0]
    assert load_reward("trl.rewards:think_format_reward")(completions=[None, ""]) == [0.0, 0.0]


def test_what_makes_a_reward_in_trl_takes_its_settings_from_args() -> None:
    ids = [[1] * 90, [1] * 10]
    spec = RewardSpec(
        use="trl.rewards:get_soft_overlong_punishment",
        args={"max_completion_len": 100, "soft_punish_cache": 20},
    )
    reward = build_reward(spec)
    assert reward.__name__ == "soft_overlong_punishment"
    assert reward(COMPLETIONS, completion_ids=ids, prompts=["?"] * 2) == [-0.5, 0.0]
    spec = RewardSpec(use="trl.rewards:get_cosine_scaled_reward", args={"max_len": 100})
    scaled = build_reward(spec)(COMPLETIONS, completion_ids=[[1] * 50] * 2, solution=[GOLD] * 2)
    assert scaled == [0.75, -0.75]


def test_mistakes_in_a_reference_to_trl_are_clear() -> None:
    with pytest.raises(ValueError, match="did you mean 'accuracy_reward'"):
        load_reward("trl.rewards:acuracy_reward")
    spec = RewardSpec(use="trl.rewards:get_cosine_scaled_reward", args={"max_length": 100})
    with pytest.raises(ValueError, match="it needs max_len in its args"):
        build_reward(RewardSpec(use="trl.rewards:get_cosine_scaled_reward"))
    with pytest.raises(ValueError, match="no argument 'max_length'; did you mean 'max_len'"):
        build_reward(spec)


GOOD = [
    RewardSpec("choice", args={"options": ["yes", "no"]}),
    RewardSpec("instruction", args={"require": ["no_comma", {"kind": "num_words", "max": 9}]}),
    RewardSpec("reasoning_gym", args={"score": "partial"}),
    RewardSpec("repetition", args={"ngram_size": 20, "max_penalty": -0.5}),
    RewardSpec("length_within_group", args={"grader": None}),
    RewardSpec("length_within_group", args={"grader": "choice", "only_right": True}),
    RewardSpec("code_tests", args={"score": "share", "limits": {"wall_seconds": 3.0}}),
    RewardSpec("language_consistency", args={"language": "de"}),
]
BAD = [
    (
        RewardSpec("choice", args={"option": ["yes"]}),
        "no argument 'option'; did you mean 'options'",
    ),
    (RewardSpec("choice", args={"options": ["x"] * 27}), "at most 26 texts"),
    (RewardSpec("instruction", args={"require": ["num_word"]}), "did you mean 'num_words'"),
    (RewardSpec("instruction", args={"require": ["num_words"]}), "it needs min, max or exactly"),
    (RewardSpec("instruction", args={"score": "most"}), "score"),
    (RewardSpec("reasoning_gym", args={"score": "most"}), "score"),
    (RewardSpec("repetition", args={"ngram_size": 0}), "use an ngram_size of 1 or more"),
    (RewardSpec("repetition", args={"ngram_size": "x"}), "ngram_size"),
    (RewardSpec("length_within_group", args={"grader": "math_anser"}), "mean 'math_answer'"),
    (RewardSpec("code_tests", args={"limits": {"wall": 3}}), "unknown limit 'wall'"),
    (RewardSpec("code_tests", args={"backend": "docker"}), "unknown code backend 'docker'"),
    (RewardSpec("overlong", args={"max_length": 9}), "it needs soft_length in its args"),
    (RewardSpec("language_consistency", args={"language": "klingon"}), "unknown language"),
    (
        RewardSpec("preference_model", args={"model": "@stage", "scope": "all"}),
        "unknown scope 'all'",
    ),
]


class _Recipe:
    """The part of a stage's recipe that the check of rewards reads."""

    def __init__(self, reward: RewardSpec) -> None:
        self.rewards = (reward,)
        self.values: dict[str, object] = {}


def _faults(reward: RewardSpec, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("trl_r1.pipeline.check_rewards.format_of", lambda recipe: None)
    return list(reward_faults(_Recipe(reward), Path.cwd()))  # type: ignore[arg-type]


@pytest.mark.parametrize("reward", GOOD, ids=lambda spec: spec.use)
def test_good_arguments_pass_the_check(reward: RewardSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _faults(reward, monkeypatch) == []


@pytest.mark.parametrize(("reward", "message"), BAD)
def test_bad_arguments_are_one_clear_fault_before_a_run(
    reward: RewardSpec, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = _faults(reward, monkeypatch)
    assert len(faults) == 1
    assert faults[0].startswith("rewards[0]")
    assert message in faults[0]
