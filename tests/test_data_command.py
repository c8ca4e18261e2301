"""`trl-r1 data`: one folder out, whole or not at all, and readable mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard

from trl_r1.cli import main
from trl_r1.data.card import DataLog


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", [f"a question of number {i} about it" for i in range(20)])


def write(path: Path, problems: list[str], **extra: Any) -> Path:
    rows = [
        {"problem": text, "completion": f"<think>so</think>{text}", **extra} for text in problems
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def run(*arguments: object) -> int:
    return main(["data", *map(str, arguments)])


def test_steps_follow_each_other_and_the_card_tells_all_of_them(
    rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rows_file.open("a", encoding="utf-8") as file:
        file.write(rows_file.read_text(encoding="utf-8").splitlines()[3] + "\n")
    tests = write(tmp_path / "tests.jsonl", ["A QUESTION of number 7, about it?"])
    assert run("dedup", rows_file, "--near", 0.95, "--output", tmp_path / "one") == 0
    clean = ("decontaminate", tmp_path / "one", "--against", tests, "--output", tmp_path / "two")
    assert run(*clean) == 0
    shown = capsys.readouterr().out
    assert "exact duplicates: 21 → 20 rows" in shown
    assert "| tests | 1 | 1 | 1 | 1 |" in shown
    rows = load_dataset(str(tmp_path / "two"), split="train")
    assert len(rows) == 19
    steps = [record.step for record in DataLog.of_folder(tmp_path / "two").records]
    assert steps == ["exact duplicates", "near-duplicates", "decontamination"]
    card = DatasetCard.load(tmp_path / "two" / "README.md")
    assert "| decontamination | 20 → 19 | dropped 1 rows" in card.text
    (hit,) = (tmp_path / "two/report/decontamination.jsonl").read_text().splitlines()
    assert json.loads(hit)["text"] == "a question of number 7 about it"


def test_a_finished_folder_is_left_alone_and_another_is_not_overwritten(
    rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("dedup", rows_file, "--output", out) == 0
    before = (out / "README.md").stat().st_mtime_ns
    assert run("dedup", rows_file, "--output", out) == 0
    assert (out / "README.md").stat().st_mtime_ns == before
    assert "is finished already" in capsys.readouterr().out
    assert run("dedup", rows_file, "--near", 0.5, "--output", out) == 1
    assert "made with other settings or data" in capsys.readouterr().out
    (tmp_path / "foreign").mkdir()
    assert run("dedup", rows_file, "--output", tmp_path / "foreign") == 1
    assert list((tmp_path / "foreign").iterdir()) == []


def test_a_killed_command_leaves_no_folder_and_goes_on_when_given_again(tmp_path: Path) -> None:
    problems = [f"{i} words {i * 7919 % 1000} that {i * 31} differ {i}" for i in range(30_000)]
    rows, out = write(tmp_path / "rows.jsonl", problems), tmp_path / "out"
    command = [sys.executable, "-m", "trl_r1", "data", "dedup", str(rows), "--near", "0.9"]
    process = subprocess.Popen([*command, "--output", str(out)], stdout=subprocess.DEVNULL)
    work = tmp_path / ".out.partial" / ".work" / "near"
    while process.poll() is None and not list(work.glob("*.parquet")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not out.exists()
    kept = {path: path.stat().st_mtime_ns for path in work.glob("*.parquet")}
    assert kept, "the command ended before it could be killed"
    assert run("dedup", rows, "--near", 0.9, "--output", tmp_path / "whole") == 0
    made = {}

    import trl_r1.data.output as output

    finish = output.OutputFolder.finish

    def watched(self: Any, *args: Any, **options: Any) -> None:
        made.update({path: path.stat().st_mtime_ns for path in work.glob("*.parquet")})
        finish(self, *args, **options)

    output.OutputFolder.finish = watched  # type: ignore[method-assign]
    try:
        assert run("dedup", rows, "--near", 0.9, "--output", out) == 0
    finally:
        output.OutputFolder.finish = finish  # type: ignore[method-assign]
    assert kept.items() <= made.items()
    first, second = (load_dataset(str(f), split="train") for f in (out, tmp_path / "whole"))
    assert first.to_list() == second.to_list()
    assert not (out / ".work").exists()


def test_what_was_begun_with_other_settings_is_begun_again(rows_file: Path, tmp_path: Path) -> None:
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / ".settings.json").write_text("{}")
    (partial / "train-00000-of-00001.parquet").write_text("of other rows")
    assert run("dedup", rows_file, "--output", tmp_path / "out") == 0
    assert len(load_dataset(str(tmp_path / "out"), split="train")) == 20


def test_two_folders_of_one_name_are_not_taken_for_each_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = write(tmp_path / name / "rows.jsonl", [name])
        assert run("dedup", rows, "--output", tmp_path / name / "out") == 0
    folders = (str(tmp_path / name / "out") for name in ("a", "b"))
    assert [load_dataset(f, split="train")["problem"][0] for f in folders] == ["a", "b"]


def test_filter_takes_pass_rates_and_lengths(
    rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [
        {"prompt": f"a question of number {i} about it", "reward_math_answer": float(i < 10 * k)}
        for i in range(20)
        for k in range(2)
    ]
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(map(json.dumps, samples)), encoding="utf-8")
    limits = ("--min-pass-rate", 0.4, "--max-pass-rate", 0.6)
    out = tmp_path / "out"
    assert run("filter", rows_file, "--pass-rates", path, *limits, "--output", out) == 0
    assert "| 0.25 to 0.5 | 10 |" in capsys.readouterr().out
    rows = load_dataset(str(out), split="train")
    assert set(rows["pass_rate"]) == {0.5}
    assert run("filter", rows_file, "--max-length", 17, "--output", tmp_path / "all") == 0
    assert run("filter", rows_file, "--max-length", 3, "--output", tmp_path / "none") == 1
    assert "no row has 0 to 3 words; the rows have 17 to 17" in capsys.readouterr().out
    assert run("filter", rows_file, "--min-pass-rate", 0.1, "--output", tmp_path / "x") == 1
    assert "need --pass-rates" in capsys.readouterr().out


def test_mix_takes_paths_and_tasks(
    rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gsm = tmp_path / "gsm.jsonl"
    gsm.write_text('{"question": "1+1?", "answer": "one\\n#### 2"}\n' * 30, encoding="utf-8")
    chat = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    chat.write_text(json.dumps({"messages": turns}) + "\n", encoding="utf-8")
    sources = (f"{gsm},task=gsm8k,num_rows=9", f"{chat},kind=general,name=talk")
    assert run("mix", *sources, "--output", tmp_path / "out") == 0
    assert "| gsm | 9 | 90.0% |\n" in capsys.readouterr().out
    rows = load_dataset(str(tmp_path / "out"), split="train")
    assert rows.column_names == ["messages", "kind", "source", "task", "solution"]
    assert sorted(set(rows["source"])) == ["gsm", "talk"]
    assert run("mix", f"{gsm},shares=1", "--output", tmp_path / "x") == 1
    assert "unknown key 'shares'; did you mean 'share'?" in capsys.readouterr().out


def test_stats_show_lengths_and_shares_and_check_a_template(
    tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "<think>1</think>2"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps({"messages": turns, "source": "a"}) + "\n") * 4, encoding="utf-8")
    assert run("stats", path, "--tokenizer", tiny_model_dir, "--template", tiny_model_dir) == 0
    shown = capsys.readouterr().out
    assert "| problem | 3 | 3 | 3 | 3 | 3 | 3 | 12 |" in shown
    assert "| a | 4 | 100.0% | 100.0% |" in shown
    assert "keeps the 4 targets checked" in shown
    assert run("stats", tmp_path / "none.jsonl") == 1
    assert "none.jsonl" in capsys.readouterr().out
