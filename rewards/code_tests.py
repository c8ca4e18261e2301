"""Code reward: does the program in the answer pass its tests?

Only code and inputs go into the sandbox; what comes back is plain data, compared here, where the
program can't reach. It stands alone but for the sandbox, which is imported from
`trl_r1.verification` on first use. Left out on purpose: credit for code that merely runs, and any
look at the reasoning.

A row's `tests` is a list, or JSON of one, of: assert statements (MBPP); source with a
`check(candidate)` (HumanEval); `{"input", "output"}` for standard input and output; `{"fn_name",
"input", "output"}` with a list of arguments; `{"inputs", "outputs"}` with lists of either (APPS).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    num_workers: int | None = None,
    limits: Mapping[str, float] | None = None,
    prefilled: bool = False,
    **kwargs: Any,
) -> list[float | None]:
    """1.0 for a program that passes its tests, 0.0 for one that does not, or for none.

    The program is the last closed code block of the answer, the text after `</think>`; one tagged
    `python` goes before one without a tag.

    Args:
        completions: texts, or lists of messages.
        tests: of each row; see the module.
        entry_point: name of the function that `check(candidate)` gets, per row.
        test_setup_code: source that makes inputs, per row (MBPP); the program sees it.
        score: `all`: 1.0 only where every test passes; `share`: the share that does.
        float_tolerance: relative; of expected floats alone. An expected 0.0 takes it as absolute.
        backend: what runs programs, an object with `run(programs)`, or a string for
            `trl_r1.verification.code_backends.open_backend`; by default the local sandbox.
        num_workers: programs at a time; 2 in the local sandbox, and what a service's client says
            elsewhere, by default.
        limits: of a program: `cpu_seconds` (5), `wall_seconds` (10), `memory_mb` (512),
            `max_threads`, `max_output_bytes`; see `trl_r1.verification.sandbox.Limits`. A backend
            that is an object has limits of its own.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` is all reasoning.
        kwargs: TRL's other columns, unused.

    Returns:
        None for a row whose tests can't be graded: none there, not understood, or beyond plain
        data.

    Raises:
        ValueError: an unknown `score`, `backend` or limit.
        SandboxUnavailableError: this machine can't isolate programs.
    """
    if score not in ("all", "share"):
        raise ValueError(f"code_tests_reward: score is {score!r}; it is 'all' or 'share'")
    open_backend = _opener(backend, num_workers, limits)
    from trl_r1.verification.program_tests import grade_programs
    from trl_r1.verification.reading_tests import parse_tests

    nothing: list[str | None] = [None] * len(completions)
    programs = [_last_program(completion_text(completion), prefilled) for completion in completions]
    setups = [setup or "" for setup in test_setup_code or nothing]
    tests_of = [
        parse_tests(*of_row) for of_row in zip(tests, entry_point or nothing, setups, strict=True)
    ]
    rows = list(zip(programs, tests_of, setups, strict=True))
    to_run = [(code, own, setup) for code, own, setup in rows if code is not None and own]
    graded = iter(grade_programs(to_run, open_backend(), float_tolerance) if to_run else ())
    return [
        None if not own else 0.0 if code is None else _score(next(graded), score)
        for code, own, _ in rows
    ]


# Its sandbox has worker processes and limits of its own, and wants a batch's programs at once.
code_tests_reward.runs_in_trainer = True  # type: ignore[attr-defined]
code_tests_reward.runs_in_thread = True  # type: ignore[attr-defined]


def has_no_program(
    completions: Sequence[Any], prefilled: bool = False, **kwargs: Any
) -> list[bool]:
    """Whether each completion has no program to run; logged as the share malformed."""
    return [
        _last_program(completion_text(completion), prefilled) is None for completion in completions
    ]


code_tests_reward.malformed = has_no_program  # type: ignore[attr-defined]


def row_fault(
    tests: Any,
    entry_point: str | None = None,
    test_setup_code: str | None = None,
    **columns: Any,
) -> str | None:
    """Why no program could be graded by a row's tests; asked of every row when data is loaded."""
    from trl_r1.verification.reading_tests import parse_tests

    own = parse_tests(tests, entry_point, test_setup_code or "")
    if not own:
        return "not gradable because it has no tests"
    if all(test.fault for test in own):
        return f"not gradable because its tests are not understood: {own[0].fault}"
    return None


code_tests_reward.row_fault = row_fault  # type: ignore[attr-defined]


def _opener(
    backend: Any, num_workers: int | None, limits: Mapping[str, float] | None
) -> Callable[[], Any]:
    """What opens the backend, its settings checked before there is any program to run.

    Raises:
        ValueError: an unknown backend or limit.
    """
    if backend is not None and not isinstance(backend, str):
        if limits:
            raise ValueError("code_tests_reward: the backend has limits of its own; leave them out")
        return lambda: backend
    from trl_r1.verification import code_backends, sandbox

    known = sandbox.Limits.__dataclass_fields__
    for name in limits or {}:
        if name not in known:
            raise ValueError(
                f"code_tests_reward: unknown limit {name!r}; known: {', '.join(known)}"
            )
    of_program = sandbox.Limits(**(limits or {}))  # type: ignore[arg-type]
    if backend is None or backend == "local":
        return lambda: sandbox.shared_sandbox(num_workers or 2, of_program)
    opened: Any = code_backends.open_backend(backend)
    opened.limits = of_program if limits else opened.limits
    opened.num_workers = num_workers or opened.num_workers
    return lambda: opened


def _score(verdicts: list[bool | None], score: str) -> float | None:
    graded = [verdict for verdict in verdicts if verdict is not None]
    if not graded:
        return None
    if score == "share":
        return sum(graded) / len(graded)
    if not all(graded):
        return 0.0
    # Nothing failed, but something could not be graded: neither right nor wrong.
    return 1.0 if len(graded) == len(verdicts) else None


def completion_text(completion: Any) -> str:
    """Text of a plain-text or conversational completion (its last message); `""` for None."""
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    # What a tool or a user said last is no answer of the model's.
    content = None if last.get("role") in ("tool", "user") else last.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content or ""


def _last_program(text: str, prefilled: bool = False) -> str | None:
    """The last closed code block of the answer, in time linear in the text; None without one."""
    _, closed, answer = text.rpartition("</think>")
    if not closed and (prefilled or "<think>" in text):
        return None  # cut while it was still thinking
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
