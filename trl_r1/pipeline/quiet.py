"""Keeps what libraries print, warn and log out of the way, in a log file.

Both Python's streams and the process's file descriptors 1 and 2 are redirected, since compiled code
and child processes write to the latter. The screen stays reachable through `QuietLog.screen`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO


class QuietLog:
    """The log of a run: while it is open, nothing but `screen` reaches the terminal.

    Attributes:
        path: the log file that is written to now.
        screen: a stream to what was standard output.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.screen: TextIO = sys.stdout
        self._file: IO[str] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> QuietLog:
        self.screen = self._duplicate(sys.stdout)
        self._stack.enter_context(_saved_descriptors())
        self._stack.enter_context(_third_party_loggers())
        self._stack.enter_context(warnings.catch_warnings())
        logging.captureWarnings(True)
        self._stack.callback(logging.captureWarnings, False)
        self.switch(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = self._streams
        if self._file is not None:
            self._file.close()
        self._stack.close()
        self.screen.flush()

    def switch(self, path: Path) -> None:
        """Go on in another file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.open("a", encoding="utf-8", buffering=1, errors="replace")
        for descriptor in (1, 2):
            os.dup2(new.fileno(), descriptor)
        sys.stdout = sys.stderr = new
        for handler in _log_handlers():
            handler.setStream(new)
        if self._file is not None:
            self._file.close()
        self._file, self.path = new, path

    def _duplicate(self, stream: Any) -> TextIO:
        """A stream to where `stream` writes, that outlives the redirection."""
        self._streams = (sys.stdout, sys.stderr)
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):
            return stream  # type: ignore[no-any-return]  # captured in memory, by a test or a notebook
        stream.flush()
        return os.fdopen(os.dup(descriptor), "w", encoding=stream.encoding, buffering=1)


@contextlib.contextmanager
def _saved_descriptors() -> Iterator[None]:
    saved = [os.dup(descriptor) for descriptor in (1, 2)]
    try:
        yield
    finally:
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


class _LogHandler(logging.StreamHandler[Any]):
    """The one handler of the redirected root logger."""


def _log_handlers() -> list[_LogHandler]:
    return [h for h in logging.getLogger().handlers if isinstance(h, _LogHandler)]


@contextlib.contextmanager
def _third_party_loggers() -> Iterator[None]:
    """Send every logger to the root's file; libraries with handlers of their own keep none."""
    root = logging.getLogger()
    handler = _LogHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    touched: list[tuple[logging.Logger, list[logging.Handler], bool]] = []
    for name in (
        "transformers",
        "datasets",
        "accelerate",
        "trl",
        "peft",
        "huggingface_hub",
        "torch",
    ):
        logger = logging.getLogger(name)
        touched.append((logger, list(logger.handlers), logger.propagate))
        logger.handlers, logger.propagate = [], True
    before = root.handlers[:]
    root.handlers = [h for h in before if not _writes_to_terminal(h)] + [handler]
    try:
        yield
    finally:
        root.handlers = before
        for logger, handlers, propagate in touched:
            logger.handlers, logger.propagate = handlers, propagate


def _writes_to_terminal(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler
