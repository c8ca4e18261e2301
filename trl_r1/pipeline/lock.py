"""One run at a time in a run folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from trl_r1.pipeline.mistakes import PipelineError


class RunLock:
    """A lock on a run folder; the system releases it when its process dies, however it dies.

    It is a record lock, not `flock`: forked children (data loaders, reward workers) that outlive a
    killed run do not hold it.

    Args:
        path: the lock file.
        wait_seconds: how long to wait for another process.
    """

    def __init__(self, path: Path, wait_seconds: float = 0.0) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self._fd = -1

    def __enter__(self) -> RunLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + self.wait_seconds
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.2)
                    continue
                pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._fd)
                raise PipelineError(
                    f"{self.path.parent} is in use by another run (process {pid}); wait for it, "
                    "stop it, or give this one a folder of its own with --output_dir"
                ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
