"""`trl-r1 eval` draws what it says, goes on after a kill, stores what it did, and compares."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fake_server import FakeServer, in_background

from trl_r1 import cli
from trl_r1.evaluation.compare import compare
from trl_r1.evaluation.problems import problem_hash
from trl_r1.evaluation.record import MAX_KEPT, keep_some, write_record
from trl_r1.pipeline.mistakes import PipelineError

DATA = Path(__file__).parents[2] / "shared" / "data"


def sample(problem: int, number: int, right: float | None, **columns: Any) -> dict[str, Any]:
    return {
        "prompt_index": problem,
        "sample_index": number,
        "problem_hash": f"hash {problem}",
        "task": "gsm8k",
        "solution": "4",
        "is_general": False,
        "score": right,
        "is_well_formed": True,
        "is_truncated": False,
        "num_tokens": 10 + number,
        "preference": None,
        "answer": "4" if right else "5",
        "vote": "4" if right else "5",
        "language_share": 1.0,
        **columns,
    }


def evaluation(folder: Path, rights: list[list[float]], first: int = 0, **settings: Any) -> Path:
    """A stored evaluation with these verdicts, a list a problem."""
    folder.mkdir(parents=True)
    rows = [
        sample(first + problem, number, right)
        for problem, flags in enumerate(rights)
        for number, right in enumerate(flags)
    ]
    facts = {"settings": {"temperature": 0.6, **settings}, "template": {}}
    write_record(folder, rows, len(rights), len(rights[0]), facts)
    return folder


def rows_file(folder: Path, number: int = 6, **columns: Any) -> Path:
    path = folder / "exam.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": f"{i}+1=?"}], "solution": str(i + 1), **columns}
        for i in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*arguments: Any) -> int:
    return cli.main(["eval", *map(str, arguments)])


def evaluate(model: Path, data: Path, output: Path, *more: Any) -> int:
    fixed = ("--max_new_tokens", 6, "--format", "zero_bare", "--output", output)
    return run(model, "--data", data, *fixed, *more)


def document_of(folder: Path) -> Any:
    return json.loads((folder / "evaluation.json").read_text())


def test_an_evaluation_stores_its_samples_scores_and_settings(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = rows_file(tmp_path), tmp_path / "out"
    assert evaluate(tiny_model_dir, data, out, "--n", 4, "--shard_size", 4) == 0
    document = document_of(out)
    assert (document["problems"], document["samples"]) == (6, 24)
    assert document["settings"]["temperature"] == 0.6
    assert document["settings"]["top_p"] == 0.95
    assert len(document["template"]["chat_template_hash"]) == 64
    assert document["versions"]["trl"]
    low, high = document["scores"]["pass@1_interval"]
    assert low <= document["scores"]["pass@1"] <= high
    assert {"pass@2", "pass@4", "cons@4", "truncated"} <= set(document["scores"])
    samples = pq.read_table(out / "samples").to_pylist()
    places = {(row["prompt_index"], row["sample_index"]) for row in samples}
    assert places == {(p, s) for p in range(6) for s in range(4)}
    problems = pq.read_table(out / "problems.parquet").to_pylist()
    assert [row["num_samples"] for row in problems] == [4] * 6
    assert "6 problems, 24 samples" in capsys.readouterr().out
    # Again: nothing is drawn, the scores stay.
    times = {path: path.stat().st_mtime_ns for path in (out / "samples").glob("*.parquet")}
    assert evaluate(tiny_model_dir, data, out, "--n", 4, "--shard_size", 4) == 0
    assert document_of(out)["scores"] == document["scores"]
    assert all(path.stat().st_mtime_ns == changed for path, changed in times.items())
    # Another evaluation does not mix with it.
    assert evaluate(tiny_model_dir, data, out, "--n", 3, "--shard_size", 4) == 1
    assert "num_samples" in capsys.readouterr().out


def test_a_killed_evaluation_goes_on_and_ends_as_an_undisturbed_one(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    data = rows_file(tmp_path, 12)
    arguments = [tiny_model_dir, "--data", data, "--format", "zero_bare", "--n", "2"]
    arguments += ["--max_new_tokens", "6", "--shard_size", "1", "--output", tmp_path / "killed"]
    command = [sys.executable, "-m", "trl_r1", "eval", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partial = tmp_path / "killed" / ".samples.partial"
    while process.poll() is None and len(list(partial.glob("*.parquet"))) < 2:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.parquet")}
    assert 2 <= len(made) < 12, "it was killed in the middle"
    more = ("--n", 2, "--shard_size", 1)
    assert evaluate(tiny_model_dir, data, tmp_path / "killed", *more) == 0
    assert evaluate(tiny_model_dir, data, tmp_path / "calm", *more) == 0
    samples = tmp_path / "killed" / "samples"
    assert all((samples / name).stat().st_mtime_ns == time for name, time in made.items())
    assert pq.read_table(samples).equals(pq.read_table(tmp_path / "calm" / "samples"))
    killed, calm = document_of(tmp_path / "killed"), document_of(tmp_path / "calm")
    assert killed["scores"] == calm["scores"]


def test_problems_that_repeat_are_left_out_and_golds_that_can_t_be_graded_are_told(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = rows_file(tmp_path, 3)
    lines = data.read_text().splitlines()
    empty = {"prompt": [{"role": "user", "content": "no answer?"}], "solution": ""}
    data.write_text("\n".join([*lines, lines[0], json.dumps(empty)]) + "\n")
    assert evaluate(tiny_model_dir, data, tmp_path / "out", "--n", 1) == 0
    out = capsys.readouterr().out
    assert "4 problems x 1 samples" in out
    assert "left out: 1 problems that repeat another one" in out
    assert "1 problems can't be graded and count as wrong" in out
    document = document_of(tmp_path / "out")
    assert (document["left_out"], document["ungradable"]) == (1, 1)
    assert not [key for key in document["scores"] if key.startswith("cons@")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--n", 2, "--k", 4], "--k 4 needs as many samples a problem; --n is 2"),
        (["--temperature", -1], "temperature is -1.0"),
        (["--top_p", 0], "top_p is 0.0"),
        (["--format", "r9"], "r9"),
        (["--task", "gsm9k"], "unknown task 'gsm9k'"),
        (["--task", "small_talk_preferences"], "pairs"),
        (["--task", "aime_2024", "gsm8k"], "one task"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    change: list[Any],
    message: str,
    tiny_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trl_r1.evaluation.job.open_sampler", None)
    more = change if "--n" in change else [*change, "--n", 1]
    assert evaluate(tiny_model_dir, rows_file(tmp_path), tmp_path / "out", *more) == 1
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "2+2?", "solution": ""}\n', "none of the 1 problems can be graded"),
        ('{"prompt": "2+2?"}\n', "needs the column solution"),
        ('{"question": "2+2?"}\n', "have no `prompt`"),
        ('{"prompt": "", "solution": "4"}\n', "row 0: its prompt is empty"),
        ('{"prompt": "a", "solution": "4"}\n{"prompt": "a", "solu\n', "line 2"),
    ],
)
def test_hostile_files_are_told_in_a_sentence(
    lines: str,
    message: str,
    tiny_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "exam.jsonl"
    data.write_text(lines)
    assert evaluate(tiny_model_dir, data, tmp_path / "out", "--n", 1) == 1
    assert message in capsys.readouterr().out


def test_without_a_model_or_problems_it_says_what_to_give(
    tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--task", "gsm8k") == 1
    assert "name a model or a server" in capsys.readouterr().out
    assert run(tiny_model_dir) == 1
    assert "nothing to evaluate on; give --task, --data" in capsys.readouterr().out
    assert run(tiny_model_dir, "--task", "aime_2024", "gsm8k") == 1
    assert "64 for aime_2024, 4 for gsm8k" in capsys.readouterr().out


def test_a_comparison_pairs_problems_and_says_what_does_not_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = evaluation(tmp_path / "a", [[0, 0], [1, 0], [0, 0], [1, 1]])
    second = evaluation(tmp_path / "b", [[1, 1], [1, 1], [1, 1]], first=1, temperature=1.0)
    found = compare(first, second)
    rate = next(item for item in found.differences if item.figure == "pass@1")
    assert (rate.first, rate.second) == (pytest.approx(0.5), 1.0)
    assert rate.difference.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert (found.num_matched, found.num_only_first, found.num_only_second) == (3, 1, 0)
    assert found.other_settings == (("temperature", 0.6, 1.0),)
    output = tmp_path / "c" / "comparison.json"
    assert run("--compare", first, second, "--output", output) == 0
    out = capsys.readouterr().out
    assert "3 problems in both; 1 only in A, left out" in out
    assert "not the same: temperature 0.6 in A, 1.0 in B" in out
    assert json.loads(output.read_text())["num_matched"] == 3


def test_a_clear_difference_is_called_so_and_none_is_unclear(tmp_path: Path) -> None:
    base = evaluation(tmp_path / "a", [[0, 0, 1, 0]] * 40)
    same = evaluation(tmp_path / "b", [[0, 1, 0, 0]] * 40)
    better = evaluation(tmp_path / "c", [[1, 1, 1, 0]] * 40)
    assert not compare(base, same).differences[0].is_clear
    assert compare(base, better).differences[0].is_clear


def test_what_can_t_be_compared_is_told(tmp_path: Path) -> None:
    first = evaluation(tmp_path / "a", [[1.0]])
    other = evaluation(tmp_path / "b", [[1.0]], first=5)
    with pytest.raises(PipelineError, match=r"no problem in common .1 of gsm8k, and 1 of gsm8k."):
        compare(first, other)
    with pytest.raises(PipelineError, match="holds no evaluation"):
        compare(first, tmp_path / "nowhere")
    (other / "problems.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(PipelineError, match="can't be read"):
        compare(first, other)


def test_evaluations_that_were_made_otherwise_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = evaluation(tmp_path / "a", [[1, 0], [0, 0]], num_samples=2, model_revision="main")
    second = evaluation(tmp_path / "b", [[1, 0, 1], [0, 0, 1]], num_samples=3)
    document = document_of(second)
    document["template"] = {"reasoning_format": "zero", "chat_template_hash": "f00"}
    document["versions"] = {"trl": "1.0"}
    (second / "evaluation.json").write_text(json.dumps(document))
    assert run("--compare", first, second) == 0
    out = capsys.readouterr().out
    for line in (
        "num_samples 2 in A, 3 in B",
        "model_revision main in A, None in B",
        "chat_template_hash None in A, f00 in B",
        "reasoning_format None in A, zero in B",
        "version of trl None in A, 1.0 in B",
    ):
        assert f"not the same: {line}" in out
    (second / "evaluation.json").write_text("{broken")
    assert run("--compare", first, second) == 1
    assert "evaluation.json can't be read" in capsys.readouterr().out


def test_what_is_no_number_counts_as_wrong(tmp_path: Path) -> None:
    rows = [sample(0, 0, float("nan")), sample(1, 0, None), sample(2, 0, 1.0), sample(3, 0, 0.5)]
    document = write_record(tmp_path, rows, 4, 1, {})
    assert document["scores"]["pass@1"] == 0.25


def test_the_same_problem_has_one_hash_in_every_format() -> None:
    from trl_r1.reasoning_format import get_format

    hashes = {
        problem_hash({"prompt": get_format(name).prompt("2+2?"), "solution": "4", "task": "t"})
        for name in ("r1", "zero", "r1_example")
    }
    assert len(hashes) == 1
    other = problem_hash({"prompt": "2+2?", "solution": "5", "task": "t"})
    assert other not in hashes


def test_repeated_problems_are_one_cluster(tmp_path: Path) -> None:
    rows = [sample(i, 0, float(i % 2), problem_hash=f"h{i % 2}") for i in range(40)]
    document = write_record(tmp_path, rows, 40, 1, {})
    low, high = document["scores"]["pass@1_interval"]
    assert document["duplicates"] == 38
    assert high - low > 0.5, "two problems tell little, however often they are asked"


def test_lost_samples_are_an_error(tmp_path: Path) -> None:
    rows = [sample(0, 0, 1.0), sample(0, 1, 1.0), sample(1, 0, 0.0)]
    with pytest.raises(RuntimeError, match="3 samples were drawn for 2 problems; expected 2 each"):
        write_record(tmp_path, rows, 2, 2, {})


def test_what_is_kept_for_a_report_is_bounded_and_spread(tmp_path: Path) -> None:
    extra = {"prompt": "?", "completion": "x", "token_source": "engine", "finish_reason": "stop"}
    rows = [sample(p, s, 1.0, seed=0, **extra) for p in range(500) for s in range(4)]
    keep_some(tmp_path / "evaluation" / "after.parquet", rows)
    kept = pq.read_table(tmp_path / "evaluation" / "after.parquet").to_pylist()
    assert len(kept) == MAX_KEPT
    indices = sorted({row["prompt_index"] for row in kept})
    assert len(indices) == 100
    assert max(b - a for a, b in itertools.pairwise(indices)) == 5


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data sets are not here")
def test_a_real_set_goes_through_the_whole_command(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ("--task", "math_500", "--num_rows", 4, "--n", 2)
    assert evaluate(tiny_model_dir, DATA / "math500", out, *more) == 0
    document = document_of(out)
    assert set(document["tasks"]) == {"math_500"}
    assert document["samples"] == 8


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data sets are not here")
def test_programs_are_graded_in_the_sandbox_and_not_voted_on(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    more = ("--task", "mbpp", "--num_rows", 2, "--n", 2)
    assert evaluate(tiny_model_dir, DATA / "mbpp" / "mbpp.jsonl", out, *more) == 0
    assert "pass@2" in document_of(out)["scores"]
    assert "cons@2" not in document_of(out)["scores"]


def test_servers_are_evaluated_with_their_own_template_and_each_answer_is_asked_for_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer()
    url, _ = in_background(server.start)
    data, out = rows_file(tmp_path, 7), tmp_path / "out"
    arguments = [url, "--data", data, "--format", "zero_bare", "--n", 4, "--output", out]
    assert run(*arguments, "--shard_size", 2) == 0, capsys.readouterr().out
    assert server.num_requests == 28
    assert run(*arguments, "--shard_size", 2) == 0
    assert server.num_requests == 28
    document = document_of(out)
    assert document["template"]["chat_template_hash"] is None
    assert document["scores"]["format"] == 1.0
    rows = pq.read_table(out / "samples").to_pylist()
    right = [row["score"] == 1.0 for row in rows]
    assert document["scores"]["pass@1"] == pytest.approx(sum(right) / len(right))
    assert all((row["answer"] == row["solution"]) == (row["score"] == 1.0) for row in rows)
    assert not list(out.rglob(".answers-*"))


def test_parts_of_an_evaluation_end_as_the_whole_and_the_last_puts_it_together(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, shared, alone = rows_file(tmp_path, 5), tmp_path / "shared", tmp_path / "alone"
    fixed = ("--n", 2, "--shard_size", 1)
    assert evaluate(tiny_model_dir, data, shared, *fixed, "--shard", "2/2") == 0
    assert "other parts are not" in capsys.readouterr().out
    assert not (shared / "evaluation.json").exists()
    made = {path.name.split("-")[1] for path in shared.rglob("*.parquet")}
    assert made == {"00001", "00003"}
    assert evaluate(tiny_model_dir, data, shared, *fixed, "--shard", "1/2") == 0
    assert evaluate(tiny_model_dir, data, alone, *fixed) == 0
    assert document_of(shared)["scores"] == document_of(alone)["scores"]
    tables = [pq.read_table(folder / "samples") for folder in (shared, alone)]
    assert tables[0].equals(tables[1])
    assert evaluate(tiny_model_dir, data, tmp_path / "other", "--shard", "3/2", "--n", 1) == 1
    assert "'3/2' is no part of a job" in capsys.readouterr().out
