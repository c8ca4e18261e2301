"""The fake Hub under the libraries that push to it: transformers, datasets and TRL's trainers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from conftest import make_rows
from datasets import Dataset, load_dataset
from fake_hub import FakeHub
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def test_a_pushed_model_is_loaded_by_name(fake_hub: FakeHub, tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    model.push_to_hub("me/tiny", private=True)
    AutoTokenizer.from_pretrained(tiny_model_dir).push_to_hub("me/tiny")
    loaded = AutoModelForCausalLM.from_pretrained("me/tiny")
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    tokenizer = AutoTokenizer.from_pretrained("me/tiny")
    assert (
        tokenizer("1+1").input_ids == AutoTokenizer.from_pretrained(tiny_model_dir)("1+1").input_ids
    )
    assert fake_hub.repo("me/tiny").private


def test_a_pushed_dataset_is_loaded_by_name(fake_hub: FakeHub) -> None:
    rows = make_rows()
    Dataset.from_list(rows).push_to_hub("me/rows", split="train")
    Dataset.from_list(rows[:4]).push_to_hub("me/rows", split="test")
    assert load_dataset("me/rows", split="train").to_list() == rows
    assert load_dataset("me/rows", split="test").to_list() == rows[:4]
    info = fake_hub.api.dataset_info("me/rows")
    assert info.card_data.configs[0]["config_name"] == "default"


def train(model: Path, folder: Path, **settings: object) -> SFTTrainer:
    """Two steps of SFT with a checkpoint at each."""
    config = SFTConfig(
        output_dir=str(folder),
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        push_to_hub=True,
        # Not only where the push before is done already.
        hub_always_push=True,
        **settings,
    )
    trainer = SFTTrainer(str(model), config, train_dataset=Dataset.from_list(make_rows(4)))
    trainer.train()
    return trainer


def test_a_trainer_pushes_checkpoints_and_card(
    fake_hub: FakeHub, tiny_model_dir: Path, tmp_path: Path
) -> None:
    trainer = train(
        tiny_model_dir, tmp_path / "run", hub_model_id="lab/sft", hub_strategy="checkpoint"
    )
    trainer.push_to_hub(dataset_name="sums")
    files = fake_hub.files("lab/sft")
    assert files["model.safetensors"] == (tmp_path / "run/model.safetensors").read_bytes()
    assert {"last-checkpoint/trainer_state.json", "last-checkpoint/optimizer.pt"} <= files.keys()
    titles = [commit.title for commit in fake_hub.commits("lab/sft")]
    assert {"Training in progress, step 1", "Training in progress, step 2"} <= set(titles)
    assert titles[0] == "End of training"
    card = fake_hub.api.model_info("lab/sft").card_data
    assert card["library_name"] == "transformers"


SCRIPT = """
import sys, datasets, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("me/tiny")
rows = datasets.load_dataset("me/rows", split="train")
model.push_to_hub("me/copy")
rows.push_to_hub("me/rows-copy")
"""


def test_a_subprocess_pulls_and_pushes_by_its_environment(
    fake_hub: FakeHub, tiny_model_dir: Path
) -> None:
    AutoModelForCausalLM.from_pretrained(tiny_model_dir).push_to_hub("me/tiny")
    Dataset.from_list(make_rows()).push_to_hub("me/rows")
    subprocess.run([sys.executable, "-c", SCRIPT], env=fake_hub.env, check=True)
    weights = [fake_hub.files(name)["model.safetensors"] for name in ("me/tiny", "me/copy")]
    assert weights[0] == weights[1]
    assert fake_hub.api.dataset_info("me/rows-copy").sha
