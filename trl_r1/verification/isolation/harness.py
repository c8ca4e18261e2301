"""Runs one job inside a locked-down process. Nothing here is trusted by what reads its reports.

Roles:
    script  the program as `__main__`, with standard input; what counts is what it prints.
    calls   load the program, make the calls of the job, report each value as plain data.
    serve   load the program, answer the calls that a `test` process makes.
    test    run tests that are more than `call == literal`. This process holds the tests and never
            the program: names the tests don't define are stand-ins that ask a `serve` process.

Reports go to descriptor 3, one line each: `v` value, `e` error, `x` the program does not load, `m`
out of memory, `p` test passed, `f` test failed, `g` test can't be graded, `.` finished.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

from . import plain_data
from .links import describe, read_frame, report, write_frame
from .stand_ins import run_tests


def run(role: str, job: dict[str, Any]) -> int:
    """Run the job; the exit status of the process."""
    random.seed(0)  # a program that draws at random is graded the same each time
    # The zygote's streams stand for other descriptors' buffers.
    sys.stdin = io.TextIOWrapper(_buffered(0, "rb"), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(_buffered(1, "wb"), "utf-8", "backslashreplace")
    sys.stderr = io.TextIOWrapper(_buffered(2, "wb"), "utf-8", "backslashreplace")
    status = _ROLES[role](job)
    with contextlib.suppress(Exception):  # a stream the program closed or replaced
        sys.stdout.flush()
    with contextlib.suppress(Exception):  # likewise
        sys.stderr.flush()
    return status


def _buffered(fd: int, mode: str) -> Any:
    return os.fdopen(fd, mode, closefd=False)


def _load(code: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(code, f"<{name}>", "exec", dont_inherit=True), module.__dict__)
    return module


def _run_script(job: dict[str, Any]) -> int:
    status = 0
    try:
        _load(job["code"], "__main__")
    except SystemExit as stop:
        code = stop.code
        status = code if isinstance(code, int) else 0 if code is None else 1
    except MemoryError:
        report("m")
        return 1
    except BaseException:  # noqa: BLE001 - whatever the program raises ends up on its stderr
        with contextlib.suppress(Exception):
            traceback.print_exc()
        status = 1
    for thread in threading.enumerate():  # as the interpreter does before it ends
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    report(".")
    return status & 0xFF


def _try_load(code: str, setup: str = "") -> types.ModuleType | None:
    try:
        module = _load(code, "solution")
        exec(compile(setup, "<setup>", "exec"), module.__dict__)
        return module
    except MemoryError:
        report("m")
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a program that ends is no module
        report("x", describe(error))
    return None


def _run_calls(job: dict[str, Any]) -> int:
    calls = [call if isinstance(call, str) else _decoded(*call) for call in job["calls"]]
    module = _try_load(job["code"], job["setup"])
    if module is None:
        return 1
    for call in calls:
        if isinstance(call, str):
            report(*_outcome_of(functools.partial(eval, call, module.__dict__)))
        else:
            report(*_call(module, *call))
    report(".")
    return 0


def _decoded(name: str, arguments: str) -> tuple[str, list[Any], dict[str, Any]]:
    args, kwargs = plain_data.loads(arguments)
    return name, args, kwargs


def _call(
    module: types.ModuleType, name: str, args: list[Any], kwargs: dict[str, Any]
) -> tuple[str, bytes | str]:
    def call() -> Any:
        target: Any = module
        *owners, last = name.split(".")
        if not owners and not hasattr(module, last) and hasattr(module, "Solution"):
            owners = ["Solution"]  # as LeetCode's problems are answered
        for part in owners:
            target = getattr(target, part)
            if isinstance(target, type):  # `Solution.solve`: a method of a fresh instance
                target = target()
        return getattr(target, last)(*args, **kwargs)

    return _outcome_of(call)


def _outcome_of(call: Callable[[], Any]) -> tuple[str, bytes | str]:
    try:
        return "v", plain_data.dumps(call())
    except MemoryError:
        return "m", b""
    except BaseException as error:  # noqa: BLE001 - whatever the program raises fails this call
        return "e", describe(error)


def _serve(job: dict[str, Any]) -> int:
    module = _try_load(job["code"])
    while (frame := read_frame()) is not None:
        name, _, arguments = frame.partition(b"\n")
        args, kwargs = plain_data.loads(arguments)
        if module is None:
            kind, body = "e", b"ImportError: the program does not load"
        else:
            kind, answer = _call(module, name.decode(), args, kwargs)
            body = answer if isinstance(answer, bytes) else answer.encode()
        after = b""
        with contextlib.suppress(Exception):  # arguments the program made something else of
            after = plain_data.dumps([args, kwargs])
        changed = after if after != arguments else b""
        write_frame(kind.encode() + body.replace(b"\n", b" ") + b"\n" + changed)
    return 0


_ROLES = {"script": _run_script, "calls": _run_calls, "serve": _serve, "test": run_tests}


def read_job(fd: int) -> dict[str, Any]:
    """The job behind a descriptor, which is closed."""
    with open(fd, "rb") as file:
        job: dict[str, Any] = json.loads(file.read())
    return job
