"""How hard prompts are: the share of right answers that some model gave to each.

Read from samples that exist already: a `samples/` or `rollouts/` folder, or any data set with a
prompt and a reward or score a row, or with a rate. Prompts are told apart by what they ask, so the
rates of one response format hold for another. Left out: drawing samples, and estimating rates from
the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trl_r1.data.card import DataLog
from trl_r1.data.ngrams import Array
from trl_r1.data.texts import problem_texts, question_of, text_columns

if TYPE_CHECKING:
    from datasets import Dataset

Order = Literal["random", "easiest_first", "hardest_first"]

# Columns that say whether an answer is right, in the order of preference. `reward` is last, since a
# run's may be a sum of several.
_SCORE_COLUMNS = ("is_correct", "correct", "score", "reward")
# Columns that hold a rate already; in samples they may stem from an earlier model.
_RATE_COLUMNS = ("pass_rate", "solve_rate", "llama8b_solve_rate")
# Rewards that say whether an answer is right; each grades the rows of some tasks and is None in the
# others'.
_GRADERS = ("math_answer", "choice", "code_tests", "gym", "instruction")
_REWARD = "reward_"
_BATCH = 10_000


@dataclass(frozen=True)
class PassRates:
    """Pass rates by question.

    Attributes:
        rates: share of right answers, 0 to 1, by what is asked.
        num_samples: graded answers that each rests on; 0 where the source has rates alone.
        columns: where they were read.
    """

    rates: dict[str, float]
    num_samples: dict[str, int]
    columns: tuple[str, ...]

    def of(self, rows: Dataset) -> Array:
        """The rate of each row's question; nan where there is none."""
        values = [self.rates.get(question, np.nan) for question in questions_of(rows)]
        return np.array(values, dtype=float)


def questions_of(rows: Dataset) -> Iterator[str]:
    """What each row asks, in one line."""
    texts = text_columns(rows.column_names)
    names = texts.names[:1]
    for batch in rows.select_columns(names).iter(_BATCH):
        if texts.problem:
            yield from (question_of(value) for value in batch[names[0]])
        else:
            for value in batch[names[0]]:
                asked = problem_texts({names[0]: value}, texts)
                yield " ".join(asked[0].split()) if asked else ""


def pass_rates(samples: Dataset, column: str | None = None, min_score: float = 1.0) -> PassRates:
    """The pass rate of each question.

    Args:
        samples: one row a sample, or one a question with a rate.
        column: reward, score or rate; by default the rewards that say whether an answer is right,
            or a rate.
        min_score: from which a sample counts as right; None is not graded and does not count.

    Raises:
        ValueError: no such column, or no way to tell which, or nothing graded.
    """
    names = (column,) if column else _columns(samples)
    if names[0] not in samples.column_names:
        raise ValueError(f"no column {names[0]!r}; there is {', '.join(samples.column_names)}")
    is_rate = names[0] in _RATE_COLUMNS
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for question, given in zip(questions_of(samples), _scores(samples, names), strict=True):
        scores = [_number(score, names) for score in given if score is not None]
        if not scores:
            continue
        # Rewards are stored in single precision.
        value = scores[0] if is_rate else float(min(scores) >= min_score - 1e-6)
        sums[question] = sums.get(question, 0.0) + value
        counts[question] = counts.get(question, 0) + 1
    if not sums:
        raise ValueError(f"{', '.join(names)}: no value in any of {len(samples)} rows")
    rates = {question: total / counts[question] for question, total in sums.items()}
    return PassRates(rates, dict.fromkeys(counts, 0) if is_rate else counts, names)


def _number(score: Any, names: tuple[str, ...]) -> float:
    if not isinstance(score, (bool, int, float)):
        raise ValueError(f"{', '.join(names)}: {str(score)[:40]!r} is no score")
    return float(score)


def _scores(samples: Dataset, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    for batch in samples.select_columns(list(names)).iter(_BATCH):
        yield from zip(*(batch[name] for name in names), strict=True)


def _columns(samples: Dataset) -> tuple[str, ...]:
    there = samples.column_names
    rewards = [name for name in there if name.startswith(_REWARD)]
    graders = tuple(
        name for name in rewards if name.removeprefix(_REWARD).removesuffix("_reward") in _GRADERS
    )
    if graders:
        return graders
    if len(rewards) == 1:
        return (rewards[0],)
    for name in () if rewards else (*_SCORE_COLUMNS, *_RATE_COLUMNS):
        if name in there:
            return (name,)
    raise ValueError(
        "can't tell which column says whether an answer is right; name one of "
        f"{', '.join(rewards or there)}"
    )


def filter_by_pass_rate(
    rows: Dataset,
    rates: PassRates,
    min_pass_rate: float | None = None,
    max_pass_rate: float | None = None,
    order: Order = "random",
    log: DataLog | None = None,
) -> Dataset:
    """The rows within a range of pass rates, with the column `pass_rate`.

    Args:
        rows: problems.
        rates: of any model.
        min_pass_rate: lowest, included; 0 to 1.
        max_pass_rate: highest, included. With either limit a row whose rate is not known goes.
        order: `easiest_first` and `hardest_first` sort the rows, unknown ones last; `random` leaves
            them as they are.
        log: gets a record of the step.

    Raises:
        ValueError: no row is left.
    """
    log = log or DataLog()
    settings = {
        "min": min_pass_rate,
        "max": max_pass_rate,
        "order": order,
        "columns": list(rates.columns),
    }
    with log.step("pass rate", len(rows), settings) as record:
        values = rates.of(rows)
        is_kept = np.ones(len(rows), dtype=bool)
        if min_pass_rate is not None:
            is_kept &= values >= min_pass_rate
        if max_pass_rate is not None:
            is_kept &= values <= max_pass_rate
        indices = np.flatnonzero(is_kept)
        if not len(indices):
            raise ValueError(
                f"no row has a pass rate between {min_pass_rate} and {max_pass_rate}; "
                f"{int(np.isnan(values).sum())} of {len(rows)} are not known"
            )
        if order != "random":
            sign = -1.0 if order == "easiest_first" else 1.0
            # nan sorts last either way.
            indices = indices[np.argsort(sign * values[indices], kind="stable")]
        record.rows_after = len(indices)
        unknown = int(np.isnan(values).sum())
        record.text = (
            f"kept pass rates from {min_pass_rate or 0:g} to "
            f"{1 if max_pass_rate is None else max_pass_rate:g} by {', '.join(rates.columns)}; "
            f"{unknown:,} were not known"
        )
        kept = rows.select(indices)
        if "pass_rate" in kept.column_names:
            kept = kept.remove_columns("pass_rate")
        known = [None if np.isnan(value) else float(value) for value in values[indices]]
        result: Dataset = kept.add_column("pass_rate", known, feature=_float())
    return result


def buckets(values: Array, edges: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)) -> dict[str, int]:
    """How many pass rates fall where: never right, between the edges, always right, not known."""
    counts = {"0 (never)": int((values <= 0).sum())}
    for low, high in itertools.pairwise(edges):
        inside = (values > low) & ((values < high) if high >= 1 else (values <= high))
        counts[f"{low:g} to {high:g}"] = int(inside.sum())
    counts["1 (always)"] = int((values >= 1).sum())
    counts["not known"] = int(np.isnan(values).sum())
    return counts


def _float() -> Any:
    from datasets import Value

    return Value("float64")
