"""Programs that try to get out of the sandbox: each is contained, and harms nothing around it."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sandbox_attacks import FILES, GREEDY, KERNEL, NETWORK, PROCESSES

from trl_r1.verification.program_tests import programs_of
from trl_r1.verification.reading_tests import parse_tests
from trl_r1.verification.sandbox import (
    Call,
    Limits,
    Program,
    Sandbox,
    SandboxUnavailableError,
)

# System calls by number, where the attack makes them raw.
# fmt: off
_NUMBERS = {
    "x86_64": {
        "fork": 57, "clone": 56, "ptrace": 101, "process_vm_readv": 310, "add_key": 248,
        "keyctl": 250, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "shmget": 29,
        "mq_open": 240,
    },
    "aarch64": {
        "fork": 220, "clone": 220, "ptrace": 117, "process_vm_readv": 270, "add_key": 217,
        "keyctl": 219, "bpf": 280, "userfaultfd": 282, "perf_event_open": 241, "shmget": 194,
        "mq_open": 180,
    },
}
# fmt: on
_SOUND = Program("def double(x): return 2 * x", calls=(Call("double", (21,)),))


class Surroundings(NamedTuple):
    """What a program could harm: a listening socket, a file with a secret, a path to write."""

    sandbox: Sandbox
    listener: socket.socket
    secret: Path
    target: Path


@pytest.fixture(scope="module")
def around() -> Iterator[Surroundings]:
    limits = Limits(cpu_seconds=0.6, wall_seconds=1.2, memory_mb=256)
    try:
        sandbox = Sandbox(2, limits)
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    with sandbox, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        secret, target = Path(folder, "secret"), Path(folder, "target")
        secret.write_text("the expected output")
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        yield Surroundings(sandbox, listener, secret, target)
        listener.close()


def _fill(program: str, around: Surroundings) -> str:
    return program.format(
        port=around.listener.getsockname()[1],
        secret=str(around.secret),
        target=str(around.target),
        pid=os.getpid(),
        **_NUMBERS[platform.machine()],
    )


@pytest.mark.parametrize("name", [*FILES, *NETWORK, *PROCESSES, *KERNEL])
def test_an_escape_is_contained(name: str, around: Surroundings) -> None:
    attack = {**FILES, **NETWORK, **PROCESSES, **KERNEL}[name]
    result, neighbour = around.sandbox.run([Program(_fill(attack, around)), _SOUND])
    assert "ESCAPED" not in result.stdout
    assert around.secret.read_text() not in result.stdout + result.stderr
    assert not around.target.exists()
    with pytest.raises(BlockingIOError):
        around.listener.accept()
    assert neighbour.outcomes[0].value == 42
    # It got as far as trying: a program that does not even compile would pass all of the above.
    assert "SyntaxError" not in result.stderr
    assert "NameError" not in result.stderr
    assert result.status in ("ok", "error")


@pytest.mark.parametrize("name", list(GREEDY))
def test_a_greedy_program_meets_its_limit(name: str, around: Surroundings) -> None:
    attack, statuses = GREEDY[name]
    result, neighbour = around.sandbox.run([Program(attack), _SOUND])
    assert result.status in statuses
    limits = around.sandbox.limits
    assert result.wall_seconds < limits.wall_seconds + 0.5
    assert result.max_memory_mb < limits.memory_mb
    assert len(result.stdout) <= limits.max_output_bytes
    assert neighbour.outcomes[0].value == 42


def test_no_zombie_is_left_of_programs_that_die_in_any_way(around: Surroundings) -> None:
    ends = ["pass", "1 / 0", "import os; os.abort()", "while True: pass", "import os; os._exit(3)"]
    ends.append("import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()")
    around.sandbox.run([Program(code) for code in ends * 2])
    states = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = file.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = fields.split()[:2]
        states[int(name.split()[0])] = (state, int(parent))
    ours = {os.getpid()}
    for _ in range(4):  # supervisor, zygote, program
        ours |= {pid for pid, (_, parent) in states.items() if parent in ours}
    assert len(ours) >= 5
    assert not [pid for pid in ours if states.get(pid, ("",))[0] == "Z"]


def test_nothing_passes_from_one_program_to_the_next(around: Surroundings) -> None:
    leave = (
        "import builtins, json, os, sys, time\n"
        "json.dumps = time.time = builtins.len = lambda *a, **k: 1\n"
        "os.environ['LEFT'] = sys.left = builtins.left = 'left'\n"
    )
    look = (
        "import builtins, json, os, sys, time\n"
        "print(hasattr(builtins, 'left'), hasattr(sys, 'left'), 'LEFT' in os.environ,\n"
        "      len('ab'), json.dumps(2), time.time() > 10)\n"
    )
    results = around.sandbox.run([Program(leave), Program(leave), Program(look), Program(look)])
    assert [r.stdout for r in results[2:]] == ["False False False 2 2 True\n"] * 2


def test_a_program_finds_no_other_program_in_its_memory(around: Surroundings) -> None:
    """The zygote never holds a program, so its forks inherit none."""
    mark = "".join(["mark-of-", "the-first-program"])
    scan = (
        "import ctypes, gc\n"
        "half = 'mark-of-'\n"
        "whole = half + 'the-first-' + 'program'\n"
        "found = [o for o in gc.get_objects() if isinstance(o, (list, dict, tuple))\n"
        "         and o is not globals() and any(isinstance(i, (str, bytes)) and\n"
        "             (whole if isinstance(i, str) else whole.encode()) in i\n"
        "             for i in (o.values() if isinstance(o, dict) else o))]\n"
        "print('ESCAPED' if found else 'nothing')"
    )
    around.sandbox.run([Program(f"x = {mark!r}")] * 4)
    result = around.sandbox.run([Program(scan)])[0]
    assert result.stdout == "nothing\n", result.stderr


def test_frames_and_objects_hold_no_expected_output(around: Surroundings) -> None:
    walk = (
        "import gc, sys\n"
        "def f(x):\n"
        "    seen, frame = [], sys._getframe()\n"
        "    while frame:\n"
        "        values = [*frame.f_locals.values(), *frame.f_globals.values()]\n"
        "        seen += map(repr, values)\n"
        "        frame = frame.f_back\n"
        "    seen += map(repr, gc.get_objects())\n"
        "    return [s for s in seen if ''.join(['271', '828']) in s]\n"
    )
    tests = parse_tests("assert f(1) == 271828")
    result = around.sandbox.run(programs_of(walk, tests))[0]
    assert result.outcomes[0].value == []
