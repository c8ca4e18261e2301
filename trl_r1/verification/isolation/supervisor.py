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
    has_nobody, is_isolated = False, False
    if not config.get("pretend_no_namespaces"):
        is_isolated, has_nobody = _try_view(may_fall_short)
    elif not may_fall_short:
        raise view.ViewError(1, "user namespaces: switched off for a test")
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
    streams, report, is_cut = _collect(control, outputs, header["limits"])
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


def _collect(
    control: socket.socket, outputs: list[int], limits: dict[str, Any]
) -> tuple[list[bytes], dict[str, Any] | None, bool]:
    """Read the streams up to their limit until the zygote reports; None for a zygote that is lost
    or late."""
    buffers: dict[int, bytearray] = {fd: bytearray() for fd in outputs}
    poller = select.poll()
    for fd in (*outputs, control.fileno()):
        os.set_blocking(fd, fd == control.fileno())
        poller.register(fd, select.POLLIN)
    deadline = time.monotonic() + limits["wall_seconds"] + _GRACE_SECONDS
    report: dict[str, Any] | None = None
    is_cut = False
    is_over = False
    while not is_over and time.monotonic() < deadline:
        for fd, _ in poller.poll(100):
            if fd == control.fileno():
                message = control.recv(1 << 16)
                report = json.loads(message) if message else None
                is_over = True
            elif not _read_some(fd, buffers[fd], limits["max_output_bytes"]):
                poller.unregister(fd)
                if len(buffers[fd]) > limits["max_output_bytes"]:
                    if not is_cut:
                        control.send(b"kill")
                    is_cut = True
    for fd in outputs:  # the writers are dead: what is left in the pipes ends at once
        while is_over and _read_some(fd, buffers[fd], limits["max_output_bytes"]):
            pass
        is_cut = is_cut or len(buffers[fd]) > limits["max_output_bytes"]
        os.close(fd)
    return [bytes(b[: limits["max_output_bytes"]]) for b in buffers.values()], report, is_cut


def _read_some(fd: int, buffer: bytearray, limit: int) -> bool:
    """Read once; False at the end, past the limit, or where there is nothing now."""
    try:
        data = os.read(fd, 1 << 16)
    except BlockingIOError:
        return False
    buffer += data
    return bool(data) and len(buffer) <= limit
