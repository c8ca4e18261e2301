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

import ast
import atexit
import builtins
import contextlib
import functools
import importlib
import io
import json
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import plain_data

_REPORT, _LINK_IN, _LINK_OUT = 3, 4, 5
_MAX_FRAME = 8 << 20
# Tests use these without importing them, as they run beside programs that do.
# fmt: off
_MODULES_OF_TESTS = [
    "collections", "copy", "datetime", "functools", "itertools", "json", "math", "operator",
    "random", "re", "string", "sys",
]
# fmt: on


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


def _report(kind: str, text: str | bytes = b"", write: Callable[..., int] = os.write) -> None:
    body = text if isinstance(text, bytes) else text.encode("ascii", "backslashreplace")
    _write_all(_REPORT, kind.encode() + body.replace(b"\n", b" ") + b"\n", write)


def _write_all(fd: int, data: bytes, write: Callable[..., int] = os.write) -> None:
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:  # noqa: BLE001 - an exception of the program's own making
        return type(error).__name__[:300]


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
        _report("m")
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
    _report(".")
    return status & 0xFF


def _try_load(code: str, setup: str = "") -> types.ModuleType | None:
    try:
        module = _load(code, "solution")
        exec(compile(setup, "<setup>", "exec"), module.__dict__)
        return module
    except MemoryError:
        _report("m")
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a program that ends is no module
        _report("x", _describe(error))
    return None


def _run_calls(job: dict[str, Any]) -> int:
    calls = [call if isinstance(call, str) else _decoded(*call) for call in job["calls"]]
    module = _try_load(job["code"], job["setup"])
    if module is None:
        return 1
    for call in calls:
        if isinstance(call, str):
            _report(*_outcome_of(functools.partial(eval, call, module.__dict__)))
        else:
            _report(*_call(module, *call))
    _report(".")
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
        return "e", _describe(error)


def _read_frame(fd: int) -> bytes | None:
    header = _read_exactly(fd, 4)
    if header is None:
        return None
    size = int.from_bytes(header, "big")
    return _read_exactly(fd, size) if size <= _MAX_FRAME else None


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_frame(fd: int, data: bytes) -> None:
    _write_all(fd, len(data).to_bytes(4, "big") + data)


def _serve(job: dict[str, Any]) -> int:
    module = _try_load(job["code"])
    while (frame := _read_frame(_LINK_IN)) is not None:
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
        _write_frame(_LINK_OUT, kind.encode() + body.replace(b"\n", b" ") + b"\n" + changed)
    return 0


class _NotGradable(BaseException):
    """The test hands the program something that plain data can't stand for."""


class _Gone(BaseException):
    """The process with the program has ended."""


class _StandIn:
    """A name of the program, in the process that holds the tests."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise _NotGradable(f"the test reads {self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            arguments = plain_data.dumps([list(args), kwargs])
        except plain_data.NotPlainError as error:
            raise _NotGradable(f"arguments of {self._name}: {error}") from None
        try:
            _write_frame(_LINK_OUT, self._name.encode() + b"\n" + arguments)
            frame = _read_frame(_LINK_IN)
        except OSError:
            frame = None
        if frame is None:
            raise _Gone()
        head, _, changed = frame.partition(b"\n")
        if changed:
            _update_in_place(args, plain_data.loads(changed))
        if head[:1] == b"v":
            return plain_data.loads(head[1:])
        raise _error_like(head[1:].decode("ascii", "replace"))


def _update_in_place(args: tuple[Any, ...], after: Any) -> None:
    """What the program did to lists, sets and dicts it was given, done to the test's own."""
    for mine, theirs in zip(args, after[0], strict=True):
        if type(mine) is not type(theirs):
            continue
        if isinstance(mine, list):
            mine[:] = theirs
        elif isinstance(mine, set | dict):
            mine.clear()
            mine.update(theirs)


def _error_like(text: str) -> Exception:
    name, _, message = text.partition(": ")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError:
        with contextlib.suppress(TypeError):
            return kind(message)
    return RuntimeError(text)


def _run_tests(job: dict[str, Any]) -> int:
    namespace: dict[str, Any] = {"__name__": "tests"}
    trees = [ast.parse(source) for source in (job["setup"], *job["tests"])]
    for name in _undefined_names(trees):
        is_module = name in _MODULES_OF_TESTS
        namespace[name] = importlib.import_module(name) if is_module else _StandIn(name)
    exec(compile(trees[0], "<setup>", "exec"), namespace)
    for number, tree in enumerate(trees[1:]):
        _report(*_run_test(tree, number, namespace))
    _report(".")
    return 0


def _run_test(tree: ast.Module, number: int, namespace: dict[str, Any]) -> tuple[str, str]:
    try:
        exec(compile(tree, f"<test {number}>", "exec"), namespace)
    except _NotGradable as error:
        return "g", str(error)
    except AssertionError as error:
        return "f", _describe(error)
    except BaseException as error:  # noqa: BLE001 - a value the test chokes on fails it
        return "f", _describe(error)
    return "p", ""


def _undefined_names(trees: list[ast.Module]) -> set[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - set(_defined_names(nodes)) - set(dir(builtins))


def _defined_names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


_ROLES = {"script": _run_script, "calls": _run_calls, "serve": _serve, "test": _run_tests}


def read_job(fd: int) -> dict[str, Any]:
    """The job behind a descriptor, which is closed."""
    with open(fd, "rb") as file:
        job: dict[str, Any] = json.loads(file.read())
    return job
