"""What the reward pool and its workers say to each other, and the stamp that times a worker.

Requests are pickled (they come from the trainer and may hold anything a data set holds); replies
are JSON, so that nothing a reward function has touched is ever unpickled in the trainer. Imports
little: every worker loads this file.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<Q")
# Unit a worker is at (-1: none) and `time.monotonic()` when it began. The clock is the system's, so
# both processes read the same one.
STAMP = struct.Struct("<qd")
NO_UNIT = -1
# A reply larger than this is a reward gone wild, not a list of numbers.
MAX_REPLY_BYTES = 1 << 28


@dataclass(frozen=True)
class RewardKey:
    """Which reward a worker is to load: a reference and its arguments, never the function itself.

    Attributes:
        use: reference, see `trl_r1.verification.loading.load_reward`.
        name: what logs call it; None for the function's own name.
        args: pickled mapping of keyword arguments bound to it.
        base_dir: folder that a relative file reference starts from.
    """

    use: str
    name: str | None = None
    args: bytes = pickle.dumps({})
    base_dir: Path | None = None


@dataclass(frozen=True)
class LoadRequest:
    """Load a reward and describe it, within a limit on memory."""

    reward: RewardKey
    memory_mb: int


@dataclass(frozen=True)
class RunRequest:
    """Run a loaded reward on some units, one call each.

    Attributes:
        reward: which one.
        constants: pickled keyword arguments that are the same for every unit.
        units: number and pickled columns of each unit.
        memory_mb: memory the worker may have while it does so.
        wants_logs: whether `log_extra` and `log_metric` are passed to the function.
    """

    reward: RewardKey
    constants: bytes
    units: tuple[tuple[int, bytes], ...]
    memory_mb: int
    wants_logs: bool


def frame_request(request: LoadRequest | RunRequest) -> bytes:
    """Bytes of a request as they go over the socket."""
    body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body)) + body


def frame_reply(reply: dict[str, Any]) -> bytes:
    """Bytes of a reply; values that JSON lacks go as their text."""
    body = json.dumps(reply, default=str).encode(errors="surrogatepass")
    return _HEADER.pack(len(body)) + body


def request_size(header: bytes) -> int:
    """Length of the request that follows a header."""
    return int(_HEADER.unpack(header)[0])


HEADER_BYTES = _HEADER.size


class ReplyReader:
    """Cuts a stream of bytes into replies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The replies that `data` completes.

        Raises:
            ValueError: for bytes that are no reply.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            if size > MAX_REPLY_BYTES:
                raise ValueError(f"a reply of {size} bytes")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            reply = json.loads(body)
            if not isinstance(reply, dict):
                raise ValueError("a reply that is no mapping")
            yield reply
