"""pass@k without bias (Chen et al., arXiv 2107.03374) as a metric of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from trl_r1.metrics.estimates import pass_at_k, rate_estimate

_DESCRIPTION = """\
pass@k: the chance that at least one of k samples of a problem is right, averaged over problems,
with a 95% interval over problems. Unbiased: 1 - C(n - c, k) / C(n, k) of n samples with c right.
"""
_INPUTS = """\
Args:
    predictions: of each problem the list of its samples' scores; 1.0 is right, all else wrong.
    k: a list of k, each at most the number of samples; [1] by default.
Returns:
    {"pass@K": float, "pass@K_interval": [low, high], ...}; no interval for a single problem.
Raises:
    ValueError: for a k over the number of samples, or a problem without samples.
"""
_CITATION = "Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374, 2021."


class PassAtK(evaluate.Metric):
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
        self, predictions: Sequence[Sequence[float | None]], k: Sequence[int] = (1,)
    ) -> dict[str, Any]:
        results: dict[str, Any] = {}
        counts = [(len(scores), sum(s == 1.0 for s in scores)) for scores in predictions]
        for size in k:
            rates = [[pass_at_k(drawn, right, size)] for drawn, right in counts]
            estimate = rate_estimate(rates)
            results[f"pass@{size}"] = estimate.value
            if len(rates) > 1:
                results[f"pass@{size}_interval"] = [estimate.low, estimate.high]
        return results
