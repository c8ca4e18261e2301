"""Code reward: does the program in the answer pass its tests?

Only code and inputs go into the sandbox; what comes back is plain data, compared here, where the
program can't reach. It stands alone but for the sandbox, which is imported from
`trl_r1.verification` on first use; another one can be given as `backend`. Left out on purpose:
credit for code that merely runs, and any look at the reasoning.

A row's `tests` is a list, or JSON of one, of: assert statements; source with a `check(candidate)`
(HumanEval); `{"input", "output"}` for standard input and output; `{"fn_name", "input", "output"}` with
a list of arguments; `{"inputs", "outputs"}` with lists of either (APPS). An assert of the form
`call == literal` is split, and its call alone is sent. Others run in a second sandboxed process that
never holds the program, and asks it for values.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_FENCE = "```"
_PYTHON_TAGS = ("python", "py", "python3")


def code_tests_reward(
    completions: Sequence[Any],
    tests: Sequence[Any],
    entry_point: Sequence[str | None] | None = None,
    test_setup_code: Sequence[str | None] | None = None,
    score: Literal["all", "share"] = "all",
    float_tolerance: float = 1e-9,
    backend: Any = None,
    num_workers: int = 2,
    **kwargs: Any,
) -> list[float | None]:
    """1.0 for a program that passes its tests, 0.0 for one that does not or for none.

    The program is the last closed code block of the answer, the text after `</think>`; one tagged
    `python` goes before one without a tag.

    Args:
        completions: texts, or lists of messages.
        tests: of each row; see the module.
        entry_point: name of the function that `check(candidate)` gets, per row.
        test_setup_code: source that makes inputs, per row (MBPP); the program sees it.
        score: `all`: 1.0 only where every test passes; `share`: the share that does.
        float_tolerance: relative; of expected floats alone. An expected 0.0 takes it as absolute.
        backend: what runs programs (`run(programs)`), or a string for
            `trl_r1.verification.code_backends.open_backend`; by default the local sandbox.
        num_workers: of the local sandbox.

    Returns:
        None for a row whose tests can't be graded: not understood, or beyond plain data.

    Raises:
        ValueError: an unknown `score`.
        SandboxUnavailable: this machine can't isolate programs.
    """
    if score not in ("all", "share"):
        raise ValueError(f"code_tests_reward: score is {score!r}; it is 'all' or 'share'")
    nothing: list[str | None] = [None] * len(completions)
    rows = [
        _Row(_last_program(_text(completion)), *_parse_tests(test, entry), setup or "")
        for completion, test, entry, setup in zip(
            completions, tests, entry_point or nothing, test_setup_code or nothing, strict=True
        )
    ]
    programs = [program for row in rows for program in row.programs()]
    results = _run(programs, backend, num_workers) if programs else []
    rewards: list[float | None] = []
    for row in rows:
        own = [results.pop(0) for _ in row.programs()]
        rewards.append(_score(row.verdicts(own, float_tolerance), row.code, score))
    return rewards


def _run(programs: list[Any], backend: Any, num_workers: int) -> list[Any]:
    if backend is None:
        from trl_r1.verification.sandbox import shared_sandbox

        backend = shared_sandbox(num_workers)
    elif isinstance(backend, str):
        from trl_r1.verification.code_backends import open_backend

        backend = open_backend(backend)
    unique = list(dict.fromkeys(programs))
    by_program = dict(zip(unique, backend.run(unique), strict=True))
    return [by_program[program] for program in programs]


def _score(verdicts: list[bool | None], code: str | None, score: str) -> float | None:
    if not verdicts:
        return None
    if code is None:
        return 0.0
    graded = [v for v in verdicts if v is not None]
    if not graded:
        return None
    if score == "share":
        return sum(graded) / len(graded)
    if not all(graded):
        return 0.0
    return 1.0 if len(graded) == len(verdicts) else None


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion or [])


def _last_program(text: str) -> str | None:
    """The last closed code block of the answer, in time linear in the text; None without one."""
    _, closed, answer = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return None  # still thinking when it was cut
    found: dict[bool, str] = {}
    block: list[str] | None = None
    is_tagged, is_python = False, False
    for line in answer.split("\n"):
        stripped = line.strip()
        if block is None:
            if stripped.startswith(_FENCE):
                tag = stripped.strip("`").strip().lower()
                block, is_tagged, is_python = [], bool(tag), tag in _PYTHON_TAGS
        elif stripped == _FENCE:
            if is_python or not is_tagged:
                found[is_python] = "\n".join(block)
            block = None
        else:
            block.append(line)
    return found.get(True, found.get(False))


@dataclass(frozen=True)
class _Test:
    """One test: a call (source, or function and arguments) or standard input with what is expected
    of it, or source to run beside the program; none of them: it is not understood."""

    call: Any = None
    stdin: str | None = None
    source: str | None = None
    expected: Any = None
    is_loose: bool = False  # a list may stand for a tuple: JSON has no tuples


@dataclass(frozen=True)
class _Row:
    code: str | None
    tests: tuple[_Test, ...]
    setup: str

    def programs(self) -> list[Any]:
        """At most one program for all calls, one for all sources, one for each standard input."""
        if self.code is None:
            return []
        from trl_r1.verification.sandbox import Program

        calls = tuple(_call_of(t.call) for t in self.tests if t.call is not None)
        sources = tuple(t.source for t in self.tests if t.source is not None)
        programs = [Program(self.code, calls=calls, setup=self.setup)] if calls else []
        programs += [Program(self.code, tests=sources, setup=self.setup)] if sources else []
        inputs = [t.stdin for t in self.tests if t.stdin is not None]
        return programs + [Program(self.code, stdin=stdin) for stdin in inputs]

    def verdicts(self, results: list[Any], tolerance: float) -> list[bool | None]:
        """One per test: passed, failed, or None where it can't be graded."""
        if self.code is None:
            return [False for _ in self.tests]
        left = iter(results)
        of_calls = next(left) if any(t.call is not None for t in self.tests) else None
        of_sources = next(left) if any(t.source is not None for t in self.tests) else None
        outcomes = iter(of_calls.outcomes if of_calls else ())
        answers = iter(of_sources.verdicts if of_sources else ())
        verdicts: list[bool | None] = []
        for test in self.tests:
            result = of_calls if test.call is not None else of_sources
            if test.stdin is not None:
                result = next(left)
                verdict: bool | None = result.status == "ok" and _same_output(
                    test.expected, result.stdout, tolerance
                )
            elif test.call is not None:
                verdict = _passes(test, next(outcomes), tolerance)
            else:
                verdict = next(answers) if test.source is not None else None
            is_unsupported = result is not None and result.status == "unsupported"
            verdicts.append(None if is_unsupported else verdict)
        return verdicts


def _call_of(call: Any) -> Any:
    if isinstance(call, str):
        return call
    from trl_r1.verification.sandbox import Call

    name, args = call
    return Call(name, tuple(args))


class _Truthy:
    """Expected of `assert f(x)` (True) and `assert not f(x)` (False)."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted


def _passes(test: _Test, outcome: Any, tolerance: float) -> bool:
    if outcome.error is not None:
        return False
    if isinstance(test.expected, _Truthy):
        return bool(outcome.value) == test.expected.wanted
    if _same(test.expected, outcome.value, tolerance, test.is_loose):
        return True
    # APPS wraps the expected value in a list of its own.
    wrapped = test.is_loose and isinstance(test.expected, list) and len(test.expected) == 1
    return wrapped and _same(test.expected[0], outcome.value, tolerance, True)


def _same(expected: Any, got: Any, tolerance: float, is_loose: bool) -> bool:
    """Equality of plain data, with a relative tolerance where the expected value is a float."""
    if isinstance(expected, list | tuple):
        kinds: Any = list | tuple if is_loose else type(expected)
        return (
            isinstance(got, kinds)
            and len(got) == len(expected)
            and all(_same(e, g, tolerance, is_loose) for e, g in zip(expected, got, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(_same(value, got[k], tolerance, is_loose) for k, value in expected.items())
        )
    if isinstance(expected, float) and isinstance(got, int | float):
        return _close(expected, got, tolerance)
    return bool(
        type(expected) is type(got) or isinstance(got, int | float | complex | frozenset | set)
    ) and bool(expected == got)


def _close(expected: float, got: float, tolerance: float) -> bool:
    if math.isnan(expected):
        return got != got
    try:
        # Absolute only around zero: else every tiny number would equal every other.
        return math.isclose(
            expected, got, rel_tol=tolerance, abs_tol=tolerance if expected == 0 else 0.0
        )
    except OverflowError:  # an integer beyond any float
        return False


def _same_output(expected: str, got: str, tolerance: float) -> bool:
    """The whole output, spaces at the ends of lines and empty lines at its end aside."""
    wanted, found = ([line.rstrip() for line in t.rstrip().splitlines()] for t in (expected, got))
    if wanted == found:
        return True
    if len(wanted) != len(found):
        return False
    return all(
        w == f or _same_words(w.split(), f.split(), tolerance)
        for w, f in zip(wanted, found, strict=True)
    )


def _same_words(expected: list[str], got: list[str], tolerance: float) -> bool:
    if len(expected) != len(got):
        return False
    for wanted, found in zip(expected, got, strict=True):
        if wanted == found:
            continue
        if "." not in wanted or len(found) > 400:
            return False
        try:
            if not _close(float(wanted), float(found), tolerance):
                return False
        except ValueError:
            return False
    return True
