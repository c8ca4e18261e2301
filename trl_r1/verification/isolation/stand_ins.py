"""The `test` role: runs tests beside a program, in a process that never holds the program.

Names that the tests don't define are stand-ins, which ask the `serve` process for values.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from . import plain_data
from .links import describe, read_frame, report, write_frame

# Tests use these without importing them, as they run beside programs that do.
# fmt: off
_MODULES_OF_TESTS = [
    "collections", "copy", "datetime", "functools", "itertools", "json", "math", "operator",
    "random", "re", "string", "sys",
]
# fmt: on


class _NotGradable(BaseException):
    """The test hands the program something that plain data can't stand for."""


class _Gone(BaseException):
    """The process with the program has ended."""


class _StandIn:
    """A name of the program, in the process that holds the tests."""

    num_calls = 0  # of all stand-ins

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise _NotGradable(f"the test reads {self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _StandIn.num_calls += 1
        try:
            arguments = plain_data.dumps([list(args), kwargs])
        except plain_data.NotPlainError as error:
            raise _NotGradable(f"arguments of {self._name}: {error}") from None
        try:
            write_frame(self._name.encode() + b"\n" + arguments)
            frame = read_frame()
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


def run_tests(job: dict[str, Any]) -> int:
    """Run the job's tests one by one; the exit status of the process."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    trees = [ast.parse(source) for source in (job["setup"], *job["tests"])]
    for name in _undefined_names(trees):
        is_module = name in _MODULES_OF_TESTS
        namespace[name] = importlib.import_module(name) if is_module else _StandIn(name)
    try:
        exec(compile(trees[0], "<setup>", "exec"), namespace)
    except BaseException as error:  # noqa: BLE001 - whatever a broken setup raises
        verdict = "f" if _StandIn.num_calls else "g"  # nothing the program did, then
        for _ in trees[1:]:
            report(verdict, f"the setup: {describe(error)}")
        return 1
    for number, tree in enumerate(trees[1:]):
        report(*_run_test(tree, number, namespace))
    report(".")
    return 0


def _run_test(tree: ast.Module, number: int, namespace: dict[str, Any]) -> tuple[str, str]:
    num_before = _StandIn.num_calls
    verdict, detail = "p", ""
    try:
        exec(compile(tree, f"<test {number}>", "exec"), namespace)
    except _NotGradable as error:
        return "g", str(error)
    except BaseException as error:  # noqa: BLE001 - a value the test chokes on fails it
        verdict, detail = "f", describe(error)
    if _StandIn.num_calls == num_before:
        # Neither passed nor failed by the program: a module is missing, or nothing is asked.
        return "g", f"the test asks the program nothing: {detail}"
    return verdict, detail


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
