"""Mixtures of reasoning and general data as conversations, with where each row comes from.

The paper's mixed SFT set is about 600k reasoning rows and 200k general ones (arXiv 2501.12948,
section 2.3.3). Reasoning rows answer with `<think>`, general ones without: a mixture says so for
every row and keeps to it. Left out: weighting in the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trl_r1.data.card import DataLog
from trl_r1.data.texts import RESPONSE_COLUMNS, TURN_COLUMNS, content_text, role_of, rows_of
from trl_r1.rewards.think_format import THINK_CLOSE, THINK_OPEN
from trl_r1.tasks import find_task
from trl_r1.training.data import mixture_counts

if TYPE_CHECKING:
    from datasets import Dataset

Kind = Literal["reasoning", "general"]
Shape = Literal["messages", "prompt_completion"]

_LEFT_OUT = "left out"


@dataclass(frozen=True)
class MixtureSource:
    """Rows that go into a mixture, and how many.

    Attributes:
        name: value of the column `source`; where rows have such a column of their own, what stands
            there follows it (`numina/olympiads`).
        rows: with `prompt` and `completion`, or `messages`.
        share: part of the mixture, over 0 and at most 1; None for all rows.
        num_rows: exactly so many rows; not with a share.
        max_rows: at most so many.
        kind: of all its rows; None where each row's task says it, or else its text.
    """

    name: str
    rows: Dataset
    share: float | None = None
    num_rows: int | None = None
    max_rows: int | None = None
    kind: Kind | None = None


def mix(
    sources: Sequence[MixtureSource],
    seed: int,
    total: int | None = None,
    max_repeats: int = 1,
    shape: Shape = "messages",
    log: DataLog | None = None,
    workspace: Path | None = None,
) -> Dataset:
    """A mixture in random order, the same for the same seed.

    Rows have `messages` (or `prompt` and `completion`), `kind`, `source`, `task` and `solution`.
    Reasoning rows without thinking or without an answer after it, and general ones without a text
    beside it, are left out and counted; thinking in a general answer is taken out.

    Args:
        sources: at least one.
        seed: of which rows are taken, and their order.
        total: rows of the mixture; None for all rows of sources without a share, or the largest
            mixture that the shares allow.
        max_repeats: how often a row may be used.
        shape: of the rows.
        log: gets a record of the step.
        workspace: folder for large intermediate files.

    Raises:
        ValueError: shares that don't add up, or a source with too few rows; it says how many there
            may be; turns that are no messages, or no row that is fit for its kind.
    """
    from datasets import concatenate_datasets

    log = log or DataLog()
    counts = _counts(sources, total, max_repeats)
    settings = {
        "seed": seed,
        "total": total,
        "sources": {
            source.name: {"rows": len(source.rows), "share": source.share, "taken": count}
            for source, count in zip(sources, counts, strict=True)
        },
    }
    with log.step("mixture", sum(len(source.rows) for source in sources), settings) as record:
        parts = []
        for place, (source, count) in enumerate(zip(sources, counts, strict=True)):
            chosen = source.rows.select(_chosen(len(source.rows), count, [seed, place]))
            cache = None if workspace is None else str(workspace / f"source-{place}.arrow")
            parts.append(_conversations(chosen, source, shape, cache))
        mixture: Dataset = concatenate_datasets(parts).shuffle(seed=seed)
        if not len(mixture):
            raise ValueError(
                "mix: no row is fit for its kind: reasoning needs <think>...</think> and an answer "
                "after it, general data an answer without"
            )
        record.rows_after = len(mixture)
        left_out = sum(counts) - len(mixture)
        taken = ", ".join(
            f"{len(part):,} of {source.name}" for source, part in zip(sources, parts, strict=True)
        )
        record.text = f"mixed {taken} (seed {seed}); {left_out:,} rows unfit for their kind"
    return mixture


def _counts(sources: Sequence[MixtureSource], total: int | None, max_repeats: int) -> list[int]:
    if not sources:
        raise ValueError("mix: at least one source is needed")
    _check_numbers(sources, total, max_repeats)
    names = Counter(source.name for source in sources)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"mix: two sources are called {twice[0]!r}; give them a name each")
    sizes = []
    for source in sources:
        if source.share is not None and source.num_rows is not None:
            raise ValueError(f"mix: {source.name} has both a share and a number of rows")
        size = len(source.rows) * (1 if source.share is None else max_repeats)
        if source.num_rows is not None:
            size = source.num_rows
        sizes.append(size if source.max_rows is None else min(size, source.max_rows))
    counts = mixture_counts(sizes, [source.share for source in sources], total)
    for source, count, size in zip(sources, counts, sizes, strict=True):
        most = min(size, len(source.rows) * max_repeats)
        if count > most:
            raise ValueError(
                f"mix: {source.name} has {len(source.rows):,} rows and may give {most:,}, but "
                f"{count:,} are asked for; lower its share or the total, raise max_repeats or "
                "max_rows, or give the others fewer"
            )
    return counts


def _check_numbers(sources: Sequence[MixtureSource], total: int | None, max_repeats: int) -> None:
    numbers = {"total": total, "max_repeats": max_repeats}
    numbers |= {f"num_rows of {source.name}": source.num_rows for source in sources}
    numbers |= {f"max_rows of {source.name}": source.max_rows for source in sources}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"mix: {name} is {number}; it has to be at least 1")


def _chosen(size: int, count: int, seed: list[int]) -> np.ndarray[Any, Any]:
    """Numbers of `count` rows, in order; all as often as any other, give or take once."""
    rng = np.random.default_rng(seed)
    whole, rest = divmod(count, size) if size else (0, 0)
    parts = [np.arange(size)] * whole + [rng.permutation(size)[:rest]]
    return np.sort(np.concatenate(parts))


def _conversations(
    rows: Dataset, source: MixtureSource, shape: Shape, cache: str | None
) -> Dataset:
    from datasets import Features, List, Value

    turns = List({"role": Value("string"), "content": Value("string")})
    names = ("messages",) if shape == "messages" else ("prompt", "completion")
    features = Features(
        {
            **dict.fromkeys(names, turns),
            **dict.fromkeys(("kind", "source", "task", "solution"), Value("string")),
        }
    )
    _check_columns(rows, source.name)
    return rows.map(
        _Convert(source.name, source.kind, shape),
        batched=True,
        remove_columns=rows.column_names,
        features=features,
        load_from_cache_file=False,
        cache_file_name=cache,
        desc=source.name,
    )


def _check_columns(rows: Dataset, name: str) -> None:
    there = rows.column_names
    has_turns = any(column in there for column in TURN_COLUMNS)
    if not has_turns and not ("prompt" in there and any(c in there for c in RESPONSE_COLUMNS)):
        raise ValueError(
            f"mix: {name} needs `messages`, or `prompt` and `completion`; it has "
            f"{', '.join(there)}; a `task` makes them of other columns"
        )


@dataclass(frozen=True)
class _Convert:
    name: str
    kind: Kind | None
    shape: Shape

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        made: list[dict[str, Any]] = []
        for row in rows_of(batch):
            try:
                messages = _messages(row)
            except ValueError as error:
                raise ValueError(f"mix: {self.name}: {error}") from error
            kind = self.kind or _kind_of(row, messages)
            # An answer to nothing teaches nothing.
            fitting = fitted(messages, kind) if len(messages) > 1 else None
            if fitting is None:
                continue
            solution = row.get("solution")
            kept = {
                "kind": kind,
                "source": _provenance(self.name, row.get("source")),
                "task": row.get("task"),
                "solution": None if solution is None else str(solution),
            }
            if self.shape == "messages":
                made.append({"messages": fitting, **kept})
            else:
                made.append({"prompt": fitting[:-1], "completion": fitting[-1:], **kept})
        own = ("messages",) if self.shape == "messages" else ("prompt", "completion")
        names = (*own, "kind", "source", "task", "solution")
        return {name: [row[name] for row in made] for name in names}


def fitted(messages: Sequence[Mapping[str, str]], kind: Kind) -> list[dict[str, str]] | None:
    """A conversation whose last turn answers as its kind does; None where it can't.

    Args:
        messages: that end with the assistant's turn.
        kind: `reasoning` needs thinking and an answer after it; `general` loses thinking.
    """
    if not messages or messages[-1]["role"] != "assistant":
        return None
    turns = [dict(message) for message in messages]
    thought, has_end, answer = turns[-1]["content"].rpartition(THINK_CLOSE)
    if kind == "general":
        turns[-1]["content"] = answer.strip() if has_end else turns[-1]["content"]
        is_fit = bool(turns[-1]["content"].strip()) and THINK_OPEN not in turns[-1]["content"]
        return turns if is_fit else None
    thought = thought.strip()
    if not has_end or not answer.strip() or not thought.removeprefix(THINK_OPEN).strip():
        return None
    if not thought.startswith(THINK_OPEN):
        # The opener was part of the prompt that it was sampled from.
        turns[-1]["content"] = f"{THINK_OPEN}\n{turns[-1]['content'].lstrip()}"
    return turns


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    for column in TURN_COLUMNS:
        if row.get(column):
            return [_message(message) for message in _turn_list(row[column])]
    response = next((row[c] for c in RESPONSE_COLUMNS if row.get(c)), None)
    if response is None:
        return []
    prompt = row["prompt"]
    if isinstance(prompt, (list, tuple)):
        asked = list(prompt)
    else:
        asked = [] if prompt in (None, "") else [{"role": "user", "content": str(prompt)}]
    if not isinstance(response, (list, tuple)):
        response = [{"role": "assistant", "content": str(response)}]
    return [_message(message) for message in (*asked, *response)]


def _turn_list(value: Any) -> Sequence[Any]:
    # A text is a sequence, too: its first letter would be the first message.
    return value if isinstance(value, (list, tuple)) else [value]


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise ValueError(
            f"{str(message)[:40]!r} is no message; turns are a list of mappings with `role` and "
            "`content`"
        )
    content = message.get("content", message.get("value"))
    return {"role": role_of(message), "content": content_text(content)}


def _kind_of(row: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> Kind:
    if row.get("kind") in ("reasoning", "general"):
        kind: Kind = row["kind"]
        return kind
    task = find_task(row.get("task"))
    if task is not None:
        return "reasoning" if task.kind == "reasoning" else "general"
    last = messages[-1]["content"] if messages else ""
    return "reasoning" if THINK_CLOSE in last else "general"


def _provenance(name: str, inner: Any) -> str:
    return name if not inner or inner == name else f"{name}/{inner}"
