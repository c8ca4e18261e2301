"""The rewards of a stage as functions to call, run where its grading settings say.

Rewards go to the worker processes of the pool, unless there are to be none or a reward asks to stay
(it holds a model on the training device, or has processes of its own). Left out: which rewards
there are; the recipe says that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.stages import RewardSpec
from trl_r1.training.arguments import GradingArguments
from trl_r1.verification.loading import build_reward
from trl_r1.verification.pooled_reward import pooled
from trl_r1.verification.ranks import WholeGroups, needs_of
from trl_r1.verification.threaded_reward import ThreadedReward


def build_stage_reward(
    spec: RewardSpec, grading: GradingArguments, fmt: ReasoningFormat | None = None
) -> Callable[..., Any]:
    """A reward of a recipe as a TRL reward function.

    Args:
        spec: the recipe's entry.
        grading: where and within what limits it runs.
        fmt: response format of the stage, see `build_reward`.

    Raises:
        RewardReferenceError: it can't be loaded, or does not take its arguments.
    """
    reward = build_reward(spec, fmt=fmt)
    if getattr(reward.function, "runs_in_thread", False):
        return ThreadedReward(reward)
    stays = grading.reward_workers == 0 or getattr(reward.function, "runs_in_trainer", False)
    if stays:
        return reward if needs_of(reward.function) == "rows" else WholeGroups(reward)
    return pooled(
        reward,
        num_workers=grading.reward_workers,
        timeout=spec.timeout or grading.reward_timeout,
        memory_mb=grading.reward_memory_mb,
        on_kill=grading.on_reward_kill,
        on_error=grading.on_reward_error,
    )
