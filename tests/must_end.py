"""A guard against endless loops in tests: far above what anything should take, so no measure of
speed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def must_end(seconds: int = 60) -> Iterator[None]:
    """Fail the test where its block has not ended after `seconds`."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"not finished after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
