"""Known sets and tasks of one's own: columns of a source become rows, and graders take them."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from trl_r1.pipeline.check_columns import task_name
from trl_r1.pipeline.check_data import SourceChecker
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.inputs import gather_inputs
from trl_r1.pipeline.reading import read_pipeline
from trl_r1.reasoning_format import get_format
from trl_r1.tasks import TASKS, DatasetSource, find_task, load_rows, load_task
from trl_r1.tasks.column_rows import extracted
from trl_r1.tasks.row_templates import fill
from trl_r1.tasks.set_rows import dapo_row, live_code_bench_row
from trl_r1.verification.loading import load_reward
from trl_r1.verification.reading_tests import parse_tests

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs shared/data beside the repository")
R1 = get_format("r1")
TRACES = ["<think>a</think>\\boxed{1}", "<think>b</think>It is \\boxed{2}", "<think>c"]
CHOICES = {"question": "Which?", "subject": "s", "category": "s"}

# A row of each known set, with the columns that it has on the Hub, and the gold answer.
SETS: dict[str, tuple[dict[str, Any], str | None]] = {
    "math": (
        {
            "problem": "p", "level": "Level 5", "type": "Algebra",
            "solution": "so \\boxed{\\frac{1}{2}}",
        },
        "\\frac{1}{2}",
    ),
    "math_500": (
        {"problem": "p", "solution": "s", "answer": "2", "subject": "Algebra", "level": 5},
        "2",
    ),
    "aime_2024": ({"id": 60, "problem": "p", "answer": "204", "year": "2024"}, "204"),
    "aime_2025": ({"problem": "p", "answer": "70", "id": "0"}, "70"),
    "dapo_math": ({"prompt": "p", "solution": "34", "data_source": "math_dapo"}, "34"),
    "deepscaler": ({"problem": "p", "answer": "-\\frac{2}{3}", "solution": "s"}, "-\\frac{2}{3}"),
    "openr1_math": (
        {
            "problem": "p", "answer": "2", "source": "olympiads", "generations": TRACES,
            "is_reasoning_complete": [True, True, False],
            "correctness_math_verify": [False, True, True], "correctness_llama": None,
        },
        "2",
    ),
    "numina_math": ({"source": "aops_forum", "problem": "p", "solution": "so \\boxed{3}"}, "3"),
    "numina_math_1_5": (
        {
            "problem": "p", "solution": "s", "answer": "4", "problem_type": "Algebra",
            "question_type": "math-word-problem", "source": "olympiads",
            "problem_is_valid": "Yes", "solution_is_valid": "Yes",
        },
        "4",
    ),
    "human_eval": (
        {
            "task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": " return x\n",
            "test": "def check(candidate):\n    assert candidate(1) == 1\n", "entry_point": "f",
        },
        None,
    ),
    "mbpp": (
        {
            "task_id": 11, "text": "Write f.", "code": "def f(): return 1", "test_setup_code": "",
            "test_list": ["assert f() == 1"], "challenge_test_list": [],
        },
        None,
    ),
    "apps": (
        {
            "question": "Add.", "difficulty": "interview", "starter_code": "",
            "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
        },
        None,
    ),
    "live_code_bench": (
        {
            "question_content": "Add.", "starter_code": "", "difficulty": "easy",
            "contest_date": "2024-01-01", "metadata": "{}",
            "public_test_cases": json.dumps(
                [{"input": "1 2", "output": "3", "testtype": "stdin"}]
            ),
            "private_test_cases": "[]",
        },
        None,
    ),
    "mmlu": ({**CHOICES, "choices": ["w", "x", "y", "z"], "answer": 2}, "C"),
    "mmlu_pro": ({**CHOICES, "options": ["w", "x", "y"], "answer": "B", "answer_index": 1}, "B"),
    "gpqa_diamond": (
        {
            "Question": "Which?", "Correct Answer": "right", "Incorrect Answer 1": "w1",
            "Incorrect Answer 2": "w2", "Incorrect Answer 3": "w3", "Subdomain": "s",
        },
        "",
    ),
    "arc_challenge": (
        {
            "id": "1", "question": "Which?", "answerKey": "3",
            "choices": {"text": ["w", "x", "y", "z"], "label": ["1", "2", "3", "4"]},
        },
        "C",
    ),
    "ifeval": (
        {
            "key": 1, "prompt": "Say it without a comma.",
            "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None}],
        },
        None,
    ),
    "smoltalk": (
        {
            "messages": [
                {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
            ],
            "source": "everyday",
        },
        None,
    ),
}  # fmt: skip


def load(path: Path, task: str, split: str = "test", fmt: str = "r1", **more: Any) -> Any:
    source = DatasetSource(dataset_name=str(path), task=task, split=split, **more)
    return load_rows(source, get_format(fmt))


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def test_every_known_set_is_tried_here() -> None:
    declared = {name for name, where in TASKS.items() if "known_sets" in where}
    assert declared == set(SETS)


@pytest.mark.parametrize("name", list(SETS))
def test_a_row_of_a_known_set_becomes_one_of_the_task(name: str, tmp_path: Path) -> None:
    given, solution = SETS[name]
    rows = load(write(tmp_path / "rows.jsonl", given), name)
    task = load_task(name)
    assert task.name == name
    assert tuple(rows.column_names) == task.columns
    (row,) = rows
    assert row["task"] == name
    assert row["prompt"][-1]["role"] == "user"
    assert (row["prompt"][0]["role"] == "system") == (task.kind == "reasoning")
    if solution:
        assert row["solution"] == solution
    if task.kind == "reasoning" and "completion" in row:
        assert R1.parse(row["completion"]).is_well_formed


GRADED = [n for n in SETS if n not in ("human_eval", "mbpp", "apps", "live_code_bench", "smoltalk")]


@pytest.mark.parametrize("name", GRADED)
def test_graders_take_the_rows_of_a_set(name: str, tmp_path: Path) -> None:
    columns = load(write(tmp_path / "rows.jsonl", SETS[name][0]), name).to_dict()
    columns.pop("completion", None)
    (solution,) = columns["solution"]
    right, wrong = f"\\boxed{{{solution}}}", "\\boxed{77777}"
    if name == "ifeval":
        right, wrong = "It is so.", "It is, so."
    texts = [f"<think>so</think>{text}" for text in (right, wrong)]
    twice = {key: values * 2 for key, values in columns.items()}
    assert load_reward(load_task(name).grader)(completions=texts, **twice) == [1.0, 0.0]


@pytest.mark.parametrize("name", ["human_eval", "mbpp", "apps", "live_code_bench"])
def test_tests_of_code_sets_are_understood(name: str, tmp_path: Path) -> None:
    (row,) = load(write(tmp_path / "rows.jsonl", SETS[name][0]), name)
    assert load_task(name).grader == "code_tests"
    assert parse_tests(row["tests"], row.get("entry_point"))


@needs_data
@pytest.mark.parametrize(
    ("path", "task", "count"),
    [("humaneval/HumanEval.jsonl.gz", "human_eval", 164), ("mbpp/mbpp.jsonl", "mbpp", 500)],
)
def test_all_of_a_code_set_reads_and_its_tests_are_understood(
    path: str, task: str, count: int
) -> None:
    rows = load(DATA / path, task)
    assert len(rows) == count
    unread = [r for r in rows if not parse_tests(r["tests"], r.get("entry_point"))]
    assert unread == []
    if task == "mbpp":
        assert len(load(DATA / path, task, "train")) == 374
        assert len(load(DATA / path, task, "validation")) == 90


@needs_data
def test_all_of_math_500_reads_from_its_folder() -> None:
    rows = load(DATA / "math500", "math_500")
    assert len(rows) == 500
    hard = load(DATA / "math500", "math_500", args={"where": {"level": [4, 5]}})
    assert set(hard["level"]) == {"4", "5"}
    assert 0 < len(hard) < 500


def test_rows_of_no_use_are_left_out(tmp_path: Path) -> None:
    unboxed = {"problem": "p", "solution": "a proof", "source": "x"}
    path = write(tmp_path / "a.jsonl", SETS["numina_math"][0], unboxed)
    assert len(load(path, "numina_math")) == 1
    proof = {**SETS["numina_math_1_5"][0], "question_type": "proof", "answer": "proof"}
    path = write(tmp_path / "b.jsonl", proof, SETS["numina_math_1_5"][0])
    assert len(load(path, "numina_math_1_5")) == 1
    wrong = {**SETS["openr1_math"][0], "correctness_math_verify": [False] * 3}
    path = write(tmp_path / "c.jsonl", wrong, SETS["openr1_math"][0])
    assert len(load(path, "openr1_math")) == 1
    with pytest.raises(ValueError, match="openr1_math: none of the 1 rows of"):
        load(write(tmp_path / "d.jsonl", wrong), "openr1_math")


def test_r1_traces_are_kept_as_they_are_or_put_into_the_formats_tags(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", SETS["openr1_math"][0])
    (row,) = load(path, "openr1_math")
    assert row["completion"][0]["content"] == "<think>\nb\n</think>\nIt is \\boxed{2}"
    (row,) = load(path, "openr1_math", fmt="zero")
    assert row["completion"][0]["content"] == "<think>\nb\n</think>\n<answer>2</answer>"


def test_the_first_form_of_dapo_loses_its_instructions() -> None:
    text = (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
        "\n\nIn triangle $ABC$,\n\nfind $x$.\n\nRemember to put your answer on its own line after "
        '"Answer:".'
    )
    given = {
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"ground_truth": "34", "style": "rule"},
    }
    row = dapo_row(given, "train")
    assert row is not None
    assert (row["question"], row["answer"]) == ("In triangle $ABC$,\n\nfind $x$.", "34")
    assert dapo_row({"prompt": "\u6c42 $x$", "solution": "1"}, "train")["language"] == "zh"  # type: ignore[index]


def test_options_of_gpqa_are_in_an_order_of_their_own_that_never_changes(tmp_path: Path) -> None:
    given = [
        {key: f"{value} {i}" for key, value in SETS["gpqa_diamond"][0].items()} for i in range(20)
    ]
    path = write(tmp_path / "rows.jsonl", *given)
    rows = load(path, "gpqa_diamond")
    for row in rows:
        options = json.loads(row["options"])
        assert options["ABCD".index(row["solution"])].startswith("right")
        assert f"\n{row['solution']}. right" in row["prompt"][-1]["content"]
    assert len(set(rows["solution"])) > 1
    assert load(path, "gpqa_diamond").to_list() == rows.to_list()


def test_private_tests_are_unpacked_without_running_what_is_in_them() -> None:
    cases = [{"input": "[1]\n2", "output": "3", "testtype": "functional"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()
    row = {
        "public_test_cases": "[]", "private_test_cases": packed,
        "metadata": json.dumps({"func_name": "f"}),
    }  # fmt: skip
    assert json.loads(live_code_bench_row(row, "test")["tests"]) == [
        {"fn_name": "f", "input": [[1], 2], "output": 3}
    ]
    hostile = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
    with pytest.raises(ValueError, match=r"the private tests ask for builtins\.print"):
        live_code_bench_row({**row, "private_test_cases": hostile}, "test")


def test_sources_may_be_packed_or_a_folder_and_a_split_may_have_the_sources_name(
    tmp_path: Path,
) -> None:
    text = json.dumps(SETS["aime_2024"][0]) + "\n"
    (tmp_path / "train.jsonl").write_text(text, encoding="utf-8")
    assert len(load(tmp_path, "aime_2024", "test")) == 1
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write(text * 2)
    assert len(load(tmp_path / "more.jsonl.gz", "aime_2024")) == 2


def test_a_missing_column_and_a_bad_row_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"math_500: .* has no column answer, level, subject"):
        load(write(tmp_path / "a.jsonl", {"problem": "p"}), "math_500")
    bad = {**SETS["mmlu"][0], "answer": 9}
    with pytest.raises(ValueError, match=r"mmlu: row 1 of .*: the answer '9' is none of"):
        load(write(tmp_path / "b.jsonl", SETS["mmlu"][0], bad), "mmlu")


# A task of one's own ------------------------------------------------------------------------------

EXAM = """\
name: my_exam
source: exam.jsonl
prompt: "{passage}\\n\\n{question[text]}"
solution: "{key}"
extract: boxed
grader: math_answer
where: {subject: [algebra, geometry]}
columns: {level: difficulty, note: "from {subject}"}
splits: {test: validation}
language: en
"""


@pytest.fixture
def exam(tmp_path: Path) -> Path:
    row = {
        "passage": "Read {this}.", "question": {"text": "How many?"}, "key": "so \\boxed{5}",
        "difficulty": 3,
    }  # fmt: skip
    subjects = ("algebra", "history", "geometry")
    write(tmp_path / "exam.jsonl", *({**row, "subject": subject} for subject in subjects))
    path = tmp_path / "my_exam.yaml"
    path.write_text(EXAM, encoding="utf-8")
    return path


def test_ten_lines_of_yaml_are_a_task(exam: Path) -> None:
    rows = load_rows(DatasetSource(task=str(exam)), R1)
    assert len(rows) == 2
    row = rows[0]
    assert row["prompt"] == R1.prompt("Read {this}.\n\nHow many?")
    assert {key: row[key] for key in ("solution", "task", "level", "note")} == {
        "solution": "5", "task": "my_exam", "level": "3", "note": "from algebra",
    }  # fmt: skip
    found = find_task("my_exam")
    assert found is not None
    assert found.grader == "math_answer"


def test_a_stage_depends_on_the_content_of_its_task_file_and_of_its_source(exam: Path) -> None:
    folder = exam.parent / "mine"
    folder.mkdir()
    for path in (exam, exam.with_name("exam.jsonl")):
        path.rename(folder / path.name)
    (folder / "01_zero.yaml").write_text(
        "stage: grpo\nmodel_name_or_path: m\ndatasets: [{task: my_exam.yaml}]\n"
        "rewards: [{use: math_answer}]\n"
    )

    def inputs() -> dict[str, Any]:
        pipeline, _ = read_pipeline(folder)
        found = gather_inputs(pipeline.stages[0], pipeline, exam.parent / "run", FileHashes())
        return {item.key: item.hash for item in found}

    before = inputs()
    assert {"datasets[0].task", "datasets[0].task.source"} <= set(before)
    with (folder / "exam.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")
    changed = {key for key, value in inputs().items() if value != before[key]}
    assert changed == {"datasets[0].task.source"}

    (folder / "exam.jsonl").rename(folder / "exam-train.jsonl")
    text = (folder / exam.name).read_text(encoding="utf-8")
    text = text.replace("exam.jsonl", "exam-{split}.jsonl")
    (folder / exam.name).write_text(text, encoding="utf-8")
    assert inputs()["datasets[0].task.source[exam-train.jsonl]"]


def test_a_task_file_may_name_functions_beside_it(exam: Path) -> None:
    code = "def longer(row, split):\n    return {**row, 'passage': split} if row['key'] else None\n"
    exam.with_name("mine.py").write_text(code, encoding="utf-8")
    more = "prepare: mine.py:longer\n"
    text = EXAM.replace("grader: math_answer", "grader: mine.py:grade")
    exam.write_text(text + more, encoding="utf-8")
    rows = load_rows(DatasetSource(task=str(exam)), R1)
    assert rows[0]["prompt"][-1]["content"] == "train\n\nHow many?"
    assert load_task(str(exam)).grader == f"{exam.with_name('mine.py')}:grade"


def test_mistakes_in_a_task_file_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: gsm8k\npromt: x\nextract: boxes\n", encoding="utf-8")
    with pytest.raises(ValueError, match="unknown key 'promt'; did you mean 'prompt'") as caught:
        load_task(str(path))
    assert "'gsm8k' is a built-in task" in str(caught.value)
    assert "extract: Input should be 'text', 'boxed' or 'after_hashes'" in str(caught.value)
    with pytest.raises(ValueError, match="no such task file"):
        load_task(str(tmp_path / "none.yaml"))


def test_the_check_of_a_recipe_reads_task_files_and_pass_rates(exam: Path) -> None:
    notes: list[str] = []
    checker = SourceChecker(exam.parent, notes.append)

    def faults(**source: Any) -> list[str]:
        return list(checker._source(DatasetSource(**source), "datasets[0]", "x.yaml"))

    assert faults(task="my_exam.yaml") == []
    assert task_name("my_exam.yaml", exam.parent) == "my_exam"
    (fault,) = faults(task="none.yaml")
    assert "no such task file" in fault
    rates = {"pass_rates": "@zero/rollouts", "min_pass_rate": 0.5, "max_pass_rate": 0.1}
    assert faults(task="my_exam.yaml", **rates) == [
        "datasets[0]: min_pass_rate 0.5 is over max_pass_rate 0.1"
    ]
    (fault,) = faults(task="my_exam.yaml", order="easiest_first")
    assert "pass_rates is missing" in fault
    (fault,) = faults(task="my_exam.yaml", pass_rates="./none.jsonl", order="easiest_first")
    assert "none.jsonl does not exist" in fault
    columns = checker._columns(
        DatasetSource(task="my_exam.yaml", pass_rates="@zero/rollouts", min_pass_rate=0.5), "r1"
    )
    assert isinstance(columns, set)
    assert {"prompt", "solution", "pass_rate"} <= columns


def test_templates_reach_into_columns_and_no_further() -> None:
    row = {"a": {"b": ["x", "y"]}, "c": None, "d": 3}
    assert fill("{a[b][1]}-{c}-{d}-{{e}}", row) == "y--3-{e}"
    with pytest.raises(KeyError):
        fill("{d.__class__}", row)


def test_answers_are_taken_out_of_solutions() -> None:
    assert extracted("a \\boxed{1} b \\boxed{\\frac{1}{2}} c", "boxed") == "\\frac{1}{2}"
    assert extracted("no box", "boxed") == ""
    assert extracted("\\boxed{1", "boxed") == ""
    assert extracted("so\n#### 1,000", "after_hashes") == "1000"
    assert extracted(" x ", "text") == "x"
