"""Known sets end to end through `trl-r1 eval`: a server that knows the gold answers gets 1.0, one
that answers beside them 0.0, and each draws as many samples as were asked for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from fake_server import FakeServer, in_background

from trl_r1 import cli
from trl_r1.reasoning_format import get_format
from trl_r1.tasks import DatasetSource, load_rows

DATA = Path(__file__).parents[2] / "shared" / "data"
NUM_SAMPLES = 2
Answers = dict[str, tuple[str, str]]  # a part of the question: right, wrong


class Oracle(FakeServer):
    """A server that looks answers up.

    Args:
        say: the completion to a question.
        finish: why it ends.
    """

    def __init__(self, say: Callable[[str], str], finish: str = "stop") -> None:
        super().__init__()
        self.say, self.finish = say, finish

    def _answer(self, body: dict[str, Any]) -> web.Response:
        text = self.say(body["messages"][-1]["content"])
        choice = {
            "index": 0,
            "finish_reason": self.finish,
            "message": {"role": "assistant", "content": f"<think>\nI know.\n</think>\n\n{text}"},
        }
        usage = {"completion_tokens": len(text)}
        return web.json_response({"model": "fake", "choices": [choice], "usage": usage})


def rows_of(path: Path, number: int, first: int = 0) -> list[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"{path} is not here; the set's own rows are needed")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file][first : first + number]


def programs(pairs: dict[str, str], wrong: str = "pass") -> Answers:
    return {
        key: (f"```python\n{code}\n```", f"```python\n{wrong}\n```") for key, code in pairs.items()
    }


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gsm8k(folder: Path) -> tuple[Path, Answers]:
    rows = rows_of(DATA / "gsm8k" / "test.jsonl", 5)
    golds = {row["question"]: row["answer"].rpartition("####")[2].strip() for row in rows}
    return written(folder, rows), {
        key: (f"So it is \\boxed{{{gold}}}.", f"\\boxed{{{gold}1}}") for key, gold in golds.items()
    }


def math_500(folder: Path) -> tuple[Path, Answers]:
    rows = rows_of(DATA / "math500" / "test.jsonl", 20)
    return written(folder, rows), {
        row["problem"]: (f"\\boxed{{{row['answer']}}}", "\\boxed{-987654}") for row in rows
    }


def human_eval(folder: Path) -> tuple[Path, Answers]:
    rows = rows_of(DATA / "humaneval" / "HumanEval.jsonl.gz", 3)
    solved = {row["prompt"]: row["prompt"] + row["canonical_solution"] for row in rows}
    return written(folder, rows), programs(solved)


def mbpp(folder: Path) -> tuple[Path, Answers]:
    rows = rows_of(DATA / "mbpp" / "mbpp.jsonl", 3, first=10)  # the test split begins at 11
    return written(folder, rows), programs({row["test_list"][0]: row["code"] for row in rows})


def aime(folder: Path) -> tuple[Path, Answers]:
    # Made up: the set itself is not part of this repository. Answers are 000 to 999.
    golds = {"Find the remainder of 2^10 by 1000.": "024", "Find 30 * 30 + 99.": "999"}
    rows = [{"problem": problem, "answer": gold} for problem, gold in golds.items()]
    return written(folder, rows), {
        key: (f"\\boxed{{{int(gold)}}}", "\\boxed{500}") for key, gold in golds.items()
    }


def live_code_bench(folder: Path) -> tuple[Path, Answers]:
    def case(given: str, output: str) -> dict[str, str]:
        return {"input": given, "output": output, "testtype": "stdin"}

    questions = {
        "Read two integers and print their sum.": (
            [case("1 2\n", "3\n"), case("-5 5\n", "0\n")],
            "print(sum(map(int, input().split())))",
        ),
        "Read a line and print it backwards.": (
            [case("abc\n", "cba\n"), case("ab ba\n", "ab ba\n")],
            "print(input()[::-1])",
        ),
    }
    rows = [
        {
            "question_content": question,
            "public_test_cases": json.dumps(cases[:1]),
            "private_test_cases": json.dumps(cases[1:]),
            "contest_date": "2025-01-01T00:00:00",
            "starter_code": "",
            "difficulty": "easy",
            "metadata": "{}",
        }
        for question, (cases, _) in questions.items()
    ]
    solved = {question: code for question, (_, code) in questions.items()}
    return written(folder, rows), programs(solved, "print(input())")


SETS: dict[str, Callable[[Path], tuple[Path, Answers]]] = {
    "aime_2024": aime,
    "aime_2025": aime,
    "gsm8k": gsm8k,
    "human_eval": human_eval,
    "live_code_bench": live_code_bench,
    "math_500": math_500,
    "mbpp": mbpp,
}


def evaluated(
    say: Callable[[str], str], task: str, data: Path, output: Path, *more: str, finish: str = "stop"
) -> tuple[dict[str, Any], FakeServer]:
    server = Oracle(say, finish)
    url, _ = in_background(server.start)
    command = ["eval", url, "--task", task, "--data", str(data), "--output", str(output), *more]
    assert cli.main([*command, "--n", str(NUM_SAMPLES)]) == 0
    return json.loads((output / "evaluation.json").read_text()), server


@pytest.mark.parametrize("task", SETS)
def test_gold_answers_are_all_right_and_wrong_ones_all_wrong(task: str, tmp_path: Path) -> None:
    data, answers = SETS[task](tmp_path)

    def say(question: str, place: int) -> str:
        return next(pair[place] for key, pair in answers.items() if key in question)

    for place, expected in ((0, 1.0), (1, 0.0)):
        output = tmp_path / f"answers {place}"
        document, server = evaluated(lambda q, p=place: say(q, p), task, data, output)  # type: ignore[misc]
        assert document["scores"]["pass@1"] == document["scores"]["pass@2"] == expected
        assert document["scores"]["format"] == 1.0
        assert document["problems"] == len(answers)
        assert document["samples"] == server.num_requests == len(answers) * NUM_SAMPLES
        problems = pq.read_table(output / "problems.parquet").to_pylist()
        assert [row["num_samples"] for row in problems] == [NUM_SAMPLES] * len(answers)


def gpqa_rows(folder: Path, number: int = 24) -> Path:
    rows = [
        {
            "Question": f"Which of these is number {i}?",
            "Correct Answer": f"the right one of {i}",
            **{f"Incorrect Answer {k}": f"wrong one {k} of {i}" for k in (1, 2, 3)},
            "Subdomain": "made up",
        }
        for i in range(number)
    ]
    return written(folder, rows)


def labels(question: str, is_right: bool) -> str:
    """The letter of the first option of that kind, read from the question as it is put."""
    kind = "the right one" if is_right else "wrong one"
    line = next(line for line in question.splitlines() if kind in line)
    return line.strip().strip("(")[0]


def test_gpqa_options_stand_in_an_order_of_their_own_and_the_letter_follows_them(
    tmp_path: Path,
) -> None:
    data = gpqa_rows(tmp_path)
    for name, is_right in (("right", True), ("wrong", False)):
        document, server = evaluated(
            lambda q, r=is_right: f"Answer: {labels(q, r)}",  # type: ignore[misc]
            "gpqa_diamond",
            data,
            tmp_path / name,
        )
        assert document["scores"]["pass@1"] == document["scores"]["cons@2"] == float(is_right)
        assert server.num_requests == 24 * NUM_SAMPLES

    # No seed moves them, so that evaluations of other seeds are of the same problems.
    def golds(seed: int) -> list[str]:
        source = DatasetSource(str(data), "gpqa_diamond", "test", seed=seed)
        rows = load_rows(source, get_format("r1"))
        assert [labels(row["prompt"][-1]["content"], True) for row in rows] == rows["solution"]
        return list(rows["solution"])

    assert golds(0) == golds(1)
    assert set(golds(0)) == set("ABCD"), "the right one is not always at one place"


def test_what_is_all_cut_off_is_told_so(tmp_path: Path) -> None:
    data, _ = aime(tmp_path)
    document, _ = evaluated(
        lambda _: "and then", "aime_2024", data, tmp_path / "out", finish="length"
    )
    assert (document["scores"]["truncated"], document["scores"]["pass@1"]) == (1.0, 0.0)


def test_digits_of_other_scripts_are_graded_and_voted_on(tmp_path: Path) -> None:
    data, answers = aime(tmp_path)
    eastern = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")

    def say(question: str) -> str:
        right = next(pair[0] for key, pair in answers.items() if key in question)
        return right.translate(eastern)

    document, _ = evaluated(say, "aime_2024", data, tmp_path / "out")
    assert document["scores"]["cons@2"] == document["scores"]["pass@1"]
    assert document["ungradable"] == 0


def test_a_server_that_answers_nothing_is_told_and_nothing_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_r1.sampling.server_pool._MAX_FAILURES", 1)

    class Silent(Oracle):
        def _answer(self, body: dict[str, Any]) -> web.Response:
            return web.json_response({"model": "fake", "choices": []})

    data, _ = aime(tmp_path)
    url, _ = in_background(Silent(str).start)
    out = tmp_path / "out"
    command = ["eval", url, "--task", "aime_2024", "--data", str(data), "--output", str(out)]
    assert cli.main([*command, "--n", "2"]) == 1
    assert "gave a broken answer" in capsys.readouterr().out
    assert not (out / "evaluation.json").exists()
    assert not list(out.rglob("*.parquet"))
