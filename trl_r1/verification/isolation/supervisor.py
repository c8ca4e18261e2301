"""The process between trainer and programs: a fresh interpreter that starts the zygote, passes jobs
on, bounds what comes back and hands it to the trainer unread.

Talks to the trainer over the socket at descriptor 0: `frames.py`'s form, both ways.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import child, frames, kernel, landlock, view, zygote

# What programs import most, loaded before the forks.
_WARM = [
    "abc",
    "array",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "collections.abc",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "numbers",
    "operator",
    "queue",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "sys",
    "textwrap",
    "threading",
    "time",
    "types",
    "typing",
    "unicodedata",
    "hashlib",
]
_GRACE_SECONDS = 2.0
_ORPHAN_CHECK_SECONDS = 1.0


def main() -> None:
    """Serve the trainer at descriptor 0 until it hangs up."""
    trainer = socket.socket(fileno=0)
    trainer.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    config, _ = frames.receive(trainer) or ({}, b"")
    for name in _WARM:
        importlib.import_module(name)
    sys.path[:] = [p for p in sys.path if p and "site-packages" not in p]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid, layers = _start_zygote(config, ours, theirs, trainer)
    except OSError as error:
        frames.send(trainer, {"error": str(error.strerror or error)})
        return
    theirs.close()
    frames.send(trainer, {"layers": layers, "pid": os.getpid()})
    parent = os.getppid()
    while _wait_for_job(trainer, parent):
        received = frames.receive(trainer)
        if received is None:
            break
        is_alive = _run_job(trainer, ours, *received)
        if not is_alive:
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _start_zygote(
    config: dict[str, Any], ours: socket.socket, theirs: socket.socket, trainer: socket.socket
) -> tuple[int, list[str]]:
    """Enter the view and fork the zygote: its process id, and the names of the layers in force.

    Raises:
        OSError: the kernel can't isolate, and the trainer did not allow that.
    """
    may_fall_short = config["allow_unisolated"]
    layers = ["rlimits"]
    is_isolated, has_nobody = _try_view(may_fall_short)
    if landlock.abi_version() == 0 and not may_fall_short:
        raise OSError(38, "Landlock: the kernel has none (it needs 5.13, and `landlock` in lsm=)")
    locks = child.Locks(has_nobody, is_isolated)
    layers += ["namespaces"] * is_isolated
    layers += ["landlock"] * (locks.ruleset >= 0) + ["seccomp"] * (locks.filter is not None)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            trainer.close()
            zygote.serve(theirs, locks)
        finally:
            os._exit(1)
    if is_isolated:
        kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return pid, layers


def _try_view(may_fall_short: bool) -> tuple[bool, bool]:
    """Whether the process is in a private view now, and whether that has `nobody`."""
    try:
        return True, view.enter()
    except view.ViewError:
        if may_fall_short:
            return False, False
        raise


def _wait_for_job(trainer: socket.socket, parent: int) -> bool:
    """False once the trainer is gone, even if a process it forked still holds the socket."""
    poller = select.poll()
    poller.register(trainer, select.POLLIN)
    while not poller.poll(1000 * _ORPHAN_CHECK_SECONDS):
        if os.getppid() != parent:
            return False
    return True


def _run_job(
    trainer: socket.socket, control: socket.socket, header: dict[str, Any], payload: bytes
) -> bool:
    """Pass one job to the zygote and its outcome to the trainer; False if the zygote is lost."""
    roles: list[str] = [part["role"] for part in header["parts"]]
    for_zygote: list[int] = []
    outputs: list[int] = []
    offset = 0
    links = [*_pipe(), *_pipe()] if len(roles) == 2 else [_nothing()] * 4
    for number, part in enumerate(header["parts"]):
        sizes = part["stdin_size"], part["job_size"]
        stdin = _memory_file(payload[offset : offset + sizes[0]])
        job = _memory_file(payload[offset + sizes[0] : offset + sum(sizes)])
        offset += sum(sizes)
        pipes = [_pipe() for _ in range(3)]
        outputs += [read for read, _ in pipes]
        # The first role reads what the second writes, and the other way round.
        link = (links[0], links[3]) if number == 0 else (links[2], links[1])
        for_zygote += [stdin, *(write for _, write in pipes), *link, job]
    order = {"roles": roles, "limits": header["limits"]}
    socket.send_fds(control, [json.dumps(order).encode()], for_zygote)
    for fd in {*for_zygote, *links}:
        os.close(fd)
    streams, report, is_cut = _collect(control, outputs, header["limits"], trainer)
    outcome = {
        "report": report,
        "is_cut": is_cut,
        "sizes": [len(s) for s in streams],
    }
    frames.send(trainer, outcome, b"".join(streams))
    return report is not None


def _pipe() -> tuple[int, int]:
    return os.pipe2(os.O_CLOEXEC)


def _nothing() -> int:
    return _memory_file(b"")


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("job", os.MFD_CLOEXEC)
    view_left = memoryview(content)
    while view_left:
        view_left = view_left[os.write(fd, view_left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class _Streams:
    """The pipes a job writes to, each kept up to a limit."""

    def __init__(self, fds: list[int], limit: int) -> None:
        self._buffers: dict[int, bytearray] = {fd: bytearray() for fd in fds}
        self._limit = limit
        for fd in fds:
            os.set_blocking(fd, False)

    def take(self, fd: int) -> bool:
        """Read once; False at the end, past the limit, or where there is nothing now."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        self._buffers[fd] += data
        return bool(data) and len(self._buffers[fd]) <= self._limit

    def is_cut(self) -> bool:
        return any(len(buffer) > self._limit for buffer in self._buffers.values())

    def finish(self, is_over: bool) -> list[bytes]:
        """Close the pipes and give what they held; once a job is over its writers are dead, so what
        is left in there ends at once."""
        for fd in self._buffers:
            while is_over and self.take(fd):
                pass
            os.close(fd)
        return [bytes(buffer[: self._limit]) for buffer in self._buffers.values()]


def _collect(
    control: socket.socket, outputs: list[int], limits: dict[str, Any], trainer: socket.socket
) -> tuple[list[bytes], dict[str, Any] | None, bool]:
    """Read the streams until the zygote reports: the streams, the report, whether one was cut.

    There is no report from a zygote that is lost or late. Ends the process with the trainer.
    """
    streams = _Streams(outputs, limits["max_output_bytes"])
    poller = select.poll()
    for source in (*outputs, control.fileno(), trainer.fileno()):
        poller.register(source, select.POLLIN)
    parent = os.getppid()
    deadline = time.monotonic() + limits["wall_seconds"] + _GRACE_SECONDS
    message: bytes | None = None
    is_told = False
    while message is None and time.monotonic() < deadline:
        ready = [fd for fd, _ in poller.poll(1000 * _ORPHAN_CHECK_SECONDS)]
        # The trainer says nothing while a job runs: it has hung up. The zygote dies with this
        # process, and the program with the zygote.
        if trainer.fileno() in ready or (not ready and os.getppid() != parent):
            os._exit(0)
        for fd in ready:
            if fd == control.fileno():
                message = control.recv(1 << 16)
            elif not streams.take(fd):
                poller.unregister(fd)
        if streams.is_cut() and not is_told:
            control.send(b"kill")
            is_told = True
    collected = streams.finish(is_over=message is not None)
    return collected, json.loads(message) if message else None, streams.is_cut()
