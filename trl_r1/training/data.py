"""Rows of several sources as one data set: mixtures for SFT, schedules for RL.

Left out: streaming; a mixture is indices over memory-mapped files and takes no memory itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset, Features, concatenate_datasets

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.tasks import DatasetSource, load_rows

_Array = np.ndarray[Any, Any]

_logger = logging.getLogger(__name__)


def load_mixture(sources: Sequence[DatasetSource], fmt: ReasoningFormat, seed: int) -> Dataset:
    """The rows of all sources, mixed by their shares and shuffled.

    A source without a share gives all its rows; one with a share gives that part of the result,
    and gives rows again where it has too few. Where every source has a share, the result is the
    largest in which no row is used twice.

    Args:
        sources: at least one.
        fmt: response format of reasoning prompts and targets.
        seed: of the shuffle.

    Raises:
        ValueError: no source, no rows, or shares that don't add up.
    """
    tables = _load_all(sources, fmt)
    counts = mixture_counts([len(table) for table in tables], [s.share for s in sources])
    parts = []
    for source, table, count in zip(sources, tables, counts, strict=True):
        if count > len(table):
            name = source.dataset_name or source.task
            _logger.warning("%s has %d rows and gives %d: some twice", name, len(table), count)
        parts.append(table.select([i % len(table) for i in range(count)]))
    mixture: Dataset = concatenate_datasets(with_same_columns(parts)).shuffle(seed=seed)
    return mixture


def _load_all(sources: Sequence[DatasetSource], fmt: ReasoningFormat) -> list[Dataset]:
    if not sources:
        raise ValueError("datasets: at least one source is needed")
    tables = [split_messages(load_rows(source, fmt)) for source in sources]
    for source, table in zip(sources, tables, strict=True):
        if not len(table):
            raise ValueError(f"datasets: {source.dataset_name or source.task} has no rows")
    return tables


def split_messages(rows: Dataset) -> Dataset:
    """Rows of whole conversations (`messages`) as `prompt` and `completion`, its last turn; other
    rows as they are."""
    if "messages" not in rows.column_names or "prompt" in rows.column_names:
        return rows
    turns = rows.features["messages"]
    features = {**rows.features, "prompt": turns, "completion": turns}
    del features["messages"]
    return rows.map(
        lambda messages: {"prompt": messages[:-1], "completion": messages[-1:]},
        input_columns=["messages"],
        remove_columns=["messages"],
        features=Features(features),
        load_from_cache_file=False,
    )


def mixture_counts(
    sizes: Sequence[int], shares: Sequence[float | None], total: int | None = None
) -> list[int]:
    """Rows to take of each source.

    Args:
        sizes: rows that each has.
        shares: of the whole; None for all of its rows, or for what is left of `total` by size.
        total: rows of the mixture; None as `load_mixture` says.

    Raises:
        ValueError: shares that don't add up.
    """
    shared = _check_shares(shares)
    free = sum(size for size, share in zip(sizes, shares, strict=True) if share is None)
    if total is not None:
        parts = [
            total * (share if share is not None else (1 - shared) * size / free)
            for size, share in zip(sizes, shares, strict=True)
        ]
        return [int(count) for count in _whole_numbers(np.array(parts), total)]
    if free:
        whole = free / (1 - shared)
    else:
        whole = min(size / share for size, share in zip(sizes, shares, strict=True) if share)
    return [
        size if share is None else max(1, round(whole * share))
        for size, share in zip(sizes, shares, strict=True)
    ]


def _check_shares(shares: Sequence[float | None]) -> float:
    """The sum of the shares. Raises ValueError where they don't add up."""
    wrong = [share for share in shares if share is not None and not 0 < share <= 1]
    if wrong:
        raise ValueError(f"datasets: share {wrong[0]} is not between 0 and 1")
    shared = sum(share for share in shares if share is not None)
    if None not in shares:
        if not math.isclose(shared, 1.0, abs_tol=1e-6):
            raise ValueError(f"datasets: the shares add up to {shared:g}, not to 1")
    elif shared >= 1:
        raise ValueError(
            f"datasets: the shares add up to {shared:g}, which leaves nothing to the sources "
            "without a share; lower them, or give every source a share"
        )
    return shared


def with_same_columns(tables: Sequence[Dataset]) -> list[Dataset]:
    """The tables with every column of any of them, None where a table lacks it."""
    features: dict[str, Any] = {}
    for table in tables:
        for name, feature in table.features.items():
            features.setdefault(name, feature)
    result = []
    for table in tables:
        for name in features.keys() - set(table.column_names):
            table = table.add_column(name, [None] * len(table), feature=features[name])
        result.append(table.select_columns(list(features)))
    return result


@dataclass(frozen=True)
class RolloutPlan:
    """How RL turns rows into optimizer steps; TRL's counting, in one place.

    Attributes:
        prompts_per_generation: distinct prompts of one batch of completions, over all processes.
        micro_steps_per_generation: micro-batches that are trained on with it.
        micro_steps_per_update: micro-batches of one optimizer step.
    """

    prompts_per_generation: int
    micro_steps_per_generation: int
    micro_steps_per_update: int

    @classmethod
    def from_args(cls, args: object) -> RolloutPlan:
        """The plan of a `GRPOConfig`."""
        batch, group = vars(args)["generation_batch_size"], vars(args)["num_generations"]
        per_generation = vars(args)["steps_per_generation"] * vars(args)["num_iterations"]
        return cls(batch // group, per_generation, vars(args)["gradient_accumulation_steps"])

    def first_update(self, generation: int) -> int:
        """The optimizer step (from 0) in which a batch of completions is generated."""
        return generation * self.micro_steps_per_generation // self.micro_steps_per_update

    def num_generations(self, max_steps: int) -> int:
        """Batches of completions that `max_steps` optimizer steps need."""
        return math.ceil(max_steps * self.micro_steps_per_update / self.micro_steps_per_generation)

    def steps_for(self, num_prompts: int) -> int:
        """Optimizer steps after which that many prompts have been used."""
        generations = num_prompts / self.prompts_per_generation
        micro_steps = generations * self.micro_steps_per_generation
        return max(1, math.ceil(micro_steps / self.micro_steps_per_update))


def schedule_prompts(
    sources: Sequence[DatasetSource],
    fmt: ReasoningFormat,
    seed: int,
    plan: RolloutPlan,
    max_steps: int,
    num_epochs: float = 1.0,
) -> tuple[Dataset, int]:
    """The prompts of an RL run in the exact order of use, for `shuffle_dataset=False`.

    Each batch of completions draws from the sources that have begun by its optimizer step, by
    their shares; those without a share divide what is left by their sizes. A source is gone
    through in random order, and again in another order when it is used up; one that is ordered by
    pass rate in that order, each time.

    Args:
        sources: at least one; `from_step` says when a source begins.
        fmt: response format of reasoning prompts.
        seed: of every order.
        plan: how rows become steps.
        max_steps: optimizer steps; where it is not positive, `num_epochs` over all rows.

    Returns:
        The rows, one a prompt, and the number of optimizer steps.

    Raises:
        ValueError: no source, no rows, shares that don't add up, or none that begins at step 0.
    """
    tables = _load_all(sources, fmt)
    _check_shares([source.share for source in sources])
    if not any(source.from_step <= 0 for source in sources):
        raise ValueError("datasets: no source begins at step 0; set `from_step: 0` on one")
    sizes = [len(table) for table in tables]
    if max_steps <= 0:
        max_steps = plan.steps_for(math.ceil(num_epochs * sum(sizes)))
    starts = np.cumsum([0, *sizes[:-1]])
    streams = [
        _Endless(n, np.random.default_rng([seed, i]), source.order == "random")
        for i, (n, source) in enumerate(zip(sizes, sources, strict=True))
    ]
    order_rng = np.random.default_rng([seed, len(sizes)])
    owed = np.zeros(len(sizes))
    chunks = []
    for generation in range(plan.num_generations(max_steps)):
        weights = _weights(sources, sizes, plan.first_update(generation))
        owed = np.where(weights > 0, owed + weights * plan.prompts_per_generation, 0.0)
        counts = _whole_numbers(owed, plan.prompts_per_generation)
        owed = owed - counts
        chunk = [starts[i] + streams[i].take(n) for i, n in enumerate(counts) if n]
        chunks.append(order_rng.permutation(np.concatenate(chunk)))
    rows: Dataset = concatenate_datasets(with_same_columns(tables)).select(np.concatenate(chunks))
    return rows, max_steps


def _weights(sources: Sequence[DatasetSource], sizes: Sequence[int], step: int) -> _Array:
    """Each source's part of a batch at an optimizer step; 0 for one that has not begun."""
    has_begun = np.array([source.from_step <= step for source in sources])
    shares = np.array([source.share or 0.0 for source in sources]) * has_begun
    free = np.array(sizes, dtype=float) * has_begun
    free[[source.share is not None for source in sources]] = 0.0
    if free.any():
        free *= (1 - shares.sum()) / free.sum()
    weights: _Array = shares + free
    return np.asarray(weights / weights.sum())


def _whole_numbers(owed: _Array, total: int) -> _Array:
    """Whole numbers near `owed`, none negative, that add up to `total`."""
    counts: _Array = np.maximum(np.floor(owed + 1e-9).astype(int), 0)
    while counts.sum() < total:
        counts[np.argmax(owed - counts)] += 1
    while counts.sum() > total:
        counts[np.argmin(np.where(counts > 0, owed - counts, np.inf))] -= 1
    return counts


class _Endless:
    """The numbers 0..size-1 in random order, or as they are, again and again."""

    def __init__(self, size: int, rng: np.random.Generator, is_shuffled: bool) -> None:
        self.size, self.rng, self.is_shuffled = size, rng, is_shuffled
        self.left = self._round()

    def _round(self) -> _Array:
        return self.rng.permutation(self.size) if self.is_shuffled else np.arange(self.size)

    def take(self, count: int) -> _Array:
        while len(self.left) < count:
            self.left = np.concatenate([self.left, self._round()])
        taken, self.left = self.left[:count], self.left[count:]
        return taken
