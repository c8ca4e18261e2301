"""Streams and files that secrets do not reach: what is written is masked, and logs are read again.

Masking knows a secret in one piece only, so that one that was written in two, or past Python by a
child process, is taken out of the log file when it is closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from trl_r1.trust.secrets import mask


class MaskedStream:
    """A text stream whose texts are masked; in all else the stream itself.

    Args:
        stream: where they go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text without the secrets in it."""
        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts without the secrets in them."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __enter__(self) -> MaskedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def masked(stream: Any) -> Any:
    """A stream that masks what is written to it."""
    return stream if isinstance(stream, MaskedStream) else MaskedStream(stream)


@contextlib.contextmanager
def masked_output() -> Iterator[None]:
    """Mask what this process prints, tracebacks of errors included."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = masked(sys.stdout), masked(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def scrub(path: Path) -> None:
    """Take secrets out of a text file, in one piece; one without any is left as it is."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = file.read()
    except OSError:
        return
    clean = mask(text)
    if clean == text:
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with contextlib.suppress(OSError):  # a full disk, where nothing can be written any more
        with partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(clean)
        partial.replace(path)
