"""Rewards as checks of samples: what is called, and what its scores depend on.

Left out: the verdicts, which are `judging`'s.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.sampling.grading import Reward, needed_columns, told_of_prefill
from trl_r1.sampling.judging import Check
from trl_r1.stages import RewardSpec
from trl_r1.training.arguments import GradingArguments


def check_of(reward: Reward | RewardSpec, fmt: ReasoningFormat, grading: GradingArguments) -> Check:
    """A reward as a check of samples, with what its scores depend on and the columns it needs.

    Args:
        reward: a TRL reward, or a recipe's entry.
        fmt: response format of reasoning rows.
        grading: where and within what limits a recipe's reward runs.
    """
    from trl_r1.verification.loading import load_reward
    from trl_r1.verification.stage_rewards import build_stage_reward

    if isinstance(reward, RewardSpec):
        function = build_stage_reward(reward, grading, fmt)
        loaded = load_reward(reward.use)
        record = {**asdict(reward), "file": _own_file(loaded)}
        needs = needed_columns(loaded, reward.args)
        return Check(function.__name__, function, reward.tasks, reward.weight > 0, record, needs)
    name = getattr(reward, "__name__", type(reward).__name__)
    return Check(name, reward, record={"file": _own_file(reward)}, needs=needed_columns(reward))


def _own_file(function: Reward) -> str | None:
    """The hash of the file that a reward of the user's own is in; None for one of this package."""
    if str(getattr(function, "__module__", "")).startswith("trl_r1."):
        return None
    try:
        source = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # an object that can be called
        source = inspect.getsourcefile(type(function))
    return sha256(Path(source).read_bytes()).hexdigest()[:16] if source else None


def language_reward(fmt: ReasoningFormat) -> Reward:
    """The reward that is 1.0 for reasoning in one language."""
    from trl_r1.verification.loading import load_reward

    return told_of_prefill(load_reward("language_consistency"), fmt.is_prefilled)
