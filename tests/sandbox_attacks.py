"""Programs that try to get out of the sandbox, and what each must not achieve.

Every program prints `ESCAPED` where it gets what it wants. `{port}`, `{secret}`, `{target}` and
`{pid}` stand for a listening TCP port, a file with a secret, a path to write and a process of the
test.
"""

from __future__ import annotations

# A raw system call, for what Python has no function for: contained is EPERM (1), from the filter.
_RAW = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def raw(number, *arguments, wanted=1):
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    report(libc.syscall(ctypes.c_long(number), *passed), wanted)
def report(result, wanted=1):
    error = ctypes.get_errno()
    print('contained' if result < 0 and error == wanted else 'ESCAPED', result, error)
"""

FILES = {
    "reads a file by its path": "print('ESCAPED', open({secret!r}).read())",
    "lists the home folder": "import os; print('ESCAPED', os.listdir(os.path.dirname({secret!r})))",
    "reads the password file": "print('ESCAPED', open('/etc/passwd').read())",
    "writes to /tmp": "open({target!r}, 'w').write('x'); print('ESCAPED')",
    "writes to the root": "open('/x', 'w').write('x'); print('ESCAPED')",
    "writes to the standard library": (
        "import json; open(json.__file__, 'a').write('x'); print('ESCAPED')"
    ),
    "makes a folder": "import os; os.mkdir('/folder'); print('ESCAPED')",
    "changes a mode": "import json, os; os.chmod(json.__file__, 0o777); print('ESCAPED')",
    "changes an owner": "import json, os; os.chown(json.__file__, 0, 0); print('ESCAPED')",
    "changes times": "import json, os; os.utime(json.__file__, (0, 0)); print('ESCAPED')",
    "sets an extended attribute": (
        "import json, os; os.setxattr(json.__file__, 'user.x', b'x'); print('ESCAPED')"
    ),
    "deletes a file": "import json, os; os.unlink(json.__file__); print('ESCAPED')",
    "renames a file": "import json, os; os.rename(json.__file__, '/x'); print('ESCAPED')",
    "makes a symbolic link": "import os; os.symlink({secret!r}, '/link'); print('ESCAPED')",
    "makes a hard link": "import json, os; os.link(json.__file__, '/link'); print('ESCAPED')",
    "makes a device": "import os; os.mknod('/disk', 0o60666, os.makedev(8, 0)); print('ESCAPED')",
    "climbs out with dots": "print('ESCAPED', open('/lib/../../../..' + {secret!r}).read())",
    "climbs out through the working folder": (
        "import os; fd = os.open('.', os.O_RDONLY)\n"
        "print('ESCAPED', os.open('../../..' + {secret!r}, os.O_RDONLY, dir_fd=fd))"
    ),
    "changes its root": "import os; os.chroot('/lib'); print('ESCAPED')",
    "reads installed packages": (
        "import glob, sysconfig\n"
        "found = [p for kind in ('site', 'dist') for base in\n"
        "         (sysconfig.get_path('stdlib'), '/usr/lib/python3*', '/usr/local/lib/python3*')\n"
        "         for p in glob.glob(f'{{base}}/{{kind}}-packages/*')]\n"
        "print('ESCAPED' if found else 'nothing', found[:3])"
    ),
    "imports a package of the trainer": "import torch; print('ESCAPED')",
    "finds tests and expected outputs in the environment": (
        "import os; print('ESCAPED' if set(os.environ) - {{'PYTHONHASHSEED', 'LC_ALL', "
        "'PYTHONUTF8', 'LC_CTYPE', 'PWD'}} else 'nothing', os.environ)"
    ),
}

NETWORK = {
    "connects over TCP": (
        "import socket; socket.create_connection(('127.0.0.1', {port}), 1); print('ESCAPED')"
    ),
    "sends over UDP": (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', ('127.0.0.1', {port})); print('ESCAPED')"
    ),
    "listens": "import socket; socket.create_server(('', 0)); print('ESCAPED')",
    "asks a name server": (
        "import socket; print('ESCAPED', socket.getaddrinfo('example.com', 80))"
    ),
    "opens an abstract unix socket": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0x'); print('ESCAPED')"
    ),
    "opens a netlink socket": "import socket; socket.socket(socket.AF_NETLINK); print('ESCAPED')",
    "sniffs packets": (
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('ESCAPED')"
    ),
    "talks to the host of a virtual machine": (
        "import socket; socket.socket(40, socket.SOCK_STREAM); print('ESCAPED')"
    ),
    "opens the kernel's crypto socket": (
        "import socket; socket.socket(38, socket.SOCK_SEQPACKET); print('ESCAPED')"
    ),
    "passes a descriptor out": (
        "import array, socket\n"
        "a, b = socket.socketpair()\n"
        "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])\n"
        "print('ESCAPED')"
    ),
    "turns a pair of sockets outward": (
        "import socket; a, b = socket.socketpair(type=socket.SOCK_DGRAM)\n"
        "a.sendto(b'x', '\\0outside'); print('ESCAPED')"
    ),
}

PROCESSES = {
    "forks": "import os; pid = os.fork(); print('ESCAPED')",
    "forks without end": "import os\nwhile True: os.fork(); print('ESCAPED')",
    "forks by a raw call": _RAW + "raw({fork})",
    "clones without the thread flag": _RAW + "raw({clone}, 17, 0, 0, 0, 0)",
    "clones by the newer call": _RAW + "raw(435, 0, 0, wanted=38)",
    "starts a shell": "import os; print('ESCAPED' if os.system('true') == 0 else 'no')",
    "starts a process": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', '']); print('ESCAPED')"
    ),
    "replaces itself": (
        "import os, sys\nos.execv(sys.executable, ['python', '-c', 'print(\"ESCAPED\")'])"
    ),
    "runs the dynamic loader": (
        "import glob, os; loader = (glob.glob('/lib*/ld-linux*') + ['/lib/ld.so'])[0]\n"
        "os.execv(loader, [loader, '--help']); print('ESCAPED')"
    ),
    "signals the test's process": "import os; os.kill({pid}, 9); print('ESCAPED')",
    "signals its parent": (
        "import os\n"
        "parent = os.getppid()\n"
        "print('ESCAPED' if parent else 'none')\n"
        "os.kill(parent or 99999, 0)"
    ),
    "looks for other processes": (
        "import os\n"
        "seen = []\n"
        "for pid in range(2, 3000):\n"
        "    try:\n"
        "        os.kill(pid, 0); seen.append(pid)\n"
        "    except ProcessLookupError: pass\n"
        "    except PermissionError: seen.append(pid)\n"
        "print('ESCAPED' if seen else 'alone', seen)"
    ),
    "traces the test's process": _RAW + "raw({ptrace}, 16, {pid}, 0, 0)",
    "reads another process's memory": _RAW + "raw({process_vm_readv}, {pid}, 0, 0, 0, 0, 0)",
    "opens another process's descriptor": _RAW + "raw(434, {pid}, 0)",
    "takes another process's descriptor": _RAW + "raw(438, 0, 0, 0)",
    "leaves zombies": (
        "import os\nfor _ in range(100):\n    if os.fork() == 0: os._exit(0)\nprint('ESCAPED')"
    ),
    "changes another process's limits": (
        "import resource; resource.prlimit({pid}, resource.RLIMIT_NOFILE, (1, 1)); print('ESCAPED')"
    ),
    "pins the grader's cores": "import os; os.sched_setaffinity(0, [0]); print('ESCAPED')",
    "opens the terminal": "open('/dev/tty', 'w').write('x'); print('ESCAPED')",
    "reads /proc": "import os; print('ESCAPED', os.listdir('/proc'))",
    "reads its parent's memory in /proc": "print('ESCAPED', open('/proc/1/mem', 'rb').read(1))",
    "uses inherited descriptors": (
        "import os\n"
        "found = []\n"
        "for fd in range(4, 256):\n"
        "    try: os.fstat(fd); found.append(fd)\n"
        "    except OSError: pass\n"
        "print('ESCAPED' if found else 'none', found)"
    ),
    "leaves its session and lives on": "import os; os.setsid(); print('ESCAPED')",
    "raises its priority": "import os; os.nice(-5); print('ESCAPED')",
    "takes another identity": "import os; os.setuid(0); print('ESCAPED')",
    "raises a hard limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "print('ESCAPED')"
    ),
}

KERNEL = {
    "mounts": _RAW + "report(libc.mount(b'x', b'/lib', b'tmpfs', 0, 0))",
    "unmounts": _RAW + "report(libc.umount2(b'/lib', 2))",
    "makes a user namespace": _RAW + "report(libc.unshare(0x10000000))",
    "makes a network namespace": _RAW + "report(libc.unshare(0x40000000))",
    "joins a namespace": _RAW + "report(libc.setns(0, 0))",
    "sets up io_uring": _RAW + "raw(425, 8, ctypes.create_string_buffer(120))",
    "adds a key": _RAW + "raw({add_key}, b'user', b'x', b'y', 1, -3)",
    "calls keyctl": _RAW + "raw({keyctl}, 0, -3, 1)",
    "loads a BPF program": _RAW + "raw({bpf}, 5, 0, 0)",
    "handles page faults": _RAW + "raw({userfaultfd}, 0)",
    "counts performance events": _RAW + "raw({perf_event_open}, 0, 0, -1, -1, 0)",
    "shares memory, System V": _RAW + "raw({shmget}, 4242, 4096, 0o1666)",
    "shares memory by name": (
        "from multiprocessing import shared_memory\n"
        "shared_memory.SharedMemory('x', create=True, size=4096); print('ESCAPED')"
    ),
    "shares memory by file": (
        "import mmap, os\n"
        "fd = os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR); mmap.mmap(fd, 4096); print('ESCAPED')"
    ),
    "locks memory": _RAW + "report(libc.mlockall(3))",
    "changes its personality": _RAW + "report(libc.personality(0x0040000))",
    "watches files": _RAW + "report(libc.inotify_init())",
    "makes a memory file": "import os; os.memfd_create('x'); print('ESCAPED')",
    "opens a message queue": _RAW + "raw({mq_open}, b'x', 0o102, 0o666, 0)",
    "drops its filter": _RAW + "report(libc.prctl(22, 0, 0, 0, 0))",
    "becomes traceable again": _RAW + "report(libc.prctl(4, 1, 0, 0, 0))",
    "pushes keys into a terminal": ("import fcntl; fcntl.ioctl(0, 0x5412, b'x'); print('ESCAPED')"),
    "sets the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0); print('ESCAPED')",
    "renames the host": "import socket; socket.sethostname('x'); print('ESCAPED')",
    "reboots": _RAW + "report(libc.reboot(0x89ABCDEF))",
}

# name -> (program, statuses it may end with)
GREEDY = {
    "allocates without end": (
        "x = []\nwhile True: x.append(bytearray(1 << 24))",
        ("memory", "error"),
    ),
    "allocates at once": ("x = bytearray(1 << 40)", ("memory",)),
    "computes a huge power": ("x = 9 ** 9 ** 9", ("timeout", "memory")),
    "prints a huge integer": ("print(1 << 10 ** 9)", ("error", "memory", "timeout")),
    "loops": ("while True: pass", ("timeout",)),
    "sleeps": ("import time; time.sleep(1000)", ("timeout",)),
    "loops in C": ("sum(range(10 ** 12))", ("timeout",)),
    "backtracks in a pattern": ("import re; re.match(r'(a+)+$', 'a' * 64 + 'b')", ("timeout",)),
    "ignores every signal": (
        "import signal\n"
        "for s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass",
        ("timeout",),
    ),
    "loops while it exits": (
        "import atexit\n@atexit.register\ndef f():\n    while True: pass",
        ("timeout",),
    ),
    "leaves a thread behind": (
        "import threading, time, sys\n"
        "def f():\n"
        "    while True: time.sleep(0.01)\n"
        "threading.Thread(target=f).start()",
        ("timeout",),
    ),
    "starts threads without end": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(99,)).start()",
        ("error", "memory", "timeout"),
    ),
    "floods standard output": ("while True: print('x' * 10000)", ("output_limit",)),
    "floods standard error": (
        "import sys\nwhile True: sys.stderr.write('x' * 10000)",
        ("output_limit",),
    ),
    "floods the report": ("import os\nwhile True: os.write(3, b'v1' * 5000)", ("output_limit",)),
    "recurses": ("def f(): f()\nf()", ("error",)),
    "recurses past the stack": (
        "import sys; sys.setrecursionlimit(10 ** 9)\n"
        "class A:\n"
        "    def __getattr__(self, x): return getattr(self, x + 'x')\n"
        "A().x",
        ("crashed", "memory", "error", "timeout"),
    ),
    "reads address zero": ("import ctypes; ctypes.string_at(0)", ("crashed",)),
    "aborts": ("import os; os.abort()", ("crashed",)),
    "stops itself": ("import os; os.kill(os.getpid(), 19)\nwhile True: pass", ("timeout",)),
    "kills everything it sees": (
        "import os; os.kill(-1, 9); os.kill(0, 9); os.kill(os.getpid(), 9); print('alive')",
        ("ok", "crashed", "error"),
    ),
    "opens descriptors without end": (
        "import os\nfds = []\nwhile True: fds.append(os.dup(0))",
        ("error",),
    ),
    "fills pipes": (
        "import os\n"
        "while True:\n"
        "    r, w = os.pipe(); os.set_blocking(w, False); os.write(w, b'x' * 65536)",
        ("error",),
    ),
    "closes its streams": (
        "import os\nfor fd in range(64): \n  try: os.close(fd)\n  except OSError: pass",
        ("crashed", "ok", "error"),
    ),
}
