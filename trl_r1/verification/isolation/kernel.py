"""System calls by name, through libc's `syscall()`: the ones Python has no function for.

The numbers are those of `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64). A name one
architecture lacks is left out there.
"""

from __future__ import annotations

import ctypes
import os
import platform

AUDIT_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# fmt: off
_X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7,
    "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13,
    "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19,
    "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25,
    "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36,
    "alarm": 37, "setitimer": 38, "getpid": 39, "sendto": 44, "recvfrom": 45, "socketpair": 53,
    "clone": 56, "exit": 60, "wait4": 61, "kill": 62, "uname": 63, "fcntl": 72, "getdents": 78,
    "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98,
    "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120,
    "getpgid": 121, "getsid": 124, "capset": 126, "rt_sigpending": 127, "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130, "sigaltstack": 131, "pivot_root": 155, "prctl": 157, "arch_prctl": 158,
    "setrlimit": 160, "gettid": 186, "tkill": 200, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "epoll_create": 213, "getdents64": 217, "set_tid_address": 218,
    "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233, "tgkill": 234,
    "waitid": 247, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "get_robust_list": 274,
    "epoll_pwait": 281, "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293,
    "prlimit64": 302, "getcpu": 309, "getrandom": 318, "membarrier": 324, "statx": 332,
    "rseq": 334, "open_tree": 428, "move_mount": 429, "pidfd_open": 434, "clone3": 435,
    "close_range": 436, "faccessat2": 439, "mount_setattr": 442, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446,
}
_AARCH64 = {
    "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22,
    "dup": 23, "dup3": 24, "fcntl": 25, "ioctl": 29, "pivot_root": 41, "faccessat": 48,
    "openat": 56, "close": 57, "pipe2": 59, "getdents64": 61, "lseek": 62, "read": 63,
    "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73,
    "readlinkat": 78, "newfstatat": 79, "fstat": 80, "capset": 91, "exit": 93, "exit_group": 94,
    "waitid": 95, "set_tid_address": 96, "futex": 98, "set_robust_list": 99,
    "get_robust_list": 100, "nanosleep": 101, "getitimer": 102, "setitimer": 103,
    "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123,
    "sched_yield": 124, "restart_syscall": 128, "kill": 129, "tkill": 130, "tgkill": 131,
    "sigaltstack": 132, "rt_sigsuspend": 133, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigpending": 136, "rt_sigtimedwait": 137, "rt_sigreturn": 139, "getresuid": 148,
    "getresgid": 150, "times": 153, "getpgid": 155, "getsid": 156, "getgroups": 158,
    "uname": 160, "getrlimit": 163, "setrlimit": 164, "getrusage": 165, "prctl": 167,
    "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174,
    "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179,
    "socketpair": 199, "sendto": 206, "recvfrom": 207, "brk": 214, "munmap": 215, "mremap": 216,
    "clone": 220, "mmap": 222, "fadvise64": 223, "mprotect": 226, "madvise": 233, "wait4": 260,
    "prlimit64": 261, "getrandom": 278, "membarrier": 283, "statx": 291, "rseq": 293,
    "open_tree": 428, "move_mount": 429, "pidfd_open": 434, "clone3": 435, "close_range": 436,
    "faccessat2": 439, "mount_setattr": 442, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446,
}
# fmt: on
SYSCALLS = {"x86_64": _X86_64, "aarch64": _AARCH64}

ARCH = platform.machine()

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(name: str, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def syscall(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """The system call of that name; integers are passed as longs.

    Raises:
        OSError: what the kernel answered, with the call's name; ENOSYS on an unknown architecture.
    """
    number = SYSCALLS.get(ARCH, {}).get(name)
    if number is None:
        raise OSError(38, f"{name}: no number known for {ARCH}")
    wrapped = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(name, _libc.syscall(ctypes.c_long(number), *wrapped))


def prctl(option: int, *arguments: int | ctypes.c_void_p) -> int:
    """`prctl(2)`; missing arguments are zero, as some options demand."""
    wrapped = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    wrapped += [ctypes.c_ulong(0)] * (4 - len(wrapped))
    return _checked(f"prctl {option}", _libc.prctl(option, *wrapped))


def unshare(flags: int) -> None:
    """`unshare(2)`: new namespaces for this process."""
    _checked("unshare", _libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    """`setns(2)`: join the namespaces behind a descriptor."""
    _checked("setns", _libc.setns(fd, flags))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """`mount(2)`."""
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind, data)]
    result = _libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3])
    _checked(f"mount {target}", result)


def umount2(target: str, flags: int) -> None:
    """`umount2(2)`."""
    _checked(f"umount {target}", _libc.umount2(os.fsencode(target), flags))


def drop_capabilities() -> None:
    """Give up every capability of this process, for good once no_new_privs is set."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    nothing = (ctypes.c_uint32 * 6)()
    number = SYSCALLS[ARCH]["capset"]
    _checked("capset", _libc.syscall(ctypes.c_long(number), header, nothing))
