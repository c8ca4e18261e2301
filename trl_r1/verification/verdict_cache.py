"""Rewards of rows that have been graded before, for rewards that are pure.

Keyed by the content of the row as the function gets it, so a changed gold answer, argument or
column is another row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict


class VerdictCache:
    """The latest `max_size` rewards; safe to use from several threads."""

    def __init__(self, max_size: int = 1 << 16) -> None:
        self._max_size = max_size
        self._rewards: OrderedDict[bytes, float | None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rewards)

    def get(self, key: bytes) -> tuple[bool, float | None]:
        """Whether the reward of a row is known, and what it is."""
        with self._lock:
            if key not in self._rewards:
                return False, None
            self._rewards.move_to_end(key)
            return True, self._rewards[key]

    def put(self, key: bytes, reward: float | None) -> None:
        """Remember a row's reward; the one that was asked for longest ago goes."""
        with self._lock:
            self._rewards[key] = reward
            self._rewards.move_to_end(key)
            if len(self._rewards) > self._max_size:
                self._rewards.popitem(last=False)
