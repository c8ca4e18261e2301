"""The runner: what it runs, skips, reruns and resumes, and what a person sees of it."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_stages
import yaml

from trl_r1.cli import main
from trl_r1.pipeline.ledger import StageRecord, data_ancestors, read_record, weight_ancestors

FILES = {
    "pipeline.yaml": "name: toy\nseed: 3\n",
    "01_base.yaml": "stage: toy_base\n",
    "02_zero.yaml": """\
stage: toy_rl
model_name_or_path: "@base"
datasets: [{task: digit_sums, num_rows: 8}]
rewards: [{use: math_answer}]
""",
    "03_data.yaml": """\
stage: toy_sampling
model_name_or_path: "@zero"
datasets: [{task: digit_sums, num_rows: 8}]
""",
    "04_cold_start.yaml": """\
stage: toy_sft
model_name_or_path: "@base"
datasets: [{dataset_name: "@data"}]
""",
    "05_student.yaml": """\
stage: toy_sft
model_name_or_path: "@base/student"
datasets: [{task: small_talk, num_rows: 8}]
""",
}
ALL = ["base", "zero", "data", "cold_start", "student"]


class Workbench:
    """A folder of recipes, a folder for its run, and the toy stages' journal."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.recipes, self.run_dir = folder / "recipes", folder / "runs" / "toy"
        self.journal_file = folder / "journal"
        self.out = ""
        self.recipes.mkdir()
        for name, text in FILES.items():
            if name != "pipeline.yaml":
                text += f"journal: {self.journal_file}\n"
            (self.recipes / name).write_text(text)

    def run(self, *options: str, status: int = 0) -> str:
        """Run the command, and forget the journal of earlier runs; returns what it printed."""
        self.journal_file.write_text("")
        assert main(["run", str(self.recipes), *options]) == status, self.capsys.readouterr().out
        self.out = self.capsys.readouterr().out
        assert "Traceback" not in self.out
        return self.out

    def journal(self, word: str = "begin") -> list[str]:
        lines = self.journal_file.read_text().splitlines()
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(word)]

    def value(self, stage: str, artifact: str = "model") -> float:
        return float((self.run_dir / stage / artifact / "value").read_text())

    def record(self, stage: str) -> StageRecord:
        record = read_record(self.run_dir / stage)
        assert record is not None
        return record


@pytest.fixture
def bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workbench]:
    toy_stages.register(monkeypatch.setitem)
    monkeypatch.chdir(tmp_path)
    yield Workbench(tmp_path, capsys)
    assert not toy_stages.FAILURES, "a planned failure did not happen"


def test_stages_run_in_order_each_from_what_it_names(bench: Workbench) -> None:
    bench.run()
    assert bench.journal() == ALL
    assert [bench.value(name) for name in ("base", "zero", "cold_start")] == [3.0, 6.0, 6.0]
    assert bench.value("data", "dataset") == 9.0
    record = json.loads((bench.run_dir / "zero" / "stage.json").read_text())
    keys = "name, stage, status, inputs, recipe, seed, versions, scores, seconds"
    assert set(keys.split(", ")) <= set(record)
    assert (record["status"], record["seed"]) == ("finished", 3)
    assert {item["role"] for item in record["inputs"]} == {"weights", "reward"}
    assert record["versions"]["trl"].startswith("1.16")
    assert yaml.safe_load((bench.run_dir / "zero" / "recipe.yaml").read_text()) == record["recipe"]
    assert weight_ancestors(bench.run_dir, "cold_start") == {"base"}
    assert data_ancestors(bench.run_dir, "cold_start") == {"data", "zero", "base"}


def test_what_is_finished_is_skipped(bench: Workbench) -> None:
    bench.run()
    out = bench.run()
    assert bench.journal() == []
    assert out.count("skip    finished") == len(ALL)


def test_a_change_reruns_the_stage_and_all_that_depends_on_it(bench: Workbench) -> None:
    bench.run()
    out = bench.run("--set", "zero.gain=2.0")
    assert bench.journal() == ["zero", "data", "cold_start"]
    assert bench.value("zero") == 9.0
    assert "zero        rerun   gain: (default) -> 2.0" in out
    assert "data        rerun   @zero changes" in out
    assert "cold_start  rerun   @data changes" in out
    assert "student     skip    finished" in out
    assert out.index("Plan for") < out.index("[1/3] zero")


def test_a_change_of_what_is_only_shown_reruns_nothing(bench: Workbench) -> None:
    bench.run()
    bench.run("--set", "zero.logging_steps=7", "--set", "zero.hub_token=other")
    assert bench.journal() == []


def test_another_seed_reruns_everything(bench: Workbench) -> None:
    bench.run()
    assert "seed: 3 -> 4" in bench.run("--seed", "4")
    assert bench.journal() == ALL


def test_a_changed_data_file_or_reward_reruns_the_stage(bench: Workbench) -> None:
    rows, reward = bench.recipes / "rows.jsonl", bench.recipes / "mine.py"
    rows.write_text('{"prompt": "1+1=?", "solution": "2"}\n')
    reward.write_text("def mine(completions, **kwargs):\n    return [0.0] * len(completions)\n")
    options = (
        "--set",
        "zero.datasets.0={dataset_name: rows.jsonl}",
        "--set",
        "zero.rewards.0.use=mine.py:mine",
    )
    bench.run(*options)
    bench.run(*options)
    assert bench.journal() == []
    rows.write_text('{"prompt": "1+2=?", "solution": "3"}\n')
    assert "rows.jsonl changed" in bench.run(*options)
    assert bench.journal() == ["zero", "data", "cold_start"]
    reward.write_text(reward.read_text().replace("0.0", "1.0"))
    assert "mine.py:mine changed" in bench.run(*options)
    assert bench.journal() == ["zero", "data", "cold_start"]


def test_a_lost_artifact_reruns_its_stage(bench: Workbench) -> None:
    bench.run()
    (bench.run_dir / "zero" / "rollouts" / "value").unlink()
    (bench.run_dir / "zero" / "rollouts").rmdir()
    assert "zero        rerun   its rollouts is gone" in bench.run()


def test_a_range_of_stages_can_be_chosen(bench: Workbench) -> None:
    bench.run("--until", "data")
    assert bench.journal() == ["base", "zero", "data"]
    bench.run("--from", "cold_start")
    assert bench.journal() == ["cold_start", "student"]
    bench.run("--only", "zero", "--set", "zero.gain=2.0")
    assert bench.journal() == ["zero"]
    assert bench.value("data", "dataset") == 9.0, "what lies outside stays as it is"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--only", "cold_start"), "@base is not there: stage 'base' is not finished"),
        (("--from", "data"), "@zero is not there: stage 'zero' is not finished"),
        (("--only", "zeroo"), "has no stage 'zeroo'; did you mean 'zero'?"),
        (("--from", "student", "--until", "zero"), "nothing to run"),
        (("--only", "zero", "--from", "zero"), "--only goes with neither"),
        (("--accelerate_config", "zero9"), "no such file, and no preset: ddp, fsdp1"),
        (("--num_processes", "2"), "go with --accelerate_config"),
    ],
)
def test_what_can_not_run_is_one_clear_line_before_any_work(
    options: tuple[str, ...], line: str, bench: Workbench
) -> None:
    out = bench.run(*options, status=1)
    assert bench.journal() == []
    assert line in out.splitlines()[-1]


def test_mistakes_keep_a_run_from_starting(bench: Workbench) -> None:
    out = bench.run("--set", "zero.gian=2.0", status=1)
    assert "unknown key 'gian'; did you mean 'gain'?" in out
    assert bench.journal() == []


def test_a_failed_stage_goes_on_at_its_checkpoint(bench: Workbench) -> None:
    toy_stages.FAILURES["zero", 3] = RuntimeError("out of luck")
    out = bench.run(status=1)
    assert "zero: RuntimeError: out of luck" in out
    assert "zero/log.txt" in out
    assert "goes on with zero" in out
    assert "Traceback" in (bench.run_dir / "zero" / "log.txt").read_text()
    assert bench.record("zero").status == "running"
    bench.run()
    assert bench.journal() == ALL[1:]
    assert [step for step in bench.journal("step") if "zero" in step] == ["zero 3"]


def test_the_old_result_stays_until_the_new_one_is_complete(bench: Workbench) -> None:
    bench.run()
    toy_stages.FAILURES["zero", 3] = RuntimeError("out of luck")
    bench.run("--set", "zero.gain=2.0", status=1)
    assert bench.value("zero") == 6.0
    assert bench.record("zero").status == "finished"
    assert "resume  cut short" in bench.run("--set", "zero.gain=2.0")
    assert "zero 2" not in bench.journal("step")
    assert bench.value("zero") == 9.0
    assert sorted(p.name for p in bench.run_dir.iterdir()) == sorted(
        [*ALL, ".lock", "log.txt", "run.json"]
    )


def test_an_attempt_with_another_recipe_is_not_resumed(bench: Workbench) -> None:
    toy_stages.FAILURES["zero", 3] = RuntimeError("out of luck")
    bench.run(status=1)
    bench.run("--set", "zero.gain=2.0")
    assert "zero 1" in bench.journal("step")
    assert bench.value("zero") == 9.0


def test_an_interrupt_is_one_line_and_the_next_run_goes_on(bench: Workbench) -> None:
    toy_stages.FAILURES["zero", 2] = KeyboardInterrupt()
    out = bench.run(status=130)
    assert out.splitlines()[-1] == "Stopped. The same command goes on from the last checkpoint."
    bench.run()
    assert bench.journal() == ALL[1:]
    assert "zero 1" not in bench.journal("step")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "not allowed to write")],
)
def test_trouble_with_the_disk_is_one_clear_line(number: int, words: str, bench: Workbench) -> None:
    toy_stages.FAILURES["zero", 2] = OSError(number, "no", "/somewhere/model")
    out = bench.run(status=1)
    assert f"zero: {words} (/somewhere/model)" in out.splitlines()[-1]


def test_a_folder_that_can_not_be_made_is_one_clear_line(bench: Workbench) -> None:
    (bench.folder / "file").write_text("")
    out = bench.run("--output_dir", "file/run", status=1)
    assert "can't write to" in out.splitlines()[-1]


def test_libraries_write_to_the_log_and_not_to_the_screen(bench: Workbench) -> None:
    out = bench.run()
    assert "a line that a library prints" not in out
    assert "a line that a library prints" in (bench.run_dir / "zero" / "log.txt").read_text()


def test_no_secret_is_stored(bench: Workbench) -> None:
    bench.run("--set", "zero.hub_token=hf_secret")
    for path in bench.run_dir.rglob("*"):
        assert not path.is_file() or "hf_secret" not in path.read_text()


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that were scored, by a stand-in that reads a toy model's value."""
    calls: list[str] = []

    def evaluate(path: str, settings: Any, *_: Any) -> dict[str, float]:
        calls.append("/".join(Path(path).parts[-2:]))
        scores = {"pass@1": float((Path(path) / "value").read_text()) / 100, "format": 1.0}
        scores |= {"mean_length": 12.0 + settings.num_samples, "general": 0.5}
        return scores | ({"preference": 2.0} if settings.preference_model else {})

    monkeypatch.setattr("trl_r1.stages.evaluation.evaluate_model", evaluate)
    return calls


SCORED = ["base/model", "zero/model", "cold_start/model", "base/student", "student/model"]
EVALUATION = "evaluation: {datasets: [{task: digit_sums, num_rows: 8}]}\n"


def test_a_model_is_scored_once_and_its_score_is_the_next_stage_s_before(
    bench: Workbench, evaluated: list[str]
) -> None:
    (bench.recipes / "pipeline.yaml").write_text(FILES["pipeline.yaml"] + EVALUATION)
    out = bench.run()
    # The student is no stage's main artifact, so nobody has scored it before.
    assert evaluated == SCORED
    assert bench.record("base").scores == {
        "after": {"pass@1": 0.03, "format": 1.0, "mean_length": 13.0, "general": 0.5}
    }
    assert bench.record("zero").scores["before"] == bench.record("base").scores["after"]
    assert bench.record("zero").scores["after"]["pass@1"] == 0.06
    assert bench.record("data").scores == {}
    assert bench.record("data").scored_on == {}
    scored_on = bench.record("zero").scored_on
    assert scored_on["datasets"] == [{"task": "digit_sums", "num_rows": 8}]
    assert (scored_on["temperature"], scored_on["num_samples"]) == (0.6, 1)
    row = next(line for line in out.splitlines() if line.startswith("zero "))
    assert "@base" in row
    assert "digit_sums" in row
    assert "0.030 → 0.060" in row
    assert "13 → 13" in row


def test_a_changed_evaluation_scores_again_and_trains_nothing(
    bench: Workbench, evaluated: list[str]
) -> None:
    (bench.recipes / "pipeline.yaml").write_text(FILES["pipeline.yaml"] + EVALUATION)
    bench.run()
    evaluated.clear()
    out = bench.run("--set", "evaluation.num_samples=4")
    assert bench.journal() == []
    assert "zero        score   the evaluation changed; the model stays" in out
    assert evaluated == SCORED
    assert bench.record("zero").scores["after"]["mean_length"] == 16.0
    assert bench.record("zero").scores["before"]["mean_length"] == 16.0


def test_a_stage_cut_short_while_scoring_is_not_trained_again(
    bench: Workbench, evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.recipes / "pipeline.yaml").write_text(FILES["pipeline.yaml"] + EVALUATION)

    def interrupted(path: str, *rest: Any) -> dict[str, float]:
        if "zero" in path:
            raise KeyboardInterrupt
        return {"pass@1": 0.5}

    with monkeypatch.context() as patch:
        patch.setattr("trl_r1.stages.evaluation.evaluate_model", interrupted)
        bench.run(status=130)
    assert bench.record("zero").status == "trained"
    assert "zero        score   trained, not scored yet" in bench.run()
    assert bench.journal() == ["data", "cold_start", "student"]
    assert bench.record("zero").scores["before"] == {"pass@1": 0.5}


def test_a_preference_model_scores_the_stages_after_it(
    bench: Workbench, evaluated: list[str]
) -> None:
    (bench.recipes / "pipeline.yaml").write_text(
        FILES["pipeline.yaml"] + EVALUATION.replace("}\n", ', preference_model: "@preference"}\n')
    )
    (bench.recipes / "03_data.yaml").unlink()
    (bench.recipes / "04_cold_start.yaml").unlink()
    (bench.recipes / "03_preference.yaml").write_text(
        'stage: toy_reward_model\nmodel_name_or_path: "@base"\n'
        "datasets: [{task: small_talk_preferences, num_rows: 8}]\n"
    )
    (bench.recipes / "04_general.yaml").write_text(FILES["02_zero.yaml"].replace("@base", "@zero"))
    bench.run()
    assert "preference" not in bench.record("zero").scores["after"]
    assert bench.record("general").scores["before"]["preference"] == 2.0
    assert bench.record("general").scores["after"]["preference"] == 2.0
    bench.run()
    assert bench.journal() == []


def test_the_table_can_be_printed_again(bench: Workbench) -> None:
    bench.run()
    assert main(["table", str(bench.run_dir)]) == 0
    lines = bench.capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["stage", *ALL]
    assert main(["table", str(bench.folder)]) == 1
    assert "is not the folder of a run" in bench.capsys.readouterr().out
