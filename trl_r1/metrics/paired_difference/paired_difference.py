"""Difference of two models on the same problems, with its interval, as a metric of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from trl_r1.metrics.estimates import paired_difference

_DESCRIPTION = """\
How much more often one model is right than another on the same problems: the mean over problems of
the difference of their rates, with an interval from those of what was gained and what was lost.
"""
_INPUTS = """\
Args:
    predictions: of each problem the list of the one model's scores; 1.0 is right, all else wrong.
    references: the same of the other model, the problems in the same order.
    confidence: of the interval; 0.95 by default.
Returns:
    {"difference": float, "interval": [low, high], "problems": int}; positive where `predictions`
    are better. The ends are None for a single problem.
Raises:
    ValueError: for no problems, or one without samples.
"""
_CITATION = """\
Miller, Adding Error Bars to Evals, arXiv:2411.00640, 2024 (section 4.2); Zou and Donner,
Construction of Confidence Limits about Effect Measures, Statistics in Medicine 27, 2008.
"""


class PairedDifference(evaluate.Metric):
    """The metric."""

    def _info(self) -> Any:
        scores = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": scores, "references": scores}),
        )

    def _compute(
        self,
        predictions: Sequence[Sequence[float | None]],
        references: Sequence[Sequence[float | None]],
        confidence: float = 0.95,
    ) -> dict[str, Any]:
        second, first = (
            [[float(score == 1.0) for score in scores] for scores in model]
            for model in (predictions, references)
        )
        estimate = paired_difference(first, second, confidence)
        return {
            "difference": estimate.value,
            "interval": [estimate.low, estimate.high],
            "problems": estimate.num_problems,
        }
