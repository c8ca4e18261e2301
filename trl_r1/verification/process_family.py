"""What a worker and everything it has started use, and how to end all of it.

A reward may start programs, and those may start others or leave for sessions of their own. The
worker is their subreaper (see `worker.py`), so that as long as it lives all of them are found
beneath it. Reads `/proc`; where there is none, a process is taken to be alone and to use nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_MAX_ROUNDS = 20


def family_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for member in found:  # it grows as we go
        tasks = f"/proc/{member}/task"
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(tasks):  # noqa: PTH208 - many times a second
                with contextlib.suppress(OSError):  # that thread has ended
                    found += map(int, _read(f"{tasks}/{thread}/children").split())
    return found


def memory_mb(pid: int, limit_mb: float) -> float:
    """Memory of a process and its descendants in MB, mapped files aside.

    Args:
        pid: process.
        limit_mb: from here on it is worth a closer look: forks share pages, which are then counted
            once and not for each of them.
    """
    family = family_of(pid)
    total = sum(_sum_kb(member, "status", (b"RssAnon:", b"RssShmem:")) for member in family)
    if len(family) > 1 and total > limit_mb * 1024:
        exact = sum(_sum_kb(m, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) for m in family)
        total = exact or total
    return total / 1024


def _sum_kb(pid: int, file: str, names: tuple[bytes, ...]) -> int:
    total = 0
    with contextlib.suppress(OSError, IndexError):  # it has ended
        text = _read(f"/proc/{pid}/{file}")
        for name in names:
            total += int(text.partition(name)[2].split(maxsplit=1)[0])
    return total


def _read(path: str) -> bytes:
    # Many times a second, so by the shortest way.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def kill_family(pid: int) -> None:
    """Kill a process that leads a group and has not been waited for, and all it has started."""
    # Stopped first, so that it can't start more while its descendants are looked up.
    _signal_group(pid, signal.SIGSTOP)
    for _ in range(_MAX_ROUNDS):
        # One that is dead is named until somebody waits for it; a second look tells.
        descendants = [member for member in family_of(pid)[1:] if _is_alive(member)]
        if not descendants:
            break
        for member in descendants:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)
    _signal_group(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
