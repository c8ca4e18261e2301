"""Hashes of runs of words, for many texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

Array = np.ndarray[Any, Any]

_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no place of a run is lost modulo 2^64
_MAX_WORDS = 1_000_000


class WordHashes(dict[str, int]):
    """The 64-bit hash of each word asked for, remembered up to a limit."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _MAX_WORDS:
            self.clear()
        value = self[word] = xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
        return value

    def of(self, words: Sequence[str]) -> Array:
        """The hashes of words, in order."""
        return np.fromiter(map(self.__getitem__, words), dtype=np.uint64, count=len(words))


def run_hashes(hashes: Array, length: int) -> Array:
    """A hash of each run of `length` words: entry i is of the words i to i + length - 1.

    Args:
        hashes: of N words.
        length: of a run; N - length + 1 results, none where that is not positive.
    """
    count = len(hashes) - length + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    result = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        result = result * np.uint64(_FACTOR) + hashes[place : place + count]
    return result ^ (result >> np.uint64(31))
