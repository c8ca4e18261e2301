"""The seccomp filter, written as BPF by hand: what a program may ask of the kernel.

An allowlist. What is not on it answers EPERM, so that a program meets an ordinary `PermissionError`
and goes on or fails by itself. Left out on purpose, among others: every call that opens a socket,
makes a process or runs a file, writes to a file's data or metadata (Landlock does not stop chmod),
traces, mounts, changes namespaces or keys, shares memory, or is younger than this list (io_uring,
bpf, userfaultfd).
"""

from __future__ import annotations

import ctypes
import struct

from . import kernel

_ALLOWED = [
    "read",
    "write",
    "open",
    "close",
    "stat",
    "fstat",
    "lstat",
    "poll",
    "lseek",
    "mmap",
    "mprotect",
    "munmap",
    "brk",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "pread64",
    "readv",
    "writev",
    "access",
    "pipe",
    "select",
    "sched_yield",
    "mremap",
    "madvise",
    "dup",
    "dup2",
    "pause",
    "nanosleep",
    "getitimer",
    "alarm",
    "setitimer",
    "getpid",
    "recvfrom",
    "exit",
    "wait4",
    "kill",
    "uname",
    "fcntl",
    "getdents",
    "getcwd",
    "readlink",
    "gettimeofday",
    "getrlimit",
    "getrusage",
    "sysinfo",
    "times",
    "getuid",
    "getgid",
    "geteuid",
    "getegid",
    "getppid",
    "getpgrp",
    "getgroups",
    "getresuid",
    "getresgid",
    "getpgid",
    "getsid",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigsuspend",
    "sigaltstack",
    "arch_prctl",
    "setrlimit",
    "gettid",
    "tkill",
    "time",
    "futex",
    "sched_getaffinity",
    "epoll_create",
    "getdents64",
    "set_tid_address",
    "restart_syscall",
    "fadvise64",
    "clock_gettime",
    "clock_getres",
    "clock_nanosleep",
    "exit_group",
    "epoll_wait",
    "epoll_ctl",
    "tgkill",
    "waitid",
    "openat",
    "newfstatat",
    "readlinkat",
    "faccessat",
    "pselect6",
    "ppoll",
    "set_robust_list",
    "get_robust_list",
    "epoll_pwait",
    "eventfd2",
    "epoll_create1",
    "dup3",
    "pipe2",
    "prlimit64",
    "getcpu",
    "getrandom",
    "membarrier",
    "statx",
    "rseq",
    "faccessat2",
]

# Calls decided by one argument: name -> (index, test, values). `bits`: all of them set; `any`:
# equal to one of them. Arguments are 64 bits wide; the kernel reads the low half of these.
_CLONE_THREAD = 0x00010000
_TERMINAL_AND_FLAGS = (0x5401, 0x5451, 0x5450, 0x541B, 0x5421)  # TCGETS FIOCLEX FIONCLEX FIONREAD
_BY_ARGUMENT: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "clone": (0, "bits", (_CLONE_THREAD,)),
    "ioctl": (1, "any", _TERMINAL_AND_FLAGS),
    "prctl": (0, "any", (15, 16)),  # PR_SET_NAME, PR_GET_NAME
    "socketpair": (0, "any", (1,)),  # AF_UNIX: what asyncio wakes itself with
    "sendto": (4, "any", (0,)),  # to the peer of a pair, never to an address
}

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_X32_BIT = 0x40000000
_MAX_SYSCALL = 0xFFFFFFFF

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def build_filter(arch: str) -> list[Instruction]:
    """The filter for an architecture of `kernel.SYSCALLS`.

    Raises:
        ValueError: for any other.
    """
    if arch not in kernel.SYSCALLS:
        raise ValueError(f"no seccomp filter for {arch}; known: {', '.join(kernel.SYSCALLS)}")
    numbers = kernel.SYSCALLS[arch]
    rules: dict[int, list[Instruction]] = {
        numbers[name]: [(_RETURN, 0, 0, ALLOW)] for name in _ALLOWED if name in numbers
    }
    for name, (index, test, values) in _BY_ARGUMENT.items():
        rules[numbers[name]] = _argument_rule(index, test, values)
    # Answered as by a kernel that lacks it: the C library then makes threads with clone.
    rules[numbers["clone3"]] = [(_RETURN, 0, 0, ERRNO | _ENOSYS)]
    head: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, kernel.AUDIT_ARCHES[arch]),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD, 0, 0, 0),
    ]
    if arch == "x86_64":
        head += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL_PROCESS)]
    return head + _tree(_intervals(rules))


def _argument_rule(index: int, test: str, values: tuple[int, ...]) -> list[Instruction]:
    """Allow where the low word of the argument passes the test, else EPERM."""
    low = 16 + 8 * index
    rule: list[Instruction] = [(_LOAD, 0, 0, low)]
    if index == 4:  # a pointer: its high half counts too
        rule = [(_LOAD, 0, 0, low + 4), (_JUMP_EQUAL, 0, 2, 0), (_LOAD, 0, 0, low)]
    jump = _JUMP_BITS if test == "bits" else _JUMP_EQUAL
    for position, value in enumerate(values):
        rule.append((jump, len(values) - position, 0, value))
    rule += [(_RETURN, 0, 0, ERRNO | _EPERM), (_RETURN, 0, 0, ALLOW)]
    return rule


def _intervals(
    rules: dict[int, list[Instruction]],
) -> list[tuple[int, list[Instruction]]]:
    """(first number, rule) of neighbouring call numbers with the same rule, the whole range
    covered."""
    refuse: list[Instruction] = [(_RETURN, 0, 0, ERRNO | _EPERM)]
    intervals: list[tuple[int, list[Instruction]]] = [(0, rules.get(0, refuse))]
    for number in range(1, max(rules) + 2):
        rule = rules.get(number, refuse)
        if rule != intervals[-1][1]:
            intervals.append((number, rule))
    return intervals


def _tree(intervals: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """A binary search over the intervals: short to check, and short for the kernel to load."""
    if len(intervals) == 1:
        return intervals[0][1]
    middle = len(intervals) // 2
    below, above = _tree(intervals[:middle]), _tree(intervals[middle:])
    if len(below) > 255:
        raise ValueError("the seccomp filter has grown past BPF's jump range; split its tree")
    return [(_JUMP_AT_LEAST, len(below), 0, intervals[middle][0]), *below, *above]


class Filter:
    """A filter ready to be installed: built once, before the forks."""

    def __init__(self, arch: str = kernel.ARCH) -> None:
        instructions = build_filter(arch)
        packed = b"".join(struct.pack("=HBBI", *i) for i in instructions)
        self._instructions = ctypes.create_string_buffer(packed, len(packed))
        program = struct.pack("@HP", len(instructions), ctypes.addressof(self._instructions))
        self._program = ctypes.create_string_buffer(program, len(program))

    def install(self) -> None:
        """Bind this process to the filter, for good; needs no_new_privs.

        Raises:
            OSError: where the kernel has no seccomp.
        """
        kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(self._program)))
