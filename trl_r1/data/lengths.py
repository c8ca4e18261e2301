"""Lengths and shares: how long problems and responses are, and what part each source has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from trl_r1.data.card import DataLog
from trl_r1.data.ngrams import Array
from trl_r1.data.scan import scan
from trl_r1.data.texts import (
    TextColumns,
    problem_texts,
    response_texts,
    rows_of,
    text_columns,
    words,
)

if TYPE_CHECKING:
    from datasets import Dataset

_PERCENTILES = (5, 50, 95, 99)
_SHARE_COLUMNS = ("source", "task", "language", "kind")
_MAX_VALUES = 20
_BATCH = 10_000


@dataclass(frozen=True)
class Lengths:
    """Lengths of each row.

    Attributes:
        unit: `tokens`, of a model's tokenizer, or `words`.
        problem: of each row.
        response: of each row; 0 where it has none.
    """

    unit: str
    problem: Array
    response: Array


def measure_lengths(
    rows: Dataset,
    tokenizer: Any | None = None,
    columns: Sequence[str] = (),
    workspace: Path | None = None,
    num_proc: int = 1,
) -> Lengths:
    """How long problems and responses are.

    Args:
        rows: any.
        tokenizer: of a model; None counts words, which is faster and less exact.
        columns: measured; by default problem and response.
        workspace: folder for what a killed run does not have to do again.
        num_proc: processes.
    """
    texts = text_columns(rows.column_names, columns)
    job = _Measure(texts, tokenizer)
    tables = list(scan(rows, texts.names, job, workspace, num_proc))
    problem, response = (
        np.concatenate([np.zeros(0, np.int64), *(t[name].to_numpy() for t in tables)])
        for name in ("problem", "response")
    )
    return Lengths("words" if tokenizer is None else "tokens", problem, response)


@dataclass(frozen=True)
class _Measure:
    texts: TextColumns
    tokenizer: Any | None

    def __call__(self, batch: dict[str, list[Any]], start: int) -> pa.Table:
        rows = rows_of(batch)
        asked = ["\n".join(problem_texts(row, self.texts)) for row in rows]
        answered = ["\n".join(response_texts(row, self.texts)) for row in rows]
        return pa.table(
            {
                "problem": pa.array(self._count(asked), pa.int64()),
                "response": pa.array(self._count(answered), pa.int64()),
            }
        )

    def _count(self, texts: list[str]) -> list[int]:
        if self.tokenizer is None:
            return [len(words(text)) for text in texts]
        ids = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        return [len(row) for row in ids["input_ids"]]


def filter_by_length(
    rows: Dataset,
    lengths: Lengths,
    min_length: int | None = None,
    max_length: int | None = None,
    log: DataLog | None = None,
) -> Dataset:
    """The rows whose problem and response together have a length within limits.

    Args:
        rows: those that were measured.
        lengths: of `measure_lengths`.
        min_length: lowest, included, in its unit.
        max_length: highest, included.
        log: gets a record of the step.

    Raises:
        ValueError: no row is left.
    """
    log = log or DataLog()
    settings = {"min": min_length, "max": max_length, "unit": lengths.unit}
    with log.step("length", len(rows), settings) as record:
        total = lengths.problem + lengths.response
        most = "any number of" if max_length is None else f"{max_length:,}"
        is_kept = np.ones(len(rows), dtype=bool)
        if min_length is not None:
            is_kept &= total >= min_length
        if max_length is not None:
            is_kept &= total <= max_length
        if not is_kept.any():
            ends = f"; the rows have {total.min():,} to {total.max():,}" if len(total) else ""
            raise ValueError(f"no row has {min_length or 0:,} to {most} {lengths.unit}{ends}")
        kept = rows.select(np.flatnonzero(is_kept))
        record.rows_after = len(kept)
        record.text = f"kept rows of {min_length or 0:,} to {most} {lengths.unit}"
    return kept


def length_lines(lengths: Lengths) -> list[str]:
    """Lengths as a Markdown table."""
    heads = " | ".join(f"{p}%" for p in _PERCENTILES)
    lines = [
        f"| {lengths.unit} | mean | {heads} | longest | all |",
        "|---|---|" + "---|" * (len(_PERCENTILES) + 2),
    ]
    for name, values in (("problem", lengths.problem), ("response", lengths.response)):
        if not len(values) or not values.any():
            continue
        at = " | ".join(f"{value:,.0f}" for value in np.percentile(values, _PERCENTILES))
        lines.append(
            f"| {name} | {values.mean():,.0f} | {at} | {values.max():,} | {values.sum():,} |"
        )
    return lines


def share_lines(rows: Dataset, lengths: Lengths | None = None) -> list[str]:
    """Shares of rows, and of lengths, by the columns that say where a row comes from."""
    lines: list[str] = []
    for name in _SHARE_COLUMNS:
        if name not in rows.column_names:
            continue
        counts: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        start = 0
        for batch in rows.select_columns([name]).iter(_BATCH):
            values = [str(value) for value in batch[name]]
            counts.update(values)
            if lengths:
                end = start + len(values)
                both = lengths.problem[start:end] + lengths.response[start:end]
                for value, length in zip(values, both.tolist(), strict=True):
                    sums[value] += length
                start = end
        total = max(1, sum(sums.values()))
        more = f" share of {lengths.unit} |" if lengths else ""
        lines += ["", f"| {name} | rows | share of rows |{more}"]
        lines += ["|---|---|---|" + ("---|" if lengths else "")]
        for value, count in counts.most_common(_MAX_VALUES):
            of_all = f" {sums[value] / total:.1%} |" if lengths else ""
            lines.append(f"| {value} | {count:,} | {count / len(rows):.1%} |{of_all}")
        if len(counts) > _MAX_VALUES:
            lines.append(
                f"| and {len(counts) - _MAX_VALUES} more | | |" + (" |" if lengths else "")
            )
    return lines[1:]
