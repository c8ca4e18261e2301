"""Scores of samples, over all problems and of each.

Keys of `summarise`, on reasoning problems unless said otherwise:

- `pass@1`: share of samples whose score is 1, the mean over samples (paper, evaluation setup).
- `pass@K`: unbiased, for K of 2, 4, 8, ... up to the samples a problem, or those asked for.
- `cons@N`: majority vote over the N samples, where answers are numbers, formulas or letters.
- `format`, `truncated`, `language`: shares of samples (of the reasoning's words for the last).
- `mean_length`: tokens, the end token included.
- `general`: share of general answers that are right; `preference`: their mean score by a model.
- `KEY_interval`: [low, high], 95%, problems as clusters, of each key but `preference`; left out
  where a single problem tells nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trl_r1.evaluation.problems import kind_of_answers
from trl_r1.metrics.estimates import Estimate, mean_estimate, pass_at_k, rate_estimate
from trl_r1.metrics.votes import Vote, majority_vote

# What `summarise` and `problem_rows` read of a sample.
SCORED = (
    "prompt_index",
    "problem_hash",
    "task",
    "solution",
    "is_general",
    "score",
    "is_well_formed",
    "is_truncated",
    "num_tokens",
    "preference",
    "vote",
    "language_share",
)
Row = Mapping[str, Any]


def summarise(
    rows: Iterable[Row], num_problems: int, num_samples: int, ks: Sequence[int] = ()
) -> dict[str, Any]:
    """Scores from scored samples; the module says which.

    Args:
        rows: the samples.
        num_problems: problems that were asked.
        num_samples: samples of each.
        ks: of pass@k; powers of two by default.

    Raises:
        RuntimeError: where there are not `num_samples` samples for each of the problems.
    """
    groups = _by_problem(rows, num_problems, num_samples)
    reasoning = [group for group in groups if not group[0]["is_general"]]
    general = [group for group in groups if group[0]["is_general"]]
    scores: dict[str, Any] = {}
    if reasoning:
        _reasoning_scores(scores, reasoning, num_samples, ks or _powers(num_samples))
    if general:
        _put(scores, "general", rate_estimate(_clusters(general, is_right)))
    preferences = [
        row["preference"] for group in general for row in group if row["preference"] is not None
    ]
    if preferences:
        scores["preference"] = sum(preferences) / len(preferences)
    return scores


def problem_rows(rows: Iterable[Row], num_problems: int, num_samples: int) -> list[dict[str, Any]]:
    """A row a problem, see `record`; raises like `summarise`."""
    made = []
    for group in _by_problem(rows, num_problems, num_samples):
        first = group[0]
        vote = vote_of(group)
        made.append(
            {
                "problem_index": first["prompt_index"],
                "problem_hash": first["problem_hash"],
                "task": first["task"],
                "solution": first["solution"],
                "is_general": first["is_general"],
                "num_samples": len(group),
                "num_right": sum(map(is_right, group)),
                "num_ungraded": sum(row["score"] is None for row in group),
                "pass_rate": sum(map(is_right, group)) / len(group),
                "majority_answer": vote.answers[0] if vote and vote.answers else None,
                "majority_votes": vote.votes if vote else None,
                "majority_score": vote.score if vote else None,
                "mean_length": sum(row["num_tokens"] for row in group) / len(group),
                "truncated": sum(row["is_truncated"] for row in group) / len(group),
                "format": sum(row["is_well_formed"] for row in group) / len(group),
            }
        )
    return made


def is_right(row: Row) -> bool:
    """Whether a sample counts as right; what could not be graded does not."""
    return bool(row["score"] == 1.0)


def vote_of(group: Sequence[Row]) -> Vote | None:
    """The majority vote on a problem; None where its answers are not to be voted on."""
    if kind_of_answers(group[0]["task"]) is None or group[0]["is_general"]:
        return None
    # What means the same was found beforehand, within limits (`same_answers`).
    votes = [row["vote"] for row in group]
    return majority_vote(votes, operator.eq, verdicts=[is_right(row) for row in group])


def interval_of(scores: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """The interval of a score; None where it has none."""
    found = scores.get(f"{key}_interval")
    return (float(found[0]), float(found[1])) if found else None


def _reasoning_scores(
    scores: dict[str, Any], groups: Sequence[Sequence[Row]], num_samples: int, ks: Sequence[int]
) -> None:
    _put(scores, "pass@1", rate_estimate(_clusters(groups, is_right)))
    for k in ks:
        if k > 1:
            rates = [[pass_at_k(len(g), sum(map(is_right, g)), k)] for g in groups]
            _put(scores, f"pass@{k}", rate_estimate(_merged(groups, rates)))
    votes = [vote_of(group) for group in groups] if num_samples > 1 else []
    shares = [[vote.score or 0.0] for vote in votes if vote is not None]
    if shares and len(shares) == len(groups):
        _put(scores, f"cons@{num_samples}", rate_estimate(_merged(groups, shares)))
    _put(scores, "format", rate_estimate(_clusters(groups, lambda row: row["is_well_formed"])))
    _put(scores, "mean_length", mean_estimate(_clusters(groups, lambda row: row["num_tokens"])))
    _put(scores, "truncated", rate_estimate(_clusters(groups, lambda row: row["is_truncated"])))
    told = [g for g in groups if all(row["language_share"] is not None for row in g)]
    if told:
        _put(scores, "language", rate_estimate(_clusters(told, lambda row: row["language_share"])))


def _by_problem(rows: Iterable[Row], num_problems: int, num_samples: int) -> list[list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["prompt_index"], []).append(row)
    drawn = sum(len(group) for group in groups.values())
    uneven = any(len(group) != num_samples for group in groups.values())
    if drawn != num_problems * num_samples or uneven:
        raise RuntimeError(
            f"{drawn} samples were drawn for {num_problems} problems; expected {num_samples} each"
        )
    return [groups[index] for index in sorted(groups)]


def _clusters(groups: Sequence[Sequence[Row]], value: Callable[[Row], float]) -> list[list[float]]:
    return _merged(groups, [[float(value(row)) for row in group] for group in groups])


def _merged(
    groups: Sequence[Sequence[Row]], values: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Values of each problem; one that is there several times is one cluster."""
    clusters: dict[str, list[float]] = {}
    for group, part in zip(groups, values, strict=True):
        clusters.setdefault(group[0]["problem_hash"], []).extend(part)
    return list(clusters.values())


def _put(scores: dict[str, Any], key: str, estimate: Estimate) -> None:
    scores[key] = estimate.value
    if estimate.low is not None and estimate.high is not None:
        scores[f"{key}_interval"] = [estimate.low, estimate.high]


def _powers(num_samples: int) -> list[int]:
    return [2**i for i in range(1, num_samples.bit_length()) if 2**i <= num_samples]
