"""Which of a prompt's accepted samples are kept, where there are more than are wanted."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from trl_r1.sampling import derive_seed

Policy = Literal["first", "shortest", "longest", "random", "diverse", "best_reward"]

_WORD = re.compile(r"\w+")
_DIVERSE_NGRAM = 3


def rank_samples(
    policy: Policy,
    targets: Sequence[str],
    scores: Sequence[Mapping[str, float | None]],
    prompt: str,
    seed: int = 0,
    best_by: str | None = None,
) -> list[int]:
    """Accepted samples of a prompt, those to keep first.

    Args:
        policy: `first` in the order drawn; `shortest` and `longest` by characters; `random`;
            `diverse`, each the one least like those before it; `best_reward`, by `best_by`.
        targets: their texts, in the order drawn.
        scores: what the rewards said of them.
        prompt: the prompt, and
        seed: of the policy `random`.
        best_by: reward that `best_reward` goes by; None for the sum of all.

    Returns:
        Indices into `targets`.
    """
    order = list(range(len(targets)))
    if policy == "random":
        return random.Random(derive_seed(seed, prompt)).sample(order, len(order))
    if policy == "diverse":
        return _most_different_first(targets)
    if policy == "best_reward":
        return sorted(order, key=lambda i: -_merit(scores[i], best_by))
    if policy == "first":
        return order
    sign = 1 if policy == "shortest" else -1
    return sorted(order, key=lambda i: sign * len(targets[i]))


def _merit(scores: Mapping[str, float | None], best_by: str | None) -> float:
    if best_by is not None:
        score = scores[best_by]
        return float("-inf") if score is None else score
    return sum(score or 0.0 for score in scores.values())


def _most_different_first(targets: Sequence[str]) -> list[int]:
    """The first, then again and again the one whose nearest neighbour among the chosen is farthest,
    by the Jaccard distance of their three-word runs."""
    runs = [_runs(text) for text in targets]
    chosen: list[int] = []
    nearest = [1.0] * len(targets)
    left = list(range(len(targets)))
    while left:
        best = max(left, key=lambda i: (nearest[i], -i))
        left.remove(best)
        chosen.append(best)
        for i in left:
            nearest[i] = min(nearest[i], _distance(runs[i], runs[best]))
    return chosen


def _runs(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    n = min(_DIVERSE_NGRAM, len(words))
    return frozenset(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _distance(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    union = len(a | b)
    return 1.0 - len(a & b) / union if union else 0.0
