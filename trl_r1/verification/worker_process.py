"""The pool's side of one worker: start it, talk to it, watch it, kill it.

Decides nothing: which unit goes where, and what a killed worker means, is `dispatcher.py`'s
business.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trl_r1.verification import process_family, protocol

# The paths come first: the interpreter has to find this package where the trainer found it, and a
# `json.py` beside the user's data must not stand in for the standard library's. Nothing of the
# trainer's `__main__` is imported, so a training script need not guard itself.
_BOOT = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import json; sys.path[:] = json.loads(sys.argv[1]); "
    "from trl_r1.verification.worker import main; main(sys.argv[2:])"
)
_SEND_SECONDS = 30.0
# A killed process is gone at once, unless the kernel holds it (a dead network drive).
_DEATH_SECONDS = 5.0


class WorkerProcess:
    """A long-lived process that runs rewards, in a session of its own.

    Must be started from a thread that lives as long as the pool: Linux kills the worker when the
    thread that started it ends.

    Args:
        num_threads: threads that numeric libraries may use in it.

    Raises:
        OSError: the interpreter can't be started.
    """

    def __init__(self, num_threads: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as stamp_file:
            stamp_file.write(protocol.STAMP.pack(protocol.NO_UNIT, 0.0))
            stamp_file.flush()
            self._stamp = mmap.mmap(stamp_file.fileno(), protocol.STAMP.size)
            # A reward may change the worker's folder.
            paths = [str(Path(path).absolute()) for path in sys.path]
            fds = (theirs.fileno(), stamp_file.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(paths), *map(str, fds), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=_worker_environment(num_threads),
                # Out of reach of the terminal's Ctrl-C, and a group that can be killed as one.
                start_new_session=True,
            )
        ours.settimeout(_SEND_SECONDS)
        self._socket = ours
        self._reader = protocol.ReplyReader()
        self.pid = self._process.pid
        self._has_hung_up = False
        self._was_killed = False

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def send(self, request: protocol.LoadRequest | protocol.RunRequest) -> None:
        """Hand over a request; a worker that waits for one reads it at once.

        Raises:
            OSError: it hung up, or did not read for half a minute.
        """
        self._socket.settimeout(_SEND_SECONDS)
        self._socket.sendall(protocol.frame_request(request))

    def receive(self) -> Iterator[dict[str, Any]]:
        """The replies that have come in; call when the selector says there is something.

        Raises:
            EOFError: it hung up.
        """
        try:
            data = self._socket.recv(1 << 20)
        except OSError as error:
            raise EOFError from error
        if not data:
            self._has_hung_up = True
            raise EOFError
        yield from self._feed(data)

    def _feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        try:
            yield from self._reader.feed(data)
        except ValueError as error:  # something wrote over the line: nothing it says can be used
            raise EOFError from error

    def current_unit(self) -> tuple[int, float]:
        """The unit it is at (-1 for none) and when that began, by `time.monotonic()`."""
        number, began_at = protocol.STAMP.unpack_from(self._stamp)
        return number, began_at

    def memory_mb(self, limit_mb: float) -> float:
        """Memory in MB of it and all it started; see `process_family.memory_mb`."""
        return process_family.memory_mb(self.pid, limit_mb)

    def has_ended(self) -> bool:
        """Whether it has ended by itself; the line may still be held open by what it started."""
        return self._process.poll() is not None

    def kill(self) -> list[dict[str, Any]]:
        """Kill it with all it started; what it had reported before comes back."""
        was_running = self._process.returncode is None
        process_family.kill_family(self.pid)
        self._process.kill()
        self.wait(_DEATH_SECONDS)
        self._was_killed = was_running and self._process.returncode == -signal.SIGKILL
        replies: list[dict[str, Any]] = []
        # What it started may hold the line open by a copy: take what is there, wait for nothing.
        self._socket.setblocking(False)
        with contextlib.suppress(EOFError, BlockingIOError, OSError):
            while data := self._socket.recv(1 << 20):
                replies.extend(self._feed(data))
        self._socket.close()
        return replies

    def how_it_ended(self) -> str:
        """In words, once it has been killed or has ended by itself."""
        if self._has_hung_up and self._was_killed:
            return "closed its line to the trainer and went on"
        code = self._process.returncode
        if code is None:
            return "is running"
        if code >= 0:
            return f"ended with exit status {code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"

    def wait(self, seconds: float) -> None:
        """Wait for it to end by itself, at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


def _worker_environment(num_threads: int) -> dict[str, str]:
    environment = dict(os.environ)
    # Sets of strings are walked in the same order in every worker, so that a reward that depends on
    # it gives the same value wherever a row lands.
    environment["PYTHONHASHSEED"] = "0"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[name] = str(num_threads)
    return environment
