"""Tests of programs, read from what data sets have.

An assert of the form `call == literal` is split: its call alone goes to the program, and the
literal stays here. An assert that can't be split runs in a second sandboxed process that never
holds the program and asks it for values (`Program.tests`). Functions named `test...` are called, as
pytest does. Left out on purpose: fixtures, `unittest`, and tests that never ask the program.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Sequence
from typing import Any

from trl_r1.verification.program_tests import ProgramTest, TruthOf
from trl_r1.verification.sandbox import Call


def parse_tests(tests: Any, entry_point: str | None = None, setup: str = "") -> list[ProgramTest]:
    """The tests of one row.

    Args:
        tests: a list, or one, or JSON, of: assert statements; source that defines
            `check(candidate)`; `{"input", "output"}`; `{"fn_name", "input": [arguments],
            "output"}`; `{"inputs": [...], "outputs": [...]}` with an optional `fn_name`.
        entry_point: what `check` is to be given.
        setup: source that the tests may use names of.
    """
    if isinstance(tests, str):
        stripped = tests.strip()
        if stripped[:1] in ("[", "{"):
            try:
                return parse_tests(json.loads(stripped), entry_point, setup)
            except ValueError:
                pass  # source that starts with a bracket; the parser below has the last word
        return _from_source(tests, entry_point, setup) if stripped else []
    if isinstance(tests, dict):
        return _from_mapping(tests, entry_point)
    if isinstance(tests, Sequence) and not isinstance(tests, bytes | bytearray):
        return _from_list(tests, entry_point, setup)
    if tests is None:
        return []
    return [ProgramTest(fault=f"a test of type {type(tests).__name__}")]


def _from_list(tests: Sequence[Any], entry_point: str | None, setup: str) -> list[ProgramTest]:
    """Tests one by one; imports and helpers that are items of their own belong to those after."""
    found: list[ProgramTest] = []
    before = ""
    for item in tests:
        if isinstance(item, str) and _only_prepares(item):
            before += item.strip() + "\n"
        else:
            source = before + item if isinstance(item, str) else item
            found += parse_tests(source, entry_point, setup)
    return found if found or not before else [ProgramTest(fault=_ASKS_NOTHING)]


def _only_prepares(source: str) -> bool:
    tree = _parsed(source)
    return (
        isinstance(tree, ast.Module)
        and bool(tree.body)
        and all(isinstance(node, _PREPARATION) for node in tree.body)
        and not _test_functions(tree)
        and not any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    )


_PREPARATION = (ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef, ast.ClassDef)
_ASKS_NOTHING = "a test that asks the program nothing"


def _from_mapping(test: dict[str, Any], entry_point: str | None) -> list[ProgramTest]:
    test = {key: value for key, value in test.items() if value is not None}
    if "test_cases" in test:
        return parse_tests(test["test_cases"], entry_point)
    name = test.get("fn_name") or test.get("func_name")
    if test.get("testtype") == "functional" or test.get("type") == "function_call":
        return [_functional(test, name or entry_point)]
    if "inputs" in test and "outputs" in test:
        pairs = list(zip(test["inputs"], test["outputs"], strict=False))
        if len(test["inputs"]) != len(test["outputs"]):
            counts = f"{len(test['inputs'])} inputs and {len(test['outputs'])} outputs"
            return [ProgramTest(fault=f"a test with {counts}")]
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


def _functional(test: dict[str, Any], name: str | None) -> ProgramTest:
    """A call whose arguments are JSON, one a line, as LiveCodeBench has it."""
    if name is None:
        return ProgramTest(fault="a functional test without the function's name (an entry_point)")
    try:
        given, expected = test["input"], test["output"]
        if isinstance(given, str):
            given = [json.loads(line) for line in given.splitlines() if line.strip()]
        expected = json.loads(expected) if isinstance(expected, str) else expected
        return ProgramTest(call=Call(name, tuple(given)), expected=expected, is_loose=True)
    except (KeyError, TypeError, ValueError) as error:
        return ProgramTest(fault=f"a functional test whose data is no JSON: {error}")


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _from_source(source: str, entry_point: str | None, setup: str) -> list[ProgramTest]:
    tree = _parsed(source)
    if isinstance(tree, str):
        return [ProgramTest(fault=tree)]
    setup_tree = _parsed(setup)
    if isinstance(setup_tree, str):
        return [ProgramTest(fault=f"its setup: {setup_tree}")]
    fault = _source_fault(tree, entry_point)
    if fault is not None:
        return [ProgramTest(fault=fault)]
    check = _check_of(tree)
    split = _split_all(*_asserts_of(tree, check, entry_point), _names_of(setup_tree))
    if split is not None:
        return split
    names = _test_functions(tree)
    body = ast.unparse(tree) if names or len(tree.body) < _num_statements(source) else source
    if check is not None:
        return [ProgramTest(source=f"{body.strip()}\ncheck({entry_point})")]
    # Each function is a test of its own, and what stands beside them is part of each.
    return [ProgramTest(source=f"{body.strip()}\n{name}()") for name in names] or [
        ProgramTest(source=body.strip())
    ]


def _parsed(source: str) -> ast.Module | str:
    """The source without its imports of the program, or why it is none."""
    try:
        tree = ast.parse(source.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    of_program = ("solution", "main", "your_module")
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and node.module in of_program)
    ]
    return tree


def _num_statements(source: str) -> int:
    return len(ast.parse(source.strip()).body)


def _check_of(tree: ast.Module) -> ast.FunctionDef | None:
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef))
    return next((n for n in functions if n.name == "check"), None)


def _test_functions(tree: ast.Module) -> list[str]:
    """Names of functions that a test runner would call."""
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return [n.name for n in functions if n.name.startswith("test") and not n.args.args]


def _source_fault(tree: ast.Module, entry_point: str | None) -> str | None:
    check = _check_of(tree)
    if check is not None and not check.args.args:
        return "check() takes no argument"
    if check is not None and entry_point is None:
        return "a check(candidate) without an entry_point"
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    if any(ast.unparse(base).endswith("TestCase") for n in classes for base in n.bases):
        return "a unittest.TestCase; write it as functions or asserts"
    is_prepared = all(isinstance(node, _PREPARATION) for node in tree.body)
    if tree.body and is_prepared and check is None and not _test_functions(tree):
        return _ASKS_NOTHING
    return None


def _asserts_of(
    tree: ast.Module, check: ast.FunctionDef | None, entry_point: str | None
) -> tuple[list[ast.stmt], dict[str, str]]:
    """The statements that test, and what the program's function is called in them."""
    if check is None or entry_point is None:
        return tree.body, {}
    harmless = (ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef)
    is_harmless = all(isinstance(n, harmless) for n in tree.body)
    return check.body if is_harmless else tree.body, {check.args.args[0].arg: entry_point}


def _names_of(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    return names | {
        (n.asname or n.name).partition(".")[0] for n in nodes if isinstance(n, ast.alias)
    }


def _split_all(
    statements: list[ast.stmt], rename: dict[str, str], helpers: set[str]
) -> list[ProgramTest] | None:
    """The asserts as calls with literals; None if one of the statements is anything else.

    Args:
        statements: of the tests.
        rename: names in them -> names of the program.
        helpers: names that the setup defines; what they are given may be the expected output.
    """
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
        test = _split(condition, rename, helpers)
        if test is None:
            return None
        tests.append(test)
    return tests


def _split(condition: ast.expr, rename: dict[str, str], helpers: set[str]) -> ProgramTest | None:
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
        if isinstance(condition.ops[0], ast.Is) and expected is not None:
            return None  # `f(x) is True`: 1 equals True, and is not True
    name = _called_name(call)
    if name is None or name in helpers or (rename and name not in rename):
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
    if not isinstance(call, ast.Call):
        return None
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        return _called_name(call.func.value)  # `Solution().solve(3)`
    if not isinstance(call.func, ast.Name):
        return None
    has_calls = any(isinstance(n, ast.Call) for arg in call.args for n in ast.walk(arg))
    return None if hasattr(builtins, call.func.id) and has_calls else call.func.id
