"""What a program's process says, and to whom: report lines, and frames to the process beside it.

Descriptors are fixed: 3 takes the report, 4 and 5 are the link between a `test` and a `serve`
process.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_REPORT, _LINK_IN, _LINK_OUT = 3, 4, 5
_MAX_FRAME = 8 << 20


def report(kind: str, text: str | bytes = b"", write: Callable[..., int] = os.write) -> None:
    """Write one line of the report."""
    body = text if isinstance(text, bytes) else text.encode("ascii", "backslashreplace")
    _write_all(_REPORT, kind.encode() + body.replace(b"\n", b" ") + b"\n", write)


def _write_all(fd: int, data: bytes, write: Callable[..., int] = os.write) -> None:
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def describe(error: BaseException) -> str:
    """An exception in one line."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:  # noqa: BLE001 - an exception of the program's own making
        return type(error).__name__[:300]


def read_frame() -> bytes | None:
    """The next frame of the process beside; None once that has ended."""
    header = _read_exactly(_LINK_IN, 4)
    if header is None:
        return None
    size = int.from_bytes(header, "big")
    return _read_exactly(_LINK_IN, size) if size <= _MAX_FRAME else None


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_frame(data: bytes) -> None:
    """Send a frame to the process beside."""
    _write_all(_LINK_OUT, len(data).to_bytes(4, "big") + data)
