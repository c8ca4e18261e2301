"""A double of bubblewrap, for tests where that is not installed: our options, done for real.

Run as `python bwrap_double.py OPTIONS -- COMMAND`. It knows the options of bwrap(1) that are used
and no other, makes the namespaces and the file system they ask for with the kernel's own calls, and
becomes the command in there. Without its hardening; it is no sandbox.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from trl_r1.verification.isolation import kernel

_NAMESPACES = {
    "--unshare-user": kernel.CLONE_NEWUSER,
    "--unshare-pid": kernel.CLONE_NEWPID,
    "--unshare-net": kernel.CLONE_NEWNET,
    "--unshare-ipc": kernel.CLONE_NEWIPC,
    "--unshare-uts": kernel.CLONE_NEWUTS,
}
_NUM_VALUES = {"--proc": 1, "--dev": 1, "--tmpfs": 1, "--ro-bind": 2, "--chdir": 1}
_BIND, _REC, _PRIVATE, _REMOUNT, _READ_ONLY = 0x1000, 0x4000, 0x40000, 0x20, 1


def main(arguments: list[str]) -> None:
    options, command = split(arguments)
    flags = kernel.CLONE_NEWNS
    for name, *_ in options:
        flags |= _NAMESPACES.get(name, 0)
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    pid = os.fork()  # the first process of the new process namespace
    if pid:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    if ["--new-session"] in options:
        os.setsid()
    enter_root(options)
    os.execv(command[0], command)


def split(arguments: list[str]) -> tuple[list[list[str]], list[str]]:
    """The options with their values, and the command."""
    options: list[list[str]] = []
    place = 0
    while arguments[place] != "--":
        name = arguments[place]
        if name not in {*_NAMESPACES, *_NUM_VALUES, "--new-session"}:
            sys.exit(f"bwrap: Unknown option {name}")
        end = place + 1 + _NUM_VALUES.get(name, 0)
        options.append(arguments[place:end])
        place = end
    return options, arguments[place + 1 :]


def enter_root(options: list[list[str]]) -> None:
    """A file system that has what the options name and nothing else."""
    root = tempfile.mkdtemp()
    kernel.mount("none", "/", None, _REC | _PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", 0)
    folder = "/"
    for name, *values in options:
        inside = f"{root}{values[-1]}" if values else ""
        if name == "--ro-bind":
            source = Path(values[0]).resolve()
            place = Path(inside)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(exist_ok=True) if source.is_dir() else place.touch()
            kernel.mount(str(source), inside, None, _BIND | _REC)
            kernel.mount(str(source), inside, None, _BIND | _REMOUNT | _READ_ONLY)
        elif name in ("--proc", "--tmpfs"):
            Path(inside).mkdir(parents=True, exist_ok=True)
            kernel.mount(name, inside, name[2:], 0)
        elif name == "--dev":
            for device in ("null", "zero", "full", "random", "urandom", "tty"):
                Path(inside).mkdir(exist_ok=True)
                Path(inside, device).touch()
                kernel.mount(f"/dev/{device}", f"{inside}/{device}", None, _BIND)
        elif name == "--chdir":
            folder = values[0]
    os.chdir(root)
    kernel.syscall("pivot_root", b".", b".")
    kernel.umount2(".", 2)
    os.chdir(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
