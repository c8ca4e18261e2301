"""pass@1 as the mean over samples, with an interval over problems, as a metric of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from trl_r1.metrics.estimates import rate_estimate

_DESCRIPTION = """\
Share of samples that are right, with an interval that takes the samples of a problem as a cluster:
Wilson's, at the number of independent trials that would vary as the problems do.
"""
_INPUTS = """\
Args:
    predictions: of each problem the list of its samples' scores; 1.0 is right, all else wrong.
    confidence: of the interval; 0.95 by default.
Returns:
    {"accuracy": float, "interval": [low, high], "problems": int, "samples": int}
Raises:
    ValueError: for no problems, or a problem without samples.
"""
_CITATION = "DeepSeek-AI, DeepSeek-R1, arXiv:2501.12948, 2025 (pass@1 as the mean over samples)."


class MeanAccuracy(evaluate.Metric):
    """The metric."""

    def _info(self) -> Any:
        scores = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": scores}),
        )

    def _compute(
        self, predictions: Sequence[Sequence[float | None]], confidence: float = 0.95
    ) -> dict[str, Any]:
        rights = [[float(score == 1.0) for score in scores] for scores in predictions]
        estimate = rate_estimate(rights, confidence)
        return {
            "accuracy": estimate.value,
            "interval": [estimate.low, estimate.high],
            "problems": estimate.num_problems,
            "samples": estimate.num_samples,
        }
