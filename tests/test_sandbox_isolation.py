"""The locks themselves: the filter on both architectures, ordinary users, refusals, bubblewrap."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trl_r1.verification.isolation import kernel, seccomp
from trl_r1.verification.sandbox import Limits, Program, Sandbox, SandboxUnavailableError

_REPOSITORY = Path(__file__).parents[1]
_EPERM = seccomp.ERRNO | 1


def _decide(arch: str, number: int, *arguments: int, audit_arch: int | None = None) -> int:
    """What the kernel would do with a call, by running the filter's instructions."""
    data = {0: number, 4: kernel.AUDIT_ARCHES[arch] if audit_arch is None else audit_arch}
    for index, argument in enumerate(arguments):
        data[16 + 8 * index] = argument & 0xFFFFFFFF
        data[20 + 8 * index] = argument >> 32 & 0xFFFFFFFF
    program = seccomp.build_filter(arch)
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = data.get(constant, 0)
        elif code == 0x06:
            return constant
        else:
            holds = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: accumulator & constant != 0,
            }[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_filter_allows_what_an_interpreter_needs(arch: str) -> None:
    names = "read write openat close mmap brk futex exit_group getrandom rt_sigreturn newfstatat"
    for name in names.split():
        assert _decide(arch, kernel.SYSCALLS[arch][name]) == seccomp.ALLOW, name


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_filter_decides_by_arguments_where_it_must(arch: str) -> None:
    numbers = kernel.SYSCALLS[arch]
    threads, fork = 0x3D0F00, 17
    assert _decide(arch, numbers["clone"], threads) == seccomp.ALLOW
    assert _decide(arch, numbers["clone"], fork) == _EPERM
    assert _decide(arch, numbers["clone3"]) == seccomp.ERRNO | 38
    assert _decide(arch, numbers["socketpair"], 1) == seccomp.ALLOW
    assert _decide(arch, numbers["socketpair"], 2) == _EPERM
    assert _decide(arch, numbers["sendto"], 3, 0, 0, 0, 0) == seccomp.ALLOW
    assert _decide(arch, numbers["sendto"], 3, 0, 0, 0, 0x7F0000001000) == _EPERM
    assert _decide(arch, numbers["sendto"], 3, 0, 0, 0, 0x100000000) == _EPERM
    assert _decide(arch, numbers["ioctl"], 0, 0x5401) == seccomp.ALLOW
    assert _decide(arch, numbers["ioctl"], 0, 0x5412) == _EPERM  # TIOCSTI
    assert _decide(arch, numbers["prctl"], 15) == seccomp.ALLOW
    assert _decide(arch, numbers["prctl"], 22) == _EPERM  # PR_SET_SECCOMP


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_filter_refuses_everything_it_does_not_know(arch: str) -> None:
    allowed = {kernel.SYSCALLS[arch][n] for n in seccomp._ALLOWED if n in kernel.SYSCALLS[arch]}
    by_argument = {kernel.SYSCALLS[arch][name] for name in [*seccomp._BY_ARGUMENT, "clone3"]}
    for number in range(1000):
        if number in allowed:
            assert _decide(arch, number) == seccomp.ALLOW
        elif number not in by_argument:
            assert _decide(arch, number) == _EPERM
    names = "capset pivot_root open_tree move_mount pidfd_open close_range mount_setattr"
    for name in names.split():  # calls of the sandbox itself, before it locks
        assert _decide(arch, kernel.SYSCALLS[arch][name]) == _EPERM


def test_other_architectures_and_the_x32_calls_kill() -> None:
    assert _decide("x86_64", 0, audit_arch=0x40000003) == seccomp.KILL_PROCESS  # i386
    assert _decide("aarch64", 63, audit_arch=0x40000028) == seccomp.KILL_PROCESS  # arm
    assert _decide("x86_64", 0x40000000) == seccomp.KILL_PROCESS
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build_filter("riscv64")


@pytest.mark.parametrize(
    ("arch", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_call_numbers_are_those_of_the_kernel_headers(arch: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip(f"needs the kernel's headers: {header} is not there")
    pairs = re.findall(r"#define __NR_?(\w+) (\d+)", Path(header).read_text())
    known = {name.removeprefix("3264_"): int(number) for name, number in pairs}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    assert {name: known.get(name) for name in kernel.SYSCALLS[arch]} == kernel.SYSCALLS[arch]


_USE = """
    import sys
    sys.path.insert(0, {folder!r})
    from trl_r1.verification.sandbox import *
    try:
        with Sandbox(1, Limits(), {options}) as sandbox:
            print(*sandbox.layers)
            look = "import os; print(os.getuid(), os.getpid(), os.listdir('/'))\\n"
            look += "for p in ({secret!r}, '/etc/hostname'):\\n"
            look += "    try: print('ESCAPED', open(p).read())\\n"
            look += "    except OSError as e: print(type(e).__name__)"
            print(sandbox.run([Program(look)])[0].stdout)
            called = sandbox.run([Program("def f(x): return x", calls=("f(1)",))])[0]
            print(called.outcomes[0].value)
    except SandboxUnavailableError as error:
        print("refused:", error)
"""


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    """The package in a folder that every user may read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(_REPOSITORY / "trl_r1" / "verification", folder / "trl_r1" / "verification")
        shutil.copy(_REPOSITORY / "trl_r1" / "__init__.py", folder / "trl_r1")
        (folder / "secret").write_text("secret")
        yield folder


def _use(folder: Path, options: str = "", before: str = "", python: str = "", **user: Any) -> str:
    code = _USE.format(folder=str(folder), secret=str(folder / "secret"), options=options)
    return subprocess.run(
        [python or sys.executable, "-B", "-c", textwrap.dedent(before) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd="/",
        **user,
    ).stdout


def _python_of_everyone() -> str:
    """An interpreter that user nobody may run, 3.10 or newer."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        command = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        try:
            if subprocess.run(command, user=65534, group=65534, cwd="/").returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("no Python 3.10 here that user nobody may run")


def _require_isolation() -> None:
    try:
        Sandbox(1).close()
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")


def test_an_ordinary_user_gets_every_layer(copy: Path) -> None:
    _require_isolation()
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user; the other tests ran as an ordinary one")
    python = _python_of_everyone()
    output = _use(copy, python=python, user=65534, group=65534, extra_groups=[])
    for word in ("namespaces", "landlock", "seccomp", "65534 1 ["):
        assert word in output
    assert output.count("FileNotFoundError") == 2
    assert output.rstrip().endswith("\n1")


def test_root_is_nobody_inside(copy: Path) -> None:
    _require_isolation()
    if os.geteuid() != 0:
        pytest.skip("needs root")
    assert "65534 1 [" in _use(copy)


# As in a container that has none: this process may make no user namespaces.
_NO_NAMESPACES = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    assert libc.unshare(0x10000000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
"""


def test_without_user_namespaces_it_refuses_and_says_what_to_do(copy: Path) -> None:
    _require_isolation()
    output = _use(copy, before=_NO_NAMESPACES)
    assert output.startswith("refused:")
    for word in ("user namespaces", "max_user_namespaces", "allow_unisolated=True"):
        assert word in output


def test_only_a_flag_makes_it_run_there_with_the_layers_left(copy: Path) -> None:
    _require_isolation()
    output = _use(copy, "allow_unisolated=True", before=_NO_NAMESPACES)
    layers, rest = output.split("\n", 1)
    assert layers == "rlimits landlock seccomp"
    assert "ESCAPED" not in rest
    assert rest.rstrip().endswith("\n1")


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_on_another_system_it_refuses_and_names_what_to_use(platform: str) -> None:
    script = f"""
        import ctypes, sys
        def refuse(*arguments, **settings): raise OSError("no such library here")
        ctypes.CDLL = refuse
        from trl_r1.verification.sandbox import Sandbox, SandboxUnavailableError
        from trl_r1.verification.code_backends import open_backend
        sys.platform = {platform!r}
        for allowed in (False, True):
            try: Sandbox(1, allow_unisolated=allowed)
            except SandboxUnavailableError as error: print(error)
        print(type(open_backend("piston:http://h:1/api/v2")).__name__)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == lines[1]
    assert f"this is {platform}: use a remote backend" in lines[0]
    assert lines[2] == "PistonBackend"


def test_bubblewrap_asked_for_in_vain_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailableError, match="bwrap"):
        Sandbox(1, bubblewrap=True)


@pytest.fixture(params=["installed", "double"])
def bwrap(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The real one where it is installed; a double that does the same with the kernel's calls."""
    _require_isolation()
    if request.param == "installed":
        path = shutil.which("bwrap")
        if path is None:
            pytest.skip("bubblewrap (bwrap) is not installed")
        yield Path(path)
        return
    double = tmp_path / "bwrap"
    program = Path(__file__).with_name("bwrap_double.py")
    log = tmp_path / "log"
    double.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n'
        f'PYTHONPATH={_REPOSITORY} exec {sys.executable} -B {program} "$@"\n'
    )
    double.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield double
    assert "--unshare-net" in log.read_text()


def test_bubblewrap_is_the_outer_layer_and_the_others_hold_inside(bwrap: Path) -> None:
    secret = bwrap.parent / "secret"
    if os.access(bwrap.parent, os.W_OK):
        secret.write_text("secret")
    look = (
        "import os, socket\n"
        f"for attempt in (lambda: open({str(secret)!r}), lambda: os.listdir('/proc'),\n"
        "                lambda: open('/x', 'w'), os.fork, socket.socket):\n"
        "    try: print('ESCAPED', attempt())\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "print(os.getpid())"
    )
    double = Program("def f(x): return 2 * x", calls=("f(21)",))
    beside = Program("def f(x): return 2 * x", tests=("assert f(2) + f(3) == 10",))
    loops = Program("while True: pass")
    with Sandbox(2, Limits(cpu_seconds=0.5, wall_seconds=3), bubblewrap=True) as sandbox:
        assert sandbox.layers[0] == "bubblewrap"
        assert {"namespaces", "landlock", "seccomp", "rlimits"} <= set(sandbox.layers)
        looked, called, tested, looped = sandbox.run([Program(look), double, beside, loops])
    assert "ESCAPED" not in looked.stdout
    assert looked.stdout.splitlines()[-1] == "1"
    assert called.outcomes[0].value == 42
    assert tested.verdicts == (True,)
    assert looped.status == "timeout"


def test_bubblewrap_is_taken_where_it_is_found(bwrap: Path) -> None:
    with Sandbox(1) as sandbox:
        assert sandbox.layers[0] == "bubblewrap"
    with Sandbox(1, bubblewrap=False) as sandbox:
        assert "bubblewrap" not in sandbox.layers


def test_bubblewrap_that_does_not_work_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _require_isolation()
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho bwrap: no permission >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with Sandbox(1) as sandbox:
        assert "bubblewrap" not in sandbox.layers
        assert {"namespaces", "landlock", "seccomp"} <= set(sandbox.layers)
    with pytest.raises(SandboxUnavailableError, match="no permission"):
        Sandbox(1, bubblewrap=True)
