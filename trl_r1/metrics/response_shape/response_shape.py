"""What responses look like, right or wrong: length, truncation, format, language; for
`evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from trl_r1.metrics.estimates import Estimate, mean_estimate, rate_estimate

_DESCRIPTION = """\
Mean length and share truncated of responses, the share that is well-formed and the share of the
reasoning's words in the wanted language, each with a 95% interval that takes a problem's samples
as a cluster.
"""
_INPUTS = """\
Args:
    predictions: of each problem the list of its samples' texts.
    num_tokens: of each problem the list of their lengths in tokens.
    is_truncated: of each problem the list of whether they were cut off.
    reasoning_format: what is well-formed, as `zero` or `r1`; "r1" by default.
    language: wanted, as "en"; None for no such share. "en" by default.
Returns:
    {"mean_length", "truncated", "format", "language"}, each with a "..._interval": [low, high];
    an end is None where a single problem says nothing of others.
Raises:
    ValueError: for an unknown format or language, no problems, or lists of other lengths.
"""
_CITATION = "DeepSeek-AI, DeepSeek-R1, arXiv:2501.12948, 2025."


class ResponseShape(evaluate.Metric):
    """The metric."""

    def _info(self) -> Any:
        kinds = {"predictions": "string", "num_tokens": "int64", "is_truncated": "bool"}
        features = {name: datasets.Sequence(datasets.Value(kind)) for name, kind in kinds.items()}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(features),
        )

    def _compute(
        self,
        predictions: Sequence[Sequence[str]],
        num_tokens: Sequence[Sequence[int]],
        is_truncated: Sequence[Sequence[bool]],
        reasoning_format: str = "r1",
        language: str | None = "en",
    ) -> dict[str, Any]:
        from trl_r1.reasoning_format import get_format
        from trl_r1.rewards.language_consistency import language_share, reasoning_text

        sizes = [[len(part) for part in lists] for lists in (predictions, num_tokens, is_truncated)]
        if not sizes[0] == sizes[1] == sizes[2]:
            raise ValueError("each sample needs a text, a length and whether it was truncated")
        fmt = get_format(reasoning_format)
        formed = [[float(fmt.parse(text).is_well_formed) for text in part] for part in predictions]
        results = {
            **_told("mean_length", mean_estimate(num_tokens)),
            **_told("truncated", rate_estimate(is_truncated)),
            **_told("format", rate_estimate(formed)),
        }
        if language is not None:
            shares = [
                [language_share(reasoning_text(text, fmt.is_prefilled), language) for text in part]
                for part in predictions
            ]
            results.update(_told("language", rate_estimate(shares)))
        return results


def _told(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: estimate.value, f"{name}_interval": [estimate.low, estimate.high]}
