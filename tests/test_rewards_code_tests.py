"""The code reward: which program counts, what passing means, and what gaming it comes to."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trl_r1.rewards.code_tests as code_tests
from trl_r1.rewards.code_tests import code_tests_reward
from trl_r1.verification.plain_comparison import same_output, same_value
from trl_r1.verification.program_tests import ProgramTest
from trl_r1.verification.reading_tests import parse_tests
from trl_r1.verification.sandbox import Limits, Sandbox, SandboxUnavailableError

_DATA = Path(__file__).parents[2] / "shared" / "data"
_DOUBLE = ["assert double(2) == 4", "assert double(-3) == -6"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(2, Limits(cpu_seconds=1, wall_seconds=2))
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    with sandbox:
        yield sandbox


def _block(code: str, tag: str = "python") -> str:
    return f"<think>\nSome thought.\n</think>\nHere it is:\n```{tag}\n{code}\n```\n"


def _grade(sandbox: Sandbox, code: str, tests: Any, **columns: Any) -> float | None:
    extra = {k: v if k == "score" else [v] for k, v in columns.items()}
    return code_tests_reward([_block(code)], [tests], backend=sandbox, **extra)[0]


def test_passing_is_one_failing_is_zero_and_each_row_counts_for_itself(sandbox: Sandbox) -> None:
    right, wrong = "def double(x): return 2 * x", "def double(x): return x * x"
    completions = [
        _block(right),
        _block(wrong),
        "no code",
        [{"role": "a", "content": _block(right)}],
    ]
    rewards = code_tests_reward(completions, [_DOUBLE] * 4, backend=sandbox)
    assert rewards == [1.0, 0.0, 0.0, 1.0]


def test_share_is_the_share_of_tests_that_pass(sandbox: Sandbox) -> None:
    code = "def double(x): return 4"
    assert _grade(sandbox, code, _DOUBLE, score="share") == 0.5
    assert _grade(sandbox, code, _DOUBLE) == 0.0
    with pytest.raises(ValueError, match="'all' or 'share'"):
        code_tests_reward([], [], score="most")  # type: ignore[arg-type]


def test_limits_of_a_program_are_an_argument() -> None:
    slow = _block("import time\ntime.sleep(0.6)\ndef double(x): return 2 * x")
    try:
        assert code_tests_reward([slow], [_DOUBLE], num_workers=1) == [1.0]
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    limits = {"wall_seconds": 0.2}
    assert code_tests_reward([slow], [_DOUBLE], num_workers=1, limits=limits) == [0.0]


def test_limits_and_backends_that_make_no_sense_are_errors_before_any_program_runs() -> None:
    with pytest.raises(ValueError, match="unknown limit 'wall'; known: cpu_seconds, wall_seconds"):
        code_tests_reward([], [], limits={"wall": 1.0})
    with pytest.raises(ValueError, match="wall_seconds is -1; it has to be positive"):
        code_tests_reward([], [], limits={"wall_seconds": -1})
    with pytest.raises(ValueError, match="unknown code backend 'docker'"):
        code_tests_reward([], [], backend="docker")
    with pytest.raises(ValueError, match="has limits of its own"):
        code_tests_reward([], [], backend=object(), limits={"wall_seconds": 1.0})


def test_a_service_named_by_a_string_takes_the_limits_too() -> None:
    opened = code_tests._opener("piston:http://localhost:1/api/v2", None, None)()
    assert opened.limits == Limits()
    assert opened.num_workers > 2
    given = code_tests._opener("piston:http://localhost:1/api/v2", 1, {"wall_seconds": 3.0})()
    assert (given.limits.wall_seconds, given.num_workers) == (3.0, 1)


def test_with_a_prefilled_opener_a_program_in_open_reasoning_is_none(sandbox: Sandbox) -> None:
    code = "```python\ndef double(x): return 2 * x\n```"
    settings: Any = {"tests": [_DOUBLE] * 2, "backend": sandbox, "prefilled": True}
    assert code_tests_reward([code, f"hm</think>\n{code}"], **settings) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```", "a"),
        ("```python\na\n```\nthen\n```py\nb\n```", "b"),
        ("```\na\n```", "a"),
        ("```python\na\n```\nprints\n```\n3\n```", "a"),
        ("```python\na\n```\nprints\n```text\n3\n```", "a"),
        ("<think>\n```python\na\n```</think>\n```python\nb\n```", "b"),
        ("<think>\n```python\na\n```\n</think>\nI don't know", None),
        ("<think>\n```python\na\n```\n", None),
        ("```python\na", None),
        ("a", None),
        ("", None),
        ("x</think>\n```python\na\n```\n</think>\n", None),
        ("  ```python\n  a\n  ```", "  a"),
    ],
)
def test_the_last_closed_block_of_the_answer_is_the_program(text: str, program: str | None) -> None:
    assert code_tests._last_program(text) == program


def test_a_huge_completion_is_read_in_linear_time() -> None:
    assert code_tests._last_program("```python\n" * 200_000) is None
    assert code_tests._last_program("<think>" * 200_000) is None


def test_standard_input_and_output_are_compared_whole(sandbox: Sandbox) -> None:
    tests = [{"input": "1 2\n", "output": "3\n0.3333\n"}, {"input": "0 1", "output": "1\n1.0"}]
    right = "a, b = map(int, input().split())\nprint(a + b)\nprint(1 / (a + b))"
    assert _grade(sandbox, right, tests) == 0.0  # 0.3333 is not within 1e-9 of 1/3
    close = code_tests_reward([_block(right)], [tests], float_tolerance=1e-3, backend=sandbox)
    assert close == [1.0]
    assert _grade(sandbox, "print(3)", tests) == 0.0
    assert _grade(sandbox, "print(3)\nprint(0.3333)\nprint(1)", tests[:1]) == 0.0


def test_the_forms_of_other_data_sets_are_understood(sandbox: Sandbox) -> None:
    apps = json.dumps({"inputs": ["1\n", "5\n"], "outputs": ["2\n", "6\n"]})
    assert _grade(sandbox, "print(int(input()) + 1)", apps) == 1.0
    calls = {"fn_name": "f", "inputs": [[1, 2], [3, 4]], "outputs": [[3], 7]}
    assert _grade(sandbox, "def f(a, b): return a + b", calls) == 1.0
    pairs = [{"fn_name": "Solution.f", "input": [[1, 2]], "output": [[2, 1]]}]
    code = "class Solution:\n    def f(self, x): return tuple(x[::-1])"
    assert _grade(sandbox, code, pairs) == 1.0
    # TACO and APPS name the method alone.
    taco = json.dumps({"fn_name": "f", "inputs": [[[1, 2]], [[3]]], "outputs": [[2, 1], [[3]]]})
    assert _grade(sandbox, code, taco) == 1.0
    assert _grade(sandbox, code.replace("[::-1]", ""), taco) == 0.0
    assert _grade(sandbox, code.replace("def f", "def g"), taco) == 0.0
    state = "class Solution:\n    def __init__(self): self.n = 0\n"
    state += (
        "    def f(self, x):\n        self.n += 1\n        return x[::-1] if self.n == 1 else 0"
    )
    assert _grade(sandbox, state, taco) == 1.0


@pytest.mark.parametrize("tests", [None, [], "", "x = (", [{"what": 1}], [3], "def check(c): pass"])
def test_tests_that_are_not_understood_are_not_graded(tests: Any, sandbox: Sandbox) -> None:
    assert _grade(sandbox, "def double(x): return 2 * x", tests) is None


def test_a_row_without_tests_is_not_graded_even_without_code(sandbox: Sandbox) -> None:
    assert code_tests_reward(["no code"], [[]], backend=sandbox) == [None]


def test_an_assert_is_split_only_where_the_call_shows_no_expected_value() -> None:
    split = {
        "assert f(1) == 2": ("f(1)", 2),
        "assert 2 == f(1)": ("f(1)", 2),
        "assert f(Pair(1, 2), [3]) == {'a': (1,)}": ("f(Pair(1, 2), [3])", {"a": (1,)}),
        "assert f(1) is None": ("f(1)", None),
        "assert sum(10, 15) == 6": ("sum(10, 15)", 6),
    }
    for source, (call, expected) in split.items():
        assert parse_tests(source) == [ProgramTest(call=call, expected=expected)]
    whole = [
        "assert abs(f(1) - 2.5) < 1e-6",
        "assert math.isclose(f(1), 2.5)",
        "assert set(f(1)) == {1}",
        "assert f(1) == g(2)",
        "assert f(1) == 10 ** 2",
        "assert f(1) != 2",
        "assert f(1 == 2) == 3",
        "x = f(1)\nassert x == 2",
    ]
    for source in whole:
        assert parse_tests(source) == [ProgramTest(source=source)]


def test_tests_that_can_not_be_split_are_run_beside_the_program(sandbox: Sandbox) -> None:
    tests = ["assert abs(half(1) - 0.5) < 1e-6", "assert sorted(half(x) for x in (4, 2)) == [1, 2]"]
    assert _grade(sandbox, "def half(x): return x / 2", tests) == 1.0
    assert _grade(sandbox, "def half(x): return 0.5", tests, score="share") == 0.5


def test_a_check_function_gets_its_entry_point(sandbox: Sandbox) -> None:
    split = "def check(candidate):\n    assert candidate(2) == 4\n    assert True, 'no reason'\n"
    loop = "def check(candidate):\n    for i in range(5): assert candidate(i) == 2 * i\n"
    for tests in (split, loop):
        for code, reward in (
            ("def double(x): return 2 * x", 1.0),
            ("def double(x): return 3", 0.0),
        ):
            assert _grade(sandbox, code, tests, entry_point="double") == reward


def test_floats_have_a_relative_tolerance_and_tiny_numbers_no_absolute_one() -> None:
    assert same_value(0.3, 0.1 + 0.2, 1e-9)
    assert same_value(0.0, 1e-17, 1e-9)
    assert same_value([1.5, {"a": (2.0,)}], [1.5, {"a": (2,)}], 1e-9)
    assert not same_value(1e-12, 2e-12, 1e-9)
    assert not same_value(1e-12, 0.0, 1e-9)
    assert not same_value(3, 3.0000000001, 1e-9)
    assert not same_value(1.0, 10**400, 1e-9)
    assert not same_value([1, 2], (1, 2), 1e-9)
    assert not same_value([1, 2], iter([1, 2]), 1e-9)
    assert same_value([1, 2], (1, 2), 1e-9, is_loose=True)
    assert not same_value("1", 1, 1e-9)
    assert not same_value(None, 0, 1e-9)


def test_output_may_differ_in_trailing_space_and_in_the_last_decimals_alone() -> None:
    assert same_output("1 2\n3\n", "1 2 \n3\n\n", 1e-9)
    assert same_output("0.5 x", "0.50000 x", 1e-9)
    assert not same_output("1\n2", "1", 1e-9)
    assert not same_output("1", "1\n2", 1e-9)
    assert not same_output("12", "1 2", 1e-9)
    assert not same_output("5", "5.0", 1e-9)
    assert not same_output("0.5", "nan", 1e-9)


_GAMES = {
    "an object whose __eq__ is always true": (
        "class A:\n    def __eq__(self, o): return True\ndef double(x): return A()"
    ),
    "a number whose __eq__ is always true": (
        "class A(int):\n    def __eq__(self, o): return True\ndef double(x): return A(7)"
    ),
    "a frame walk to the expected output": (
        "import sys\n"
        "def double(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for value in list(frame.f_locals.values()):\n"
        "            if isinstance(value, (list, tuple)) and 4 in value: return 4\n"
        "        frame = frame.f_back\n"
        "    return None"
    ),
    "a success token and os._exit(0)": (
        "import os\nprint('All tests passed. ok 1.0 True', flush=True)\nos._exit(0)"
    ),
    "a forged report and os._exit(0)": (
        "import os\nos.write(3, b'ptrue\\nptrue\\n.\\n')\nos.write(1, b'.\\n')\nos._exit(0)"
    ),
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "sys.exit(0) in the call": "import sys\ndef double(x): sys.exit(0)",
    "hard-coded visible tests": "def double(x): return {2: 4}.get(x)",
    "a patched pytest": (
        "import sys, types\nsys.modules['pytest'] = types.ModuleType('pytest')\n"
        "open('conftest.py', 'w').write('')"
    ),
    "a run_tests of its own": (
        "def run_tests(*a): return True\ndef check(*a): return True\n"
        "def _report(*a): pass\nimport builtins\nbuiltins.AssertionError = Warning\n"
        "def double(x): return None"
    ),
    "reading the tests": (
        "import glob, re\n"
        "def double(x):\n"
        "    text = ''.join(open(p).read() for p in glob.glob('/**/*test*', recursive=True)[:50])\n"
        "    return int(re.search(r'double\\(%d\\) == (-?\\d+)' % x, text)[1])"
    ),
    "reading the environment": ("import os\ndef double(x): return int(os.environ['EXPECTED'])"),
    "a patched time": (
        "import time\ntime.time = time.monotonic = time.sleep = lambda *a: 0\n"
        "def double(x):\n    while True: pass"
    ),
    "a patched json": ("import json\njson.dumps = lambda *a, **k: '4'\ndef double(x): return None"),
    "a stall": "def double(x):\n    while True: pass",
    "killing the grader": (
        "import os\nos.kill(os.getppid() or 1, 9)\ndef double(x): raise SystemExit"
    ),
    "a redefined print and assert": (
        "import builtins\nbuiltins.print = lambda *a: None\n__debug__1 = False\n"
        "def double(x): assert False"
    ),
}


@pytest.mark.parametrize("name", list(_GAMES))
def test_gaming_scores_zero(name: str, sandbox: Sandbox) -> None:
    assert _grade(sandbox, _GAMES[name], _DOUBLE) == 0.0


@pytest.mark.parametrize("name", list(_GAMES))
def test_gaming_scores_zero_where_tests_run_beside_it(name: str, sandbox: Sandbox) -> None:
    tests = ["for x, y in ((2, 4), (-3, -6)): assert double(x) == y"]
    assert _grade(sandbox, _GAMES[name], tests) == 0.0


@pytest.mark.parametrize(
    "code", ["print(3)", "print('3\\n')", "print(3); import os; os._exit(0)", "print('3 4 5')"]
)
def test_the_first_expected_line_is_not_enough(code: str, sandbox: Sandbox) -> None:
    assert _grade(sandbox, code, [{"input": "", "output": "3\n4\n5\n"}]) == 0.0


def test_code_in_the_reasoning_does_not_count(sandbox: Sandbox) -> None:
    text = "<think>\n```python\ndef double(x): return 2 * x\n```\n</think>\nSee above."
    assert code_tests_reward([text], [_DOUBLE], backend=sandbox) == [0.0]


def test_the_file_loads_alone_and_finds_the_shared_sandbox(tmp_path: Path) -> None:
    source = Path(str(code_tests.__file__))
    copy = tmp_path / "my_reward.py"
    copy.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_reward", copy)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        rewards = module.code_tests_reward([_block("def double(x): return x + x")], [_DOUBLE])
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    assert rewards == [1.0]


def _references() -> tuple[list[str], list[Any], dict[str, list[Any]]]:
    for path in (_DATA / "mbpp" / "mbpp.jsonl", _DATA / "humaneval" / "HumanEval.jsonl.gz"):
        if not path.is_file():
            pytest.skip(f"the data folder is not beside the repository: no {path.name}")
    mbpp = [
        json.loads(line)
        for line in (_DATA / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    with gzip.open(_DATA / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        human_eval = [json.loads(line) for line in file]
    codes = [r["code"] for r in mbpp]
    codes += [r["prompt"] + r["canonical_solution"] for r in human_eval]
    tests = [r["test_list"] + r["challenge_test_list"] for r in mbpp]
    columns = {
        "test_setup_code": [r["test_setup_code"] for r in mbpp] + [None] * len(human_eval),
        "entry_point": [None] * len(mbpp) + [r["entry_point"] for r in human_eval],
    }
    return codes, [*tests, *(r["test"] for r in human_eval)], columns


# Every seventh in the daily run, all of them in the slow one. The two MBPP references that use a
# `Node` no test defines pass too: their setup runs after them, and they define it.
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_reference_solutions_pass(step: int) -> None:
    try:
        sandbox = Sandbox(2)
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    codes, tests, columns = _references()
    with sandbox:
        rewards = code_tests_reward(
            [_block(code) for code in codes[::step]],
            tests[::step],
            backend=sandbox,
            **{name: column[::step] for name, column in columns.items()},
        )
    assert rewards == [1.0] * len(codes[::step])


def test_reference_solutions_fail_the_tests_of_others() -> None:
    try:
        sandbox = Sandbox(2)
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    codes, tests, _ = _references()
    with sandbox:
        rewards = code_tests_reward([_block(c) for c in codes[:60]], tests[1:61], backend=sandbox)
    assert rewards == [0.0] * 60


_ADDS_ONE, _DOES_NOTHING = "def f(x): return x + 1", "x = 1"
_TEST_FUNCTION = "from solution import f\n\ndef test_one():\n    assert f(1) == 2\n"


@pytest.mark.parametrize(
    "tests",
    [
        _TEST_FUNCTION,
        [_TEST_FUNCTION, "def test_two():\n    assert f(2) == 3"],
        ["from math import isclose", "assert isclose(f(1), 2.0)"],
        ["import math", "def same(a, b):\n    return a == b", "assert same(f(1), 2)"],
        '{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}',
    ],
)
def test_tests_are_run_in_the_forms_of_data_sets(tests: Any, sandbox: Sandbox) -> None:
    assert _grade(sandbox, _ADDS_ONE, tests) == 1.0
    assert _grade(sandbox, _DOES_NOTHING, tests) == 0.0
    assert _grade(sandbox, "def same(*a): return True\nisclose = same", tests) == 0.0


def test_a_functional_test_has_json_arguments_and_may_ask_a_class(sandbox: Sandbox) -> None:
    tests = [{"testtype": "functional", "input": "[1, 2]\n3", "output": "6"}]
    code = "class Solution:\n    def total(self, xs, x): return sum(xs) + x"
    assert _grade(sandbox, code, tests, entry_point="total") == 1.0
    assert _grade(sandbox, code.replace("+ x", ""), tests, entry_point="total") == 0.0
    assert _grade(sandbox, code, "assert Solution().total([1, 2], 3) == 6") == 1.0
    assert "entry_point" in str(code_tests.row_fault(tests))


@pytest.mark.parametrize(
    "tests",
    [
        "x = 3",
        "print('fine')",
        "assert 1 == 1",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass",
        "def helper(): pass",
        ["import math"],
        "import no_such_module\nassert no_such_module.close(f(1), 2)",
        "def test_it(tmp_path): assert f(1) == 2",
        {"inputs": ["1", "2"], "outputs": ["1"]},
    ],
)
def test_what_no_program_can_pass_or_fail_is_not_graded(tests: Any, sandbox: Sandbox) -> None:
    assert _grade(sandbox, _DOES_NOTHING, tests) is None
    assert _grade(sandbox, _ADDS_ONE, tests, score="share") is None


def test_a_setup_that_fails_by_itself_grades_nothing(sandbox: Sandbox) -> None:
    test = "y = 1\nassert f(y) == 2"
    for setup in ("1 / 0", "def ("):
        assert _grade(sandbox, _ADDS_ONE, test, test_setup_code=setup) is None
    assert "its setup" in str(code_tests.row_fault(test, test_setup_code="def ("))


def test_helpers_of_the_setup_do_not_show_the_program_what_is_expected(sandbox: Sandbox) -> None:
    walks = (
        "import sys\n"
        "def f(x):\n"
        "    constants = sys._getframe(1).f_code.co_consts\n"
        "    return [k for k in constants if isinstance(k, float)][0]\n"
    )
    columns = {"tests": "assert isclose(f(1), 2.0)", "test_setup_code": "from math import isclose"}
    assert _grade(sandbox, walks, **columns) == 0.0
    assert _grade(sandbox, "def f(x): return 2.0", **columns) == 1.0


def test_one_is_not_true(sandbox: Sandbox) -> None:
    assert _grade(sandbox, "def f(): return 1", "assert f() is True") == 0.0
    assert _grade(sandbox, "def f(): return True", "assert f() is True") == 1.0
    assert _grade(sandbox, "def f(): pass", "assert f() is None") == 1.0


def test_half_characters_of_a_data_set_are_input_like_any_other(sandbox: Sandbox) -> None:
    test = {"input": "\ud800x", "output": "2"}
    assert _grade(sandbox, "print(len(input()) - 2)", test) == 1.0
