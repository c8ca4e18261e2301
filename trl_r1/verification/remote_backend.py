"""What the clients of remote sandboxes share: programs as scripts, values from marked lines, HTTP.

A program goes there with a small harness around it that prints what its calls came to; the values
are compared here, as with the local sandbox. Tests that need a second process (`Program.tests`) are
not supported there, and come back as `unsupported`.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_r1.verification.programs import (
    Limits,
    Program,
    ProgramResult,
    Status,
    result_of_lines,
)

_PLAIN_DATA = Path(__file__).parent / "isolation" / "plain_data.py"


class BackendError(RuntimeError):
    """A remote sandbox can't be reached, refuses, or answers with something else; says which."""


@dataclass(frozen=True)
class RemoteRun:
    """What a remote script came to: its streams, and its status where that is not `ok`."""

    stdout: str
    stderr: str = ""
    status: Status = "ok"
    detail: str = ""


class RemoteBackend:
    """Runs programs as scripts somewhere else, several at a time.

    Args:
        limits: of each program; what the service can't keep, it does not.
        num_workers: requests at a time.
    """

    def __init__(self, limits: Limits | None = None, num_workers: int = 8) -> None:
        self.limits = limits or Limits()
        self.num_workers = num_workers

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """One result per program, in order.

        Raises:
            BackendError: the service can't be reached, or refuses.
        """
        with ThreadPoolExecutor(self.num_workers) as threads:
            return list(threads.map(self._run_one, programs))

    def _run_one(self, program: Program) -> ProgramResult:
        if program.tests:
            return ProgramResult(
                "unsupported",
                "tests in a process of their own need the local sandbox",
                verdicts=(None,) * len(program.tests),
            )
        if not program.calls:
            ran = self.execute(program.code, program.stdin)
            return ProgramResult(ran.status, ran.detail, stdout=ran.stdout, stderr=ran.stderr)
        # Lines of the report carry a mark, so that what the program prints is not taken for one.
        # The program could find it; what it then forges are values, as any program's are its own.
        mark = secrets.token_hex(8)
        ran = self.execute(script_of_calls(program, mark), "")
        lines = [
            line.removeprefix(mark).encode()
            for line in ran.stdout.splitlines()
            if line.startswith(mark)
        ]
        status, detail = ran.status, ran.detail
        kinds = {line[:1] for line in lines}
        if status == "ok" and b"." not in kinds:
            status, detail = ("error", "does not load") if b"x" in kinds else ("crashed", "")
        return result_of_lines(program, status, detail, lines, stderr=ran.stderr)

    def execute(self, script: str, stdin: str) -> RemoteRun:
        """Run one script; each client has its own.

        Raises:
            BackendError: see `run`.
        """
        raise NotImplementedError


def script_of_calls(program: Program, mark: str) -> str:
    """A script that loads the program, makes its calls and prints a marked line for each."""
    calls = [c if isinstance(c, str) else c.encode() for c in program.calls]
    job = {"code": program.code, "setup": program.setup, "calls": calls}
    return f"""\
import json, sys, types
plain_data = types.ModuleType("plain_data")
sys.modules["plain_data"] = plain_data
exec({_PLAIN_DATA.read_text(encoding="utf-8")!r}, plain_data.__dict__)
def main(job=json.loads({json.dumps(job)!r}), mark={mark!r}, write=sys.stdout.write):
    def report(kind, text):
        write("\\n" + mark + kind + text.replace("\\n", " ") + "\\n")
    calls = [c if isinstance(c, str) else (c[0], *plain_data.loads(c[1])) for c in job["calls"]]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        exec(compile(job["code"], "<solution>", "exec"), module.__dict__)
        exec(compile(job["setup"], "<setup>", "exec"), module.__dict__)
    except BaseException as error:
        return report("x", type(error).__name__ + ": " + str(error)[:300])
    for call in calls:
        try:
            if isinstance(call, str):
                value = eval(call, module.__dict__)
            else:
                target = module
                *owners, last = call[0].split(".")
                for owner in owners:
                    target = getattr(target, owner)
                    target = target() if isinstance(target, type) else target
                value = getattr(target, last)(*call[1], **call[2])
            report("v", plain_data.dumps(value).decode())
        except BaseException as error:
            report("e", type(error).__name__ + ": " + str(error)[:300])
    report(".", "")
main()
sys.stdout.flush()
"""


def post_json(url: str, body: dict[str, Any], timeout: float, num_tries: int = 3) -> dict[str, Any]:
    """POST JSON, read JSON; tries again where the service is busy or not there yet.

    Raises:
        BackendError: every try failed; says where and what to check.
    """
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    problem = ""
    for attempt in range(num_tries):
        if attempt:
            time.sleep(0.5 * 2**attempt)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}: {error.read(200).decode(errors='replace')}"
            if error.code not in (429, 500, 502, 503, 504):
                break
        except (OSError, ValueError) as error:  # no connection, a timeout, or no JSON
            problem = f"{type(error).__name__}: {error}"
        else:
            if isinstance(answer, dict):
                return answer
            problem = "the answer is no JSON object"
    raise BackendError(f"{url}: {problem}; is the service running, and is the address right?")
