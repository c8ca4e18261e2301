"""Evaluations in the report: of `trl-r1 eval` on its own, and of a run's stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from report_runs import HOSTILE, write_evaluation, write_run

from trl_r1 import cli
from trl_r1.pipeline.ledger import Input, StageRecord, write_record
from trl_r1.report.page import collect
from trl_r1.report.reading import read_runs


def report(*folders: Path) -> str:
    output = folders[0].parent / "out.html"
    assert cli.main(["report", *map(str, folders), "--output", str(output)]) == 0
    return output.read_text(encoding="utf-8")


def cells(folders: list[Path]) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
    """By evaluation and task, the score and interval under each heading."""
    table: Any = collect(read_runs(folders))["evaluations"]
    return {
        (row["label"], row["task"]): {
            heading: (cell["text"], cell["interval"])
            for heading, cell in zip(table["headings"], row["cells"], strict=True)
            if cell["text"]
        }
        for row in table["rows"]
    }


def test_evaluations_are_in_one_table_with_a_row_a_task(tmp_path: Path) -> None:
    one, two = write_evaluation(tmp_path / "one"), write_evaluation(tmp_path / "two")
    found = cells([one, two])
    assert list(found) == [
        ("one", "digit_sums"),
        ("one", "my_talk"),
        ("one", "all"),
        ("two", "digit_sums"),
        ("two", "my_talk"),
        ("two", "all"),
    ]
    # Three samples of one problem: one right, one wrong, one that could not be graded.
    scores = {heading: text for heading, (text, _) in found[("one", "digit_sums")].items()}
    assert scores == {
        **{"pass@1": "0.333", "well-formed": "0.667", "length": "20.0"},
        **{"cut off": "0.000", "language": "0.250"},
    }
    assert found[("two", "my_talk")]["preference"] == ("0.750", "")


def test_a_report_of_evaluations_alone_has_their_samples_and_no_empty_figures(
    tmp_path: Path,
) -> None:
    text = report(write_evaluation(tmp_path / "one", f"me/{HOSTILE}", HOSTILE))
    assert 'id="evaluations"' in text
    assert 'id="samples"' in text
    for part in ("scores", "figure-1", "curves", "outcomes", "lineage", "alarms"):
        assert f'id="{part}"' not in text
    assert "2,048 tokens" in text
    assert "<script>alert" not in text
    assert "the answer “8” does not agree" in text


def test_a_stage_that_evaluates_is_no_model_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    record = StageRecord(
        "exam",
        "evaluation",
        "finished",
        inputs=(Input("model_name_or_path", "@zero", "weights", "bb", "zero", "model"),),
        scores={"pass@1": 0.5},
    )
    write_evaluation(run / "exam")
    write_record(run / "exam", record)
    assert [name for name, _ in cells([run])] == ["small: exam"] * 3
    (shown,) = collect(read_runs([run]))["runs"]
    assert [row["name"] for row in shown["table"]] == ["base", "zero"]
    assert 'id="figure-1"' in report(run)


@pytest.mark.parametrize("document", ['{"model": ', "[]", '{"model": "m", "settings": 3}'])
def test_a_damaged_evaluation_says_what_to_do(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_evaluation(tmp_path / "one")
    (folder / "evaluation.json").write_text(document)
    assert cli.main(["report", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "evaluation.json can't be read; run the same trl-r1 eval again" in said


def test_a_damaged_evaluation_of_a_run_is_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    write_evaluation(run / "exam")
    write_record(run / "exam", StageRecord("exam", "evaluation", "finished"))
    (run / "exam" / "evaluation.json").write_text("{")
    text = report(run)
    assert "exam/evaluation.json can&#39;t be read" in text
    assert 'id="evaluations"' not in text


def test_scores_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "one")
    document = json.loads((folder / "evaluation.json").read_text())
    odd = {"pass@1": "high", "format": 0.5, "format_interval": [0.1, None], "cons@4": None}
    document.update(tasks={"sums": odd, "broken": 3}, problems="many", samples=None)
    (folder / "evaluation.json").write_text(json.dumps(document))
    assert cells([folder])[("one", "sums")] == {"well-formed": ("0.500", "")}


def test_an_unfinished_evaluation_is_a_mistake_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_evaluation(tmp_path / "one")
    (folder / "evaluation.json").unlink()
    assert cli.main(["report", str(folder)]) == 1
    assert "no evaluation.json of a finished evaluation" in capsys.readouterr().out
    shutil.rmtree(folder / "samples")
    assert cli.main(["report", str(folder)]) == 1
