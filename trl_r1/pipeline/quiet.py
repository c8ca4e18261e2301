"""Keeps what libraries print, warn and log out of the way, in a log file.

Both Python's streams and the process's file descriptors 1 and 2 are redirected, since compiled code
and child processes write to the latter. Secrets are masked in what Python writes, and taken out of
the log files in the end. Standard input is empty meanwhile: a reward file or a library that
asks something would wait for ever, its question in the log. The screen stays reachable through
`QuietLog.screen`. Imports nothing heavy, so that it can be open before anything heavy is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from trl_r1.trust.masked_streams import masked, scrub
from trl_r1.trust.secrets import mask


class QuietLog:
    """While it is open, nothing but `screen` reaches the terminal.

    It begins in a temporary file; what that holds moves to the first file of `switch`, or is
    dropped where there is none.

    Attributes:
        path: the log file that is written to now; None in the beginning.
        screen: a stream to what was standard output.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.screen: TextIO = sys.stdout
        self._file: IO[str] | None = None
        self._stream: Any = None  # the file's, masked
        self._written: dict[Path, None] = {}
        self._stack = contextlib.ExitStack()
        self._removed: list[tuple[logging.Logger, logging.Handler, bool]] = []

    def __enter__(self) -> QuietLog:
        streams = sys.stdout, sys.stderr
        self.screen = _duplicate(sys.stdout)
        self._stack.callback(self._give_back, *streams)
        self._stack.enter_context(_saved_descriptors())
        self._stack.enter_context(warnings.catch_warnings())
        logging.captureWarnings(True)
        self._stack.callback(logging.captureWarnings, False)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._handler = handler
        root = logging.getLogger()
        root.addHandler(handler)
        self._stack.callback(root.removeHandler, handler)
        self._redirect(tempfile.TemporaryFile("w+", encoding="utf-8", buffering=1))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def switch(self, path: Path) -> None:
        """Go on in another file.

        Raises:
            OSError: it can't be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written.setdefault(path)
        scrub(path)  # what a killed process left
        new = path.open("a", encoding="utf-8", buffering=1, errors="replace")
        if self.path is None and self._file is not None:
            self._file.seek(0)
            new.write(mask(self._file.read()))
        self.path = path
        self._redirect(new)

    def _redirect(self, new: IO[str]) -> None:
        for descriptor in (1, 2):
            os.dup2(new.fileno(), descriptor)
        sys.stdout = sys.stderr = stream = masked(new)
        self._handler.setStream(stream)
        self._silence_libraries()
        if self._file is not None:
            self._file.close()
        self._file, self._stream = new, stream

    def _silence_libraries(self) -> None:
        """Take away the handlers that libraries gave their loggers: the root's gets all."""
        for logger in list(logging.root.manager.loggerDict.values()):
            if not isinstance(logger, logging.Logger):
                continue
            for handler in [h for h in logger.handlers if type(h) is logging.StreamHandler]:
                logger.removeHandler(handler)
                # One that a library made since writes to this log and is of no use later.
                if handler.stream is not self._stream:
                    self._removed.append((logger, handler, logger.propagate))
                logger.propagate = True

    def _give_back(self, stdout: TextIO, stderr: TextIO) -> None:
        sys.stdout, sys.stderr = stdout, stderr
        for logger, handler, propagate in self._removed:
            logger.addHandler(handler)
            logger.propagate = propagate
        if self._file is not None:
            self._file.close()
        # All of them: a process that was started under an earlier one still writes there.
        for path in self._written:
            scrub(path)
        self.screen.flush()


def _duplicate(stream: Any) -> TextIO:
    """A stream to where `stream` writes, that outlives the redirection."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream  # type: ignore[no-any-return]  # kept in memory, by a test or a notebook
    stream.flush()
    copy = os.fdopen(
        os.dup(descriptor), "w", encoding=stream.encoding, errors="replace", buffering=1
    )
    return masked(copy)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _saved_descriptors() -> Iterator[None]:
    saved = {}
    for descriptor in (0, 1, 2):
        # A daemon may have closed any of them.
        with contextlib.suppress(OSError):
            saved[descriptor] = os.dup(descriptor)
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(empty, 0)
        yield
    finally:
        os.close(empty)
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)
