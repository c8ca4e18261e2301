"""A private view of the machine: user, mount, network, IPC, host-name and process namespaces.

The new root is a tmpfs that holds the interpreter's libraries and nothing else, all of it
read-only: no home, no data, no `/proc`, no `/tmp`, no site-packages, no programs. The network
namespace has no interface that is up.
"""

from __future__ import annotations

import os
import struct
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from . import kernel

_NOBODY = 65534
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x4000, 0x40000, 2, 4
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWPID
)
_PACKAGES = ("site-packages", "dist-packages")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


class ViewError(OSError):
    """The kernel refuses a part of the private view; the message names the part."""


def library_folders() -> list[Path]:
    """Folders the interpreter needs: its standard library and the system's shared libraries."""
    candidates = [
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        Path(sys.base_prefix, "lib"),
        Path(sys.base_exec_prefix, "lib"),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        sysconfig.get_config_var("LIBDIR") or "/lib",
    ]
    chosen: list[Path] = []
    for path in map(Path, candidates):
        if path.exists() and not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return chosen


def packages_in(folders: list[Path]) -> list[Path]:
    """Installed packages inside those folders, which the view hides: they may hold test sets."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    found: list[Path] = []
    for parent in (stdlib.parent, Path("/usr/lib"), Path("/usr/local/lib")):
        if any(parent.is_relative_to(folder) for folder in folders):
            found += [p for kind in _PACKAGES for p in parent.glob(f"python3*/{kind}")]
    return sorted(set(found))


def enter() -> bool:
    """Move this process, which has one thread, into a private view.

    Its next child is process 1 of a new process namespace. Returns whether user `nobody` can be
    switched to inside.

    Raises:
        ViewError: naming what the kernel refused.
    """
    has_nobody = _enter_namespaces()
    try:
        _build_root()
    except OSError as error:
        raise ViewError(error.errno, f"the private file system: {error.strerror}") from error
    return has_nobody


def _enter_namespaces() -> bool:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        # Only root may map a second id, and only from outside: a helper that stays there does it.
        mapper = _start_mapper()
    try:
        kernel.unshare(_NAMESPACES)
    except OSError as error:
        raise ViewError(error.errno, f"user namespaces: {error.strerror}") from error
    if uid == 0:
        return mapper()
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    return False


def _start_mapper() -> Callable[[], bool]:
    """Fork the helper; the function returned lets it write the maps, and says if nobody is in."""
    go_read, go_write = os.pipe()
    target = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            os.close(go_write)
            os.read(go_read, 1)
            status = _map_root(target)
        finally:
            os._exit(status)
    os.close(go_read)

    def finish() -> bool:
        os.close(go_write)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 2:
            raise ViewError(1, "user namespaces: the user map can't be written")
        return status == 0

    return finish


def _map_root(target: int) -> int:
    """Exit status: 0 with nobody mapped, 1 with root alone, 2 for neither."""
    for status, extra in ((0, f"\n{_NOBODY} {_NOBODY} 1"), (1, "")):
        try:
            if not extra:
                _write(f"/proc/{target}/setgroups", "deny")
            _write(f"/proc/{target}/uid_map", "0 0 1" + extra)
            _write(f"/proc/{target}/gid_map", "0 0 1" + extra)
            return status
        except OSError:  # inside a container root may be alone; then its map has one line
            continue
    return 2


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _build_root() -> None:
    os.umask(0o022)
    kernel.mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    folders = library_folders()
    links = {path: path.readlink() for path in folders if path.is_symlink()}
    # Held by descriptor: the tmpfs may be about to cover what they lie in.
    trees = {
        path: (path.is_dir(), _open_tree(path))
        for path in (*folders, *map(Path, DEVICES))
        if path not in links and path.exists()
    }
    hidden = packages_in(folders)
    root = next(p for p in map(Path, ("/tmp", "/var/tmp", "/mnt", "/run")) if p.is_dir())
    kernel.mount("tmpfs", str(root), "tmpfs", _MS_NOSUID | _MS_NODEV, "size=64k,mode=0755")
    os.chdir(root)
    for path, target in links.items():
        place = path.relative_to("/")
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        place.symlink_to(target)
    for path, (is_folder, tree) in trees.items():
        place = path.relative_to("/")
        (place if is_folder else place.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
        if not is_folder:
            place.touch(mode=0o644)
        target_bytes = os.fsencode(place)
        kernel.syscall("move_mount", tree, b"", _AT_FDCWD, target_bytes, _MOVE_EMPTY_PATH)
        os.close(tree)
    for path in hidden:
        place = path.relative_to("/")
        if place.is_dir():
            kernel.mount("tmpfs", str(place), "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4k")
    kernel.syscall("pivot_root", b".", b".")
    kernel.umount2(".", _MNT_DETACH)
    os.chdir("/")
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    kernel.syscall("mount_setattr", _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes))


def _open_tree(path: Path) -> int:
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return kernel.syscall("open_tree", _AT_FDCWD, os.fsencode(path), flags)


def become_nobody() -> None:
    """Give root's identity up; for a process whose view has `nobody`."""
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
