"""`trl-r1 sample`: from a model or servers to samples, dataset and summary, in one command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fake_server import FakeServer, in_background

from trl_r1.cli import main


class Served:
    """A fake server and its address."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.url, self.loop = in_background(self.server.start)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    asyncio.run_coroutine_threadsafe(made.server.stop(), made.loop).result(10)
    made.loop.call_soon_threadsafe(made.loop.stop)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": f"number {i}?"}], "solution": str(i % 7)}
        for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sample(*arguments: Any) -> int:
    return main(["sample", *map(str, arguments)])


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return rows


def test_servers_are_sampled_and_graded_and_a_second_run_asks_nothing(
    served: Served, questions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = (served.url, "--data", questions, "--n", 12, "--format", "zero", "--output", out)
    settings = ("--shard_size", 2, "--temperature", 0.7, "--keep", 2, "--policy", "diverse")
    assert sample(*arguments, *settings) == 0
    text = capfd.readouterr().out
    assert "6 prompts x 12 samples of http://127.0.0.1" in text
    assert "graded by math_answer" in text
    assert "shard 3 of 3" in text
    assert "samples: 72" in text
    rows = table(out / "samples")
    assert len(rows) == 72
    assert {row["reward_math_answer_reward"] for row in rows} == {0.0, 1.0}
    for row in rows:
        said = f"<answer>{row['solution']}</answer>" in row["completion"]
        assert row["reward_math_answer_reward"] == float(said)
        assert row["token_source"] == "engine"
        assert row["seed"] >= 0
    assert all(body["temperature"] == 0.7 for body in served.server.bodies)
    figures = json.loads((out / "summary.json").read_text())
    assert figures["samples"] == 72
    assert figures["kept"] == len(table(out / "dataset"))
    num_requests = served.server.num_requests
    assert num_requests == 72
    assert sample(*arguments, *settings) == 0
    assert served.server.num_requests == num_requests
    assert {p.name for p in out.iterdir() if not p.name.startswith(".")} == {
        "dataset",
        "log.txt",
        "samples",
        "summary.json",
    }


def test_parts_of_a_job_make_together_what_one_makes(
    served: Served, questions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (served.url, "--data", questions, "--n", 8, "--format", "zero", "--shard_size", 1)
    assert sample(*arguments, "--output", tmp_path / "one") == 0
    assert sample(*arguments, "--output", tmp_path / "two", "--shard", "2/2") == 0
    assert "other parts are not" in capfd.readouterr().out
    assert not (tmp_path / "two" / "samples").exists()
    assert sample(*arguments, "--output", tmp_path / "two", "--shard", "1/2") == 0
    for name in ("samples", "dataset"):
        assert table(tmp_path / "one" / name) == table(tmp_path / "two" / name)


def test_a_model_folder_is_sampled_and_keeping_nothing_is_no_error(
    tiny_model_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ("--task", "digit_sums", "--num_rows", 3, "--format", "zero_bare", "--n", 2)
    settings = ("--max_new_tokens", 4, "--output", out)
    assert sample(tiny_model_dir, *arguments, *settings) == 0
    text = capfd.readouterr().out
    assert "kept: 0" in text
    assert "truncated: 6" in text
    assert "100.0% truncated" in text
    assert len(table(out / "samples")) == 6
    assert not (out / "dataset").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "no-such-model"}, "no-such-model: no such folder"),
        ({"model": "http://127.0.0.1:9"}, "no server answers: http://127.0.0.1:9/v1"),
        ({"model": "http://user:pw@h/v1"}, "put the key into the environment variable"),
        ({"--task": "gsm9k"}, "unknown task 'gsm9k'"),
        ({"--task": None}, "give --task, --data, or both"),
        ({"--format": "r9"}, "unknown reasoning_format 'r9'"),
        ({"--rewards": "no_such_reward"}, "no_such_reward"),
        ({"--shard": "5/4"}, "'5/4' is no part of a job"),
        ({"--policy": "best"}, "unknown policy 'best'"),
        ({"--data": "missing.jsonl", "--task": None}, "missing.jsonl"),
        ({"--data": "rows.jsonl"}, "digit_sums makes its own problems"),
        ({"--vllm_options": "[1]"}, "--vllm_options"),
        ({"--vllm_options": "{a: 1}"}, "vllm_options is for `engine: vllm`"),
        ({"--temperature": "nan"}, "temperature is nan; use 0 for greedy"),
        ({"--top_p": "2"}, "top_p is 2.0; it is over 0 and at most 1"),
        ({"--dtype": "float99"}, "--dtype float99: use bfloat16"),
        ({"model": "localhost:8000/v1"}, "for a server write http://localhost:8000/v1"),
        ({"model": "http://127.0.0.1:99999/v1"}, "is no server; write http://host:port/v1"),
        ({"model": "."}, "no model is in this folder"),
        ({"model": "no/such"}, "this model can't be loaded"),
    ],
)
def test_mistakes_are_told_in_a_line_before_a_model_is_loaded(
    changes: dict[str, str | None],
    message: str,
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("trl_r1.training.models.load_policy", load)
    options: dict[str, str | None] = {
        "--task": "digit_sums",
        "--num_rows": "2",
        "--format": "zero_bare",
        "--output": str(tmp_path / "out"),
        **changes,
    }
    model = options.pop("model", str(tiny_model_dir))
    given = [part for key, value in options.items() if value is not None for part in (key, value)]
    assert sample(model, *given) == 1
    text = capfd.readouterr().out
    assert "trl-r1: " in text
    assert message in text
    assert "Traceback" not in text
    assert not (tmp_path / "out" / "samples").exists()


@pytest.mark.parametrize("prompt", [None, 5, "", [], [1], [{"role": "user"}]])
def test_a_prompt_that_is_none_is_named_with_its_row(
    prompt: Any, tiny_model_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": prompt, "solution": "1"}) + "\n", encoding="utf-8")
    assert sample(tiny_model_dir, "--data", path, "--output", tmp_path / "out") == 1
    assert "row 0: its prompt is" in capfd.readouterr().out


def test_other_settings_do_not_go_on_in_the_same_folder(
    served: Served, questions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (served.url, "--data", questions, "--format", "zero", "--output", tmp_path / "out")
    assert sample(*arguments, "--n", 2) == 0
    assert sample(*arguments, "--n", 3) == 1
    assert "made with other settings" in capfd.readouterr().out
