"""The reward of reasoning-gym: the library's own verifiers, without what a policy could use."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from must_end import must_end

from trl_r1.rewards import reasoning_gym as module
from trl_r1.rewards.reasoning_gym import is_expression, reasoning_gym_reward

reasoning_gym = pytest.importorskip("reasoning_gym")

# Generators whose verifier evaluates answers as code.
EVALUATING = ["countdown", "puzzle24", "n_queens", "spiral_matrix", "simple_integration"]
GENERATORS = ["chain_sum", "arc_agi", "codeio", "intermediate_integration", "bitwise_arithmetic"]
GENERATORS += ["game_of_life_halting", "string_insertion", "zebra_puzzles", "mini_sudoku"]
GENERATORS += ["countdown", "n_queens"]


def entries(name: str, count: int = 3, **config: Any) -> list[dict[str, Any]]:
    made = reasoning_gym.create_dataset(name, seed=3, size=count, **config)
    return [made[i] for i in range(count)]


def as_json(problem: Any) -> str:
    return json.dumps(problem, default=str)


def score(completion: Any, problem: Any, **settings: Any) -> float | None:
    return reasoning_gym_reward([completion], [as_json(problem)], **settings)[0]


@pytest.mark.parametrize("name", GENERATORS)
def test_gold_answers_get_full_marks_and_others_none(name: str) -> None:
    for problem in entries(name):
        gold = problem["answer"]
        assert score(f"<think>x</think> <answer>{gold}</answer>", problem) == 1.0
        assert score([{"role": "assistant", "content": f"<answer>{gold}</answer>"}], problem) == 1.0
        assert reasoning_gym_reward([f"<answer>{gold}</answer>"], [problem]) == [1.0]
        for wrong in ("", "no idea", "<answer></answer>", "{", None, []):
            assert score(wrong, problem) == 0.0
        assert score(f"<think><answer>{gold}</answer></think> I don't know", problem) == 0.0


@pytest.mark.slow
def test_every_generators_gold_answers_get_full_marks() -> None:
    from reasoning_gym.factory import DATASETS

    without_gold = []
    for name in sorted(set(DATASETS) - {"composite"}):
        problems = entries(name)
        if problems[0]["answer"] is None:
            without_gold.append(name)
            continue
        completions = [f"<answer>{problem['answer']}</answer>" for problem in problems]
        graded = reasoning_gym_reward(completions, [as_json(problem) for problem in problems])
        assert graded == [1.0] * 3, name
    assert len(without_gold) <= 6


def test_an_answer_is_read_from_tags_a_box_or_the_text() -> None:
    problem = entries("chain_sum")[0]
    gold = problem["answer"]
    assert score(f"<think>x</think>{gold}", problem) == 1.0
    assert score(rf"<think>x</think>It is \boxed{{{gold}}}.", problem) == 1.0
    assert score(f"<think>x</think>{gold}, I think", problem) == 0.0
    assert score(f"<answer>{gold}</answer> <answer>7</answer>", problem) == 0.0
    assert score(gold, problem, prefilled=True) == 0.0
    assert score(f"x</think>{gold}", problem, prefilled=True) == 1.0


def test_a_mere_attempt_is_worth_nothing_unless_partial_marks_are_asked_for() -> None:
    problem = entries("countdown")[0]
    assert score("<answer>1 + 1</answer>", problem) == 0.0
    assert score("<answer>1 + 1</answer>", problem, score="partial") == pytest.approx(0.05)
    with pytest.raises(ValueError, match="score is 'some'; use full or partial"):
        score("1", problem, score="some")


def test_a_verifier_that_takes_anything_is_not_asked() -> None:
    for problem in entries("game_of_life_halting", 6):
        wrong = {"True": "False", "False": "True"}[str(problem["answer"])]
        verifier = reasoning_gym.get_score_answer_fn("game_of_life_halting")
        assert verifier(wrong, problem) == verifier("zz", problem) == 1.0
        assert score(f"<answer>{wrong}</answer>", problem) == 0.0
        assert score("<answer>zz</answer>", problem) == 0.0


@pytest.mark.parametrize("name", EVALUATING)
def test_code_in_an_answer_never_runs(name: str, tmp_path: Path) -> None:
    problem = entries(name, 1)[0]
    for code in (
        "__import__('pathlib').Path({0!r}).touch()",
        "open({0!r}, 'w')",
        "exec('open(' + repr({0!r}) + ', chr(119))')",
        "[open({0!r}, 'w') for x in [1]]",
        "(lambda: open({0!r}, 'w'))()",
        "().__class__.__base__.__subclasses__()",
        "sorted([1], key=exec)",
    ):
        answer = code.format(str(tmp_path / "made"))
        assert not is_expression(answer)
        assert score(f"<answer>{answer}</answer>", problem) == 0.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EVALUATING)
def test_huge_answers_are_refused_in_time(name: str) -> None:
    problem = entries(name, 1)[0]
    answers = ["9**9**9**9", "9^(9^9)", "2**10**9", "9**99999999", "9!!!!!!!", "[0]*10**10"]
    answers += ["'a'*10**10", "((((9**999)**999)**999)**999)**999", "(" * 10**5, "9" * 10**5]
    answers += ["1+" * 4_000 + "1", "x" * 10**6, "\ud800"]
    with must_end(60):
        for answer in answers:
            assert score(f"<answer>{answer}</answer>", problem) == 0.0


def test_a_row_without_an_entry_and_one_that_cannot_be_verified_are_not_gradable() -> None:
    problem = entries("chain_sum")[0]
    assert reasoning_gym_reward(["1"], [None]) == [None]
    assert score("1", {**problem, "answer": None}) is None
    broken = entries("countdown")[0]
    del broken["metadata"]["numbers"]
    assert score("1", broken) is None


@pytest.mark.parametrize("entry", ["{", "[]", "3", {}, {"metadata": {}}, {"metadata": None}])
def test_what_is_no_entry_is_an_error(entry: Any) -> None:
    with pytest.raises(ValueError, match="is no entry"):
        reasoning_gym_reward(["1"], [entry])


def test_an_unknown_generator_is_an_error() -> None:
    entry = {"answer": "1", "metadata": {"source_dataset": "chain_sums"}}
    with pytest.raises(ValueError, match="this version of reasoning-gym has no 'chain_sums'"):
        reasoning_gym_reward(["1"], [entry])


def test_a_missing_or_hidden_library_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = as_json(entries("chain_sum")[0])
    module._exam_of_json.cache_clear()
    module._verifier.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    sys.modules["reasoning_gym"].__file__ = "here/reasoning_gym.py"
    with pytest.raises(ImportError, match=r"here/reasoning_gym.py hides the package"):
        reasoning_gym_reward(["1"], [problem])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install reasoning-gym"):
        reasoning_gym_reward(["1"], [problem])
