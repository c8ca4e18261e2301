"""Overlong reward: 0 for a response of reasonable length, falling to -1 at the length limit.

The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), which R1 itself does without:
it keeps a policy from running into the limit, where the reward of a cut-off response is noise. TRL
has the formula; this file only gives it the form of a plain reward function with arguments, and
TRL is imported when it is called. It stands alone: it imports neither a sibling nor `trl_r1`.
"""

from __future__ import annotations

from typing import Any


def overlong_reward(
    completion_ids: list[list[int]], max_length: int, soft_length: int, **kwargs: Any
) -> list[float]:
    """Punish long responses: 0.0 up to `max_length - soft_length` tokens, then falling in a
    straight line to -1.0 at `max_length` (DAPO, equation 13).

    Args:
        completion_ids: B lists of token ids.
        max_length: limit of a completion in tokens, usually the trainer's `max_completion_length`.
        soft_length: tokens before the limit over which the punishment grows.

    Returns:
        B rewards in -1..0.

    Raises:
        ValueError: where the lengths are not `0 <= soft_length <= max_length`.
    """
    if not 0 <= soft_length <= max_length:
        raise ValueError(
            f"soft_length is {soft_length} and max_length {max_length}; "
            "use 0 <= soft_length <= max_length"
        )
    from trl.rewards import get_soft_overlong_punishment

    punishment = get_soft_overlong_punishment(max_length, soft_length)
    return [float(reward) for reward in punishment(completion_ids=completion_ids)]


# What a recipe has to give, since no data set has it.
overlong_reward.settings = ("max_length", "soft_length")  # type: ignore[attr-defined]
