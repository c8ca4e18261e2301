"""Adapters on the Hub: they name their base's repository there, and its folder where they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_rows, make_tiny_model
from fake_hub import FakeHub
from peft import AutoPeftModelForCausalLM, PeftConfig

from trl_r1.cli import main
from trl_r1.training.models import base_model_path

FEW: dict[str, Any] = {
    "use_peft": True,
    "lora_r": 4,
    "lora_target_modules": ["all-linear"],
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "adapter_output": "adapter",
    "reasoning_format": "zero_bare",
    "chat_template": "compact",
}
STAGES: dict[str, dict[str, Any]] = {
    "01_base": {"stage": "tiny_base", "num_train_epochs": 0.02, "student_num_train_epochs": 0.02},
    "02_sft": {"stage": "cold_start", "model_name_or_path": "@base", **FEW},
    "03_more": {"stage": "cold_start", "model_name_or_path": "@sft", **FEW},
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes `chain` and their run, whose stages hand on adapters."""
    work = tmp_path_factory.mktemp("work")
    folder = work / "chain"
    folder.mkdir()
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in make_rows(8)))
    for name, values in STAGES.items():
        data = {"datasets": [{"dataset_name": "rows.jsonl"}]} if name != "01_base" else {}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**values, **data}))
    assert main(["run", str(folder), "--output_dir", str(work / "runs" / "chain")]) == 0
    return work


@pytest.fixture
def pushed(fake_hub: FakeHub, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run, which was pushed as `me/chain`."""
    run = work / "runs" / "chain"
    monkeypatch.chdir(work)
    (run / "hub.json").unlink(missing_ok=True)
    assert main(["push", "runs/chain", "--org", "me"]) == 0
    return run


@pytest.fixture
def gone(pushed: Path, tmp_path: Path) -> Iterator[Path]:
    """Where the recipes and the pushed run lie after they were moved away."""
    work = pushed.parents[1]
    moved = tmp_path / "gone"
    work.rename(moved)
    yield moved
    moved.rename(work)


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return found


def test_an_adapter_loads_from_the_hub_by_its_name_alone(fake_hub: FakeHub, pushed: Path) -> None:
    commit = fake_hub.commits("me/chain-base")[0].id
    for stage in ("sft", "more"):
        named = PeftConfig.from_pretrained(f"me/chain-{stage}")
        assert (named.base_model_name_or_path, named.revision) == ("me/chain-base", commit)
        model = AutoPeftModelForCausalLM.from_pretrained(f"me/chain-{stage}")
        assert model.num_parameters() > 0


def test_no_file_on_the_hub_names_a_folder_of_this_machine(fake_hub: FakeHub, pushed: Path) -> None:
    place = str(pushed.parents[2]).encode()
    assert place in (pushed / "sft/model/adapter_config.json").read_bytes(), "as PEFT writes it"
    found = [
        (name, path)
        for kind, name in fake_hub.site.store.repos
        for path, content in fake_hub.files(name, kind).items()
        if place in content
    ]
    assert found == []


def test_pushing_an_adapter_again_changes_nothing(
    fake_hub: FakeHub, pushed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["push", "runs/chain", "--org", "me"]) == 0
    assert ": pushed" not in capsys.readouterr().out


def test_a_pulled_adapter_stands_on_the_pulled_base_and_goes_on(
    fake_hub: FakeHub, gone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    clean = tmp_path / "clean"
    clean.mkdir()
    monkeypatch.chdir(clean)
    assert main(["pull", "me/chain"]) == 0
    assert main(["pull", "me/chain"]) == 0, "what is there is known again"
    base = clean / "runs" / "chain" / "base" / "model"
    for stage in ("sft", "more"):
        assert config(clean / "runs" / "chain" / stage / "model")["base_model_name_or_path"] == str(
            base
        )
    shutil.copy(gone / "chain" / "rows.jsonl", clean / "chain")
    capsys.readouterr()
    assert main(["run", "chain"]) == 0
    assert "more  skip" in capsys.readouterr().out
    assert main(["run", "chain", "--set", "more.learning_rate=1.0e-3"]) == 0
    assert "more  rerun" in capsys.readouterr().out
    before = {key: len(fake_hub.commits(key[1], key[0])) for key in fake_hub.site.store.repos}
    assert main(["push", "runs/chain", "--org", "me", "--stages", "sft"]) == 0
    assert len(fake_hub.commits("me/chain-sft")) == before["model", "me/chain-sft"]


def test_a_changed_adapter_is_refused_by_pull(
    fake_hub: FakeHub, pushed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub_file = json.loads(fake_hub.files("me/chain", "dataset")["hub.json"])
    entry = hub_file["repos"]["model me/chain-sft"]
    entry["commit"] = fake_hub.api.upload_file(
        path_or_fileobj=b"other weights", path_in_repo="adapter_model.safetensors",
        repo_id="me/chain-sft",
    ).oid  # fmt: skip
    fake_hub.api.upload_file(
        path_or_fileobj=json.dumps(hub_file).encode(), path_in_repo="hub.json",
        repo_id="me/chain", repo_type="dataset",
    )  # fmt: skip
    options = ["--output_dir", str(tmp_path / "there"), "--recipes", str(tmp_path / "r")]
    assert main(["pull", "me/chain", *options]) == 1
    assert "its hash differs" in capsys.readouterr().out


def test_a_run_that_was_moved_finds_the_bases_of_its_adapters(gone: Path) -> None:
    run = gone / "runs" / "chain"
    assert base_model_path(str(run / "sft" / "model")) == str(run / "base" / "model")


def test_a_base_that_lies_nowhere_on_the_hub_gets_a_name_no_repository_has(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    base = make_tiny_model(tmp_path / "models" / "base")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in make_rows(8)))
    stage = {**STAGES["02_sft"], "model_name_or_path": str(base)}
    stage["datasets"] = [{"dataset_name": "rows.jsonl"}]
    (folder / "01_sft.yaml").write_text(yaml.safe_dump(stage))
    assert main(["run", str(folder)]) == 0
    assert main(["push", "runs/mine", "--org", "me"]) == 0
    named = json.loads(fake_hub.files("me/mine-sft")["adapter_config.json"])
    assert named["base_model_name_or_path"] == "mine/models/base"
