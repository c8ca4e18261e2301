"""Tests of programs: read from what data sets have, run on a backend, compared outside.

An assert of the form `call == literal` is split: its call alone goes to the program, and the
literal stays here. An assert that can't be split runs in a second sandboxed process that never
holds the program and asks it for values (`Program.tests`). Left out on purpose: test frameworks.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trl_r1.verification.plain_comparison import same_output, same_value
from trl_r1.verification.sandbox import Call, CodeBackend, Program, ProgramResult


@dataclass(frozen=True)
class TruthOf:
    """Expected of `assert f(x)` (True) and of `assert not f(x)` (False)."""

    is_true: bool


@dataclass(frozen=True)
class ProgramTest:
    """One test: `call` or `stdin` with what is expected of it, or `source` to run beside the
    program. One with none of them is not understood, and `fault` says why.

    Attributes:
        call: an expression, or a `Call`.
        stdin: standard input of a script.
        source: test source that asks the program for values.
        expected: literal, or standard output.
        is_loose: a list may stand for a tuple; expected values come from JSON.
        fault: why it is not understood.
    """

    call: Call | str | None = None
    stdin: str | None = None
    source: str | None = None
    expected: Any = None
    is_loose: bool = False
    fault: str | None = None


def parse_tests(tests: Any, entry_point: str | None = None) -> list[ProgramTest]:
    """The tests of one row.

    Args:
        tests: a list, or one, or JSON, of: assert statements; source that defines
            `check(candidate)`; `{"input", "output"}`; `{"fn_name", "input": [arguments],
            "output"}`; `{"inputs": [...], "outputs": [...]}` with an optional `fn_name`.
        entry_point: what `check` is to be given.
    """
    if isinstance(tests, str):
        stripped = tests.strip()
        if stripped[:1] in ("[", "{"):
            try:
                return parse_tests(json.loads(stripped), entry_point)
            except ValueError:
                pass  # source that starts with a bracket; the parser below has the last word
        return _from_source(tests, entry_point) if stripped else []
    if isinstance(tests, dict):
        return _from_mapping(tests)
    if isinstance(tests, Sequence):
        return [test for item in tests for test in parse_tests(item, entry_point)]
    if tests is None:
        return []
    return [ProgramTest(fault=f"a test of type {type(tests).__name__}")]


def _from_mapping(test: dict[str, Any]) -> list[ProgramTest]:
    test = {key: value for key, value in test.items() if value is not None}
    if "test_cases" in test:
        return parse_tests(test["test_cases"])
    name = test.get("fn_name")
    if "inputs" in test and "outputs" in test:
        pairs = list(zip(test["inputs"], test["outputs"], strict=False))
    elif "input" in test and "output" in test:
        pairs = [(test["input"], test["output"])]
    else:
        return [ProgramTest(fault=f"a test with the keys {sorted(test)}")]
    if not name:
        return [ProgramTest(stdin=_lines(i), expected=_lines(o)) for i, o in pairs]
    return [
        ProgramTest(call=Call(name, tuple(i)), expected=o, is_loose=True)
        if isinstance(i, list | tuple)
        else ProgramTest(fault="arguments that are not a list")
        for i, o in pairs
    ]


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _from_source(source: str, entry_point: str | None) -> list[ProgramTest]:
    try:
        tree = ast.parse(source.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [ProgramTest(fault=f"{type(error).__name__}: {error}")]
    check = next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None
    )
    if check is not None and not check.args.args:
        return [ProgramTest(fault="check() takes no argument")]
    if check is None:
        statements, rename = tree.body, {}
    elif entry_point is None:
        return [ProgramTest(fault="a check(candidate) without an entry_point")]
    else:
        statements, rename = check.body, {check.args.args[0].arg: entry_point}
        harmless = (ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef)
        if not all(isinstance(n, harmless) for n in tree.body):
            statements = tree.body
    split = _split_all(statements, rename)
    if split is not None:
        return split
    call = f"\ncheck({entry_point})" if check is not None else ""
    return [ProgramTest(source=source.strip() + call)]


def _split_all(statements: list[ast.stmt], rename: dict[str, str]) -> list[ProgramTest] | None:
    """The asserts as calls with literals; None if one of the statements is anything else."""
    tests = []
    for statement in statements:
        if isinstance(statement, ast.Pass) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            continue
        if not isinstance(statement, ast.Assert):
            return None
        condition = statement.test
        if isinstance(condition, ast.Constant) and condition.value:
            continue  # `assert True`, as HumanEval has it
        test = _split(condition, rename)
        if test is None:
            return None
        tests.append(test)
    return tests


def _split(condition: ast.expr, rename: dict[str, str]) -> ProgramTest | None:
    call: ast.expr = condition
    expected: Any = TruthOf(True)
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        call, expected = condition.operand, TruthOf(False)
    elif isinstance(condition, ast.Compare) and len(condition.ops) == 1:
        left, right = condition.left, condition.comparators[0]
        if not isinstance(condition.ops[0], ast.Eq | ast.Is):
            return None
        call, literal = (left, right) if isinstance(left, ast.Call) else (right, left)
        try:
            expected = ast.literal_eval(literal)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None
        if isinstance(condition.ops[0], ast.Is) and not isinstance(expected, bool | None):
            return None
    name = _called_name(call)
    if name is None or (rename and name not in rename):
        return None
    assert isinstance(call, ast.Call)
    # What the call shows the program are its arguments. The program's own functions may stand in
    # them; a comparison may not, as it would show what is expected.
    if any(isinstance(n, ast.Compare | ast.Lambda) for n in ast.walk(call)):
        return None
    for node in ast.walk(call):
        if isinstance(node, ast.Name):
            node.id = rename.get(node.id, node.id)
    return ProgramTest(call=ast.unparse(call), expected=expected)


def _called_name(call: ast.expr) -> str | None:
    """The function a call names directly; None for built-in ones that compare or convert what the
    program came to. Given literals alone, one is the program's own, under a built-in name."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return None
    has_calls = any(isinstance(n, ast.Call) for arg in call.args for n in ast.walk(arg))
    return None if hasattr(builtins, call.func.id) and has_calls else call.func.id


def programs_of(code: str, tests: Sequence[ProgramTest], setup: str = "") -> list[Program]:
    """What has to be run: one program for all calls, one for all sources, one a standard input."""
    calls = tuple(t.call for t in tests if t.call is not None)
    sources = tuple(t.source for t in tests if t.source is not None)
    programs = [Program(code, calls=calls, setup=setup)] if calls else []
    programs += [Program(code, tests=sources, setup=setup)] if sources else []
    return programs + [Program(code, stdin=t.stdin) for t in tests if t.stdin is not None]


def verdicts_of(
    tests: Sequence[ProgramTest], results: Sequence[ProgramResult], tolerance: float
) -> list[bool | None]:
    """One per test: passed, failed, or None where it can't be graded.

    Args:
        tests: of one row.
        results: of `programs_of` those tests, in order.
        tolerance: see `same_value`.
    """
    left = iter(results)
    of_calls = next(left) if any(t.call is not None for t in tests) else None
    of_sources = next(left) if any(t.source is not None for t in tests) else None
    outcomes = iter(of_calls.outcomes if of_calls else ())
    answers = iter(of_sources.verdicts if of_sources else ())
    verdicts: list[bool | None] = []
    for test in tests:
        result = of_calls if test.call is not None else of_sources
        verdict: bool | None = None
        if test.stdin is not None:
            result = next(left)
            verdict = result.status == "ok" and same_output(test.expected, result.stdout, tolerance)
        elif test.call is not None:
            outcome = next(outcomes)
            verdict = outcome.error is None and _meets(test, outcome.value, tolerance)
        elif test.source is not None:
            verdict = next(answers)
        is_unsupported = result is not None and result.status == "unsupported"
        verdicts.append(None if is_unsupported else verdict)
    return verdicts


def _meets(test: ProgramTest, value: Any, tolerance: float) -> bool:
    expected = test.expected
    if isinstance(expected, TruthOf):
        return bool(value) == expected.is_true
    if same_value(expected, value, tolerance, test.is_loose):
        return True
    # APPS wraps the expected value in a list of its own.
    is_wrapped = test.is_loose and isinstance(expected, list) and len(expected) == 1
    return is_wrapped and same_value(expected[0], value, tolerance, True)


def grade_programs(
    rows: Sequence[tuple[str, Sequence[ProgramTest], str]],
    backend: CodeBackend,
    tolerance: float = 1e-9,
) -> list[list[bool | None]]:
    """Run many programs against their tests; verdicts of each row, one per test.

    Args:
        rows: (code, tests, setup) each. Equal programs run once.
        backend: what runs them.
        tolerance: see `same_value`.
    """
    programs = [programs_of(*row) for row in rows]
    unique = {repr(program): program for own in programs for program in own}
    results = dict(zip(unique, backend.run(list(unique.values())), strict=True)) if unique else {}
    return [
        verdicts_of(tests, [results[repr(program)] for program in own], tolerance)
        for (_, tests, _), own in zip(rows, programs, strict=True)
    ]
