"""Rewards of rows that have been graded before, for rewards that are pure.

Keyed by the content of the row as the function gets it, so a changed gold answer, argument or
column is another row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple


class Grade(NamedTuple):
    """A row's reward, and whether it held nothing to grade."""

    reward: float | None
    is_malformed: bool = False


class VerdictCache:
    """The latest `max_size` rewards; safe to use from several threads."""

    def __init__(self, max_size: int = 1 << 16) -> None:
        self._max_size = max_size
        self._grades: OrderedDict[bytes, Grade] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._grades)

    def get(self, key: bytes) -> Grade | None:
        """What is known of a row, if anything."""
        with self._lock:
            if key not in self._grades:
                return None
            self._grades.move_to_end(key)
            return self._grades[key]

    def put(self, key: bytes, grade: Grade) -> None:
        """Remember a row's grade; the one that was asked for longest ago goes."""
        with self._lock:
            self._grades[key] = grade
            self._grades.move_to_end(key)
            if len(self._grades) > self._max_size:
                self._grades.popitem(last=False)
