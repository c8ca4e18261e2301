"""All stages of tiny-cpu, cut short, pushed by LFS and by Xet, pulled on a clean place, gone on."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from fake_hub import FakeHub
from push_runs import tree
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from trl_r1.cli import main

ROOT = Path(__file__).parents[1]
# Few steps, rows and problems; the base learns enough for samples to be kept.
CUTS = {
    "base.num_train_epochs": "2",
    "base.student_num_train_epochs": "0.2",
    "grpo.max_steps": "2",
    "grpo.per_device_train_batch_size": "16",
    "cold_start.max_steps": "20",
    "mixed_sft.max_steps": "2",
    "distillation.max_steps": "2",
    "reward_model.max_steps": "2",
    "evaluation.datasets": "[{task: digit_sums, split: test, num_rows: 8}]",
    "evaluation.general": "[{task: small_talk, split: test, num_rows: 4}]",
    "evaluation.num_samples": "2",
    "cold_start_data.datasets": "[{task: digit_sums, num_rows: 300, seed: 1}]",
    "reasoning_data.datasets": "[{task: digit_sums, num_rows: 300, seed: 3}]",
}
OPTIONS = [option for key, value in CUTS.items() for option in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "runs" / "tiny-cpu"
    recipes = ROOT / "recipes" / "tiny-cpu"
    command = [sys.executable, "-m", "trl_r1", "run", str(recipes), "--output_dir", str(folder)]
    subprocess.run([*command, *OPTIONS], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ledger(run: Path) -> dict[str, dict[str, Any]]:
    return {p.parent.name: json.loads(p.read_text()) for p in run.glob("[!.]*/stage.json")}


def load(repo_id: str, kind: str, repo_type: str) -> None:
    """Load an artifact from the Hub as anybody would."""
    if repo_type == "dataset":
        assert len(load_dataset(repo_id, split="train")) > 0
    elif kind == "reward_model":
        assert AutoModelForSequenceClassification.from_pretrained(repo_id).config.num_labels == 1
    else:
        model = AutoModelForCausalLM.from_pretrained(repo_id)
        prompt = AutoTokenizer.from_pretrained(repo_id).apply_chat_template(
            [{"role": "user", "content": "1+2=?"}], add_generation_prompt=True, return_tensors="pt"
        )
        assert model.generate(**prompt, max_new_tokens=2).shape[0] == 1


def test_a_run_is_pushed_pulled_loaded_and_gone_on_from(
    fake_hub: FakeHub, run: Path, clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(run), "--org", "lab"]) == 0
    records = ledger(run)
    assert len(records) == 11
    pushed = json.loads((run / "hub.json").read_text())["repos"].values()
    artifacts = {(r["stage"], r["artifact"]): r for r in pushed if r["stage"]}
    assert set(artifacts) == {
        (name, artifact) for name, record in records.items() for artifact in record["artifacts"]
    }
    for (stage, artifact), repo in artifacts.items():
        load(repo["repo_id"], records[stage]["artifacts"][artifact]["kind"], repo["repo_type"])

    assert main(["pull", "lab/tiny-cpu"]) == 0
    pulled = clean / "runs" / "tiny-cpu"
    hidden = {name for name in tree(run) if "/." in name}
    assert tree(pulled).keys() == tree(run).keys() - hidden
    assert tree(pulled).items() <= tree(run).items()

    before = ledger(pulled)
    capsys.readouterr()
    assert main(["run", "tiny-cpu", *OPTIONS]) == 0
    assert "] base: " not in capsys.readouterr().out, "all is finished"
    changed = ["--set", "distill.learning_rate=1.0e-3", "--only", "distill"]
    assert main(["run", "tiny-cpu", *OPTIONS, *changed]) == 0
    now = ledger(pulled)
    assert now["distill"]["fingerprint"] != before["distill"]["fingerprint"]
    assert now["distill"]["inputs"] == before["distill"]["inputs"]
    del now["distill"], before["distill"]
    assert now == before


def test_xet_carries_the_same(fake_xet_hub: FakeHub, run: Path, clean: Path) -> None:
    (run / "hub.json").unlink(missing_ok=True)
    assert main(["push", str(run), "--org", "lab", "--stages", "zero", "preference"]) == 0
    for name, content in tree(run / "zero" / "model").items():
        assert fake_xet_hub.files("lab/tiny-cpu-zero")[name] == content
    commits = {key: len(fake_xet_hub.commits(key[1], key[0])) for key in repos(fake_xet_hub)}
    assert main(["push", str(run), "--org", "lab", "--stages", "zero", "preference"]) == 0
    assert commits == {
        key: len(fake_xet_hub.commits(key[1], key[0])) for key in repos(fake_xet_hub)
    }
    assert main(["pull", "lab/tiny-cpu", "--stages", "zero"]) == 0
    pulled = clean / "runs" / "tiny-cpu" / "zero"
    assert tree(pulled).items() <= tree(run / "zero").items()
    assert (pulled / "model" / "model.safetensors").is_file()


def repos(hub: FakeHub) -> list[tuple[str, str]]:
    return list(hub.site.store.repos)


def test_the_command_prints_what_to_type_next_and_that_works(
    fake_hub: FakeHub, run: Path, clean: Path
) -> None:
    (run / "hub.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "trl_r1"]
    env = {**fake_hub.env, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}

    def said(*arguments: str) -> list[str]:
        result = subprocess.run(
            [*command, *arguments], env=env, check=True, capture_output=True, text=True
        )
        return result.stdout.splitlines()

    pull = said("push", str(run), "--org", "lab", "--no_report")[-1].partition("trl-r1 ")[2]
    go_on = said(*pull.split())[-1].partition("trl-r1 ")[2]
    assert go_on.startswith("run tiny-cpu ")
    lines = said(*shlex.split(go_on))
    assert not [line for line in lines if line.startswith("[1/")], "all is finished"
