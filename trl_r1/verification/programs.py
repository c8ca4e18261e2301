"""What goes into a sandbox and what comes out of it: plain records, whatever runs the program.

Expected outputs are no part of a program here: compare what comes back, outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trl_r1.verification.isolation import plain_data

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "crashed", "unsupported"]


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        cpu_seconds: processor time; says more than wall time on a busy machine.
        wall_seconds: time from the fork, sleep included.
        memory_mb: address space, the interpreter's own 40 MB included.
        max_threads: threads. New processes are refused altogether.
        max_output_bytes: of each of standard output, standard error and reported values.
    """

    cpu_seconds: float = 5.0
    wall_seconds: float = 10.0
    memory_mb: int = 512
    max_threads: int = 16
    max_output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"Limits: {name} is {getattr(self, name)}; it has to be positive")
        if self.memory_mb < 64:
            raise ValueError("Limits: memory_mb below 64 leaves no room for the interpreter")


@dataclass(frozen=True)
class Call:
    """A call of one of the program's functions; `name` may be dotted, the arguments plain data."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> tuple[str, str]:
        """Name and encoded arguments.

        Raises:
            TypeError: an argument is not plain data.
        """
        return self.name, plain_data.dumps([list(self.args), self.kwargs]).decode()


@dataclass(frozen=True)
class CallOutcome:
    """What a call came to: `value` where `error` is None."""

    value: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Program:
    """One program and how to run it, in one of three ways.

    Attributes:
        code: Python source.
        stdin: with neither calls nor tests, the code runs as a script with this standard input.
        calls: the code is loaded as a module and these calls are made, in one process. A string is
            an expression that the program's process evaluates: it shows the program all it says.
        setup: source run in the module after the code and before the calls, or beside the tests; it
            makes inputs, and must not hold expected outputs.
        tests: sources of tests, run one by one in a second process that never holds the code; names
            they don't define stand for the program's functions, which take and return plain data.
    """

    code: str
    stdin: str = ""
    calls: tuple[Call | str, ...] = ()
    tests: tuple[str, ...] = ()
    setup: str = ""

    def __post_init__(self) -> None:
        if self.calls and self.tests:
            raise ValueError("Program: give calls or tests, not both; run two programs")


@dataclass(frozen=True)
class ProgramResult:
    """What a program came to.

    Attributes:
        status: `ok`: it ran to its end (calls and tests may have failed each); `error`: it raised,
            does not load, or exited with a status other than 0; `timeout`, `memory`,
            `output_limit`: a limit; `crashed`: it died or left without a report; `unsupported`: the
            backend has no such way to run it.
        detail: a few words on the status.
        outcomes: one per call, in order; calls that were never reached have an error.
        verdicts: one per test: True, False, or None for a test that can't be graded.
        stdout, stderr: text, cut at the limit.
        cpu_seconds, wall_seconds, max_memory_mb: what it used.
    """

    status: Status
    detail: str = ""
    outcomes: tuple[CallOutcome, ...] = ()
    verdicts: tuple[bool | None, ...] = ()
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    max_memory_mb: float = 0.0


class CodeBackend(Protocol):
    """What runs programs: `Sandbox`, or a client of `trl_r1.verification.code_backends`."""

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """One result per program, in order."""
        ...


def result_of_lines(
    program: Program, status: Status, detail: str, lines: list[bytes], **used: Any
) -> ProgramResult:
    """The result of a harness's report, an entry for each call and test, reached or not.

    Args:
        program: what ran.
        status, detail: what it came to as a whole.
        lines: the report (see `isolation/harness.py`), without line ends.
        used: further fields of the result.
    """
    outcomes = [_outcome(line) for line in lines if line[:1] in (b"v", b"e", b"m")]
    missing = CallOutcome(error=f"not reached: {detail or status}")
    outcomes += [missing] * (len(program.calls) - len(outcomes))
    answers = {b"p": True, b"f": False, b"g": None}
    verdicts = [answers[line[:1]] for line in lines if line[:1] in answers]
    verdicts += [False] * (len(program.tests) - len(verdicts))
    return ProgramResult(
        status,
        detail,
        tuple(outcomes[: len(program.calls)]),
        tuple(verdicts[: len(program.tests)]),
        **used,
    )


def _outcome(line: bytes) -> CallOutcome:
    if line[:1] != b"v":
        return CallOutcome(error=text_of(line[1:]) or "out of memory")
    try:
        return CallOutcome(plain_data.loads(line[1:]))
    except plain_data.MalformedError as error:
        return CallOutcome(error=f"a malformed value: {error}")


def text_of(data: bytes) -> str:
    """Text of a stream, whatever bytes it has."""
    return data.decode("utf-8", "replace")
