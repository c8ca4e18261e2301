"""A bounded, representative choice of a run's samples, with every verdict explained.

Taken evenly over the training, and from each stretch of it in turn from every task and outcome, so
that what is rare is there, too. Long texts lose their middle. Reads what has the columns `prompt`
and `completion`: rollouts, the samples of rejection sampling and of scoring.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.report.reading import Run, Stage, finite, visible
from trl_r1.report.verdicts_explained import (
    format_of,
    graders,
    outcome,
    reason,
    reward_purpose,
    reward_weights,
)
from trl_r1.rewards.think_format import THINK_CLOSE, THINK_OPEN, completion_text

MAX_SAMPLES = 2400
MAX_BYTES = 8_000_000
MAX_TEXT = 6_000
_MAX_PLACES = 60
_BATCH = 512
_BATCH_BYTES = 32_000_000
_SKIPPED = ("model", "dataset", "reward_model", "student")
_COLUMNS = (
    *("step", "prompt", "completion", "solution", "task", "length", "num_tokens", "is_truncated"),
    *("reward", "advantage", "is_used", "verdict"),
)


@dataclass
class _Source:
    """A folder of samples: its files that can be read and their row groups."""

    run: int
    stage: Stage
    kind: str
    places: list[tuple[Path, int]] = field(default_factory=list)
    total: int = 0


class _Texts:
    """Texts that occur again and again, as numbers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, text: Any) -> int:
        return self.known.setdefault(visible(text), len(self.known))


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
    texts, rows = _Texts(), []
    about = []
    for number, source in enumerate(sources):
        share = max(len(sources), 1)
        maker = _Maker(source, number, texts)
        chosen = _choose(source, maker, runs[source.run].notes, max_samples // share)
        used = shown = 0
        for sample in chosen:
            # Angle brackets take six bytes in the page.
            text = json.dumps(sample, ensure_ascii=False)
            used += len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&"))
            if used > max_bytes // share:
                break
            rows.append(sample)
            shown += 1
        about.append(
            {
                "run": source.run,
                "stage": visible(source.stage.name),
                "kind": source.kind,
                "shown": shown,
                "total": source.total,
            }
        )
    return {"sources": about, "texts": list(texts.known), "rows": rows}


def _sources(run_index: int, run: Run) -> Iterator[_Source]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for stage in run.stages:
        folders = [path for path in sorted(stage.folder.glob("*")) if path.is_dir()]
        for folder in folders:
            if folder.name in _SKIPPED or folder.name.startswith((".", "checkpoint")):
                continue
            source, bad = _Source(run_index, stage, visible(folder.name)), 0
            for path in sorted(folder.rglob("*.parquet")):
                if path.name.startswith("."):
                    continue
                try:
                    meta = pq.read_metadata(path)
                except (OSError, pa.ArrowException):
                    bad += 1
                    continue
                if {"prompt", "completion"} <= set(meta.schema.to_arrow_schema().names):
                    source.total += meta.num_rows
                    source.places += [(path, i) for i in range(meta.num_row_groups)]
            if bad:
                run.notes.append(f"{stage.name}/{folder.name}: {bad} damaged files are left out.")
            if source.total:
                yield source


def _choose(source: _Source, maker: _Maker, notes: list[str], count: int) -> list[dict[str, Any]]:
    """`count` samples of a source, in an order of which every beginning is spread over all."""
    places = _evenly(source.places, min(_MAX_PLACES, max(count, 1)))
    chosen: list[dict[str, Any]] = []
    bad = 0
    for number, (path, group) in enumerate(places):
        wanted = (number + 1) * count // len(places) - number * count // len(places)
        try:
            rows = _read(path, group)
        except (OSError, ValueError, MemoryError):  # arrow's errors are ValueErrors or OSErrors
            bad += 1
            continue
        # Made at once, since whole texts of a thousand rows may be gigabytes.
        chosen += map(maker.sample, _in_turn(rows, wanted, source.stage))
    if bad:
        name = f"{source.stage.name}/{source.kind}"
        notes.append(visible(f"{name}: {bad} damaged files are left out."))
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
        columns += [n for n in ("correct", "is_correct", "score") if n in names]
        meta = file.metadata.row_group(group)
        size = max(meta.total_byte_size // max(meta.num_rows, 1), 1)
        size = min(_BATCH, max(_BATCH_BYTES // size, 16))
        batches = file.iter_batches(batch_size=size, row_groups=[group], columns=columns)
        batch = next(batches, None)
        rows: list[dict[str, Any]] = [] if batch is None else batch.to_pylist()
        return rows


def _in_turn(rows: list[dict[str, Any]], count: int, stage: Stage) -> list[dict[str, Any]]:
    """`count` of the rows, in turn from each task and outcome."""
    order = graders(stage.record, _reward_names(rows))
    buckets: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        state = outcome(_values(row), order, row.get("verdict"))
        key = (str(row.get("task")), f"{state} {row.get('verdict')}")
        buckets.setdefault(key, []).append(place)
    queues = [[items[i] for i in _spread(len(items))] for items in buckets.values()]
    taken: list[int] = []
    while len(taken) < count and any(queues):
        for queue in queues:
            if queue and len(taken) < count:
                taken.append(queue.pop(0))
    return [rows[place] for place in sorted(taken)]


def _reward_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return (
        [name.removeprefix("reward_") for name in rows[0] if name.startswith("reward_")]
        if (rows)
        else []
    )


def _values(row: Mapping[str, Any]) -> dict[str, float | None]:
    values = {
        k.removeprefix("reward_"): _number(v) for k, v in row.items() if k.startswith("reward_")
    }
    for name in ("correct", "is_correct", "score"):
        if (value := _number(row.get(name))) is not None:
            values.setdefault("correct", value)
    return values


def _number(value: Any) -> float | None:
    """A number that can be written down, to four digits; None for anything else."""
    found = finite(float(value) if isinstance(value, bool) else value)
    return None if found is None else float(f"{found:.4g}")


class _Maker:
    """Makes samples of the page from rows of a source."""

    def __init__(self, source: _Source, number: int, texts: _Texts) -> None:
        self.source, self.number, self.texts = source, number, texts
        self.format = format_of(source.stage.record)

    def sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row as the page shows it; keys are short, since there are thousands."""
        record, values = self.source.stage.record, _values(row)
        text = completion_text(row.get("completion") or "")
        parts = self.format.parse(text)
        reasoning, answer = split_shown(text, self.format)
        weights, gold = reward_weights(record, list(values)), row.get("solution")
        rewards = []
        for name, value in values.items():
            word = row.get(f"verdict_{name}")
            why = reason(name, value, word, parts.answer, parts.fault, gold)
            head = [self.texts.number(name), value, weights[name], self.texts.number(word or "")]
            rewards.append([*head, self.texts.number(why), self.texts.number(reward_purpose(name))])
        verdict = row.get("verdict")
        return {
            "s": self.number,
            "t": _count(row.get("step")),
            "k": self.texts.number(row.get("task") or ""),
            "o": outcome(values, graders(record, list(values)), verdict),
            "v": verdict and visible(verdict).replace("_", " "),
            "p": [[visible(role), shorten(text)] for role, text in turns(row.get("prompt"))],
            "r": None if reasoning is None else shorten(reasoning),
            "a": shorten(answer),
            "f": parts.fault and self.texts.number(parts.fault),
            "g": None if gold is None else shorten(str(gold), 1000),
            "n": _count(row.get("length", row.get("num_tokens"))),
            "c": bool(row.get("is_truncated")),
            "w": rewards,
            "z": _number(row.get("reward")),
            "d": _number(row.get("advantage")),
            "u": row.get("is_used") is not False,
        }


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def turns(prompt: Any) -> list[tuple[str, str]]:
    """(role, text) of a prompt, which is a text or messages."""
    if isinstance(prompt, list):
        return [
            (str(m.get("role")), completion_text([{"content": m.get("content")}]))
            for m in prompt
            if isinstance(m, Mapping)
        ]
    return [("user", "" if prompt is None else str(prompt))]


def split_shown(text: str, fmt: ReasoningFormat) -> tuple[str | None, str]:
    """A completion as reasoning and the rest, nothing left out but the tags between them.

    Args:
        text: the completion.
        fmt: says whether it starts inside the reasoning.
    """
    if not fmt.is_prefilled and THINK_OPEN not in text:
        return None, text
    before, opener, rest = text.partition(THINK_OPEN)
    if not opener or before.strip():
        rest = text
    reasoning, _, answer = rest.partition(THINK_CLOSE)
    return reasoning.strip("\n"), answer.strip("\n")


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """A text with what can't be seen written out, and without its middle where it is long."""
    if len(text) > limit:
        head, tail = 2 * limit // 3, limit // 3
        left_out = f"{len(text) - head - tail:,}"
        gap = f"\n\u2026 {left_out} characters are left out here \u2026\n"
        text = f"{text[:head]}{gap}{text[-tail:]}"
    return visible(text)
