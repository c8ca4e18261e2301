"""Estimates from several samples a problem, with intervals that take a problem as a cluster.

Samples of one problem are alike, so 30 problems with 64 samples each are far from 1,920
independent trials: only problems are drawn independently. Left out: Bayesian models of problems,
and intervals for pass@k with k > 1 beyond the mean over problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

# Before any data: a prior guess of the correlation of a problem's samples, and how many problems'
# worth of variance it counts. They keep the interval open where all problems agree. These and the
# count below were chosen by simulation (`scripts/bench_intervals.py`).
_PRIOR_CORRELATION = 0.8
_PRIOR_WEIGHT = 0.25
# Up to so many (effective) successes or failures Wilson's near end is too far in.
_MOST_THAT_ARE_RARE = 3.2


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        value: the figure.
        low, high: ends of the interval; None where one problem says nothing of others.
        num_problems: clusters it is from.
        num_samples: samples it is from.
    """

    value: float
    low: float | None
    high: float | None
    num_problems: int
    num_samples: int


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that at least one of `k` samples is right, without bias from `num_samples` drawn.

    1 - C(n - c, k) / C(n, k) (Chen et al., arXiv 2107.03374, section 2.1).

    Raises:
        ValueError: for counts that can't be, or `k` over `num_samples`.
    """
    if not 0 <= num_right <= num_samples:
        raise ValueError(f"{num_right} right of {num_samples} samples can't be")
    if not 1 <= k <= num_samples:
        raise ValueError(f"k is {k}; with {num_samples} samples it is 1 to {num_samples}")
    # Integers of any size: no product of rounded factors.
    missed = math.comb(num_samples - num_right, k) / math.comb(num_samples, k)
    return 1.0 - missed


def rate_estimate(clusters: Sequence[Sequence[float]], confidence: float = 0.95) -> Estimate:
    """A share (pass@1, format, ...) with Wilson's interval at the effective sample size.

    The value is the mean over all samples. The effective size is the number of independent trials
    that would have the variance seen between problems. Where few are right or few are wrong the
    near end is the one-sided one of a Poisson count, if that is further out (Brown, Cai and
    DasGupta, Interval Estimation for a Binomial Proportion, 2001, section 4.1.1).

    Args:
        clusters: of each problem the values of its samples, each 0 to 1.
        confidence: of the interval.

    Raises:
        ValueError: for no samples, a problem without any, or a value outside of 0 to 1.
    """
    means, sizes = _cluster_means(clusters)
    if any(not 0 <= value <= 1 for values in clusters for value in values):
        raise ValueError("a rate is of values from 0 to 1")
    total = sum(sizes)
    weights = [size / total for size in sizes]
    rate = _mean(clusters, total)
    low, high = _rate_interval(means, weights, rate, total, confidence)
    return Estimate(rate, low, high, len(means), total)


def mean_estimate(clusters: Sequence[Sequence[float]], confidence: float = 0.95) -> Estimate:
    """A mean (length, ...) with the t interval of cluster-robust variance, problems minus one
    degrees of freedom.

    Args:
        clusters: of each problem the values of its samples.
        confidence: of the interval.

    Raises:
        ValueError: for no samples, or a problem without any.
    """
    means, sizes = _cluster_means(clusters)
    total = sum(sizes)
    weights = [size / total for size in sizes]
    mean = _mean(clusters, total)
    if len(means) == 1:
        return Estimate(mean, None, None, 1, total)
    half = _t(confidence, len(means) - 1) * math.sqrt(_variance(means, weights, mean))
    return Estimate(mean, mean - half, mean + half, len(means), total)


def paired_difference(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    confidence: float = 0.95,
) -> Estimate:
    """How much higher the second model's rate is than the first's on the same problems.

    The mean over problems of the difference of their rates, each problem alike. It is what was
    gained less what was lost, and its interval is made of the intervals of those two rates and
    their correlation (MOVER: Zou and Donner, Statistics in Medicine 27, 2008, equation 7), so that
    it stays open where no problem differs.

    Args:
        first, second: of each problem the values of its samples, each 0 to 1, in the same order.
        confidence: of the interval.

    Raises:
        ValueError: for other numbers of problems, no problems, one without samples, or a value
            outside of 0 to 1.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} problems can't be paired with {len(second)}")
    (ones, sizes), (others, other_sizes) = _cluster_means(first), _cluster_means(second)
    if any(not 0 <= value <= 1 for values in (*first, *second) for value in values):
        raise ValueError("a rate is of values from 0 to 1")
    differences = [b - a for a, b in zip(ones, others, strict=True)]
    number, total = len(differences), sum(sizes) + sum(other_sizes)
    mean = math.fsum(differences) / number
    if number == 1:
        return Estimate(mean, None, None, 1, total)
    gains, losses = [max(d, 0.0) for d in differences], [max(-d, 0.0) for d in differences]
    samples = max(total // 2, number)
    (gain, gain_below, gain_above), (loss, loss_below, loss_above) = (
        _distances(part, samples, confidence) for part in (gains, losses)
    )
    together = _correlation(gains, gain, losses, loss)
    below = _combined(gain_below, loss_above, together)
    above = _combined(gain_above, loss_below, together)
    return Estimate(mean, max(mean - below, -1.0), min(mean + above, 1.0), number, total)


def _distances(
    values: Sequence[float], num_samples: int, confidence: float
) -> tuple[float, float, float]:
    """The mean of problems' rates, and how far the ends of its interval are below and above it."""
    number = len(values)
    mean = math.fsum(values) / number
    low, high = _rate_interval(values, [1 / number] * number, mean, num_samples, confidence)
    return mean, mean - low, high - mean


def _correlation(
    ones: Sequence[float], mean: float, others: Sequence[float], other_mean: float
) -> float:
    """0 where one of them does not vary."""
    products = math.fsum((a - mean) * (b - other_mean) for a, b in zip(ones, others, strict=True))
    squares = math.fsum((a - mean) ** 2 for a in ones)
    other_squares = math.fsum((b - other_mean) ** 2 for b in others)
    size = math.sqrt(squares * other_squares)
    return products / size if size > 0 else 0.0


def _combined(one: float, other: float, correlation: float) -> float:
    """The half-width of a difference from those of its parts."""
    return math.sqrt(max(one * one + other * other - 2 * correlation * one * other, 0.0))


def _rate_interval(
    means: Sequence[float],
    weights: Sequence[float],
    rate: float,
    total: int,
    confidence: float,
) -> tuple[float, float]:
    size = _effective_size(means, weights, rate, total)
    z = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2)
    centre = (rate + z * z / (2 * size)) / (1 + z * z / size)
    spread = rate * (1 - rate) / size + z * z / (4 * size * size)
    half = z / (1 + z * z / size) * math.sqrt(spread)
    low = min(centre - half, _rare_end(rate * size, confidence) / size)
    high = max(centre + half, 1 - _rare_end((1 - rate) * size, confidence) / size)
    # The ends belong to it where all samples agree, whatever rounding says.
    return (0.0 if rate == 0 else max(low, 0.0)), (1.0 if rate == 1 else min(high, 1.0))


def _rare_end(count: float, confidence: float) -> float:
    """The one-sided lower end of a Poisson count; infinite, so of no effect, where it is large."""
    if not 0 < count <= _MOST_THAT_ARE_RARE:
        return math.inf
    from scipy.special import gammaincinv

    return float(gammaincinv(count, 1 - confidence))


def _cluster_means(clusters: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    if not clusters:
        raise ValueError("there are no problems to estimate from")
    sizes = [len(values) for values in clusters]
    if 0 in sizes:
        raise ValueError(f"problem {sizes.index(0)} has no samples")
    means = [math.fsum(values) / len(values) for values in clusters]
    if not all(math.isfinite(mean) for mean in means):
        raise ValueError("a value is not a finite number")
    return means, sizes


def _mean(clusters: Sequence[Sequence[float]], total: int) -> float:
    return math.fsum(value for values in clusters for value in values) / total


def _variance(means: Sequence[float], weights: Sequence[float], mean: float) -> float:
    """Of the weighted mean of problems, from how they differ; unbiased where weights are equal."""
    number = len(means)
    squares = ((w * (value - mean)) ** 2 for w, value in zip(weights, means, strict=True))
    return math.fsum(squares) * number / (number - 1)


def _effective_size(
    means: Sequence[float], weights: Sequence[float], rate: float, total: int
) -> float:
    if len(means) == 1:
        return 1.0
    number = 1 / math.fsum(w * w for w in weights)  # problems, were all of one size
    prior = _prior_variance(total / number, _PRIOR_CORRELATION)
    seen = _variance(means, weights, rate) * number * number
    of_a_problem = (seen + _PRIOR_WEIGHT * prior) / (number * rate * (1 - rate) + _PRIOR_WEIGHT)
    return min(max(number / of_a_problem, 1.0), float(total))


def _prior_variance(num_samples: float, correlation: float) -> float:
    """Of a problem's mean, as a share of one sample's variance."""
    return (1 + (num_samples - 1) * correlation) / num_samples


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it is between 0 and 1, as 0.95")
    return confidence


def _t(confidence: float, degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + _checked(confidence) / 2))
