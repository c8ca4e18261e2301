"""Reward references: what loads, what a mistake in one says, what binding adds to a function."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trl_r1.reasoning_format import FORMATS
from trl_r1.stages import RewardSpec
from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.loading import (
    RewardReferenceError,
    build_reward,
    builtin_rewards,
    load_reward,
    required_columns,
)

REWARD_FILE = """
def brevity_reward(completions, limit=5, **kwargs):
    return [float(len(c) <= limit) for c in completions]

def gold_reward(completions, solution, *, difficulty, prompts=None, **kwargs):
    return [float(c == s) for c, s in zip(completions, solution)]

def bare_reward(completions):
    return [0.0] * len(completions)

def positional_reward(completions, /, **kwargs):
    return [0.0] * len(completions)

class Reward:
    def __call__(self, completions, **kwargs):
        return [1.0] * len(completions)

instance = Reward()
NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(REWARD_FILE)
    return tmp_path


def bind(use: str, folder: Path | None = None, **settings: Any) -> Any:
    return build_reward(RewardSpec(use, **settings), folder)


def write(folder: Path, body: str, name: str = "mine.py") -> None:
    (folder / name).write_text(body)


# Loading


def test_built_in_names_are_the_files_of_the_rewards_folder() -> None:
    files = Path(__file__).parents[1].joinpath("rewards").glob("*.py")
    assert builtin_rewards() == sorted(f.stem for f in files if f.stem != "__init__")
    for name in builtin_rewards():
        assert load_reward(name).__name__ == f"{name}_reward"


def test_a_function_of_an_installed_module_loads() -> None:
    function = load_reward("trl_r1.rewards.overlong:overlong_reward")
    assert function is load_reward("overlong")


def test_a_file_is_looked_up_beside_the_recipe_and_then_in_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert load_reward("mine.py:brevity_reward", folder)(["abc"]) == [1.0]
    assert load_reward(f"{folder}/mine.py:brevity_reward")(["abcdef"]) == [0.0]
    with pytest.raises(RewardReferenceError, match=r"there is no file 'mine\.py' in "):
        load_reward("mine.py:brevity_reward")
    monkeypatch.chdir(folder)
    assert load_reward("mine.py:brevity_reward", elsewhere)(["abc"]) == [1.0]


def test_an_instance_with_a_call_loads(folder: Path) -> None:
    reward = bind("mine.py:instance", folder)
    assert reward(["a"]) == [1.0]
    assert reward.__name__ == "Reward"


def test_a_file_named_like_a_standard_module_does_not_shadow_it(folder: Path) -> None:
    write(folder, REWARD_FILE, "json.py")
    before = dict(sys.modules)
    assert load_reward("json.py:brevity_reward", folder)(["abc"]) == [1.0]
    assert sys.modules["json"] is before["json"] is json
    (name,) = set(sys.modules) - set(before)
    assert name.startswith("_trl_r1_reward_json_")
    assert str(folder) not in sys.path


def test_a_file_is_one_module_and_is_loaded_afresh_when_it_changes(folder: Path) -> None:
    first = load_reward("mine.py:brevity_reward", folder)
    assert load_reward("./mine.py:gold_reward", folder).__module__ == first.__module__
    assert load_reward("mine.py:brevity_reward", folder) is first
    write(folder, REWARD_FILE.replace("limit=5", "limit=1"))
    assert load_reward("mine.py:brevity_reward", folder)(["abc"]) == [0.0]


def test_dataclasses_in_a_reward_file_work(folder: Path) -> None:
    write(
        folder,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass, field\n"
        "@dataclass\nclass A:\n    x: list[int] = field(default_factory=list)\n"
        "def f(completions, **kwargs):\n    return [float(len(A().x))] * len(completions)\n",
    )
    assert load_reward("mine.py:f", folder)(["a"]) == [0.0]


MISTAKES = [
    ("math_anser", r"unknown reward 'math_anser'; did you mean 'math_answer'\?; built in: "),
    ("nothing_like_it", r"unknown reward 'nothing_like_it'; built in: "),
    ("no_such_package.mod:f", r"no module 'no_such_package' is installed; for a file write file"),
    ("json.nope:f", r"no module 'json.nope' is installed"),
    ("math_answer:f", r"no module 'math_answer' is installed"),
    ("json:dumpss", r"has no function 'dumpss'; did you mean 'dumps'\?"),
    ("json:decoder", r"'decoder' is a module, not a function"),
    ("mine.py", r"it names no function; write mine.py:function, with one of: brevity_reward, gold"),
    ("mine.py:", r"it names no function; write mine.py:function"),
    ("mine.py:brevty_reward", r"mine.py has no function 'brevty_reward'; did you mean 'brevity_r"),
    ("mine.py:NUMBER", r"'NUMBER' is a int, not a function"),
    ("mine.py:Reward", r"'Reward' is a class; name a function, or an instance of it"),
    ("mine.py:bare_reward", r"it lacks \*\*kwargs; TRL passes every column as a keyword"),
    ("mine.py:positional_reward", r"'completions' is positional-only"),
    ("mini.py:f", r"there is no file 'mini.py' in .*; did you mean 'mine.py'\?"),
    ("", r"unknown reward ''"),
]


@pytest.mark.parametrize(("reference", "message"), MISTAKES)
def test_a_mistake_in_a_reference_is_one_clear_message(
    folder: Path, reference: str, message: str
) -> None:
    with pytest.raises(RewardReferenceError, match=message) as caught:
        load_reward(reference, folder)
    assert "\n" not in str(caught.value)


FAULTY_FILES = [
    ("x = 1\ndef f(:\n", r"mine\.py:2: SyntaxError: "),
    ("import no_such_thing\n", r"mine\.py:1: ModuleNotFoundError: .*; install 'no_such_thing' or"),
    ("x = 1\n\ny = {}['a']\n", r"mine\.py:3: KeyError: 'a'"),
    ("from json import nope\n", r"mine\.py:1: ImportError: cannot import name 'nope'"),
    ("import beside\n", r"a reward file can't import a file beside it: put both in one file, or"),
    ("def g():\n    1 / 0\ng()\n", r"mine\.py:2: ZeroDivisionError"),
]


@pytest.mark.parametrize(("body", "message"), FAULTY_FILES)
def test_a_mistake_inside_a_file_says_file_and_line(folder: Path, body: str, message: str) -> None:
    write(folder, body)
    write(folder, "x = 1\n", "beside.py")
    before = set(sys.modules)
    with pytest.raises(RewardReferenceError, match=message) as caught:
        load_reward("mine.py:f", folder)
    assert "\n" not in str(caught.value)
    assert not {name for name in set(sys.modules) - before if "mine" in name}


def test_a_module_that_fails_to_import_says_where(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "import no_such_thing\n", "faulty_package_of_test.py")
    monkeypatch.syspath_prepend(folder)
    message = r"faulty_package_of_test\.py:1: ModuleNotFoundError: .*'no_such_thing'"
    with pytest.raises(RewardReferenceError, match=message):
        load_reward("faulty_package_of_test:f")


def test_loading_imports_neither_torch_nor_trl() -> None:
    code = (
        "import sys; from trl_r1.verification.loading import load_reward, builtin_rewards\n"
        "[load_reward(name) for name in builtin_rewards()]\n"
        "sys.exit(sorted({'torch', 'trl', 'transformers', 'sympy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Columns and arguments


def test_required_columns_are_parameters_without_default(folder: Path) -> None:
    assert required_columns(load_reward("mine.py:gold_reward", folder)) == {
        "solution",
        "difficulty",
    }
    assert required_columns(load_reward("math_answer")) == {"solution"}
    assert required_columns(load_reward("overlong")) == {"max_length", "soft_length"}


def test_bound_arguments_are_no_columns_and_tasks_need_one(folder: Path) -> None:
    reward = bind("mine.py:gold_reward", folder, args={"difficulty": 1}, tasks=("sums",))
    assert required_columns(reward) == {"solution", "task"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"limitt": 3}, r"it has no argument 'limitt'; did you mean 'limit'\?; it has: limit"),
        ({"completions": 3}, r"'completions' is passed by the trainer; leave it out"),
    ],
)
def test_wrong_arguments_are_errors(folder: Path, args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardReferenceError, match=message):
        bind("mine.py:brevity_reward", folder, args=args)


def test_arguments_are_bound_and_win_over_columns(folder: Path) -> None:
    reward = bind("mine.py:brevity_reward", folder, args={"limit": 1})
    assert reward(["a", "ab"], prompts=["x", "x"], limit=[9, 9]) == [1.0, 0.0]


def test_the_name_is_the_functions_or_the_recipes(folder: Path) -> None:
    assert bind("mine.py:brevity_reward", folder).__name__ == "brevity_reward"
    assert bind("mine.py:brevity_reward", folder, name="short").__name__ == "short"


# Steps and tasks


def test_outside_its_steps_a_reward_is_none(folder: Path) -> None:
    reward = bind("mine.py:brevity_reward", folder, from_step=2, until_step=4)
    seen = [reward(["a"], trainer_state=SimpleNamespace(global_step=n)) for n in range(5)]
    assert seen == [[None], [None], [1.0], [1.0], [None]]
    assert reward(["a"]) == [1.0]  # sampling and evaluation have no steps


PROBE_FILE = """
seen = []
def probe(completions, solution, log_extra=None, **kwargs):
    seen.append({"completions": completions, "solution": solution, **kwargs})
    if log_extra:
        log_extra("extracted", [c.upper() for c in completions])
    return [float(c == s) for c, s in zip(completions, solution)]
"""


def test_only_rows_of_its_tasks_reach_a_reward(folder: Path) -> None:
    write(folder, PROBE_FILE)
    reward = bind("mine.py:probe", folder, tasks=("sums", "code"))
    logged: dict[str, list[Any]] = {}
    state = SimpleNamespace(global_step=0)
    scores = reward(
        ["a", "b", "c", "d"],
        prompts=["1", "2", "3", "4"],
        completion_ids=[[1], [2], [3], [4]],
        task=["sums", "talk", "code", "sums"],
        solution=["a", "b", "c", "x"],
        trainer_state=state,
        log_extra=logged.__setitem__,
    )
    assert scores == [1.0, None, 1.0, 0.0]
    (seen,) = reward.function.__globals__["seen"]
    assert seen == {
        "completions": ["a", "c", "d"],
        "solution": ["a", "c", "x"],
        "prompts": ["1", "3", "4"],
        "completion_ids": [[1], [3], [4]],
        "task": ["sums", "code", "sums"],
        "trainer_state": state,
    }
    assert logged == {"extracted": ["A", None, "C", "D"]}


def test_a_batch_without_its_tasks_is_all_none_and_calls_nothing(folder: Path) -> None:
    write(folder, PROBE_FILE)
    reward = bind("mine.py:probe", folder, tasks=("sums",))
    assert reward(["a", "b"], solution=["a", "b"], task=["x", None]) == [None, None]
    assert reward.function.__globals__["seen"] == []


def test_tasks_without_a_task_column_are_an_error(folder: Path) -> None:
    reward = bind("mine.py:brevity_reward", folder, tasks=("sums",))
    with pytest.raises(RewardError, match="limited to the tasks sums, but the rows have no 'task'"):
        reward(["a"])


# What comes back


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[1.0]", r"reward 'f' \(mine.py:f\) returned 1 rewards for 2 completions"),
        ("None", "returned a NoneType for 2 completions"),
        ("1.0", "returned a float for 2 completions"),
        ("(1.0 for _ in completions)", "returned a generator for 2 completions"),
        ("[1.0, float('nan')]", "returned nan at row 1; it must be a finite number, or None"),
        ("[float('inf'), 1.0]", "returned inf at row 0"),
        ("[1.0, '1']", "returned '1' at row 1"),
        ("[1.0, [1]]", r"returned \[1\] at row 1"),
    ],
)
def test_what_is_no_list_of_rewards_is_an_error(folder: Path, returned: str, message: str) -> None:
    write(folder, f"def f(completions, **kwargs):\n    return {returned}\n")
    with pytest.raises(RewardError, match=message):
        bind("mine.py:f", folder)(["a", "b"])


def test_none_stays_none_and_numbers_become_floats(folder: Path) -> None:
    write(folder, "def f(completions, **kwargs):\n    return (None, True, 2)\n")
    assert bind("mine.py:f", folder)(["a", "b", "c"]) == [None, 1.0, 2.0]


def test_an_array_is_a_list_of_rewards(folder: Path) -> None:
    body = "import numpy as np\ndef f(completions, **kwargs):\n    return np.array([0.5, 1])\n"
    write(folder, body)
    assert bind("mine.py:f", folder)(["a", "b"]) == [0.5, 1.0]


def test_an_exception_names_the_reward_and_the_row(folder: Path) -> None:
    write(folder, "def f(completions, **kwargs):\n    return [1 / len(c) for c in completions]\n")
    message = r"reward 'inverse' \(mine.py:f\) raised ZeroDivisionError at row 2 of 4: "
    with pytest.raises(RewardError, match=message) as caught:
        bind("mine.py:f", folder, name="inverse")(["a", "b", "", "c"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_of_the_whole_batch_names_no_row(folder: Path) -> None:
    body = """
def f(completions, **kwargs):
    if len(completions) > 1:
        raise KeyError("x")
    return [1.0]
"""
    write(folder, body)
    with pytest.raises(RewardError, match=r"raised KeyError: 'x'$"):
        bind("mine.py:f", folder)(["a", "b"])


def test_an_async_reward_is_awaited(folder: Path) -> None:
    body = (
        "import asyncio\nasync def f(completions, **kwargs):\n"
        "    await asyncio.sleep(0)\n    return [1.0 for _ in completions]\n"
    )
    write(folder, body)
    assert bind("mine.py:f", folder)(["a", "b"]) == [1.0, 1.0]


def test_a_bound_reward_pickles_as_its_reference(folder: Path) -> None:
    reward = bind("mine.py:brevity_reward", folder, args={"limit": 1}, from_step=2, name="short")
    code = (
        "import pickle, sys\nfrom types import SimpleNamespace\n"
        "reward = pickle.loads(sys.stdin.buffer.read())\n"
        "print(reward.__name__, reward(['a', 'ab']), "
        "reward(['a'], trainer_state=SimpleNamespace(global_step=1)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(reward), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "short [1.0, 0.0] [None]"


def test_built_in_rewards_follow_the_response_format_of_their_stage() -> None:
    fmt = FORMATS["r1_prefilled"]
    reward = build_reward(RewardSpec("think_format"), fmt=fmt)
    assert reward.args == {"profile": "think_then_text", "prefilled": True}
    assert reward(["2+2=4</think>\\boxed{4}", "<answer>4</answer>"]) == [1.0, 0.0]
    bare = build_reward(RewardSpec("think_format"), fmt=FORMATS["zero_bare"])
    assert bare(["2+2=4</think>4", "<think>2+2=4</think><answer>4</answer>"]) == [0.0, 1.0]


def test_a_reward_can_not_ask_for_another_format_than_its_stage() -> None:
    spec = RewardSpec("think_format", args={"profile": "answer_tags"})
    message = "profile is 'answer_tags', but responses are of reasoning_format 'r1'"
    with pytest.raises(RewardReferenceError, match=message):
        build_reward(spec, fmt=FORMATS["r1"])
    assert build_reward(spec, fmt=FORMATS["zero"]).args["profile"] == "answer_tags"


def test_a_custom_reward_keeps_a_profile_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def mine(completions, profile='x', **kwargs):\n    return [0.0] * len(completions)\n"
    )
    assert build_reward(RewardSpec("mine.py:mine"), tmp_path, FORMATS["r1"]).args == {}
