"""Landlock: reading is all that is left of the file system, and no TCP at all.

The private view is read-only and holds no secrets already; this is the second lock, which holds for
descriptors opened later by any path, also where namespaces could not be had.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from . import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
# Highest file access right each ABI version knows, as a mask of all of them.
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_TCP = 3  # bind, connect: ABI 4
_SCOPES = 3  # abstract unix sockets, signals: ABI 6
_RULE_PATH_BENEATH = 1


def abi_version() -> int:
    """Landlock's version in this kernel; 0 where there is none."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def open_ruleset(readable: list[Path], writable: list[Path]) -> int:
    """A ruleset's descriptor: everything beneath `readable` may be read, `writable` files written.

    Raises:
        OSError: where the kernel has no Landlock.
    """
    version = abi_version()
    rights = _FILE_RIGHTS[min(max(version, 1), 5)]
    attributes = struct.pack("=Q", rights)
    if version >= 4:
        attributes += struct.pack("=Q", _TCP)
    if version >= 6:
        attributes += struct.pack("=Q", _SCOPES)
    ruleset = kernel.syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    os.set_inheritable(ruleset, False)
    for paths, access in ((readable, _READ_FILE | _READ_DIR), (writable, _WRITE_FILE)):
        for path in paths:
            _allow_beneath(ruleset, path, access)
    return ruleset


def _allow_beneath(ruleset: int, path: Path, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not path.is_dir():
            access &= ~_READ_DIR
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, fd), 12)
        kernel.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)


def restrict_self(ruleset: int) -> None:
    """Bind this process to the ruleset, for good; needs no_new_privs."""
    kernel.syscall("landlock_restrict_self", ruleset, 0)
