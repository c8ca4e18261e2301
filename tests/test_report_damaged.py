"""The report of runs that are unfinished, damaged, of another version, or no runs at all."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_runs import report, write_rollouts, write_run

from trl_r1 import cli
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.report.page import collect, render
from trl_r1.report.reading import read_runs


def _cut_short(run: Path) -> str:
    record = json.loads((run / "zero" / "stage.json").read_text())
    details = {"step": 4, "max_steps": 12}
    (run / "zero" / "stage.json").write_text(
        json.dumps({**record, "status": "running", "scores": {}, "details": details})
    )
    return "zero is still running or was cut short at step 4 of 12"


def _torn_metrics(run: Path) -> str:
    file = run / "zero" / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    return "zero/metrics.jsonl: 1 damaged line is left out."


def _torn_scoring(run: Path) -> str:
    file = run / "zero" / "evaluation" / "after.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    return "zero/evaluation: 1 damaged file is left out."


def _an_older_record(run: Path) -> str:
    record = json.loads((run / "zero" / "stage.json").read_text())
    kept = {key: record[key] for key in ("name", "stage", "status", "inputs", "recipe", "seed")}
    kept["scores"] = {"before": {"pass@1": 0.25}, "after": {"pass@1": 0.625}}
    (run / "zero" / "stage.json").write_text(json.dumps(kept))
    return "0.625"


def _a_newer_record(run: Path) -> str:
    record = json.loads((run / "zero" / "stage.json").read_text())
    (run / "zero" / "stage.json").write_text(json.dumps({**record, "status": "postponed"}))
    return "zero/stage.json can"


def _damaged_record(run: Path) -> str:
    (run / "zero" / "stage.json").write_text('{"name": "ze')
    return "zero/stage.json can"


def _damaged_metrics(run: Path) -> str:
    with (run / "zero" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 13, "kl": \xff\xfe\n[1]\nnull\n')
    return "zero/metrics.jsonl: 3 damaged lines are left out."


def _damaged_rollouts(run: Path) -> str:
    first, second, *_ = sorted((run / "zero" / "rollouts").iterdir())
    first.write_bytes(first.read_bytes()[:100])
    body = bytearray(second.read_bytes())
    body[4:400] = b"\0" * 396
    second.write_bytes(body)
    return "1 damaged file is left out."


def _no_run_file(run: Path) -> str:
    (run / "run.json").unlink()
    return "run.json is missing"


def _bad_run_file(run: Path) -> str:
    (run / "run.json").write_text("[")
    return "run.json can"


def _lost_model(run: Path) -> str:
    (run / "zero" / "model").rmdir()
    return "zero: its model is gone."


def _odd_logs(run: Path) -> str:
    lines = ['{"step": null}', '{"step": true}', '{"step": 1, "kl": NaN}', '{"kl": 1}']
    (run / "zero" / "metrics.jsonl").write_text("\n".join(lines))
    return "Not begun: later."


def _run_again(run: Path) -> str:
    shutil.copytree(run / "zero", run / ".zero.next")
    return "zero is being run again"


@pytest.mark.parametrize(
    "harm",
    [
        _cut_short,
        _torn_metrics,
        _torn_scoring,
        _an_older_record,
        _a_newer_record,
        _damaged_record,
        _damaged_metrics,
        _damaged_rollouts,
        _no_run_file,
        _bad_run_file,
        _lost_model,
        _odd_logs,
        _run_again,
    ],
)
def test_a_run_that_is_not_whole_gives_a_report_that_says_so(harm: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    said = harm(run)
    assert said in report(run)


ODD = (None, True, -1, 1e308, math.inf, math.nan, "", "\ud800<script>", [], {}, [[None]], 10**400)


def _edited(value: Any, chance: random.Random) -> Any:
    """The value with something odd in some place of it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        return {**value, key: _edited(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        place = chance.randrange(len(value))
        return [*value[:place], _edited(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD)


def test_whatever_is_in_a_run_s_files_there_is_a_report_or_a_mistake(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", steps=2, rows=4)
    whole = {path: path.read_text() for path in run.rglob("*.json*")}
    assert len(whole) == 6
    shown = 0
    for seed in range(150):
        chance = random.Random(seed)
        path = chance.choice(list(whole))
        lines = whole[path].splitlines() if path.suffix == ".jsonl" else [whole[path]]
        place = chance.randrange(len(lines))
        lines[place] = json.dumps(_edited(json.loads(lines[place]), chance))
        path.write_text("\n".join(lines))
        with contextlib.suppress(PipelineError):
            render(collect(read_runs([run]))).encode()
            shown += 1
        path.write_text(whole[path])
    assert shown > 140


def test_a_run_that_has_only_begun_gives_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    for name in ("base", "zero", "picked"):
        shutil.rmtree(run / name)
    text = report(run)
    assert "Not begun: base, zero, picked, later." in text
    assert "No stage has scores yet." in text


def test_what_is_not_a_run_is_a_mistake_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(tmp_path / "none")]) == 1
    assert cli.main(["report", str(tmp_path)]) == 1
    run = write_run(tmp_path / "small")
    assert cli.main(["report", str(run), "--output", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 3
    assert "no such folder" in lines[0]
    assert "is not the folder of a run" in lines[1]
    assert "is a folder; name a file" in lines[2]


def test_what_a_stage_in_work_has_made_so_far_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", steps=2, rows=4)
    (run / "zero" / "rollouts").rename(run / "zero" / ".rollouts.partial")
    record = json.loads((run / "picked" / "stage.json").read_text())
    record.update(status="running", details={"step": 1, "max_steps": 2})
    (run / "picked" / "stage.json").write_text(json.dumps(record))
    rows = {"prompt": ["p"] * 4, "completion": ["c"] * 4, "verdict": [*["kept"] * 3, "wrong"]}
    folder = run / "picked" / ".samples.partial"
    folder.mkdir()
    pq.write_table(pa.table(rows), folder / "train-00000-of-00002.parquet")
    data = collect(read_runs([run]))
    kinds = [(own["stage"], own["kind"], own["total"]) for own in data["samples"]["sources"][2:]]
    assert kinds == [("zero", "rollouts", 8), ("picked", "samples", 4)]
    (bars,) = data["runs"][0]["outcomes"]
    assert bars["partial"]
    assert [(bar["word"], bar["percent"]) for bar in bars["bars"]] == [
        ("kept", "75.0%"),
        ("wrong", "25.0%"),
    ]


def test_the_folder_of_a_stage_is_a_mistake_that_names_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "small")
    assert cli.main(["report", str(run / "zero")]) == 1
    assert f"is a stage; name the folder of its run, {run}" in capsys.readouterr().out


def test_rollouts_that_are_written_while_the_report_is_made_do_no_harm(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    write_rollouts(run / "zero" / "rollouts", 99, 8)
    path = run / "zero" / "rollouts" / "step-0000099-0000-rank-000.parquet"
    path.rename(path.with_name(f".{path.name}.partial"))
    sources = collect(read_runs([run]))["samples"]["sources"]
    assert [source["total"] for source in sources] == [4, 4, 96]
