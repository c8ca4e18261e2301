"""One program's process: what it gives up before the program's first line runs."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path
from typing import Any

from . import kernel, landlock, seccomp, view


class Locks:
    """What a child needs to lock itself, prepared in the zygote.

    Args:
        has_nobody: the view knows user `nobody`, and the zygote is root there.
        is_isolated: the process is in a private view. False only where the user allowed it; then
            Landlock and seccomp are applied as far as the kernel has them.

    Raises:
        OSError: where Landlock or seccomp is missing and the view is isolated.
    """

    def __init__(self, has_nobody: bool, is_isolated: bool) -> None:
        self.has_nobody = has_nobody
        self.is_isolated = is_isolated
        self.ruleset = -1
        self.filter: seccomp.Filter | None = None
        try:
            self.filter = seccomp.Filter()
            readable = [Path("/")] if is_isolated else view.library_folders()
            self.ruleset = landlock.open_ruleset(
                readable, [Path(device) for device in view.DEVICES]
            )
        except (OSError, ValueError):
            if is_isolated:
                raise


def take_descriptors(fds: list[int]) -> None:
    """Make `fds` descriptors 0, 1, 2, ... and close every other; negative ones are left out."""
    parked = [_above(fd, len(fds)) if fd >= 0 else -1 for fd in fds]
    for number, fd in enumerate(parked):
        if fd >= 0:
            os.dup2(fd, number, inheritable=False)
    kernel.syscall("close_range", len(fds), 0xFFFFFFFF, 0)


def _above(fd: int, floor: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)


def lock_down(locks: Locks, limits: dict[str, Any], ruleset: int, keep: int) -> None:
    """Give up identity, privileges, files, network and new processes, for good.

    Args:
        locks: prepared by the zygote.
        limits: `cpu_seconds`, `memory_bytes`, `max_threads`.
        ruleset: Landlock's, negative for none.
        keep: descriptors up to this number stay open.
    """
    os.setsid()
    if locks.has_nobody:
        view.become_nobody()
    if locks.is_isolated:
        # A user namespace without a map: no identity, and a process count of its own.
        _set_limits(limits)
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWIPC)
        kernel.drop_capabilities()
    else:
        _set_limits(limits)
    # After the change of identity, which clears it.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset >= 0:
        landlock.restrict_self(ruleset)
    kernel.syscall("close_range", keep + 1, 0xFFFFFFFF, 0)
    if locks.filter is not None:
        locks.filter.install()


def _set_limits(limits: dict[str, Any]) -> None:
    cpu = int(limits["cpu_seconds"]) + 2  # the zygote's own watch is exact; this is behind it
    bounds = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_STACK: 64 << 20,
        resource.RLIMIT_NPROC: limits["max_threads"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for name, bound in bounds.items():
        hard = resource.getrlimit(name)[1]
        if hard != resource.RLIM_INFINITY:
            bound = min(bound, hard)
        resource.setrlimit(name, (bound, bound))
