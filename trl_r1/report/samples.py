"""A bounded, representative choice of a run's samples, with every verdict explained.

Taken evenly over the training, and from each stretch of it in turn from every task and outcome, so
that what is rare is there, too. Reads what has the columns `prompt` and `completion`: rollouts, the
samples of rejection sampling and of evaluations. What a sample looks like says `sample_cards`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_r1.evaluation.record import KEPT_FOLDER
from trl_r1.report.reading import Run, Stage, left_out, visible
from trl_r1.report.sample_cards import CardMaker, Texts

MAX_SAMPLES = 2400
MAX_BYTES = 8_000_000
_MAX_PLACES = 60
_BATCH = 512
_BATCH_BYTES = 32_000_000
_SKIPPED = ("model", "dataset", "reward_model", "student")
_COLUMNS = (
    *("step", "prompt", "completion", "solution", "task", "length", "num_tokens", "is_truncated"),
    *("reward", "advantage", "is_used", "verdict"),
    *("score", "answer", "is_well_formed", "is_general", "language_share", "preference"),
)


@dataclass
class _Source:
    """Samples of one kind: row groups of files that can be read, each with its number of rows."""

    run: int
    stage: Stage
    kind: str
    places: list[tuple[Path, int, int]] = field(default_factory=list)
    total: int = 0


def choose_samples(
    runs: Sequence[Run], max_samples: int = MAX_SAMPLES, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Samples of some runs, as plain data for the page.

    Args:
        runs: the runs; what can't be read of them goes into their notes.
        max_samples: at most that many over all.
        max_bytes: of the samples as JSON, over all.
    """
    sources = [source for i, run in enumerate(runs) for source in _sources(i, run)]
    texts, rows, about = Texts(), list[dict[str, Any]](), []
    counts = _shares([source.total for source in sources], max_samples)
    bytes_left = max_bytes
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        maker = CardMaker(source.stage, number, texts)
        chosen = _choose(source, maker, runs[source.run].notes, count)
        kept, size = _fitting(chosen, bytes_left // (len(sources) - number))
        bytes_left -= size
        rows += kept
        about.append(
            {
                "run": source.run,
                "stage": visible(source.stage.name),
                "kind": source.kind,
                "shown": len(kept),
                "total": source.total,
            }
        )
    return {"sources": about, "texts": list(texts.known), "rows": rows}


def _shares(totals: Sequence[int], limit: int) -> list[int]:
    """How many of each source, `limit` together: alike, but what a small one leaves goes to the
    others."""
    shares = [0] * len(totals)
    left = limit
    for done, place in enumerate(sorted(range(len(totals)), key=totals.__getitem__)):
        shares[place] = min(totals[place], left // (len(totals) - done))
        left -= shares[place]
    return shares


def _fitting(samples: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], int]:
    """The first samples that fit into `limit` bytes of the page, and how many bytes they take."""
    kept, used = [], 0
    for sample in samples:
        text = json.dumps(sample, ensure_ascii=False)
        # Angle brackets take six bytes in the page.
        size = len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&"))
        if used + size > limit:
            break
        kept.append(sample)
        used += size
    return kept, used


def _sources(run_index: int, run: Run) -> Iterator[_Source]:
    for stage in run.stages:
        for name, folder in stage.folders().items():
            if name in _SKIPPED or name.startswith((".", "checkpoint")):
                continue
            files = [path for path in sorted(folder.rglob("*.parquet")) if path.name[0] != "."]
            groups = {visible(name): files}
            if folder.name == KEPT_FOLDER:
                # What the runner keeps of its scoring: a file before the stage and one after it.
                files.sort(key=lambda path: path.stem != "before")
                groups = {visible(f"held-out, {path.stem} the stage"): [path] for path in files}
            for kind, paths in groups.items():
                source = _Source(run_index, stage, kind)
                bad = sum(not _take_up(source, path) for path in paths)
                if bad:
                    run.notes.append(left_out(f"{stage.name}/{name}", bad, "file"))
                if source.total:
                    yield source


def _take_up(source: _Source, path: Path) -> bool:
    """Add a file's row groups to a source, where it holds samples; False for a damaged one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        meta = pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    if {"prompt", "completion"} <= set(meta.schema.to_arrow_schema().names):
        source.total += meta.num_rows
        groups = range(meta.num_row_groups)
        source.places += [(path, i, meta.row_group(i).num_rows) for i in groups]
    return True


def _choose(
    source: _Source, maker: CardMaker, notes: list[str], count: int
) -> list[dict[str, Any]]:
    """`count` samples of a source, in an order of which every beginning is spread over all."""
    places = _evenly(source.places, min(_MAX_PLACES, max(count, 1)))
    chosen: list[dict[str, Any]] = []
    bad = done = 0
    total = max(sum(size for *_, size in places), 1)
    for path, group, size in places:
        wanted = (done + size) * count // total - done * count // total
        done += size
        try:
            rows = _read(path, group)
        except (OSError, ValueError, MemoryError):  # arrow's errors are ValueErrors or OSErrors
            bad += 1
            continue
        # Made at once, since whole texts of a thousand rows may be gigabytes.
        chosen += map(maker.sample, _in_turn(rows, wanted, maker))
    if bad:
        name = f"{source.stage.name}/{source.kind}"
        notes.append(visible(left_out(name, bad, "file")))
    # Spread out, so that a cut at the limit of bytes falls on all steps alike.
    return [chosen[i] for i in _spread(len(chosen))]


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[0]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _spread(count: int) -> list[int]:
    """0 .. count-1 in an order of which every beginning is spread over the whole."""
    bits = max(count - 1, 1).bit_length()
    turned = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits))
    return [i for i in turned if i < count]


def _read(path: Path, group: int) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        columns = [n for n in names if n in _COLUMNS or n.startswith(("reward_", "verdict_"))]
        meta = file.metadata.row_group(group)
        size = max(meta.total_byte_size // max(meta.num_rows, 1), 1)
        size = min(_BATCH, max(_BATCH_BYTES // size, 16))
        batches = file.iter_batches(batch_size=size, row_groups=[group], columns=columns)
        batch = next(batches, None)
        rows: list[dict[str, Any]] = [] if batch is None else batch.to_pylist()
        return rows


def _in_turn(rows: list[dict[str, Any]], count: int, maker: CardMaker) -> list[dict[str, Any]]:
    """`count` of the rows, in turn from each task and outcome."""
    buckets: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        key = (str(row.get("task")), f"{maker.state(row)} {row.get('verdict')}")
        buckets.setdefault(key, []).append(place)
    queues = [[items[i] for i in _spread(len(items))] for items in buckets.values()]
    taken: list[int] = []
    while len(taken) < count and any(queues):
        for queue in queues:
            if queue and len(taken) < count:
                taken.append(queue.pop(0))
    return [rows[place] for place in sorted(taken)]
