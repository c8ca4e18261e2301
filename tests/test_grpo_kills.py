"""An RL stage with every part switched on, killed at any moment, ends as one that never was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from conftest import Killed, make_rows, stage_context
from datasets import Dataset, load_dataset
from safetensors.torch import load_file

from trl_r1.stages import RewardSpec, grpo
from trl_r1.stages.grpo import rollouts as rollouts_module
from trl_r1.stages.grpo.trainer import R1GRPOTrainer

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 4,
    "mini_batches_per_rollout": 2,
    "num_iterations": 2,
    "reference_replacement_steps": 3,
    "dynamic_sampling_max_rounds": 2,
    "dynamic_sampling_reward": "parity",
    "temperature_schedule": [{"from_step": 4, "value": 0.7}],
    "max_completion_length_schedule": [{"from_step": 5, "value": 6}],
    "monitors": {"kl_runaway": {"action": "warn", "above": 0.0001, "logs": 2}},
    "metrics_language": "en",
    "learning_rate": 1e-2,
    "beta": 0.1,
    "max_steps": 9,
    "save_steps": 1,
    "save_total_limit": 9,
}
REWARDS = """
def parity(completion_ids, **kwargs):
    return [float(sum(ids) % 3 == 0) for ids in completion_ids]

def evenness(completion_ids, **kwargs):
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]
"""


class Stage:
    """The stage, to be run again and again in a folder."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.model = model
        self.rows = [folder / f"rows-{i}.parquet" for i in range(2)]
        for i, path in enumerate(self.rows):
            Dataset.from_list(make_rows(24)[12 * i : 12 * i + 12]).to_parquet(path)
        reward = folder / "kept_rewards.py"
        reward.write_text(REWARDS)
        self.rewards = (
            RewardSpec(f"{reward}:parity"),
            RewardSpec(f"{reward}:evenness", weight=0.5, from_step=3),
        )

    def run(self, out: Path, stop_at: int | None = None, **settings: Any) -> None:
        sources: list[dict[str, Any]] = [
            {"dataset_name": str(self.rows[0])},
            {"dataset_name": str(self.rows[1]), "from_step": 5},
        ]
        model_settings = settings.pop("model_settings", {})
        context = stage_context(
            out, grpo, self.model, sources, model_settings, self.rewards, stop_at,
            **SETTINGS | settings,
        )  # fmt: skip
        grpo.run(context)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def kept(folder: Path) -> list[dict[str, Any]]:
    return [
        row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def check_same(whole: Path, cut: Path) -> None:
    ours, theirs = weights(cut), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert kept(cut / "rollouts") == kept(whole / "rollouts")
    assert figures(cut) == figures(whole)
    assert alarms(cut) == alarms(whole)


def figures(out: Path) -> list[Any]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        (n["step"], n["kl"], n.get("reward"), n["entropy"], n["loss"]) for n in lines if "kl" in n
    ]


def alarms(out: Path) -> list[Any]:
    path = out / "monitors.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["step"], line["monitor"]) for line in lines]


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_after_every_step_in_turn_it_ends_the_same(
    tiny_model_dir: Path, tmp_path: Path, lora: bool
) -> None:
    stage = Stage(tmp_path, tiny_model_dir)
    settings = {"model_settings": {"use_peft": True, "lora_r": 4}} if lora else {}
    stage.run(tmp_path / "whole", **settings)
    cut = tmp_path / "cut"
    for stop_at in range(1, 10):
        with pytest.raises(Killed):
            stage.run(cut, stop_at, **settings)
        partial = next(path for path in cut.iterdir() if "rollouts" in path.name)
        found = load_dataset(str(partial), split="train", cache_dir=str(tmp_path / "cache"))
        assert sorted(set(found["step"])) == [s for s in (0, 4, 8) if s < stop_at]
    stage.run(cut, **settings)
    check_same(tmp_path / "whole", cut)
    rows = kept(cut / "rollouts")
    used = [row for row in rows if row["is_used"]]
    assert len(used) == 3 * 32  # three batches of completions, every row once
    assert any(row["round"] > 0 for row in rows)
    assert alarms(cut)


def test_killed_while_files_are_written_it_ends_the_same(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, tiny_model_dir)
    stage.run(tmp_path / "whole")
    cut = tmp_path / "cut"

    def half(table: Any, path: Path) -> None:
        path.with_name(f".{path.name}.partial").write_bytes(b"PAR1 half")
        raise Killed

    def fails_at(number: int, inner: Any, instead: Any) -> Any:
        calls = iter(range(1, 100))
        return lambda *a, **k: instead(*a, **k) if next(calls) == number else inner(*a, **k)

    with monkeypatch.context() as patch:  # in the first rollouts of the second batch
        write = rollouts_module._write_in_one_piece
        patch.setattr(rollouts_module, "_write_in_one_piece", fails_at(4, write, half))
        with pytest.raises(Killed):
            stage.run(cut)
    partial = next(path for path in cut.iterdir() if "rollouts" in path.name)
    assert list(partial.glob(".*.partial"))
    load_dataset(str(partial), split="train", cache_dir=str(tmp_path / "cache"))

    save = R1GRPOTrainer._save_checkpoint

    def saves_half(trainer: Any, model: Any, trial: Any) -> None:
        save(trainer, model, trial)
        last = max((cut / "checkpoints").glob("checkpoint-*"), key=lambda p: p.stat().st_mtime)
        (last / "trainer_state.json").unlink()
        shutil.rmtree(last / "reference", ignore_errors=True)
        raise Killed

    with monkeypatch.context() as patch:  # in the checkpoint of the second batch
        patch.setattr(R1GRPOTrainer, "_save_checkpoint", fails_at(1, save, saves_half))
        with pytest.raises(Killed):
            stage.run(cut)
    stage.run(cut)
    check_same(tmp_path / "whole", cut)
