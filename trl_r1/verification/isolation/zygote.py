"""The warm process that every program is forked from, and that kills the ones that overstay.

It never sees a program: jobs come as descriptors that only the child reads, so the memory that the
next child inherits holds nothing of them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
from typing import Any

from . import child, harness, kernel

_POLL_SECONDS = 0.05
_FDS_PER_ROLE = 7  # stdin, stdout, stderr, report, link in, link out, job


def serve(control: socket.socket, locks: child.Locks) -> None:
    """Run jobs until the supervisor hangs up; does not return."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    own_pidfd = os.pidfd_open(os.getpid())
    gc.collect()
    gc.freeze()  # keeps the collector of the children off the shared pages
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 16, 64)
        if not message:
            os._exit(0)
        if message == b"kill":  # came after the end of what it meant
            continue
        order = json.loads(message)
        children = [
            _fork(
                role,
                order["limits"],
                fds[_FDS_PER_ROLE * n :][:_FDS_PER_ROLE],
                locks,
                own_pidfd,
            )
            for n, role in enumerate(order["roles"])
        ]
        for fd in set(fds):
            os.close(fd)
        control.send(json.dumps(_watch(children, order["limits"], control)).encode())


def _fork(
    role: str, limits: dict[str, Any], fds: list[int], locks: child.Locks, own_pidfd: int
) -> int:
    if locks.is_isolated:
        # One process namespace a program. The kernel wants the zygote's own back before each new.
        kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
        kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ruleset = _FDS_PER_ROLE if locks.ruleset >= 0 else -1
        child.take_descriptors([*fds, locks.ruleset])
        job = harness.read_job(_FDS_PER_ROLE - 1)
        last_fd = _FDS_PER_ROLE - 2 if role in ("serve", "test") else 3
        child.lock_down(locks, limits, ruleset, last_fd)
        os.write(3, b"locked\n")  # the first line of every report, before the program can write
        status = harness.run(role, job)
    except BaseException as error:  # noqa: BLE001 - nothing may return into the zygote's loop
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def _watch(pids: list[int], limits: dict[str, Any], control: socket.socket) -> dict[str, Any]:
    """Wait until the first of the processes ends or a limit is passed; then end all of them."""
    poller = select.poll()
    pidfds = [os.pidfd_open(pid) for pid in pids]
    for fd in (pidfds[0], control.fileno()):
        poller.register(fd, select.POLLIN)
    start = time.monotonic()
    reason = ""
    while not reason:
        left = start + limits["wall_seconds"] - time.monotonic()
        if left <= 0:
            reason = "wall"
            break
        events = [fd for fd, _ in poller.poll(1000 * min(left, _POLL_SECONDS))]
        if control.fileno() in events:
            # An order to stop, or the end of the supervisor; both end the program.
            reason = "killed"
            control.recv(16)
        elif events:
            reason = "exit"
        elif max(map(_cpu_seconds, pids)) > limits["cpu_seconds"]:
            reason = "cpu"
    return {
        "reason": reason,
        "wall_seconds": time.monotonic() - start,
        "processes": [_end(pid, pidfd) for pid, pidfd in zip(pids, pidfds, strict=True)],
    }


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the process's CPU clock
    except OSError:
        return 0.0  # it has ended


def _end(pid: int, pidfd: int) -> dict[str, Any]:
    # Process 1 of its namespace: the kernel ends every thread and process in there with it.
    # Where the user allowed to do without namespaces, its session has to do.
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    os.close(pidfd)
    return {
        "exit": os.waitstatus_to_exitcode(status),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "max_memory_bytes": usage.ru_maxrss * 1024,
    }
