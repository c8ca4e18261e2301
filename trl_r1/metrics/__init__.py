"""What an evaluation's samples say of a model: pass@k, rates with intervals, votes, differences.

The functions (`estimates`, `votes`) take plain numbers and texts and import no torch. Each folder
here is a metric of Hugging Face `evaluate` on top of them, which loads offline:

    metric = evaluate.load(metric_path("pass_at_k"))
    metric.compute(predictions=[[1, 0, 0, 1], [0, 0, 0, 0]], k=[1, 2])

A row of every metric is a problem with the list of its samples. Left out: drawing and grading
samples, which is `trl_r1.evaluation`'s.
"""

from __future__ import annotations

from pathlib import Path

METRICS = ("majority_vote", "mean_accuracy", "paired_difference", "pass_at_k", "response_shape")


def metric_path(name: str) -> str:
    """The folder that `evaluate.load` takes for a metric of this package.

    Raises:
        ValueError: for an unknown name, with the known ones.
    """
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
    return str(Path(__file__).parent / name)
