"""Rows of every task: splits share nothing, and graders agree with the gold answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trl_r1.reasoning_format import FORMATS, get_format
from trl_r1.rewards.reasoning_gym import final_answer, reasoning_gym_reward
from trl_r1.tasks import TASKS, DatasetSource, load_rows, load_task
from trl_r1.tasks.general_chat import instruction_reward, instructions
from trl_r1.tasks.gsm8k import split_solution
from trl_r1.tasks.word_problems import TEST_TEMPLATES, TRAIN_TEMPLATES, Problem, problems
from trl_r1.verification.loading import load_reward

FMT = get_format("zero")
GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k"
CHAIN_SUM = {"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 2}}


def load(task: str, num_rows: int | None = 30, fmt: str = "zero", **source: Any) -> Any:
    return load_rows(DatasetSource(task=task, num_rows=num_rows, **source), get_format(fmt))


def made_tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in TASKS:
        if load_task(name).makes_rows:
            yield name, {"args": CHAIN_SUM} if name == "reasoning_gym" else {}


MADE_TASKS = list(made_tasks())


@pytest.mark.parametrize(("name", "extra"), MADE_TASKS)
def test_made_rows_have_the_columns_the_task_declares(name: str, extra: Any) -> None:
    rows = load(name, **extra)
    task = load_task(name)
    assert task.name == name
    assert set(task.columns) == set(rows.column_names)
    assert len(rows) == 30
    assert "task" not in rows.column_names or set(rows["task"]) == {name}


@pytest.mark.parametrize(("name", "extra"), MADE_TASKS)
def test_made_rows_depend_on_seed_and_split_alone_and_splits_share_no_prompt(
    name: str, extra: Any
) -> None:
    first, again = load(name, seed=3, **extra), load(name, seed=3, **extra)
    assert first.to_list() == again.to_list()
    assert load(name, seed=4, **extra).to_list() != first.to_list()
    trained = {
        str(prompt) for seed in range(3) for prompt in load(name, seed=seed, **extra)["prompt"]
    }
    tested = {
        str(prompt)
        for seed in range(3)
        for prompt in load(name, seed=seed, split="test", **extra)["prompt"]
    }
    assert not trained & tested


@pytest.mark.parametrize(("name", "extra"), MADE_TASKS)
def test_an_unknown_split_is_an_error(name: str, extra: Any) -> None:
    with pytest.raises(ValueError, match="validation"):
        load(name, split="validation", **extra)


@pytest.mark.parametrize("fmt", FORMATS)
def test_graders_accept_the_tasks_own_solutions(fmt: str) -> None:
    rendered = get_format(fmt)
    for name, extra in MADE_TASKS:
        task = load_task(name)
        if task.kind != "reasoning":
            continue
        rows = load(name, fmt=fmt, **extra).to_dict()
        for shift, expected in ((0, 1.0), (1, 0.0)):
            answers = [str(int(solution) + shift) for solution in rows["solution"]]
            if rendered.profile == "think_then_text":
                answers = [f"\\boxed{{{answer}}}" for answer in answers]
            completions = [rendered.render("so", answer) for answer in answers]
            scores = load_reward(task.grader)(completions=completions, **rows)
            assert scores == [expected] * 30, name


def test_word_problems_share_neither_templates_nor_numbers_between_splits() -> None:
    train, test = list(problems("train")), list(problems("test"))
    assert not {p.template for p in train} & {p.template for p in test}
    assert not {frozenset((p.a, p.b)) for p in train} & {frozenset((p.a, p.b)) for p in test}
    assert len({p.template for p in train}) >= 24
    assert len({p.template for p in test}) >= 8
    assert all(p.a < 10 and p.b < 10 and p.solution > 0 for p in (*train, *test))


def test_word_problem_templates_name_both_numbers_and_ask() -> None:
    for templates in (*TRAIN_TEMPLATES.values(), *TEST_TEMPLATES.values()):
        for template in templates:
            assert "{a}" in template
            assert "{b}" in template
            assert template.endswith("?")


def test_word_problem_solutions_are_right_by_hand() -> None:
    assert Problem("+", "", 7, 5).solution == 12
    assert Problem("-", "", 7, 5).solution == 2
    assert Problem("*", "", 7, 4).solution == 28


def test_word_problems_repeat_no_combination_before_all_have_come() -> None:
    total = len(list(problems("test")))
    rows = load("word_problems", num_rows=total, split="test")
    skeletons = {re.sub(r"[^\d.?]", "", p[-1]["content"]) for p in rows["prompt"]}
    assert len(set(map(str, rows["prompt"]))) == total
    assert len(skeletons) > total // 8
    assert len(load("word_problems", num_rows=total + 50, split="test")) == total + 50


def test_gsm8k_solutions_lose_calculator_marks_and_commas() -> None:
    text = "He had 2*1,000=<<2*1000=2000>>2,000 pens.\n#### 2,000"
    assert split_solution(text) == ("He had 2*1,000=2,000 pens.", "2000")
    with pytest.raises(ValueError, match="no answer after ####"):
        split_solution("He had pens.")


@pytest.fixture
def gsm8k_folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        row = {"question": f"A {split} question?", "answer": "1+1=<<1+1=2>>2\n#### 2"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("split", ["train", "test"])
def test_gsm8k_reads_a_folder_or_a_file(gsm8k_folder: Path, split: str) -> None:
    for path in (gsm8k_folder, gsm8k_folder / f"{split}.jsonl"):
        (row,) = load("gsm8k", num_rows=None, dataset_name=str(path), split=split)
        assert row["prompt"][-1]["content"] == f"A {split} question?"
        assert row["completion"][0]["content"] == FMT.render("1+1=2", "2")
        assert row["solution"] == "2"


def test_gsm8k_answers_are_boxed_where_the_format_has_no_tags(gsm8k_folder: Path) -> None:
    (row,) = load("gsm8k", num_rows=None, fmt="r1", dataset_name=str(gsm8k_folder))
    assert row["completion"][0]["content"].endswith("</think>\n\\boxed{2}")


def test_gsm8k_says_which_row_or_column_is_wrong(tmp_path: Path) -> None:
    bad_row = tmp_path / "row.jsonl"
    bad_row.write_text('{"question": "?", "answer": "two"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"gsm8k: row 0 of .*row\.jsonl"):
        load("gsm8k", num_rows=None, dataset_name=str(bad_row))
    bad_column = tmp_path / "column.jsonl"
    bad_column.write_text('{"question": "?"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="has no column answer"):
        load("gsm8k", num_rows=None, dataset_name=str(bad_column))


def test_gsm8k_without_the_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unreachable(*names: str, split: str) -> None:
        asked.append((*names, split))
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    for name in (None, "openai/gsm8k"):
        with pytest.raises(ValueError, match="without the Hub give a file, or a folder"):
            load("gsm8k", num_rows=None, dataset_name=name)
    assert asked == [("openai/gsm8k", "main", "train")] * 2


@pytest.mark.skipif(not GSM8K.is_dir(), reason="needs shared/data/gsm8k beside the repository")
def test_all_of_gsm8k_reads_and_its_own_solutions_are_graded_right() -> None:
    counts = {}
    for split in ("train", "test"):
        rows = load("gsm8k", num_rows=None, dataset_name=str(GSM8K), split=split)
        counts[split] = len(rows)
        some = rows.select(range(0, len(rows), 20)).to_dict()
        completions = some.pop("completion")
        assert set(load_reward("math_answer")(completions=completions, **some)) == {1.0}
        assert not any("<<" in c[0]["content"] for c in completions)
        assert all(FMT.parse(completion).is_well_formed for completion in completions)
    assert counts == {"train": 7473, "test": 1319}


def test_gym_takes_the_generators_own_verifier_without_partial_credit() -> None:
    rows = load("reasoning_gym", args=CHAIN_SUM).to_dict()
    gold = rows["solution"][0]
    texts = [
        f"<think>{gold}</think><answer>{gold}</answer>",
        f"<think>{gold}</think>\\boxed{{{gold}}}",
        f"<think>{gold}</think>{gold}",
        f"<think>{gold}</think>",
        f"<think>{gold}</think>{gold}, I think",
    ]
    scores = reasoning_gym_reward(texts, [rows["entry"][0]] * len(texts))
    assert scores == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert reasoning_gym_reward(["1"], [None]) == [None]
    assert reasoning_gym_reward([gold], [rows["entry"][0]]) == [1.0]
    assert reasoning_gym_reward([gold], [rows["entry"][0]], prefilled=True) == [0.0]
    assert final_answer("<think>a</think> ") is None


def test_gym_mistakes_have_clear_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'chain_sums'; did you mean 'chain_sum'"):
        load("reasoning_gym", args={"dataset": "chain_sums"})
    with pytest.raises(ValueError, match=r"args\.config of chain_sum: .*max_term"):
        load("reasoning_gym", args={"dataset": "chain_sum", "config": {"max_term": 2}})
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    args = {"dataset": "chain_sum", "config": config}
    with pytest.raises(ValueError, match="different test problems, 500 were asked for"):
        load("reasoning_gym", num_rows=500, split="test", args=args)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "trl-r1\[reasoning-gym\]"'):
        load("reasoning_gym", args=CHAIN_SUM)


def test_instructions_accept_good_answers_and_nothing_else() -> None:
    for split in ("train", "test"):
        for row in instructions(split):
            assert instruction_reward([row.reply], [row.solution]) == [1.0], row
    texts = {
        "Hello Ada!": 1.0,
        "<think>\nAda?\n</think>\nHi, Ada. How are you?": 1.0,
        "<think>a</think><answer>Hello Ada</answer>": 1.0,
        "<think>Hello Ada</think>": 0.0,
        "Hello Ben!": 0.0,
        "Ada": 0.0,
        "Hello Ada" + " and so on" * 9: 0.0,
    }
    assert instruction_reward(list(texts), ["hello Ada"] * len(texts)) == list(texts.values())
    words = {"RIVER": 1.0, "river": 0.0, "RIVER is what I was asked to write": 0.0}
    assert instruction_reward(list(words), ["RIVER"] * len(words)) == list(words.values())


def test_general_completions_think_only_where_the_prompt_ends_inside_the_thinking() -> None:
    plain = load("general_chat")["completion"]
    prefilled = load("general_chat", fmt="r1_example")["completion"]
    assert not any("<think>" in c[0]["content"] for c in plain)
    assert all(get_format("r1").parse(c).is_well_formed for c in prefilled)


def test_preference_pairs_prefer_the_better_answer() -> None:
    rows = load("general_chat_preferences", num_rows=100)
    assert all(row["chosen"] != row["rejected"] for row in rows)
    solutions = {row.prompt: row.solution for row in instructions("train")}
    gold = [solutions[prompt[0]["content"]] for prompt in rows["prompt"]]
    assert set(instruction_reward(rows["chosen"], gold)) == {1.0}
    assert set(instruction_reward(rows["rejected"], gold)) == {0.0}
