"""The sandbox as a user meets it: three ways to run a program, results, threads, the end."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from trl_r1.verification.isolation import plain_data
from trl_r1.verification.sandbox import (
    Call,
    Limits,
    Program,
    Sandbox,
    SandboxUnavailableError,
)
from trl_r1.verification.sandbox_worker import SandboxWorker


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(2, Limits(cpu_seconds=2, wall_seconds=4, memory_mb=256))
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    with sandbox:
        yield sandbox


def test_every_layer_is_in_force(sandbox: Sandbox) -> None:
    assert {"namespaces", "landlock", "seccomp", "rlimits"} <= set(sandbox.layers)


def test_a_script_reads_its_input_and_prints(sandbox: Sandbox) -> None:
    code = "import sys\nn = int(input())\nprint(n, sys.stdin.read().split(), __name__)"
    result = sandbox.run([Program(code, stdin="3\na b\nü\n")])[0]
    assert (result.status, result.stdout) == ("ok", "3 ['a', 'b', 'ü'] __main__\n")


def test_a_script_may_read_descriptor_zero_and_print_while_it_exits(sandbox: Sandbox) -> None:
    code = "import atexit, os\natexit.register(print, 'bye')\nprint(os.read(0, 9), open(0).read())"
    result = sandbox.run([Program(code, stdin="123456789rest")])[0]
    assert (result.status, result.stdout) == ("ok", "b'123456789' rest\nbye\n")


def test_a_script_is_waited_for_until_its_threads_end(sandbox: Sandbox) -> None:
    code = "import threading\nthreading.Thread(target=lambda: print(input())).start()"
    assert sandbox.run([Program(code, stdin="x")])[0].stdout == "x\n"


def test_asyncio_works(sandbox: Sandbox) -> None:
    code = "import asyncio\nasync def f(): await asyncio.sleep(0); print(1)\nasyncio.run(f())"
    assert sandbox.run([Program(code)])[0].stdout == "1\n"


def test_calls_come_back_as_plain_data(sandbox: Sandbox) -> None:
    values = [
        *(None, True, -3, 2**80, 0.1, math.inf, 1 + 2j, "ü\ud800", b"\0", range(9)),
        *((1, [2, {3}]), {"a": (1,), 2: None}, frozenset({1}), [], (), {}, set()),
    ]
    calls = tuple(Call("echo", (value,)) for value in values)
    result = sandbox.run([Program("def echo(x): return x", calls=calls)])[0]
    assert [o.value for o in result.outcomes] == values
    assert [type(o.value) for o in result.outcomes] == [type(v) for v in values]


def test_subclasses_come_back_as_the_built_in_type(sandbox: Sandbox) -> None:
    code = (
        "import collections, enum\n"
        "class S(str):\n"
        "    def __eq__(self, o): return True\n"
        "    __hash__ = str.__hash__\n"
        "class I(int):\n"
        "    def __eq__(self, o): return True\n"
        "P = collections.namedtuple('P', 'x')\n"
        "class E(enum.IntEnum): A = 7\n"
        "def f(): return [S('s'), I(5), P(1), collections.Counter('aa'), E.A]\n"
    )
    value = sandbox.run([Program(code, calls=("f()",))])[0].outcomes[0].value
    assert value == ["s", 5, (1,), {"a": 2}, 7]
    assert [type(v) for v in value] == [str, int, tuple, dict, int]
    assert value[0] != "t"
    assert value[1] != 6


@pytest.mark.parametrize(
    "returned",
    ["object()", "lambda: 1", "type('A', (), {'__eq__': lambda s, o: True})()", "print", "open"],
)
def test_objects_do_not_come_out(returned: str, sandbox: Sandbox) -> None:
    outcome = sandbox.run([Program(f"def f(): return {returned}", calls=("f()",))])[0].outcomes[0]
    assert outcome.value is None
    assert outcome.error is not None
    assert "not plain data" in outcome.error


def test_an_iterator_is_not_the_list_it_would_give(sandbox: Sandbox) -> None:
    value = sandbox.run([Program("def f(): return map(int, '12')", calls=("f()",))])[0]
    assert value.outcomes[0].value != [1, 2]
    assert list(value.outcomes[0].value) == [1, 2]


def test_a_failing_call_leaves_the_others(sandbox: Sandbox) -> None:
    program = Program("def f(x): return 6 / x", calls=("f(2)", "f(0)", "f(3)", "g()"))
    outcomes = sandbox.run([program])[0].outcomes
    assert [o.value for o in outcomes] == [3.0, None, 2.0, None]
    assert outcomes[1].error == "ZeroDivisionError: division by zero"
    assert "NameError" in str(outcomes[3].error)


def test_calls_before_a_timeout_count_and_those_after_do_not(sandbox: Sandbox) -> None:
    code = "def f(x):\n    while x: pass\n    return x"
    result = sandbox.run([Program(code, calls=("f(0)", "f(1)", "f(0)"))])[0]
    assert result.status == "timeout"
    assert result.outcomes[0].value == 0
    assert [o.error is None for o in result.outcomes] == [True, False, False]


def test_methods_are_called_by_dotted_names(sandbox: Sandbox) -> None:
    code = "class Solution:\n    def solve(self, n): return n + 1"
    result = sandbox.run([Program(code, calls=(Call("Solution.solve", (1,)),))])[0]
    assert result.outcomes[0].value == 2


def test_the_setup_makes_inputs_out_of_what_the_program_defines(sandbox: Sandbox) -> None:
    code = "class Node:\n    def __init__(self, v): self.v = v\ndef f(n): return n.v"
    result = sandbox.run([Program(code, calls=("f(root)",), setup="root = Node(8)")])[0]
    assert result.outcomes[0].value == 8


def test_tests_run_beside_the_program_and_ask_it_for_values(sandbox: Sandbox) -> None:
    program = Program(
        "def enc(s): return s[::-1]\ndef bad(x): raise ValueError('no')",
        tests=(
            "for i in range(20): assert enc(enc(str(i))) == str(i)",
            "assert abs(len(enc('abc')) - 3.0) < 1e-9",
            "assert enc('ab') == 'ab'",
            "try:\n    bad(1)\n    assert False\nexcept ValueError as e: assert str(e) == 'no'",
            "assert enc(lambda: 1)",
        ),
    )
    assert sandbox.run([program])[0].verdicts == (True, True, False, True, None)


def test_what_a_program_does_to_a_list_it_is_given_reaches_the_test(sandbox: Sandbox) -> None:
    test = "x = [3, 1, 2]\nassert order(x) is None\nassert x == [1, 2, 3]"
    program = Program("def order(x): x.sort()", tests=(test,))
    assert sandbox.run([program])[0].verdicts == (True,)


def test_a_program_that_ends_fails_the_tests_it_leaves(sandbox: Sandbox) -> None:
    code = "import os\ndef f(x): os._exit(0) if x else None\n    \n"
    tests = ("assert f(0) is None", "f(1)", "assert f(0) is None")
    assert sandbox.run([Program(code, tests=tests)])[0].verdicts == (True, False, False)


def test_a_program_can_not_reach_the_tests_beside_it(sandbox: Sandbox) -> None:
    code = (
        "import sys, os, gc\n"
        "def f(x):\n"
        "    os.write(3, b'p\\np\\n.\\n')\n"
        "    return x\n"
        "class Always:\n"
        "    def __eq__(self, other): return True\n"
        "def g(x): return Always()\n"
    )
    tests = ("assert f(1) == 1 + 1", "assert g(1) == 5 + 0")
    assert sandbox.run([Program(code, tests=tests)])[0].verdicts == (False, False)


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "import os; os._exit(0)", "1 / 0"])
def test_a_program_that_does_not_load_makes_no_call(code: str, sandbox: Sandbox) -> None:
    result = sandbox.run([Program(f"def f(): return 1\n{code}", calls=("f()",))])[0]
    assert result.status in ("error", "crashed")
    assert result.outcomes[0].error is not None


def test_an_exit_status_is_an_error(sandbox: Sandbox) -> None:
    results = sandbox.run([Program(f"import sys; print(1); sys.exit({n})") for n in ("0", "3")])
    assert [r.status for r in results] == ["ok", "error"]


def test_programs_draw_the_same_random_numbers_each_time(sandbox: Sandbox) -> None:
    code = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd'}))"
    assert len({r.stdout for r in sandbox.run([Program(code)] * 4)}) == 1


def test_many_threads_share_one_sandbox(sandbox: Sandbox) -> None:
    seen: dict[int, list[object]] = {}

    def grade(number: int) -> None:
        programs = [Program(f"print({number * 100 + i})") for i in range(5)]
        seen[number] = [r.stdout for r in sandbox.run(programs)]

    threads = [threading.Thread(target=grade, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {n: [f"{n * 100 + i}\n" for i in range(5)] for n in range(6)}


def test_a_lost_worker_is_replaced(sandbox: Sandbox) -> None:
    with Sandbox(1, sandbox.limits) as own:
        supervisors = [p for p in _descendants(os.getpid()) if "supervisor" in _command(p)]
        before = sandbox.run([Program("print(1)")])[0]
        mine = max(supervisors)  # the youngest
        os.kill(mine, signal.SIGKILL)
        assert own.run([Program("print(1)")])[0].stdout == before.stdout == "1\n"


def test_a_closed_sandbox_says_so_and_leaves_no_process(sandbox: Sandbox) -> None:
    known = set(_descendants(os.getpid()))
    with Sandbox(2, sandbox.limits) as own:
        own.run([Program("print(1)")] * 4)
        assert set(_descendants(os.getpid())) - known
    assert _gone(set(_descendants(os.getpid())) - known)
    with pytest.raises(RuntimeError, match="closed"):
        own.run([Program("print(1)")])


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), 9)", "sys.exit(0)", "1 / 0", "os._exit(1)"]
)
def test_no_process_outlives_the_trainer(ending: str, sandbox: Sandbox) -> None:
    trainer = f"""
    import os, sys, threading, time
    from trl_r1.verification.sandbox import *
    if __name__ == "__main__":
        sandbox = Sandbox(1, Limits(cpu_seconds=60, wall_seconds=60))
        endless = Program("import time; time.sleep(60)")
        threading.Thread(target=sandbox.run, args=([endless],), daemon=True).start()
        time.sleep(0.3)
        print("ready", flush=True)
        input()
        {ending}
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(trainer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    family = _descendants(process.pid)
    assert len(family) >= 3  # supervisor, zygote, program
    process.stdin.write(b"\n")
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()
    assert _gone(set(family))


def _descendants(pid: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [grandchild for child in found for grandchild in _descendants(child)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _gone(pids: set[int]) -> bool:
    """Whether the processes end within a while."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}/cmdline").exists() and _command(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_a_fork_of_the_trainer_does_not_close_its_sandbox(sandbox: Sandbox) -> None:
    pid = os.fork()
    if pid == 0:
        sandbox.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert sandbox.run([Program("print(1)")])[0].stdout == "1\n"


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"nope",
        b'{"q":[1]}',
        b'{"t":1}',
        b'{"s":[[1]]}',
        b'{"i":"zz"}',
        b"NaN",
        b"1" * 5000,
        b"[" * 100000,
        b'{"t":[' * 1000 + b"]}" * 1000,
        b'{"d":[[1]]}',
        b'{"r":[1,2,0]}',
        b'{"s":[' + b",".join(b'{"i":"%x"}' % (k * (2**61 - 1)) for k in range(9000)) + b"]}",
    ],
)
def test_hostile_bytes_are_refused_not_decoded(wire: bytes) -> None:
    with pytest.raises(plain_data.MalformedError):
        plain_data.loads(wire)


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="wall_seconds is 0"):
        Limits(wall_seconds=0)
    with pytest.raises(ValueError, match="room for the interpreter"):
        Limits(memory_mb=8)
    with pytest.raises(ValueError, match="calls or tests"):
        Program("", calls=("f()",), tests=("f()",))


def test_a_test_that_is_over_before_the_program_is_loaded_is_no_fault_of_the_kernel(
    sandbox: Sandbox,
) -> None:
    """The process beside may not even be locked yet when the first one ends."""
    program = Program("x = 1", tests=("assert True",))
    for result in sandbox.run([program] * 60):
        assert result.verdicts == (None,)


def test_a_worker_that_does_not_start_again_at_once_is_started_once_more(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """A supervisor may be killed while it starts; the kernel isolated before, and still does."""
    start, num_starts = SandboxWorker.start, 0

    def killed_at_first(worker: SandboxWorker) -> tuple[str, ...]:
        nonlocal num_starts
        num_starts += 1
        if num_starts == 1:
            raise SandboxUnavailableError("the supervisor ended without a word")
        return start(worker)

    def supervisors() -> set[int]:
        return {p for p in _descendants(os.getpid()) if "supervisor" in _command(p)}

    others = supervisors()
    with Sandbox(1, sandbox.limits) as own:
        own_ones = supervisors() - others  # the supervisor, and what it has forked
        monkeypatch.setattr(SandboxWorker, "start", killed_at_first)
        assert own_ones
        for pid in own_ones:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert own.run([Program("print(1)")])[0].stdout == "1\n"
        assert num_starts == 2
