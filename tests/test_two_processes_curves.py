"""Training stages in two processes learn as they do in one with the same global batch.

Batches are full ones: of a short last batch accelerate makes a whole one by repeating rows, as many
as there are processes to fill.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_rows

from trl_r1.cli import main

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny-cpu"
STAGES = {
    "base": "01", "zero": "02", "cold_start": "04", "reasoning_rl": "05", "mixed_sft": "07",
    "preference": "08", "general_rl": "09", "distill": "10", "student_rl": "11",
}  # fmt: skip
STEPS = 5


def _write_recipe(folder: Path, processes: int) -> None:
    """tiny-cpu with few steps, whose global batches are the same for any number of processes."""
    folder.mkdir()
    rows = "".join(f"{json.dumps(row)}\n" for row in make_rows(320))
    (folder / "rows.jsonl").write_text(rows)
    shutil.copy(Path(__file__).with_name("per_row_generation.py"), folder)
    header = yaml.safe_load((RECIPE / "pipeline.yaml").read_text())
    header.update(name=folder.name, defaults={**header["defaults"], "logging_steps": 1})
    del header["evaluation"]
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(header))
    for name, number in STAGES.items():
        values = yaml.safe_load((RECIPE / f"{number}_{name}.yaml").read_text())
        _shorten(values, processes)
        (folder / f"{number}_{name}.yaml").write_text(yaml.safe_dump(values))


def _shorten(values: dict[str, Any], processes: int) -> None:
    values["max_steps"] = STEPS
    batch = values.get("per_device_train_batch_size", 32)
    values["per_device_train_batch_size"] = batch // processes
    for source in values.get("datasets", []):
        if str(source.get("dataset_name", "")).startswith("@"):
            source["dataset_name"] = "rows.jsonl"
            source.pop("num_rows", None)
        elif "num_rows" in source:
            source["num_rows"] = min(source["num_rows"], 320)
        if source.get("from_step"):
            source["from_step"] = 2
    for reward in values.get("rewards", []):
        if reward.get("from_step"):
            reward["from_step"] = 2
    if values["stage"] == "grpo":
        values["rewards"].append({"use": "per_row_generation.py:token_reward"})
        values["reward_workers"] = 0


def _curve(run: Path, stage: str, key: str) -> list[float]:
    lines = [json.loads(line) for line in (run / stage / "metrics.jsonl").open()]
    return [line[key] for line in lines if key in line]


def _distances(one: Path, two: Path, stage: str, steps: int) -> dict[str, float]:
    """How far the curves of two runs are apart: relative, RL's loss absolute.

    A policy's loss is near zero by its making, a difference of terms of the size of one.
    """
    is_rl = stage.endswith(("zero", "rl"))
    found = {}
    for key in ("loss", "grad_norm", *(["reward"] if is_rl else [])):
        curves = [_curve(run, stage, key) for run in (one, two)]
        assert [len(curve) for curve in curves] == [steps, steps], (stage, key)
        pairs = zip(*curves, strict=True)
        is_absolute = is_rl and key == "loss"
        found[key] = max(abs(a - b) / (1.0 if is_absolute else abs(a)) for a, b in pairs)
        assert math.isfinite(found[key])
    return found


@pytest.mark.slow
def test_every_stage_of_tiny_cpu_learns_in_two_processes_as_in_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for processes in (1, 2):
        folder = tmp_path / f"of{processes}"
        _write_recipe(folder, processes)
        options = ["--accelerate_config", "ddp", "--num_processes", str(processes)]
        assert main(["run", str(folder), *options]) == 0, capfd.readouterr().out[-3000:]
    runs = [tmp_path / "runs" / f"of{n}" for n in (1, 2)]
    distances = {stage: _distances(runs[0], runs[1], stage, STEPS) for stage in STAGES}
    Path(os.environ.get("CURVES_REPORT", os.devnull)).write_text(json.dumps(distances, indent=1))
    assert max(max(values.values()) for values in distances.values()) < 1e-3, distances


def test_sft_and_rl_of_two_steps_learn_in_two_processes_as_in_one(
    tmp_path: Path,
    tiny_model_dir: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for processes in (1, 2):
        folder = tmp_path / f"of{processes}"
        folder.mkdir()
        # RL's prompts differ, since a completion is drawn by its prompt and number in the group.
        for name, number in (("rows", 32), ("prompts", 9)):
            lines = "".join(f"{json.dumps(row)}\n" for row in make_rows(number))
            (folder / f"{name}.jsonl").write_text(lines)
        shutil.copy(Path(__file__).with_name("per_row_generation.py"), folder)
        common = {
            "model_name_or_path": str(tiny_model_dir),
            "reasoning_format": "zero_bare",
            "datasets": [{"dataset_name": "rows.jsonl"}],
            "max_steps": 2,
            "logging_steps": 1,
            "per_device_train_batch_size": 16 // processes,
            "gradient_accumulation_steps": 1,
            "learning_rate": 1.0e-3,
        }
        reward = {"use": "per_row_generation.py:token_reward"}
        rl = {"rewards": [reward], "num_generations": 4, "max_completion_length": 6,
              "reward_workers": 0, "mini_batches_per_rollout": 1,
              "datasets": [{"dataset_name": "prompts.jsonl"}]}  # fmt: skip
        (folder / "01_sft.yaml").write_text(yaml.safe_dump({"stage": "cold_start", **common}))
        (folder / "02_rl.yaml").write_text(yaml.safe_dump({"stage": "grpo", **common, **rl}))
        options = ["--accelerate_config", "ddp", "--num_processes", "2"] if processes > 1 else []
        assert main(["run", str(folder), *options]) == 0, capfd.readouterr().out[-3000:]
    runs = [tmp_path / "runs" / f"of{n}" for n in (1, 2)]
    for stage in ("sft", "rl"):
        distances = _distances(runs[0], runs[1], stage, 2)
        assert max(distances.values()) < 1e-3, (stage, distances)
