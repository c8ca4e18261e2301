"""What strangers and accidents leave in a run's repository, its records and names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub
from push_runs import finish, tree, write_run

from trl_r1.cli import main

ZERO = "stages/zero/stage.json"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path)


def push(run: Path, *options: str) -> int:
    return main(["push", str(run), "--org", "me", *options])


def pull(place: Path, name: str = "me/small") -> int:
    return main(["pull", name, "--output_dir", str(place), "--recipes", f"{place}-recipes"])


def put(hub: FakeHub, path: str, content: bytes) -> None:
    """Put a file into the run's own repository."""
    hub.api.upload_file(
        path_or_fileobj=content, path_in_repo=path, repo_id="me/small", repo_type="dataset"
    )


def change(hub: FakeHub, path: str, **values: Any) -> None:
    """Change keys of a JSON file in the run's own repository."""
    document = json.loads(hub.files("me/small", "dataset")[path])
    put(hub, path, json.dumps({**document, **values}).encode())


@pytest.mark.parametrize("name", ["a/b", " ", "a b", "..", "x" * 200, "\u00fc", "a\x1b[31m"])
def test_names_that_no_repository_can_have_are_told_in_one_line(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert push(run, "--name", name) == 1
    assert not fake_hub.site.store.repos, "nothing was made before that was told"
    assert pull(tmp_path / "there", f"me/{name}") == 1
    said = capsys.readouterr()
    told = [line for line in said.out.splitlines() if line.startswith("trl-r1: ")]
    assert len(told) == 2
    assert all("no repository has such a name" in line for line in told)
    assert "Traceback" not in said.out + said.err
    assert "\x1b" not in said.out


def test_a_repository_of_an_artifact_that_has_no_possible_name_is_told(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    repos = json.loads(fake_hub.files("me/small", "dataset")["hub.json"])["repos"]
    repos["model me/small-zero"]["repo_id"] = "../../x"
    change(fake_hub, "hub.json", repos=repos)
    assert pull(tmp_path / "there") == 1
    assert "no repository has such a name" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("text", [b"\n", b"[]", b"{}", b"[" * 100_000, b'{"run_id": 5}'])
def test_a_damaged_hub_json_is_told_with_what_is_wrong_and_where(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    push(run)
    good = (run / "hub.json").read_bytes()
    (run / "hub.json").write_bytes(text)
    assert push(run) == 1
    here = capsys.readouterr().out.splitlines()[-1]
    assert f"{run / 'hub.json'} can't be read" in here
    assert "move it away" in here
    (run / "hub.json").write_bytes(good)
    put(fake_hub, "hub.json", text)
    assert push(run) == 1
    there = capsys.readouterr().out.splitlines()[-1]
    assert "hub.json of me/small on the Hub can't be read" in there
    assert pull(tmp_path / "there") == 1
    pulled = capsys.readouterr().out.splitlines()[-1]
    assert "hub.json of me/small can't be read" in pulled
    assert "pydantic" not in here + there + pulled
    fake_hub.api.delete_file("hub.json", "me/small", repo_type="dataset")
    assert push(run) == 0, "what the line says to do helps"
    assert pull(tmp_path / "there") == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"artifacts": {"model": {}}}, "no hash of an artifact"),
        ({"artifacts": {"model": {"hash": 5}}}, "no hash of an artifact"),
        ({"artifacts": {"model": {"hash": "x", "sizes": 5}}}, "no numbers by file"),
        ({"artifacts": {"model": {"hash": "x", "sizes": {"a": "b"}}}}, "no numbers by file"),
        ({"artifacts": []}, "can't be read"),
        ({"status": "running"}, "not finished"),
    ],
)
def test_a_record_that_no_run_writes_is_refused_in_one_line(
    fake_hub: FakeHub,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    values: dict[str, Any],
    said: str,
) -> None:
    push(run)
    change(fake_hub, ZERO, **values)
    capsys.readouterr()
    assert pull(tmp_path / "there") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("trl-r1: ")
    assert said in line
    assert not (tmp_path / "there" / "base").exists(), "told before anything is put in place"


def test_files_of_the_runs_repository_never_take_the_place_of_checked_ones(
    fake_hub: FakeHub, run: Path, tmp_path: Path
) -> None:
    push(run)
    put(fake_hub, "stages/zero/model/config.json", b"{}")
    put(fake_hub, "stages/zero/model/pytorch_model.bin", b"a pickle")
    put(fake_hub, "stages/zero/notes/model/kept.txt", b"a folder of that name elsewhere")
    assert pull(tmp_path / "there") == 0
    assert tree(tmp_path / "there" / "zero" / "model") == tree(run / "zero" / "model")
    assert (tmp_path / "there" / "zero" / "notes" / "model" / "kept.txt").is_file()


def test_what_a_strangers_run_has_printed_neither_steers_the_terminal_nor_is_a_command(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    change(fake_hub, "run.json", settings=["a\x1b[2Jb\nall is well"], seed="1; touch evil \x1b[31m")
    put(fake_hub, "recipes/\x1b[31mx.py", b"1")
    capsys.readouterr()
    assert pull(tmp_path / "there") == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("all is well")]
    assert "--seed '1; touch evil" in said


def test_stages_that_were_not_pushed_are_not_counted_as_pulled(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(run, "--stages", "base") == 0
    assert pull(tmp_path / "there") == 0
    said = capsys.readouterr().out
    assert "zero: left out; its model, rollouts was not pushed" in said
    assert "there: 1 stages" in said


def test_a_link_that_leads_nowhere_is_in_the_way_like_a_folder(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "zero").symlink_to(tmp_path / "nowhere")
    capsys.readouterr()
    assert pull(tmp_path / "there") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert "zero is in the way" in line
    assert not (tmp_path / "nowhere").exists()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: path.with_name("model-old.safetensors").write_bytes(b"x")],
    ids=["one_bit", "a_further_file"],
)
def test_an_artifact_that_was_changed_after_its_stage_is_not_pushed(
    fake_hub: FakeHub,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], object],
) -> None:
    damage(run / "zero" / "model" / "model.safetensors")
    assert push(run) == 1
    assert "was changed after zero was finished" in capsys.readouterr().out.splitlines()[-1]
    assert ("model", "me/small-zero") not in fake_hub.site.store.repos
    finish(run, "zero", "grpo", start=("base", "model"))
    assert push(run) == 0


def test_a_collection_that_was_deleted_on_the_hub_is_made_anew(
    fake_hub: FakeHub, run: Path, tmp_path: Path
) -> None:
    push(run)
    fake_hub.api.delete_collection(json.loads((run / "hub.json").read_text())["collection"])
    assert push(run) == 0
    (collection,) = fake_hub.api.list_collections(owner="me")
    assert json.loads((run / "hub.json").read_text())["collection"] == collection.slug
    assert len(fake_hub.api.get_collection(collection.slug).items) == 6


def test_repositories_that_were_deleted_on_the_hub_are_made_anew(
    fake_hub: FakeHub, run: Path, tmp_path: Path
) -> None:
    push(run)
    for name, kind in [("me/small-zero", "model"), ("me/small", "dataset")]:
        fake_hub.api.delete_repo(name, repo_type=kind)
        assert push(run) == 0
    assert pull(tmp_path / "there") == 0
    assert tree(tmp_path / "there") == tree(run)


def test_an_artifact_never_shares_the_runs_own_repository(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((run / "picked" / "stage.json").read_text())
    record["recipe"]["hub_model_id"] = "me/Small"
    (run / "picked" / "stage.json").write_text(json.dumps(record))
    assert push(run) == 1
    assert "me/small would hold both the run and what picked left" in capsys.readouterr().out
    assert not fake_hub.site.store.repos


def test_a_push_tells_which_paths_of_this_machine_go_along(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((run / "zero" / "stage.json").read_text())
    record["recipe"] |= {
        "datasets": [{"dataset_name": "/home/ann/rows.jsonl"}, {"dataset_name": "rows.jsonl"}],
        "system_prompt": "/no_think",
        "model_name_or_path": "@hub:me/x",
    }
    (run / "zero" / "stage.json").write_text(json.dumps(record))
    assert push(run) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "will see that" in line]
    assert len(notes) == 1
    assert notes[0].startswith("note: zero names /home/ann/rows.jsonl, ")
