"""Tests of programs, run on a backend and compared outside.

What data sets have becomes these tests in `reading_tests.py`.
"""

from __future__ import annotations

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
