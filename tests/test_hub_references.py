"""`@hub:org/name[@revision]` as an input of a stage: read, checked, fetched, pinned, recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import make_rows, make_tiny_model
from datasets import Dataset
from fake_hub import FakeHub

from trl_r1.cli import main
from trl_r1.hub.references import fetch, parse_hub_reference
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.references import find_references, is_reference

RECIPE = """\
stage: cold_start
model_name_or_path: "@hub:lab/base{model}"
datasets:
  - {{dataset_name: "@hub:lab/rows{data}", num_rows: 8}}
chat_template: compact
reasoning_format: zero_bare
max_steps: 1
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
"""


@pytest.fixture
def lab(fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A Hub with a model and a data set."""
    monkeypatch.chdir(tmp_path)
    model = make_tiny_model(tmp_path / "base")
    fake_hub.api.create_repo("lab/base")
    fake_hub.api.upload_folder(repo_id="lab/base", folder_path=model)
    rows = Dataset.from_list(make_rows(8))
    rows.to_parquet(tmp_path / "rows" / "train.parquet")
    fake_hub.api.create_repo("lab/rows", repo_type="dataset")
    fake_hub.api.upload_folder(
        repo_id="lab/rows", repo_type="dataset", folder_path=tmp_path / "rows"
    )
    return fake_hub


def recipes(folder: Path, model: str = "", data: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "01_cold.yaml").write_text(RECIPE.format(model=model, data=data))
    return folder


@pytest.mark.parametrize(
    ("text", "repo_id", "revision", "told"),
    [
        ("@hub:me/x", "me/x", None, None),
        ("@hub:me/x@step-50", "me/x", "step-50", None),
        ("@hub:me/x@refs/pr/1", "me/x", "refs/pr/1", None),
        ("@hub:datasets/me/x", "me/x", None, "dataset"),
        ("@hub:models/me/x@v1", "me/x", "v1", "model"),
    ],
)
def test_a_reference_is_taken_apart(
    text: str, repo_id: str, revision: str | None, told: str | None
) -> None:
    reference = parse_hub_reference(text)
    assert (reference.repo_id, reference.revision, reference.told_type) == (repo_id, revision, told)


@pytest.mark.parametrize(
    "text",
    ["@hub:", "@hub:x", "@hub:me/", "@hub:me/x@", "@hub:a/b/c", "@hub:me/x y", "@hub:me/../x",
     "@hub:me/-x-", "@hub:mé/x", "@hub:" + "m/" + "x" * 300],
)  # fmt: skip
def test_what_is_no_reference_is_told(text: str) -> None:
    with pytest.raises(PipelineError, match="write @hub:owner/name"):
        parse_hub_reference(text)


def test_a_reference_to_the_hub_is_none_to_a_stage() -> None:
    assert not is_reference("@hub:me/x")
    assert is_reference("@hub"), "a stage may be called hub"
    assert not list(find_references({"model_name_or_path": "@hub:me/x@main"}))


def test_a_stage_runs_from_the_hub_and_records_the_commits(lab: FakeHub, tmp_path: Path) -> None:
    commit = lab.commits("lab/rows", "dataset")[0].id
    assert main(["run", str(recipes(tmp_path / "mine", data=f"@{commit}"))]) == 0
    record = json.loads((tmp_path / "runs/mine/cold/stage.json").read_text())
    inputs = {item["source"]: item for item in record["inputs"]}
    assert inputs[f"@hub:lab/rows@{commit}"]["commit"] == commit
    base = inputs["@hub:lab/base"]
    assert base["commit"] == lab.commits("lab/base")[0].id
    assert base["role"] == "weights"
    assert len(base["hash"]) == 32


def test_a_changed_repository_reruns_the_stage_and_a_pinned_one_does_not(
    lab: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = lab.commits("lab/base")[0].id
    loose, pinned = recipes(tmp_path / "loose"), recipes(tmp_path / "pinned", model=f"@{commit}")
    for folder in (loose, pinned):
        assert main(["run", str(folder)]) == 0
    lab.api.upload_folder(
        repo_id="lab/base", folder_path=make_tiny_model(tmp_path / "other", seed=3)
    )
    capsys.readouterr()
    assert main(["run", str(pinned)]) == 0
    assert "cold  skip" in capsys.readouterr().out
    assert main(["run", str(loose)]) == 0
    assert "cold  rerun" in capsys.readouterr().out


def test_what_was_fetched_serves_without_the_hub(
    lab: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from huggingface_hub import constants

    folder = recipes(tmp_path / "mine")
    assert main(["run", str(folder)]) == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    capsys.readouterr()
    assert main(["run", str(folder)]) == 0
    assert "cold  skip" in capsys.readouterr().out


def test_offline_without_a_copy_nothing_is_begun(
    lab: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["run", str(recipes(tmp_path / "mine"))]) == 1
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("@v9", ["'v9'", "no branch, tag or commit"]),
        ("-that-is-not-there", ["no model 'lab/base-that-is-not-there' on the Hub"]),
        ("/x", ["write @hub:owner/name"]),
    ],
)
def test_check_says_what_is_not_there(
    lab: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, words: list[str]
) -> None:
    assert main(["check", str(recipes(tmp_path / "mine", model=model))]) == 1
    said = capsys.readouterr().out
    assert [word for word in words if word not in said] == []
    assert "01_cold.yaml" in said


def test_a_data_set_where_a_model_is_needed_is_told(
    lab: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recipes(tmp_path / "mine")
    file = folder / "01_cold.yaml"
    file.write_text(file.read_text().replace("@hub:lab/base", "@hub:datasets/lab/rows"))
    assert main(["check", str(folder)]) == 1
    assert "is a dataset, and a model is needed" in capsys.readouterr().out


def test_a_private_repository_is_not_for_strangers(
    lab: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.api.create_repo("lab/secret", private=True)
    monkeypatch.setenv("HF_TOKEN", lab.stranger_token)
    with pytest.raises(PipelineError, match=r"lab/secret.*may not see it"):
        fetch("@hub:lab/secret")
