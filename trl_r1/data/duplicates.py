"""Exact and near-duplicates: the first row of each kind stays.

Near-duplicates are found with datasketch's MinHash and the usual banding, then compared word by
word: a row goes only where its runs of words overlap with those of an earlier row that stays, by
the Jaccard index, at least as much as asked for. At the threshold 0.8 a row takes some 150 bytes
of memory. Left out: duplicates in meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from trl_r1.data.card import DataLog
from trl_r1.data.ngrams import Array, WordHashes, run_hashes
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

_NUM_PERMUTATIONS = 128
# Chance that two rows at the threshold itself are compared; those over it are nearly sure to be. A
# comparison that finds nothing costs little.
_LOWEST_RECALL = 0.97
# Rows that stay which a row of the same band is compared with: bounds the cost where thousands of
# rows share a band and are not alike.
_MAX_COMPARED = 8
_CACHED_ROWS = 50_000


def drop_exact_duplicates(
    rows: Dataset,
    columns: Sequence[str] = (),
    log: DataLog | None = None,
    workspace: Path | None = None,
) -> Dataset:
    """The rows without those whose texts an earlier row has; white space does not count.

    Args:
        rows: any.
        columns: compared; by default problem and response.
        log: gets a record of the step.
        workspace: folder for what a killed run does not have to do again.
    """
    texts = text_columns(rows.column_names, columns)
    log = log or DataLog()
    with log.step("exact duplicates", len(rows), {"columns": texts.names}) as record:
        tables = scan(rows, texts.names, _ExactKeys(texts), workspace)
        parts = [np.array(t["key"].to_numpy(), dtype=np.uint64) for t in tables]
        keys = np.concatenate(parts).reshape(-1, 2) if parts else np.empty((0, 2), np.uint64)
        _, first = np.unique(keys, axis=0, return_index=True)
        kept = rows.select(np.sort(first))
        record.rows_after = len(kept)
        record.text = (
            f"dropped {len(rows) - len(kept):,} rows with the same {' and '.join(texts.names)}"
        )
    return kept


@dataclass(frozen=True)
class _ExactKeys:
    texts: TextColumns

    def __call__(self, batch: dict[str, list[Any]], start: int) -> pa.Table:
        keys: list[int] = []
        for row in rows_of(batch):
            parts = [" ".join(text.split()) for text in _compared(row, self.texts)]
            digest = xxhash.xxh3_128_intdigest("\0".join(parts).encode("utf-8", "surrogatepass"))
            keys += (digest >> 64, digest & 0xFFFFFFFFFFFFFFFF)
        return pa.table({"key": pa.array(keys, pa.uint64())})


def drop_near_duplicates(
    rows: Dataset,
    threshold: float = 0.8,
    columns: Sequence[str] = (),
    run_length: int = 3,
    log: DataLog | None = None,
    workspace: Path | None = None,
    num_proc: int = 1,
) -> Dataset:
    """The rows without those that are nearly an earlier one.

    Args:
        rows: any.
        threshold: Jaccard index of the sets of runs of words from which two rows are alike, over
            0 and at most 1. Wording counts, not white space, case or punctuation.
        columns: compared; by default problem and response.
        run_length: words of a run.
        log: gets a record of the step.
        workspace: folder for what a killed run does not have to do again.
        num_proc: processes.

    Raises:
        ValueError: a threshold out of range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}; it is a Jaccard index over 0 and at most 1")
    texts = text_columns(rows.column_names, columns)
    log = log or DataLog()
    settings = {"columns": texts.names, "threshold": threshold, "run_length": run_length}
    with log.step("near-duplicates", len(rows), settings) as record:
        bands = _Bands(texts, threshold, run_length)
        tables = scan(rows, texts.names, bands, workspace, num_proc)
        keys = [np.stack([c.to_numpy() for c in t.columns]) for t in tables]
        groups = _groups(np.concatenate(keys, axis=1)) if keys else {}
        dropped = _Comparison(rows.select_columns(texts.names), texts, threshold, run_length).run(
            groups
        )
        is_kept = np.ones(len(rows), dtype=bool)
        is_kept[dropped] = False
        kept = rows.select(np.flatnonzero(is_kept))
        record.rows_after = len(kept)
        record.text = (
            f"dropped {len(dropped):,} rows that share at least {threshold:.0%} of their runs of "
            f"{run_length} words with an earlier one (MinHash, then compared)"
        )
    return kept


def _compared(row: dict[str, Any], texts: TextColumns) -> list[str]:
    return [*problem_texts(row, texts), *response_texts(row, texts)]


def _runs(row: dict[str, Any], texts: TextColumns, hashes: WordHashes, length: int) -> Array:
    """Different hashes of the runs of words of a row; of a short text, one of the whole."""
    tokens = hashes.of(words(" ".join(_compared(row, texts))))
    return np.unique(run_hashes(tokens, min(length, len(tokens)) or 1))


def band_width(threshold: float) -> int:
    """Values of a signature that a band has: the most with which rows at the threshold meet.

    Two rows of Jaccard index s agree in one of b bands of w values with the chance
    1 - (1 - s^w)^b (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, section 3.4).
    """
    widths = range(1, _NUM_PERMUTATIONS + 1)
    fitting = [
        w for w in widths if 1 - (1 - threshold**w) ** (_NUM_PERMUTATIONS // w) >= _LOWEST_RECALL
    ]
    return max(fitting, default=1)


@dataclass(frozen=True)
class _Bands:
    """Band keys of each row: equal ones make two rows candidates."""

    texts: TextColumns
    threshold: float
    run_length: int

    def __call__(self, batch: dict[str, list[Any]], start: int) -> pa.Table:
        from datasketch import MinHash

        width = band_width(self.threshold)
        hashes = WordHashes()
        runs = [_runs(row, self.texts, hashes, self.run_length) for row in rows_of(batch)]
        # datasketch permutes 32-bit values.
        small = [(values >> np.uint64(32)).tolist() for values in runs]
        made = MinHash.generator(small, num_perm=_NUM_PERMUTATIONS, hashfunc=int)
        signatures = np.stack([m.hashvalues for m in made]).astype(np.uint64)
        keys = {}
        for band in range(_NUM_PERMUTATIONS // width):
            part = np.ascontiguousarray(signatures[:, band * width : (band + 1) * width])
            key = [xxhash.xxh3_64_intdigest(line.tobytes(), seed=band) for line in part]
            keys[f"band_{band}"] = pa.array(key, pa.uint64())
        return pa.table(keys)


def _groups(keys_BN: Array) -> dict[int, list[int]]:
    """Of each row that shares a band key with another: numbers of the groups it is in."""
    groups: dict[int, list[int]] = {}
    number = 0
    for keys in keys_BN:
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        is_new = np.ones(len(keys), dtype=bool)
        is_new[1:] = ordered[1:] != ordered[:-1]
        group = np.cumsum(is_new) - 1
        is_shared = np.bincount(group)[group] > 1
        for row, own in zip(
            order[is_shared].tolist(), (group[is_shared] + number).tolist(), strict=True
        ):
            groups.setdefault(row, []).append(own)
        number += len(keys)
    return groups


class _Comparison:
    """Compares candidates word by word, in the order of the rows."""

    def __init__(self, rows: Dataset, texts: TextColumns, threshold: float, length: int) -> None:
        self.rows, self.texts = rows, texts
        self.threshold, self.length = threshold, length
        self.hashes = WordHashes()
        self.runs = lru_cache(_CACHED_ROWS)(self._runs_of)

    def run(self, groups: dict[int, list[int]]) -> list[int]:
        """Numbers of the rows to drop."""
        kept: dict[int, list[int]] = {}
        dropped = []
        for row in sorted(groups):
            earlier = {other for group in groups[row] for other in kept.get(group, ())}
            if any(self._is_alike(row, other) for other in sorted(earlier)):
                dropped.append(row)
                continue
            for group in groups[row]:
                members = kept.setdefault(group, [])
                if len(members) < _MAX_COMPARED:
                    members.append(row)
        return dropped

    def _is_alike(self, row: int, other: int) -> bool:
        first, second = self.runs(row), self.runs(other)
        shared = len(np.intersect1d(first, second, assume_unique=True))
        union = len(first) + len(second) - shared
        return union == 0 or shared >= self.threshold * union

    def _runs_of(self, row: int) -> Array:
        return _runs(self.rows[row], self.texts, self.hashes, self.length)
