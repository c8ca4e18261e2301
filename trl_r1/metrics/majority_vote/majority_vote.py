"""Accuracy of the majority vote over a problem's samples (cons@n) as a metric of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from trl_r1.metrics.estimates import rate_estimate
from trl_r1.metrics.votes import Kind, majority_vote

_DESCRIPTION = """\
Share of problems whose most frequent answer is right (self-consistency). Answers that mean the same
vote together; a tie counts by the share of its answers that are right; no answer is no vote.
"""
_INPUTS = """\
Args:
    predictions: of each problem the list of its samples' answers, None or "" for none.
    references: of each problem the right answer.
    kind: "math" (1/2 and 0.5 are one answer), "choice" or "text"; "math" by default.
Returns:
    {"accuracy": float, "interval": [low, high], "answers": [[...], ...]}; `answers` are those with
    the most votes of each problem.
Raises:
    ValueError: for an unknown kind, or no problems.
"""
_CITATION = "Wang et al., Self-Consistency Improves Chain of Thought Reasoning, arXiv:2203.11171."


class MajorityVote(evaluate.Metric):
    """The metric."""

    def _info(self) -> Any:
        text = datasets.Value("string")
        features = {"predictions": datasets.Sequence(text), "references": text}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(features),
        )

    def _compute(
        self,
        predictions: Sequence[Sequence[str | None]],
        references: Sequence[str],
        kind: Kind = "math",
    ) -> dict[str, Any]:
        pairs = zip(predictions, references, strict=True)
        votes = [majority_vote(answers, kind, gold) for answers, gold in pairs]
        estimate = rate_estimate([[vote.score or 0.0] for vote in votes])
        return {
            "accuracy": estimate.value,
            "interval": [estimate.low, estimate.high],
            "answers": [list(vote.answers) for vote in votes],
        }
