"""Metrics are right on numbers worked out by hand, on random data against other ways to compute
them, and their intervals hold what they promise."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from trl_r1.metrics import METRICS, metric_path
from trl_r1.metrics.estimates import mean_estimate, paired_difference, pass_at_k, rate_estimate
from trl_r1.metrics.votes import majority_vote


def loaded(name: str) -> Any:
    import evaluate

    return evaluate.load(metric_path(name))


def test_pass_at_k_is_right_on_hand_worked_cases() -> None:
    assert pass_at_k(4, 1, 2) == 1 - 3 / 6  # C(3,2) of C(4,2) pairs miss the right one
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_at_k(5, 2, 4) == 1.0
    assert pass_at_k(3, 0, 3) == 0.0
    assert pass_at_k(1, 1, 1) == 1.0


@pytest.mark.parametrize("k", [0, 5, -1])
def test_a_k_over_the_samples_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}; with 4 samples it is 1 to 4"):
        pass_at_k(4, 2, k)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        drawn = int(rng.integers(1, 9))
        flags = rng.random(drawn) < 0.4
        k = int(rng.integers(1, drawn + 1))
        subsets = list(itertools.combinations(flags, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at_k(drawn, int(flags.sum()), k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_of_large_counts_does_not_overflow() -> None:
    # The product that the paper's code uses.
    product = 1 - math.prod(1 - 512 / i for i in range(10_000 - 3 + 1, 10_001))
    assert pass_at_k(10_000, 3, 512) == pytest.approx(product, rel=1e-9)


def test_a_rate_is_the_mean_over_samples_and_its_interval_is_inside_zero_to_one() -> None:
    estimate = rate_estimate([[1, 0], [1, 1], [0, 0]])
    assert estimate.value == pytest.approx(0.5)
    assert (estimate.num_problems, estimate.num_samples) == (3, 6)
    for right in (0.0, 1.0):
        same = rate_estimate([[right] * 4] * 20)
        assert same.value == right
        assert same.low is not None
        assert same.high is not None
        assert 0 <= same.low <= right <= same.high <= 1
        assert 0.05 < same.high - same.low < 0.3, "agreement of all problems is no certainty"


def test_with_one_sample_a_problem_the_interval_is_about_wilson_s() -> None:
    from scipy.stats import binomtest

    flags = [[1.0]] * 30 + [[0.0]] * 70
    wilson = binomtest(30, 100).proportion_ci(method="wilson")
    estimate = rate_estimate(flags)
    assert estimate.low == pytest.approx(wilson.low, abs=2e-3)
    assert estimate.high == pytest.approx(wilson.high, abs=2e-3)


def test_copies_of_samples_add_no_certainty_and_independent_samples_do() -> None:
    flags = [[float(i % 3 == 0)] for i in range(60)]
    copied = [values * 16 for values in flags]
    one, many = rate_estimate(flags), rate_estimate(copied)
    assert many.value == pytest.approx(one.value)
    assert width(many) == pytest.approx(width(one), rel=0.03)
    mixed = [[float((i + j) % 3 == 0) for j in range(16)] for i in range(60)]
    assert width(rate_estimate(mixed)) < 0.5 * width(one)


def test_a_single_problem_says_nothing_of_others() -> None:
    estimate = rate_estimate([[1, 0, 1, 1]])
    assert width(estimate) > 0.7
    assert mean_estimate([[3.0, 5.0]]).low is None
    assert paired_difference([[1]], [[0]]).high is None


def width(estimate: Any) -> float:
    return float(estimate.high - estimate.low)


def test_the_mean_s_interval_is_the_t_interval_of_the_problems_means() -> None:
    from scipy import stats

    rng = np.random.default_rng(1)
    data = rng.lognormal(5, 1, size=(25, 8))
    means = data.mean(1)
    expected = stats.t.interval(0.95, 24, means.mean(), stats.sem(means))
    estimate = mean_estimate(data.tolist())
    assert (estimate.low, estimate.high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("clusters", "message"),
    [([], "no problems"), ([[1], []], "problem 1 has no samples"), ([[2]], "from 0 to 1")],
)
def test_what_has_no_rate_is_an_error(clusters: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rate_estimate(clusters)


def test_the_interval_of_a_difference_is_mover_s_on_random_data() -> None:
    rng = np.random.default_rng(4)
    for _ in range(40):
        one, two = (rng.integers(0, 2, size=(40, 4)).astype(float) for _ in range(2))
        change = two.mean(1) - one.mean(1)
        gains, losses = np.maximum(change, 0), np.maximum(-change, 0)
        ends = []
        for part in (gains, losses):  # Wilson's at the effective size, written out anew
            rate, prior = part.mean(), 0.25 * (1 + 3 * 0.8) / 4
            share = (40 * part.var(ddof=1) + prior) / (40 * rate * (1 - rate) + 0.25)
            size = min(max(40 / share, 1), 160)
            assert rate * size > 3.2, "no rare end"
            roots = np.roots([1 + 3.8414588 / size, -2 * rate - 3.8414588 / size, rate**2])
            ends.append((rate, min(roots), max(roots)))
        (gain, gain_low, gain_high), (loss, loss_low, loss_high) = ends
        r = np.corrcoef(gains, losses)[0, 1]
        below = (gain - gain_low, loss_high - loss)
        above = (gain_high - gain, loss - loss_low)
        low, high = (np.sqrt(a * a + b * b - 2 * r * a * b) for a, b in (below, above))
        found = paired_difference(one.tolist(), two.tolist())
        expected = (change.mean() - low, change.mean() + high)
        assert (found.low, found.high) == pytest.approx(expected, abs=1e-6)


def test_metrics_of_evaluate_agree_with_numpy_on_random_data() -> None:
    rng = np.random.default_rng(6)
    first, second = (rng.integers(0, 2, size=(20, 5)).astype(float) for _ in range(2))
    accuracy = loaded("mean_accuracy").compute(predictions=first.tolist())
    assert accuracy["accuracy"] == pytest.approx(first.mean())
    paired = loaded("paired_difference").compute(
        predictions=second.tolist(), references=first.tolist()
    )
    assert paired["difference"] == pytest.approx((second - first).mean())
    found = loaded("pass_at_k").compute(predictions=first.tolist(), k=[3])
    subsets = [max(flags) for row in first for flags in itertools.combinations(row, 3)]
    assert found["pass@3"] == pytest.approx(np.mean(subsets))
    tokens, is_cut = rng.integers(1, 99, size=(20, 5)), rng.random((20, 5)) < 0.3
    is_formed = rng.random((20, 5)) < 0.6
    shape = loaded("response_shape").compute(
        predictions=[["<think>a</think>4" if ok else "4" for ok in row] for row in is_formed],
        num_tokens=tokens.tolist(),
        is_truncated=is_cut.tolist(),
    )
    means = (tokens.mean(), is_cut.mean(), is_formed.mean())
    assert (shape["mean_length"], shape["truncated"], shape["format"]) == pytest.approx(means)


def test_swapping_the_models_or_right_and_wrong_mirrors_the_interval() -> None:
    rng = np.random.default_rng(11)
    for _ in range(30):
        one, two = (rng.integers(0, 2, size=(12, 3)).astype(float) for _ in range(2))
        found = paired_difference(one.tolist(), two.tolist())
        swapped = paired_difference(two.tolist(), one.tolist())
        flipped = paired_difference((1 - one).tolist(), (1 - two).tolist())
        for other in (swapped, flipped):
            assert (other.low, other.high) == pytest.approx((-found.high, -found.low))
        rate, wrong = rate_estimate(one.tolist()), rate_estimate((1 - one).tolist())
        assert (1 - wrong.high, 1 - wrong.low) == pytest.approx((rate.low, rate.high))


def test_not_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        paired_difference([[float("nan")]] * 2, [[1.0]] * 2)
    with pytest.raises(ValueError, match="finite"):
        mean_estimate([[float("nan")], [1.0]])


def drawn(rng: Any, problems: int, samples: int, rate: float, correlation: float) -> Any:
    """Samples of problems whose difficulties are beta distributed."""
    if samples == 1:
        return rng.binomial(1, rate, size=(problems, 1)).astype(float)
    size = (1 - correlation) / correlation
    chances = rng.beta(rate * size, (1 - rate) * size, size=problems)
    return (rng.random((problems, samples)) < chances[:, None]).astype(float)


# Problems, samples of each, rate, correlation of a problem's samples.
SETTINGS = [
    (30, 16, 0.5, 0.4),
    (30, 16, 0.2, 0.8),
    (30, 4, 0.9, 0.8),
    (30, 64, 0.8, 0.6),
    (100, 1, 0.2, 0.0),
    (100, 4, 0.05, 0.8),
    (198, 8, 0.3, 0.6),
    (500, 4, 0.95, 0.4),
    (500, 4, 0.02, 0.8),
]


@pytest.mark.parametrize(("problems", "samples", "rate", "correlation"), SETTINGS)
def test_95_percent_intervals_hold_the_rate_in_93_to_97_of_100_evaluations(
    problems: int, samples: int, rate: float, correlation: float
) -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        estimate = rate_estimate(drawn(rng, problems, samples, rate, correlation).tolist())
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= rate <= estimate.high
    assert 930 <= held <= 970


def test_intervals_hold_rare_rates_as_often_as_the_counts_allow() -> None:
    # 10 problems, one sample, rate 0.05: P(at most 1 right) is 0.914 and P(at most 2) 0.988, so no
    # interval holds it in 93 to 97%; the choice is the wider one.
    from scipy.stats import binom

    chances = binom.pmf(range(11), 10, 0.05)
    held = 0.0
    for right, chance in enumerate(chances):
        estimate = rate_estimate([[1.0]] * right + [[0.0]] * (10 - right))
        assert estimate.low is not None
        assert estimate.high is not None
        held += chance * (estimate.low <= 0.05 <= estimate.high)
    assert held == pytest.approx(0.988, abs=1e-3)


def test_the_near_end_of_one_right_is_that_of_a_poisson_count() -> None:
    estimate = rate_estimate([[1.0]] + [[0.0]] * 99)
    # -ln(0.95) of about 100; Wilson's would be 0.0018.
    assert estimate.low == pytest.approx(0.000513, rel=0.03)
    mirrored = rate_estimate([[0.0]] + [[1.0]] * 99)
    assert mirrored.high == pytest.approx(1 - estimate.low)


# Problems, samples, of the problems never solved before: share that is now, and of those that are
# solved at random the share of wrong samples made right.
GAINS = [(10, 16, 0.05, 0.0), (30, 1, 0.05, 0.0), (30, 16, 0.0, 0.1), (200, 4, 0.0, 0.1)]


@pytest.mark.parametrize(("problems", "samples", "rare", "common"), GAINS)
def test_intervals_of_a_difference_hold_it(
    problems: int, samples: int, rare: float, common: float
) -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(1000):
        shape = (problems, 1)
        chances = rng.beta(0.5, 0.5, size=shape) if common else np.zeros(shape)
        better = np.where(rng.random(shape) < rare, 1.0, 1 - (1 - chances) * (1 - common))
        one, two = (rng.random((problems, samples)) < q for q in (chances, better))
        estimate = paired_difference(one.astype(float).tolist(), two.astype(float).tolist())
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= (rare or common * 0.5) <= estimate.high
    # Too wide where problems are few: it has to hold where nothing was gained by chance.
    assert held >= 930
    assert held <= 970 or problems < 200


def test_a_difference_is_the_mean_of_the_problems_differences() -> None:
    estimate = paired_difference([[0, 0], [1, 0], [1, 1]], [[1, 0], [1, 1], [1, 1]])
    assert estimate.value == pytest.approx((0.5 + 0.5 + 0) / 3)
    same = paired_difference([[1, 0]] * 5, [[1, 0]] * 5)
    assert same.value == 0
    assert same.low is not None
    assert same.low < 0
    with pytest.raises(ValueError, match="2 problems can't be paired with 1"):
        paired_difference([[1], [1]], [[1]])


def test_answers_that_mean_the_same_vote_together() -> None:
    vote = majority_vote(["0.5", "3", r"\frac{1}{2}", "3", "1/2"], gold="1/2")
    assert (vote.answers, vote.votes, vote.score) == (("0.5",), 3, 1.0)


def test_ties_count_in_parts_and_no_answer_is_no_vote() -> None:
    tie = majority_vote(["4", "5", None, ""], gold="4")
    assert (tie.votes, tie.num_voters, tie.score) == (1, 2, 0.5)
    nothing = majority_vote([None, " "], gold="4")
    assert (nothing.answers, nothing.score) == ((), 0.0)
    assert majority_vote(["b", "B", "a"], "choice", "B").score == 1.0
    assert majority_vote(["7"], gold=None).score is None


def test_verdicts_decide_who_votes_together() -> None:
    # The grader took 3.1416 and pi as right, whatever the answers look like to each other.
    answers = ["3.1416", r"\pi", "3", "3"]
    vote = majority_vote(answers, verdicts=[True, True, False, False])
    assert (vote.votes, vote.score) == (2, 0.5)
    with pytest.raises(ValueError, match="1 verdicts for 2 answers"):
        majority_vote(["1", "2"], verdicts=[True])


def test_the_vote_agrees_with_counting_on_random_answers() -> None:
    from collections import Counter

    rng = np.random.default_rng(5)
    for _ in range(50):
        answers = [str(value) for value in rng.integers(0, 4, size=9)]
        counts = Counter(answers)
        best = {answer for answer, count in counts.items() if count == max(counts.values())}
        vote = majority_vote(answers, gold="2")
        assert set(vote.answers) == best
        assert vote.score == ("2" in best) / len(best)


def test_every_metric_loads_from_the_package_without_the_hub() -> None:
    scores = [[1.0, 0.0, None, 1.0], [0.0, 0.0, 0.0, 0.0]]
    found = loaded("pass_at_k").compute(predictions=scores, k=[1, 2])
    assert found["pass@1"] == pytest.approx(0.25)
    assert found["pass@2"] == pytest.approx((5 / 6 + 0) / 2)
    accuracy = loaded("mean_accuracy").compute(predictions=scores)
    assert accuracy["accuracy"] == pytest.approx(0.25)
    assert accuracy["samples"] == 8
    vote = loaded("majority_vote").compute(predictions=[["1/2", "0.5", None]], references=["0.5"])
    assert (vote["accuracy"], vote["answers"]) == (1.0, [["1/2"]])
    paired = loaded("paired_difference").compute(
        predictions=[[1.0], [1.0]], references=[[0.0], [1.0]]
    )
    assert paired["difference"] == pytest.approx(0.5)
    shape = loaded("response_shape").compute(
        predictions=[["<think>so it is four</think>4", "4"]],
        num_tokens=[[8, 2]],
        is_truncated=[[False, True]],
    )
    assert (shape["mean_length"], shape["truncated"], shape["format"]) == (5.0, 0.5, 0.5)
    assert len(METRICS) == 5


def test_an_unknown_metric_is_told_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown metric 'bleu'; known: majority_vote"):
        metric_path("bleu")


def test_the_functions_import_no_torch() -> None:
    program = (
        "import sys, trl_r1.metrics.estimates as e, trl_r1.metrics.votes as v;"
        "e.paired_difference([[1], [0]], [[1], [1]]); v.majority_vote(['1', '2']);"
        "assert not {'torch', 'trl', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
