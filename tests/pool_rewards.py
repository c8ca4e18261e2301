"""Rewards that behave badly, for the tests of the pool. Loaded by file, in workers only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import sys
import time
from typing import Any

_hoard: list[bytearray] = []


def length(completions: list[str], **kwargs: Any) -> list[float]:
    """The number of characters, unless the completion is a trap."""
    for text in completions:
        _spring(text)
    return [float(len(text)) for text in completions]


def _spring(text: str) -> None:
    if text == "<hang>":
        while True:
            pass
    traps = {
        "<sleep>": lambda: time.sleep(3600),
        "<segfault>": lambda: ctypes.string_at(0),
        "<exit>": lambda: os._exit(3),
        "<grow>": lambda: [bytearray(b"x") * (1 << 20) for _ in range(1 << 20)],
        "<huge>": lambda: bytearray(1 << 36),
        "<raise>": lambda: {}["lost"],
        "<system exit>": lambda: sys.exit(0),
    }
    if text in traps:
        traps[text]()


def always_sleeps(completions: list[str], **kwargs: Any) -> list[float]:
    time.sleep(3600)
    return [0.0]


def leaks(completions: list[str], **kwargs: Any) -> list[float]:
    """Keeps 8 MB a call."""
    _hoard.append(bytearray(b"x") * (8 << 20))
    return [1.0 for _ in completions]


def returns(completions: list[str], value: Any = None, **kwargs: Any) -> Any:
    return value


def num_seen(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completions)) for _ in completions]


def num_seen_of_group(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completions)) for _ in completions]


num_seen_of_group.needs = "group"  # type: ignore[attr-defined]


def num_seen_of_batch(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completions)) for _ in completions]


num_seen_of_batch.needs = "batch"  # type: ignore[attr-defined]


def needs_nonsense(completions: list[str], **kwargs: Any) -> list[float]:
    return [0.0 for _ in completions]


needs_nonsense.needs = "half"  # type: ignore[attr-defined]


async def awaits(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(completions)) for _ in completions]


def pid(completions: list[str], **kwargs: Any) -> list[float]:
    time.sleep(0.05)
    return [float(os.getpid()) for _ in completions]


def draws(completions: list[str], **kwargs: Any) -> list[float]:
    return [random.random() for _ in completions]


def draws_once(completions: list[str], **kwargs: Any) -> list[float]:
    return [random.random() for _ in completions]


draws_once.is_pure = True  # type: ignore[attr-defined]


def has_torch(completions: list[str], **kwargs: Any) -> list[float]:
    return [float("torch" in sys.modules or "trl" in sys.modules) for _ in completions]


def step(completions: list[str], trainer_state: Any, **kwargs: Any) -> list[float]:
    return [float(trainer_state.global_step) for _ in completions]


def logs(
    completions: list[str], log_extra: Any = None, log_metric: Any = None, **kwargs: Any
) -> list[float]:
    if log_extra is not None:
        log_extra("upper", [text.upper() for text in completions])
    if log_metric is not None:
        log_metric("mean_length", sum(map(len, completions)) / len(completions))
    return [1.0 for _ in completions]


def by_column(completions: list[str], target: list[float], **kwargs: Any) -> list[float | None]:
    return [None if value is None else value + len(kwargs.get("other", ())) for value in target]


def by_box(completions: list[str], solution: list[str], **kwargs: Any) -> list[float | None]:
    return [
        None if not gold else float(f"[{gold}]" in text)
        for text, gold in zip(completions, solution, strict=True)
    ]


def _has_no_box(completions: list[str], solution: list[str], **kwargs: Any) -> list[bool]:
    assert len(completions) == len(solution)
    return ["[" not in text for text in completions]


by_box.malformed = _has_no_box  # type: ignore[attr-defined]
by_box.is_pure = True  # type: ignore[attr-defined]
