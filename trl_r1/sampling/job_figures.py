"""What a sampling job of the command line shows: how far it is, and at the end its figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import pyarrow.parquet as pq

from trl_r1.sampling.shards import read_shards


class Progress:
    """Says how far the job is: in place on a terminal, else a line at times."""

    def __init__(self, screen: TextIO, seconds: float = 30.0) -> None:
        self.screen, self.seconds = screen, seconds
        self.is_terminal = screen.isatty()
        self._started = time.monotonic()
        self._first: int | None = None
        self._last = float("-inf")

    def __call__(self, made: int, total: int, metrics: Mapping[str, float]) -> None:
        """Called after each shard, with how many are made of how many."""
        now = time.monotonic()
        self._first = made - 1 if self._first is None else self._first
        left = (now - self._started) / max(made - self._first, 1) * (total - made)
        line = (
            f"shard {made} of {total}; {metrics['kept']:.0%} kept, {metrics['mean_length']:.0f} "
            f"tokens on average; about {_minutes(left)} left"
        )
        if self.is_terminal:
            self.screen.write(f"\r\x1b[K{line}" + ("\n" if made == total else ""))
        elif made == total or now - self._last >= self.seconds:
            self._last = now
            self.screen.write(f"{line}\n")
        self.screen.flush()


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def reward_figures(samples: Path) -> dict[str, Any]:
    """Mean of each reward, share truncated, and prompts with an accepted sample."""
    totals: dict[str, list[float]] = {}  # sum and count of each
    num_samples = num_truncated = 0
    answered: set[int] = set()
    names = pq.read_schema(next(iter(sorted(samples.glob("*.parquet"))))).names
    rewards = [name for name in names if name.startswith("reward_")]
    for _, rows in read_shards(samples, [*rewards, "is_truncated", "verdict", "prompt_index"]):
        num_samples += len(rows)
        num_truncated += sum(row["is_truncated"] for row in rows)
        accepted = (row for row in rows if row["verdict"] in ("kept", "surplus", "duplicate"))
        answered.update(row["prompt_index"] for row in accepted)
        for name in rewards:
            total = totals.setdefault(name.removeprefix("reward_"), [0.0, 0])
            graded = [row[name] for row in rows if row[name] is not None]
            total[0] += sum(graded)
            total[1] += len(graded)
    return {
        "rewards": {
            name: total / count if count else None for name, (total, count) in totals.items()
        },
        "truncated": num_truncated / num_samples,
        "prompts_answered": len(answered),
    }


def summary_lines(figures: Mapping[str, Any], output: Path) -> list[str]:
    """The figures as a table."""
    rejected = [f"  {reason}: {count}" for reason, count in figures["rejected"].items()]
    rewards = [
        f"{name}: {'never graded' if mean is None else f'{mean:.3f} on average'}"
        for name, mean in figures["rewards"].items()
    ]
    return [
        f"prompts: {figures['prompts']}, {figures['prompts_answered']} with an accepted sample",
        f"samples: {figures['samples']}, {figures['mean_length']:.0f} tokens on average, "
        f"{figures['truncated']:.1%} truncated",
        *rewards,
        f"kept: {figures['kept']}, {figures['mean_length_kept']:.0f} tokens on average",
        *(["left out:", *rejected] if rejected else []),
        f"all of them are in {output / 'samples'}"
        + (f", the kept ones in {output / 'dataset'}" if figures["kept"] else ""),
    ]
