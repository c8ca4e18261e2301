"""Traps for the tests of the pool: what a reward may do to its process. Run in workers only.

A completion names a trap and is worth its length where the trap lets it be graded.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_MB = 1 << 20
_hoard: list[Any] = []
_ALLOCATES = (
    "import mmap\nhoard = []\nwhile True:\n"
    "    m = mmap.mmap(-1, 1 << 24); m[:] = b'x' * (1 << 24); hoard.append(m)\n"
)


def trapped(completions: list[str], **kwargs: Any) -> list[float]:
    for text in completions:
        if text in TRAPS:
            TRAPS[text]()
    return [float(len(text)) for text in completions]


def fails_late(completions: list[str], **kwargs: Any) -> list[float]:
    """Takes 0.2 s a row, so that a search for the row that raises takes long."""
    time.sleep(0.2 * len(completions))
    if "<raise>" in completions:
        raise KeyError("lost")
    return [1.0 for _ in completions]


fails_late.needs = "batch"  # type: ignore[attr-defined]


def fails_at_once(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0 / (text != "<raise>") for text in completions]


fails_at_once.needs = "batch"  # type: ignore[attr-defined]


def logs_much(completions: list[str], log_extra: Any, **kwargs: Any) -> list[float]:
    log_extra("text", ["x" * (20 * _MB) for _ in completions])
    return [1.0 for _ in completions]


def reads_values(completions: list[str], value: list[Any], **kwargs: Any) -> list[float]:
    return [float(len(value)) for _ in completions]


def where(completions: list[str], **kwargs: Any) -> list[float]:
    """Whether a module can still be imported that nothing has imported yet."""
    import wave

    return [float(wave.__name__ == "wave") for _ in completions]


def _numpy() -> None:
    import numpy as np

    while True:
        _hoard.append(np.ones(_MB))


def _grow_in_threads() -> None:
    def grow() -> None:
        hoard = []
        while True:
            hoard.append(bytearray(b"x") * (4 * _MB))

    threads = [threading.Thread(target=grow, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise MemoryError  # all of them have died of it


def _share_memory() -> None:
    while True:
        memory = mmap.mmap(-1, 16 * _MB)
        memory[:] = b"x" * (16 * _MB)
        _hoard.append(memory)


def _fork_and_exit() -> None:
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)
    os._exit(3)


def _fork_many() -> None:
    for _ in range(30):
        if os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
    while True:
        pass


def _start_daemon() -> None:
    """A program that leaves for a session of its own, then no end."""
    subprocess.Popen(["sleep", "86399"], start_new_session=True)
    while True:
        pass


def _close_and_go_on() -> None:
    os.closerange(0, 256)
    while True:
        pass


def _upset_surroundings() -> None:
    os.chdir("/")
    os.environ.clear()
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.setrecursionlimit(200)
    time.monotonic = lambda: 0.0


def _close_streams() -> None:
    sys.stdout.close()
    sys.stderr = None  # type: ignore[assignment]
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # would interrupt another row


def _flood() -> None:
    os.write(1, b"x" * 10_000 + b"\n")
    sys.stdout.write("x" * 10_000 + "\n")


def _spin_in_a_thread() -> None:
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()


def _recurse() -> None:
    _recurse()


def _raise_without_a_text() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    raise SilentError


def _interrupt() -> None:
    raise KeyboardInterrupt


TRAPS: dict[str, Callable[[], Any]] = {
    "<numpy>": _numpy,
    "<threads>": _grow_in_threads,
    "<shared memory>": _share_memory,
    "<child grows>": lambda: subprocess.run([sys.executable, "-c", _ALLOCATES], check=False),
    "<fork>": os.fork,
    "<fork and exit>": _fork_and_exit,
    "<fork bomb>": _fork_many,
    "<daemon>": _start_daemon,
    "<close>": lambda: os.closerange(0, 256),
    "<close and go on>": _close_and_go_on,
    "<surroundings>": _upset_surroundings,
    "<close streams>": _close_streams,
    "<flood>": _flood,
    "<flood by a child>": lambda: subprocess.run("yes | head -c 30000", shell=True, check=False),
    "<thread>": _spin_in_a_thread,
    "<recursion>": _recurse,
    "<abort>": os.abort,
    "<stop>": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "<kill group>": lambda: os.killpg(0, signal.SIGKILL),
    "<bad pointer>": lambda: ctypes.memset(8, 0, 64),
    "<no text>": _raise_without_a_text,
    "<interrupt>": _interrupt,
}
