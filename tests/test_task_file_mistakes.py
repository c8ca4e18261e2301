"""What people get wrong in a task's YAML file, and in its rows, is told in one line by `check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trl_r1.cli import main
from trl_r1.pipeline.check_data import SourceChecker
from trl_r1.reasoning_format import get_format
from trl_r1.tasks import DatasetSource, load_rows
from trl_r1.tasks.row_templates import fill, template_fault

ROW = {"q": "What is 1 + 1?", "a": "2", "level": 3, "opts": ["1", "2"], "chat": None}
FILE = "name: exam\nsource: exam.jsonl\nprompt: '{q}'\nsolution: '{a}'\n"


def rows_of(folder: Path, *rows: dict[str, Any]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "exam.jsonl").write_text(text, encoding="utf-8")


def check(folder: Path, text: str | bytes = FILE, name: str = "exam.yaml") -> list[str]:
    """What the check of a recipe says of a source that is the task file."""
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    checker = SourceChecker(folder, lambda note: None)
    values = {"datasets": [{"task": name}]}
    return list(checker._held_out(values, "", "01_eval.yaml"))


def told(folder: Path, text: str | bytes) -> str:
    (message,) = check(folder, text)
    assert "\n" not in message
    return message


@pytest.fixture
def exam(tmp_path: Path) -> Path:
    rows_of(tmp_path, ROW, {**ROW, "q": "What is 1 + 2?", "a": "3"})
    return tmp_path


def test_a_right_file_has_no_mistakes(exam: Path) -> None:
    assert check(exam, FILE.replace("'{q}'", "'{q} ({level})'")) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("columns: {prompt: q}", "columns.prompt: every row has this column; use the key 'prompt'"),
        ("columns: {task: q}", "columns.task: every row has this column; it is made by the task"),
        ("columns: [q]", "columns: Input should be a valid"),
        ("columns: {n: '{q'}", "columns.n: expected '}' before end of string"),
        ("reasoning: 'as {q} }'", "reasoning: Single '}' encountered"),
        ("response: 'x {}'", "response: {} names no column; write {question}"),
        ("response: '{q!r}'", "response: {q!r}: conversions and formats are not supported"),
        ("response: '{q:>10}'", "response: {q:>10}: conversions and formats"),
        ("response: '{q[0}'", "response: expected '}' before end"),
        ("response: '{q[]}'", "response: {q[]} names no column"),
        ("grader: math_anser", "grader: unknown reward 'math_anser'; did you mean 'math_answer'?"),
        ("grader: mine.py", "grader: mine.py names no function; write file.py:function"),
        ("grader: mine.py:f", "grader: there is no file mine.py in"),
        ("language: english", "language: unknown language 'english'"),
        ("where: level", "where: Input should be a valid"),
        ("splits: test", "splits: Input should be a valid"),
        ("kind: puzzle", "kind: Input should be 'reasoning' or 'general'"),
        ("needs: {a: b}", "needs: Input should be a valid tuple"),
        ("reasoning: '{q}'\nresponse: '{q}'", "reasoning and response: each makes the completion"),
        ("prepare: mine", "prepare: mine: write file.py:function"),
        ("prepare: mine.py:f", "prepare: mine.py:f: [Errno 2] No such file"),
        ("promt: x", "unknown key 'promt'; did you mean 'prompt'?"),
        ("name: again", "'name' is written twice"),
    ],
)
def test_a_wrong_value_is_told_with_file_and_key(exam: Path, more: str, message: str) -> None:
    said = told(exam, f"{FILE}{more}\n")
    assert "exam.yaml" in said
    assert message in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8k", "'gsm8k' is a built-in task; choose another name"),
        ("../../up", "'../../up' may have letters"),
        ("''", "'' may have letters"),
        ("[a, b]", "name: Input should be a valid string"),
        ("7", "name: Input should be a valid string"),
    ],
)
def test_a_name_is_a_plain_word_of_its_own(exam: Path, name: str, message: str) -> None:
    assert f"exam.yaml: name: {message.removeprefix('name: ')}" in told(
        exam, FILE.replace("name: exam", f"name: {name}")
    )


def test_a_file_that_is_not_utf8_says_so(exam: Path) -> None:
    assert "UTF-8" in told(exam, FILE.encode() + b"language: \xfc\n")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("where: {level: [5, '3']}", "where: no row of {} has [5, '3'] as level; there is 3"),
        ("where: {level: 3, a: 9}", "where: no row of {} has 9 as a; there is '2', '3'"),
        ("extract: boxed", "none of the 2 rows of {} is used: each is without an answer"),
        ("columns: {n: nothing}", "{} has no column nothing; it has q, a, level, opts, chat"),
        ("messages: chat", "row 0 of {}, test: messages: chat is empty"),
        ("messages: opts", "row 0 of {}, test: messages: opts should be a list of turns"),
        ("choices: chat", "row 0 of {}, test: choices: chat is empty (null)"),
        ("choices: q", "choices: q should be a list of texts, or have `text` and `label`; it is"),
        ("choices: level", "choices: level should be a list of texts"),
        ("choices: [q, chat]", "row 0 of {}, test: choices: chat is empty (null)"),
    ],
)
def test_what_only_the_rows_can_tell_names_the_source(exam: Path, more: str, message: str) -> None:
    assert message.format(exam / "exam.jsonl") in told(exam, f"{FILE}{more}\n")


def test_a_row_whose_answer_is_empty_is_left_out(exam: Path) -> None:
    rows_of(exam, ROW, {**ROW, "a": None})
    for more in ("", "choices: opts\n"):
        assert check(exam, FILE + more) == []
        rows = load_rows(DatasetSource(task=str(exam / "exam.yaml")), get_format("r1"))
        assert len(rows) == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(row, split):\n    return row['none']\n", "row 0 of {}, test: prepare: KeyError"),
        ("def f(row, split):\n    1 / 0\n", "prepare: ZeroDivisionError: division by zero"),
        ("def f(row):\n    return row\n", "prepare: TypeError: f() takes 1 positional argument"),
        ("def f(row, split):\n    return 'x'\n", "prepare: it returned a str; a row (a dict)"),
        ("def f(row, split)\n    pass\n", "mine.py:1: SyntaxError: expected ':'"),
        ("import nothing_of_the_kind\n", "ModuleNotFoundError at its import: No module named"),
        ("raise SystemExit(3)\n", "SystemExit at its import: 3"),
        ("def g(row, split):\n    return row\n", "there is no function 'f'; it has 'g'"),
    ],
)
def test_faults_of_ones_own_function_are_told_in_one_line(
    exam: Path, code: str, message: str
) -> None:
    (exam / "mine.py").write_text(code, encoding="utf-8")
    said = told(exam, FILE + "prepare: mine.py:f\n")
    assert message.format(exam / "exam.jsonl") in said


def test_the_commands_tell_it_without_a_traceback(
    exam: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exam / "exam.yaml"
    path.write_text(FILE + "where: {level: 5}\n", encoding="utf-8")
    fault = "where: no row of"
    for arguments in (
        ["data", "stats", str(path)],
        ["eval", "no/model", "--task", str(path), "--output", str(exam / "scores")],
        ["sample", "no/model", "--task", str(path), "--n", "1", "--output", str(exam / "out")],
    ):
        assert main(arguments) in (1, 2), arguments
        told = capsys.readouterr()
        said = told.out + told.err
        assert fault in said, arguments
        assert "Traceback" not in said


def test_a_source_that_is_missing_or_without_rows_is_told(exam: Path) -> None:
    missing = FILE.replace("exam.jsonl", "exams.jsonl")
    assert "exam.yaml: source: exams.jsonl does not exist" in told(exam, missing)
    assert "dataset_name is missing" in told(exam, FILE.replace("source: exam.jsonl\n", ""))
    (exam / "exam.jsonl").write_text("")
    assert "is empty" in told(exam, FILE)


def test_a_source_may_be_a_file_for_each_split(exam: Path) -> None:
    (exam / "exam.jsonl").rename(exam / "exam-dev.jsonl")
    text = FILE.replace("exam.jsonl", "exam-{split}.jsonl")
    assert check(exam, text + "splits: {test: dev}\n") == []
    assert "exam-test.jsonl" in told(exam, text)


def test_two_files_with_one_name_are_told(exam: Path) -> None:
    for name in ("one.yaml", "two.yaml"):
        (exam / name).write_text(FILE, encoding="utf-8")
    checker = SourceChecker(exam, lambda note: None)
    values = {"datasets": [{"task": "one.yaml"}, {"task": "two.yaml"}, {"task": "one.yaml"}]}
    (message,) = checker._held_out(values, "", "01_eval.yaml")
    assert "datasets[1].task: two.yaml and one.yaml both declare the task 'exam'" in message


def test_templates_reach_columns_and_what_is_in_them_and_nothing_else() -> None:
    row = {"a.b": 1, "two words": True, "list": [1, "x"], "map": {"k": None}, "none": None}
    assert fill("{a.b} {two words} {list[1]} {list} {map[k]}{none}", row) == '1 True x [1, "x"] '
    assert fill("{none[k]}{{x}}", row) == "{x}"
    with pytest.raises(KeyError, match=r"list.__class__"):
        fill("{list.__class__}", row)
    with pytest.raises((KeyError, ValueError)):
        fill("{list[__class__]}", row)
    assert template_fault("{a.b} {two words} {list[1]} {{x}}") is None
