"""Measure how often 95% intervals hold the truth: this package's and others, simulated.

    python scripts/bench_intervals.py [--evaluations 1000] [--only rates]

Problems are drawn from a distribution of difficulties, samples from problems; the truth is the rate
over all problems that could be drawn. A row a method: its lowest coverage over all settings, the
settings under 0.93 and over 0.97 (beyond what chance does in so many evaluations), for each number
of problems the share of settings within 0.93 to 0.97, and the mean width. `--worst` names settings.

For one sample a problem, or problems that are always or never right, the number of right problems
is binomial, and some rates have no set of counts whose probability is 0.93 to 0.97: then no
interval can. How many settings are of that kind is said at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import special, stats

from trl_r1.metrics.estimates import paired_difference, rate_estimate

NUM_PROBLEMS, NUM_SAMPLES = (10, 30, 100, 300), (1, 4, 16)
Z = float(stats.norm.ppf(0.975))
Ends = tuple[Any, Any]  # of E evaluations
Draw = Callable[[Any, tuple[int, int]], Any]


def difficulties() -> dict[str, tuple[float, Draw]]:
    """Name: the rate, and chances of problems to be solved, of the shape asked for."""
    made: dict[str, tuple[float, Draw]] = {
        "beta(.5, .5)": (0.5, lambda rng, shape: rng.beta(0.5, 0.5, shape)),
        "beta(1, 9)": (0.1, lambda rng, shape: rng.beta(1, 9, shape)),
    }
    for rate in (0.005, 0.05, 0.2, 0.5, 0.95, 0.995):
        made[f"equal {rate}"] = (rate, lambda rng, shape, r=rate: np.full(shape, r))
        made[f"0 or 1 {rate}"] = (rate, lambda rng, shape, r=rate: 1.0 * (rng.random(shape) < r))
        made[f"beta {rate}"] = (rate, lambda rng, shape, r=rate: rng.beta(r, 1 - r, shape))
    for rate in (0.0, 1.0):
        made[f"equal {rate:.0f}"] = (rate, lambda rng, shape, r=rate: np.full(shape, r))
    return made


def is_within_reach(problems: int, rate: float) -> bool:
    """Whether some range of counts out of `problems` has a probability of 0.93 to 0.97."""
    below = np.concatenate([[0], stats.binom.cdf(np.arange(problems + 1), problems, rate)])
    ranges = below[None] - below[:, None]
    return bool(((ranges >= 0.93) & (ranges <= 0.97)).any())


# Methods for a rate: E evaluations x P problems of rates, samples of each -------------------------


def ours(rates_EP: Any, samples: int) -> Ends:
    """`rate_estimate`, by the counts of right samples."""
    found = [rate_estimate(_flags(rates, samples)) for rates in rates_EP]
    return np.array([e.low for e in found]), np.array([e.high for e in found])


def _flags(rates: Any, samples: int) -> list[list[float]]:
    counts = np.rint(rates * samples).astype(int)
    return [[1.0] * right + [0.0] * (samples - right) for right in counts.tolist()]


def student(rates_EP: Any, _: int) -> Ends:
    """t over problems."""
    problems = rates_EP.shape[1]
    half = stats.t.ppf(0.975, problems - 1) * rates_EP.std(1, ddof=1) / np.sqrt(problems)
    return rates_EP.mean(1) - half, rates_EP.mean(1) + half


def effective(rates_EP: Any, samples: int) -> Ends:
    """The rate and its effective size, with this package's prior."""
    problems, rate = rates_EP.shape[1], rates_EP.mean(1)
    prior = (1 + (samples - 1) * 0.8) / samples
    share = (rates_EP.var(1, ddof=1) * problems + 0.25 * prior) / (
        problems * rate * (1 - rate) + 0.25
    )
    return rate, np.clip(problems / share, 1, problems * samples)


def wilson(rates_EP: Any, samples: int) -> Ends:
    """Wilson's at the effective size."""
    rate, size = effective(rates_EP, samples)
    centre = (rate + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * np.sqrt(rate * (1 - rate) / size + Z**2 / (4 * size**2))
    return np.where(rate == 0, 0, centre - half), np.where(rate == 1, 1, centre + half)


def jeffreys(rates_EP: Any, samples: int) -> Ends:
    """Jeffreys' at the effective size."""
    return _beta(*effective(rates_EP, samples), 0.5)


def clopper_pearson(rates_EP: Any, samples: int) -> Ends:
    """Clopper and Pearson's at the effective size (Korn and Graubard, 1998, without their t)."""
    return _beta(*effective(rates_EP, samples), 0.0)


def _beta(rate: Any, size: Any, shift: float) -> Ends:
    right, wrong = rate * size, (1 - rate) * size
    low = special.betaincinv(np.maximum(right + shift, 1e-9), wrong + 1 - shift, 0.025)
    high = special.betaincinv(right + 1 - shift, np.maximum(wrong + shift, 1e-9), 0.975)
    return np.where(rate == 0, 0, low), np.where(rate == 1, 1, high)


def logit(rates_EP: Any, samples: int) -> Ends:
    """t on the logit scale, at the effective size."""
    rate, size = effective(rates_EP, samples)
    moved = (rate * size + 0.5) / (size + 1)
    half = stats.t.ppf(0.975, rates_EP.shape[1] - 1) / np.sqrt((size + 1) * moved * (1 - moved))
    low, high = (
        special.expit(special.logit(moved) - half),
        special.expit(special.logit(moved) + half),
    )
    return np.where(rate == 0, 0, low), np.where(rate == 1, 1, high)


RATES = {
    "trl_r1": ours,
    "Wilson": wilson,
    "Jeffreys": jeffreys,
    "Clopper-Pearson": clopper_pearson,
    "logit t": logit,
    "t": student,
}


# Methods for a difference: the rates of both models -----------------------------------------------


def our_difference(ones_EP: Any, others_EP: Any, samples: int) -> Ends:
    """`paired_difference`."""
    found = [
        paired_difference(_flags(one, samples), _flags(other, samples))
        for one, other in zip(ones_EP, others_EP, strict=True)
    ]
    return np.array([e.low for e in found]), np.array([e.high for e in found])


def student_difference(ones_EP: Any, others_EP: Any, samples: int) -> Ends:
    """t over problems' differences."""
    return student(others_EP - ones_EP, samples)


def agresti_min(ones_EP: Any, others_EP: Any, _: int) -> Ends:
    """z with one problem won and one lost added (Agresti and Min, 2005; Bonett and Price, 2012)."""
    differences = others_EP - ones_EP
    problems = differences.shape[1] + 2
    mean = differences.sum(1) / problems
    variance = ((differences**2).sum(1) + 2) / problems - mean**2
    return mean - Z * np.sqrt(variance / problems), mean + Z * np.sqrt(variance / problems)


def newcombe(ones_EP: Any, others_EP: Any, samples: int) -> Ends:
    """MOVER of the models' Wilson intervals with their correlation (Newcombe, 1998)."""
    (low, high), (other_low, other_high) = wilson(ones_EP, samples), wilson(others_EP, samples)
    one, other = ones_EP.mean(1), others_EP.mean(1)
    products = ((ones_EP - one[:, None]) * (others_EP - other[:, None])).mean(1)
    size = ones_EP.std(1) * others_EP.std(1)
    together = np.where(size > 0, products / np.where(size > 0, size, 1), 0)

    def half(a: Any, b: Any) -> Any:
        return np.sqrt(np.maximum(a * a + b * b - 2 * together * a * b, 0))

    return (
        other - one - half(other - other_low, high - one),
        other - one + half(other_high - other, one - low),
    )


DIFFERENCES = {
    "trl_r1": our_difference,
    "Agresti-Min": agresti_min,
    "Newcombe": newcombe,
    "t": student_difference,
}


def changes() -> dict[str, tuple[Callable[[float], float], Callable[[Any, Any], Any]]]:
    """Name: the truth by the first model's rate, and the second model's chances."""

    def some(share: float, to: float) -> Callable[[Any, Any], Any]:
        return lambda rng, chances: np.where(rng.random(chances.shape) < share, to, chances)

    def swapped(rng: Any, chances: Any) -> Any:
        return np.where(rng.random(chances.shape) < 0.1, 1 - chances, chances)

    return {
        "none": (lambda _: 0.0, lambda _, chances: chances),
        "a tenth of the wrong": (
            lambda r: 0.1 * (1 - r),
            lambda _, chances: 1 - (1 - chances) * 0.9,
        ),
        "gains 0.02": (lambda r: 0.02 * (1 - r), some(0.02, 1.0)),
        "gains 0.05": (lambda r: 0.05 * (1 - r), some(0.05, 1.0)),
        "losses 0.05": (lambda r: -0.05 * r, some(0.05, 0.0)),
        "gains 0.5": (lambda r: 0.5 * (1 - r), some(0.5, 1.0)),
        "swaps 0.1": (lambda r: 0.1 * (1 - 2 * r), swapped),
    }


# Runs ---------------------------------------------------------------------------------------------


def rate_settings(rng: Any, evaluations: int) -> Iterator[tuple[Any, ...]]:
    """Name, problems, truth, whether 0.93 to 0.97 can be reached, arguments of a method."""
    for problems in NUM_PROBLEMS:
        for samples in NUM_SAMPLES:
            for name, (rate, draw) in difficulties().items():
                chances = draw(rng, (evaluations, problems))
                rates = rng.binomial(samples, chances) / samples
                is_binomial = samples == 1 or name.startswith("0 or 1") or rate in (0, 1)
                can = not is_binomial or is_within_reach(problems, rate)
                yield f"{problems} x {samples} {name}", problems, rate, can, (rates, samples)


def difference_settings(rng: Any, evaluations: int) -> Iterator[tuple[Any, ...]]:
    """The same of differences, of which any is taken to be within reach."""
    chosen = ("equal 0.5", "equal 0.05", "beta(.5, .5)", "0 or 1 0.5", "equal 0", "equal 1")
    for problems in NUM_PROBLEMS:
        for samples in NUM_SAMPLES:
            for name in chosen:
                rate, draw = difficulties()[name]
                for change, (truth, second) in changes().items():
                    chances = draw(rng, (evaluations, problems))
                    ones, others = (
                        rng.binomial(samples, part) / samples
                        for part in (chances, second(rng, chances))
                    )
                    label = f"{problems} x {samples} {name}, {change}"
                    yield label, problems, truth(rate), True, (ones, others, samples)


def measured(methods: Any, settings: Iterator[tuple[Any, ...]]) -> tuple[list[Any], dict[str, Any]]:
    """The settings, and of each method [coverage, width] of each of them."""
    seen: list[Any] = []
    found: dict[str, list[Any]] = {name: [] for name in methods}
    for label, problems, truth, can, arguments in settings:
        seen.append((label, problems, can))
        for name, method in methods.items():
            low, high = method(*arguments)
            held = (low <= truth + 1e-9) & (truth - 1e-9 <= high)
            found[name].append((held.mean(), (high - low).mean()))
    return seen, {name: np.array(rows) for name, rows in found.items()}


def show(methods: Any, settings: Iterator[tuple[Any, ...]], evaluations: int, worst: int) -> None:
    """Print the table."""
    seen, found = measured(methods, settings)
    numbers, can = np.array([row[1] for row in seen]), np.array([row[2] for row in seen])
    chance = 2.5 * np.sqrt(0.93 * 0.07 / evaluations)
    heads = "".join(f"{number:>7}" for number in NUM_PROBLEMS)
    sys.stdout.write(f"{'':16}{'lowest':>8}{'<0.93':>7}{'>0.97':>7}{heads}{'width':>8}\n")
    for name, rows in found.items():
        covered = rows[:, 0]
        within = (covered >= 0.93) & (covered <= 0.97)
        shares = "".join(f"{within[(numbers == n) & can].mean():7.2f}" for n in NUM_PROBLEMS)
        under, over = (covered < 0.93 - chance).sum(), (covered > 0.97 + chance * 0.67).sum()
        sys.stdout.write(
            f"{name:16}{covered.min():8.3f}{under:7}{over:7}{shares}{rows[:, 1].mean():8.3f}\n"
        )
        for i in np.argsort(covered)[:worst]:
            sys.stdout.write(f"    {covered[i]:.3f} {seen[i][0]}\n")
    sys.stdout.write(
        f"{len(seen)} settings, {(~can).sum()} of them out of reach of any interval\n\n"
    )


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--evaluations", type=int, default=1000, help="a setting; 1000")
    parser.add_argument("--only", choices=["rates", "differences"], help="both by default")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="name a method's worst N")
    parser.add_argument("--seed", type=int, default=0, help="0")
    options = parser.parse_args()
    made = {"rates": (RATES, rate_settings), "differences": (DIFFERENCES, difference_settings)}
    for name, (methods, settings) in made.items():
        if options.only in (None, name):
            rng = np.random.default_rng(options.seed)
            sys.stdout.write(f"{name}, {options.evaluations} evaluations a setting\n")
            show(methods, settings(rng, options.evaluations), options.evaluations, options.worst)


if __name__ == "__main__":
    main()
