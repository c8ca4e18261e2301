"""Repetition reward: 0 for a response that never repeats itself, falling to -1 for one that loops.

The share of a response's token n-grams that it has said before, times a penalty, after
"Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373, appendix C.2). R1 itself does
without. TRL has the formula; this file gives it the form of a plain reward function with arguments,
and TRL is imported when it is called. It stands alone: it imports neither a sibling nor `trl_r1`.

Ordinary text repeats short n-grams, the more the longer it is: with `ngram_size` 3 every long
response is punished, and the reward becomes one for brevity. With 40, the default, only loops are.

Left out: repetition across the responses of a group, and near repetition in other words.
"""

from __future__ import annotations

from typing import Any


def repetition_reward(
    completion_ids: list[list[int]],
    ngram_size: int = 40,
    max_penalty: float = -1.0,
    **kwargs: Any,
) -> list[float]:
    """Punish repeated n-grams of tokens: (1 - different / all n-grams) * `max_penalty`.

    Args:
        completion_ids: B lists of token ids.
        ngram_size: tokens of an n-gram; a shorter response gets 0.0.
        max_penalty: reward that one which repeats a single n-gram comes close to.

    Returns:
        B rewards in `max_penalty`..0.

    Raises:
        ValueError: where `ngram_size` is below 1 or `max_penalty` above 0.
    """
    if ngram_size < 1 or max_penalty > 0:
        raise ValueError(
            f"ngram_size is {ngram_size} and max_penalty {max_penalty}; use an ngram_size of 1 or "
            "more and a max_penalty of 0 or less"
        )
    from trl.rewards import get_repetition_penalty_reward

    penalty = get_repetition_penalty_reward(ngram_size, max_penalty)
    return [float(reward) for reward in penalty(completion_ids=completion_ids)]
