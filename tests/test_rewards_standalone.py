"""Every reward is one file that works on its own: copied to an empty folder, without this package.

The folder runs in an interpreter that ignores the environment and the working directory, and in
which importing `trl_r1` or a sibling is an error.
"""

from __future__ import annotations

import ast
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REWARDS = Path(__file__).parents[1] / "rewards"
FILES = sorted(path for path in REWARDS.glob("*.py") if path.name != "__init__.py")
NAMES = {
    "choice",
    "code_tests",
    "instruction",
    "language_consistency",
    "length_within_group",
    "math_answer",
    "overlong",
    "preference_model",
    "reasoning_gym",
    "repetition",
    "think_format",
}
# These ask the package for a sandbox, and for a grader that is named by text, when they are called.
USE_THE_PACKAGE = {"code_tests", "length_within_group"}
# What a copy gives, called as a trainer would; of those that need nothing but themselves.
CALLS = {
    "choice": ({"completions": ["B", "C"], "solution": ["B", "B"]}, [1.0, 0.0]),
    "instruction": ({"completions": ["a", "a, b"], "require": ["no_comma"]}, [1.0, 0.0]),
    "language_consistency": ({"completions": ["<think>the</think>"], "language": "en"}, [1.0]),
    "length_within_group": (
        {"completions": ["", ""], "completion_ids": [[1], [1, 2]], "grader": None},
        [0.5, -0.5],
    ),
    "math_answer": ({"completions": ["\\boxed{4}"], "solution": ["4"]}, [1.0]),
    "think_format": ({"completions": ["<think>a</think><answer>b</answer>"]}, [1.0]),
}

LOAD = """
import importlib.abc, importlib.util, inspect, json, sys

class NoPackage(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("trl_r1", "rewards", "torch", "trl", "transformers"):
            raise ImportError(f"{name} is not to be imported while a reward file loads")

sys.meta_path.insert(0, NoPackage())
path = sys.argv[1]
name = path.rpartition("/")[2].removesuffix(".py")
spec = importlib.util.spec_from_file_location("copied_reward", path)
module = importlib.util.module_from_spec(spec)
sys.modules["copied_reward"] = module
spec.loader.exec_module(module)
function = getattr(module, name + "_reward")
kinds = [p.kind.name for p in inspect.signature(function).parameters.values()]
columns = json.loads(sys.argv[2])
rewards = function(**columns) if columns else None
doc = bool(function.__doc__ and module.__doc__)
print(json.dumps({"kinds": kinds, "doc": doc, "rewards": rewards}))
"""


def test_there_are_the_rewards_that_the_package_promises() -> None:
    assert {path.stem for path in FILES} == NAMES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_reward_loads_and_works_alone_after_being_copied(path: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copy(path, tmp_path))
    assert list(tmp_path.iterdir()) == [copied]
    columns, expected = CALLS.get(path.stem, ({}, None))
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, str(copied), json.dumps(columns)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "VAR_KEYWORD" in found["kinds"]
    assert "POSITIONAL_ONLY" not in found["kinds"]
    assert found["doc"]
    assert found["rewards"] == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_reward_is_not_named_like_a_standard_module(path: Path) -> None:
    assert path.stem not in sys.stdlib_module_names


@pytest.mark.parametrize("name", sorted(NAMES - USE_THE_PACKAGE))
def test_a_reward_imports_neither_the_package_nor_a_sibling(name: str) -> None:
    tree = ast.parse((REWARDS / f"{name}.py").read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert not imported & {"trl_r1", "rewards", *(path.stem for path in FILES)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_tool_said_last_is_no_answer(path: Path) -> None:
    """A policy that may call tools must not be paid for what it has one print."""
    module = importlib.import_module(f"trl_r1.rewards.{path.stem}")
    if not hasattr(module, "completion_text"):
        pytest.skip("takes no text of a completion, only token ids")
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    said = {"role": "tool", "name": "python", "content": r"\boxed{4}"}
    own = {"role": "assistant", "content": [{"type": "text", "text": "5"}]}
    assert module.completion_text([call, said]) == ""
    assert module.completion_text([call, said, own]) == "5"


def test_there_is_one_way_to_read_a_completion() -> None:
    """Each file has its own copy, as each stands alone; the copies must not drift apart."""
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    copies = {
        ast.unparse(node)
        for text in texts
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "completion_text"
    }
    assert len(copies) == 1
