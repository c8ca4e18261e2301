"""`push_to_hub: true` of a stage: checkpoints while it trains, its artifacts when it is done."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import make_rows, make_tiny_model
from fake_hub import FakeHub
from transformers import AutoModelForCausalLM

from trl_r1.cli import main
from trl_r1.hub.checkpoints import CheckpointRepo, put_in_outbox, send_outbox
from trl_r1.hub.client import HubError

RECIPE = """\
stage: cold_start
model_name_or_path: base
datasets: [{dataset_name: rows.jsonl}]
chat_template: compact
reasoning_format: zero_bare
max_steps: 4
save_steps: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
push_to_hub: true
"""
STEPS = {"main", "step-2", "step-4"}


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    make_tiny_model(folder / "base")
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(16))
    (folder / "rows.jsonl").write_text(rows)
    (folder / "01_cold.yaml").write_text(RECIPE)
    return folder


def branches(hub: FakeHub, repo: str = "me/mine-cold") -> set[str]:
    return {branch.name for branch in hub.api.list_repo_refs(repo).branches}


def test_each_checkpoint_lies_on_a_branch_and_loads(fake_hub: FakeHub, recipes: Path) -> None:
    assert main(["run", str(recipes)]) == 0
    assert branches(fake_hub) == STEPS
    for branch in STEPS:
        names = set(fake_hub.files("me/mine-cold", revision=branch))
        assert "model.safetensors" in names
        assert "tokenizer.json" in names
        kept_back = ("optimizer", "scheduler", "rng_state", "training_args")
        assert not [name for name in names if name.startswith(kept_back)]
        AutoModelForCausalLM.from_pretrained("me/mine-cold", revision=branch)
    first, last = (fake_hub.files("me/mine-cold", revision=f"step-{n}") for n in (2, 4))
    assert first["model.safetensors"] != last["model.safetensors"]
    done = (Path("runs/mine/cold/model/model.safetensors")).read_bytes()
    assert fake_hub.files("me/mine-cold")["model.safetensors"] == done
    assert not (Path("runs/mine/cold") / ".outbox").exists()


def test_the_recipe_names_the_repository_and_who_may_see_it(
    fake_hub: FakeHub, recipes: Path
) -> None:
    file = recipes / "01_cold.yaml"
    file.write_text(RECIPE + "hub_model_id: lab/mine\nhub_private_repo: true\n")
    assert main(["run", str(recipes)]) == 0
    assert branches(fake_hub, "lab/mine") == STEPS
    assert fake_hub.repo("lab/mine").private
    assert main(["push", "runs/mine", "--org", "me", "--no_report"]) == 0
    assert ("model", "me/mine-cold") not in fake_hub.site.store.repos


@pytest.mark.parametrize("status", [401, 403, 429, 500])
def test_a_hub_in_trouble_costs_no_step_and_the_next_run_makes_it_whole(
    fake_hub: FakeHub, recipes: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    fault = fake_hub.fail(path_regex="/api/", status=status, times=None)
    assert main(["run", str(recipes)]) == 0
    said = capsys.readouterr().out
    assert "cold is not pushed: " in said
    assert "No step of the run is lost" in said
    assert Path("runs/mine/cold/model/model.safetensors").is_file()
    fault.times = 0
    assert main(["run", str(recipes)]) == 0
    said = capsys.readouterr().out
    assert "cold  skip" in said
    assert branches(fake_hub) == STEPS


def test_the_first_step_waits_for_no_hub(fake_hub: FakeHub, recipes: Path) -> None:
    held = fake_hub.stall(path_regex="/api/", times=1)
    command = [sys.executable, "-m", "trl_r1", "run", str(recipes)]
    process = subprocess.Popen(command, env=fake_hub.env, stdout=subprocess.DEVNULL)
    try:
        held.wait(timeout=120)
        deadline = time.monotonic() + 120
        model = Path("runs/mine/cold/model/model.safetensors")
        while not model.is_file():
            assert process.poll() is None, "it ended without its model"
            assert time.monotonic() < deadline, "it waits for a Hub that does not answer"
            time.sleep(0.1)
    finally:
        held.release()
        assert process.wait(timeout=120) == 0
    assert branches(fake_hub) == STEPS


def test_check_says_what_can_not_be_pushed(
    fake_hub: FakeHub,
    recipes: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (recipes / "01_cold.yaml").write_text(RECIPE + "hub_model_id: a/b/c\n")
    assert main(["check", str(recipes)]) == 1
    said = capsys.readouterr().out
    assert "no name of a repository" in said
    assert "there is no token; run `hf auth login`" in said


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        ("me/x", "reader_token", "may only read; make one that may write"),
        ("strangers/x", "token", "me is not a member of strangers"),
        ("club/x", "token", "me may only read in club"),
    ],
)
def test_rehearse_asks_what_the_token_may_do_and_writes_nothing(
    fake_hub: FakeHub,
    recipes: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    token: str,
    words: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", getattr(fake_hub, token))
    (recipes / "01_cold.yaml").write_text(RECIPE + f"hub_model_id: {name}\n")
    main(["rehearse", str(recipes)])
    assert words in capsys.readouterr().out
    assert not [r for r in fake_hub.requests if r.method != "GET"]
    assert not fake_hub.site.store.repos


def checkpoint(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def test_the_outbox_keeps_what_trainer_drops(fake_hub: FakeHub, tmp_path: Path) -> None:
    outbox = tmp_path / "stage" / ".outbox"
    made = {"model__safetensors": b"weights", "optimizer__pt": b"state", "config__json": b"{}"}
    for step in (5, 10):
        folder = checkpoint(tmp_path / f"checkpoint-{step}", **made)
        assert put_in_outbox(folder, outbox, step)
        for path in folder.iterdir():
            path.unlink()
    lines: list[str] = []
    fault = fake_hub.fail(method="POST", path_regex="step-10", status=500, times=None)
    with pytest.raises(HubError, match="pushing step-10"):
        send_outbox(outbox, CheckpointRepo("me/x"), lines.append)
    assert [path.name for path in outbox.glob("step-*")] == ["step-10"]
    fault.times = 0
    send_outbox(outbox, CheckpointRepo("me/x"), lines.append)
    assert not outbox.exists()
    assert [line.rpartition(" ")[2] for line in lines] == ["step-5", "step-10"]
    assert fake_hub.files("me/x", revision="step-10")["model.safetensors"] == b"weights"
    send_outbox(outbox, CheckpointRepo("me/x"), lines.append)
    assert len(lines) == 2


def test_what_others_put_into_the_outbox_is_left_there(fake_hub: FakeHub, tmp_path: Path) -> None:
    outbox = tmp_path / "run" / "cold" / ".outbox"
    assert put_in_outbox(checkpoint(tmp_path / "c", model__safetensors=b"w"), outbox, 2)
    (outbox / "notes").mkdir()
    send_outbox(outbox, CheckpointRepo("me/x"), print)
    assert branches(fake_hub, "me/x") == {"main", "step-2"}
    assert (outbox / "notes").is_dir()


@pytest.mark.parametrize("is_pushed", [True, False])
def test_checkpoints_of_adapters_name_no_folder_of_this_machine(
    fake_hub: FakeHub, recipes: Path, tmp_path: Path, is_pushed: bool
) -> None:
    lora = "use_peft: true\nlora_target_modules: [all-linear]\nadapter_output: adapter\n"
    wants = f"push_to_hub: {str(is_pushed).lower()}"
    (recipes / "01_cold.yaml").write_text(RECIPE.replace("push_to_hub: true", wants))
    more = RECIPE.replace("model_name_or_path: base", 'model_name_or_path: "@cold"')
    (recipes / "02_more.yaml").write_text(more + lora)
    assert main(["run", str(recipes)]) == 0
    for branch in ("step-2", "step-4"):
        files = fake_hub.files("me/mine-more", revision=branch)
        assert "adapter_model.safetensors" in files
        assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
        config = json.loads(files["adapter_config.json"])
        named = (config["base_model_name_or_path"], config["revision"])
        commit = fake_hub.commits("me/mine-cold")[0].id if is_pushed else None
        assert named == ("me/mine-cold" if is_pushed else "mine/cold/model", commit)


def test_a_checkpoint_without_safetensors_is_not_pushed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-5", pytorch_model__bin=b"pickle", config__json=b"{}")
    assert not put_in_outbox(folder, tmp_path / ".outbox", 5)
    assert not (tmp_path / ".outbox").exists()


def test_a_token_in_a_recipe_is_shown_nowhere() -> None:
    repo: Any = CheckpointRepo("me/x", token="hf_secret")
    assert "hf_secret" not in repr(repo)
