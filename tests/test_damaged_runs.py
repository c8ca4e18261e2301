"""Runs whose folder was tampered with: what is lost is made again, and nothing else is touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_run import ALL, Workbench, bench
from toy_stages import FAILURES

from trl_r1.cli import main

__all__ = ["bench"]


def change_record(bench: Workbench, **changes: Any) -> None:
    path = bench.run_dir / "zero" / "stage.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "done"},
        {"artifacts": None},
        {"artifacts": [1]},
        {"fingerprint": None},
        {"scores": [1]},
        {"seconds": "long"},
        {"details": []},
        {"recipe": 3},
        {"name": 3},
        {"inputs": [{"x": 1}]},
    ],
)
def test_a_record_of_the_wrong_form_is_one_line(
    bench: Workbench, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    bench.run()
    change_record(bench, **changes)
    assert f"stage.json can't be read ({next(iter(changes))}" in bench.run(status=1)
    assert main(["table", str(bench.run_dir)]) == 1
    assert "move the folder" in capsys.readouterr().out


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "artifact": (lambda zero: shutil.rmtree(zero / "model"), "its model is gone"),
    "file": (lambda zero: (zero / "model" / "value").unlink(), "its model/value is gone"),
    "half": (lambda zero: (zero / "rollouts" / "value").write_text(""), "value is cut short"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_artifact_is_made_again(bench: Workbench, kind: str) -> None:
    bench.run()
    damage, words = DAMAGE[kind]
    damage(bench.run_dir / "zero")
    assert words in bench.run()
    assert bench.journal() == ["zero"], "it came out the same, so what follows stays"
    assert (bench.value("zero"), bench.value("zero", "rollouts")) == (6.0, 6.0)


def test_what_somebody_adds_to_an_artifact_reruns_nothing(bench: Workbench) -> None:
    bench.run()
    (bench.run_dir / "zero" / "model" / "README.md").write_text("my model")
    bench.run()
    assert bench.journal() == []


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_no_run_made_is_never_removed(bench: Workbench, kind: str) -> None:
    bench.run_dir.mkdir(parents=True)
    place = bench.run_dir / "zero"
    mine = place / "thesis.txt" if kind == "folder" else place
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    assert "zero is in the way: it has no stage.json" in bench.run(status=1)
    assert mine.read_text() == "years of work"


def test_files_under_the_names_of_working_folders_are_in_nobody_s_way(bench: Workbench) -> None:
    bench.run()
    for name in (".zero.next", ".zero.old", ".zero.trash"):
        (bench.run_dir / name).write_text("")
    bench.run("--set", "zero.gain=2.0")
    assert bench.value("zero") == 9.0


@pytest.mark.parametrize("name", [".lock", "run.json", "log.txt"])
def test_a_folder_in_place_of_a_file_is_one_line(bench: Workbench, name: str) -> None:
    bench.run()
    (bench.run_dir / name).unlink()
    (bench.run_dir / name).mkdir()
    assert "Is a directory" in bench.run(status=1).splitlines()[-1]


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit("odd")])
def test_a_stage_that_ends_the_process_is_a_failed_stage(
    bench: Workbench, error: BaseException
) -> None:
    FAILURES[("zero", 2)] = error
    assert f"zero: {type(error).__name__}" in bench.run(status=1)
    bench.run()
    assert bench.journal() == ALL[1:]


def test_a_failure_on_a_full_disk_says_that_the_disk_is_full(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(bench.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3 << 20))
    # What torch.save raises there.
    FAILURES[("zero", 2)] = RuntimeError("[enforce fail at inline_container.cc:672]")
    assert "cc:672]; only 3 MiB are free on the disk of" in bench.run(status=1)


def test_a_copy_into_the_folder_itself_is_refused(
    bench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["copy", str(bench.recipes), str(bench.recipes / "a" / "b")]) == 1
    assert "is inside of" in capsys.readouterr().out
    assert not (bench.recipes / "a").exists()


@pytest.mark.parametrize("folder", ["tiny-cpuu", "recipes/tiny-cpuu"])
def test_a_misspelt_shipped_pipeline_is_recognised(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", folder]) == 1
    assert "no such folder; did you mean 'tiny-cpu'?" in capsys.readouterr().out


def test_names_too_long_for_the_system_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["check", "x" * 5000], ["copy", "tiny-cpu", "x" * 5000]):
        assert main(command) == 1
        assert "File name too long" in capsys.readouterr().out
