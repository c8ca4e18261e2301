"""The reference becomes the policy every N steps, for every kind of weights, also over kills."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Killed, stage_context
from safetensors.torch import load_file

from trl_r1.stages import RewardSpec, cold_start, grpo
from trl_r1.stages.grpo import PRESETS, R1GRPOConfig

LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": LORA,
    "QLoRA": {**LORA, "load_in_4bit": True},
    "carried LoRA": {**LORA, "adapter_output": "adapter"},
}
MID_BATCH = {"reference_replacement_steps": 3, "mini_batches_per_rollout": 2}
SYNCED = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}


@pytest.fixture(scope="module")
def start(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, rows_file: Path
) -> dict[str, Path]:
    """What each kind starts from: the tiny model, or an adapter of an SFT stage."""
    folder = tmp_path_factory.mktemp("sft")
    context = stage_context(
        folder,
        cold_start,
        tiny_model_dir,
        [{"dataset_name": str(rows_file)}],
        KINDS["carried LoRA"],
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_strategy="no",
        max_steps=2,
    )
    cold_start.run(context)
    return dict.fromkeys(KINDS, tiny_model_dir) | {"carried LoRA": folder / "model"}


def run(
    out: Path, model: Path, rows: Path, reward: str, kind: str, **settings: Any
) -> list[dict[str, Any]]:
    """Six steps of RL; the logs of the steps."""
    defaults = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 4,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "save_steps": 1,
        "beta": 0.1,
    }
    datasets = [{"dataset_name": str(rows)}]
    context = stage_context(
        out, grpo, model, datasets, KINDS[kind], (RewardSpec(reward),), **defaults | settings
    )
    grpo.run(context)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "kl" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    name = "model.safetensors"
    return load_file(folder / (name if (folder / name).exists() else "adapter_model.safetensors"))


def same(left: Path, right: Path) -> bool:
    a, b = weights(left / "model"), weights(right / "model")
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", list(KINDS))
def test_after_n_steps_the_divergence_is_zero_again(
    tmp_path: Path, start: dict[str, Path], rows_file: Path, even_reward: str, kind: str
) -> None:
    common = (start[kind], rows_file, even_reward, kind)
    lines = run(tmp_path / "a", *common, reference_replacement_steps=3, max_steps=5)
    kept = run(tmp_path / "b", *common, max_steps=5)
    kl = [line["kl"] for line in lines]
    assert [abs(value) < 1e-6 for value in kl] == [True, False, False, True, False], kl
    assert all(line["kl"] > 1e-5 for line in kept[1:])
    # Before a replacement nothing is different from a run without; after it, the weights are.
    for ours, theirs in zip(lines[:3], kept[:3], strict=True):
        for key in ("kl", "entropy", "reward", "grad_norm"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-9), key
    assert not same(tmp_path / "a", tmp_path / "b")
    assert not [path for path in (tmp_path / "a/model").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("full", {"reference_replacement_steps": 2}),
        ("LoRA", {"reference_replacement_steps": 2}),
        pytest.param("full", {}, marks=pytest.mark.slow),
        pytest.param("LoRA", {}, marks=pytest.mark.slow),
        pytest.param("full", SYNCED, marks=pytest.mark.slow),
        # Replaced in the middle of a batch's updates; checkpoints are between two batches.
        pytest.param("full", MID_BATCH, marks=pytest.mark.slow),
        pytest.param("carried LoRA", {"reference_replacement_steps": 2}, marks=pytest.mark.slow),
        pytest.param("QLoRA", {"reference_replacement_steps": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_killed_after_any_step_it_ends_with_the_same_weights(
    tmp_path: Path,
    start: dict[str, Path],
    rows_file: Path,
    even_reward: str,
    kind: str,
    settings: dict[str, Any],
) -> None:
    common = (start[kind], rows_file, even_reward, kind)
    whole = run(tmp_path / "whole", *common, **settings)
    for stop_at in range(2, 7):  # one run, killed at every step in turn
        with pytest.raises(Killed):
            run(tmp_path / "cut", *common, stop_at=stop_at, **settings)
    cut = run(tmp_path / "cut", *common, **settings)
    assert same(tmp_path / "whole", tmp_path / "cut")
    assert [line["kl"] for line in whole] == [line["kl"] for line in cut]


def test_a_checkpoint_has_the_reference_only_once_it_is_another(
    tmp_path: Path, start: dict[str, Path], rows_file: Path, even_reward: str
) -> None:
    with pytest.raises(Killed):
        run(
            tmp_path,
            *(start["full"], rows_file, even_reward, "full"),
            reference_replacement_steps=3,
            save_total_limit=9,
            stop_at=5,
        )
    checkpoints = sorted((tmp_path / "checkpoints").glob("checkpoint-*"))
    assert [(path.name[-1], (path / "reference").is_dir()) for path in checkpoints] == [
        ("1", False),
        ("2", False),
        ("3", True),
        ("4", True),
    ]


def test_a_lost_reference_is_an_error_and_not_another_run(
    tmp_path: Path, start: dict[str, Path], rows_file: Path, even_reward: str
) -> None:
    common = (start["full"], rows_file, even_reward, "full")
    with pytest.raises(Killed):
        run(tmp_path, *common, reference_replacement_steps=1, stop_at=3)
    for folder in (tmp_path / "checkpoints").glob("checkpoint-*/reference"):
        shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match="reference"):
        run(tmp_path, *common, reference_replacement_steps=1)


def test_the_papers_presets_replace_it_every_400_steps(tmp_path: Path) -> None:
    assert {preset["reference_replacement_steps"] for preset in PRESETS.values()} == {400}
    assert R1GRPOConfig(output_dir=str(tmp_path)).reference_replacement_steps is None
    with pytest.raises(ValueError, match="reference_replacement_steps is 0"):
        R1GRPOConfig(output_dir=str(tmp_path), reference_replacement_steps=0)


def test_two_ways_to_change_the_reference_are_one_too_many(
    tmp_path: Path, start: dict[str, Path], rows_file: Path, even_reward: str
) -> None:
    common = (tmp_path, start["full"], rows_file, even_reward, "full")
    with pytest.raises(ValueError, match="take one out"):
        run(*common, reference_replacement_steps=1, **SYNCED)


def test_without_a_penalty_there_is_nothing_to_replace(
    tmp_path: Path, start: dict[str, Path], rows_file: Path, even_reward: str
) -> None:
    run(
        tmp_path,
        *(start["full"], rows_file, even_reward, "full"),
        reference_replacement_steps=1,
        beta=0.0,
        max_steps=2,
    )
    assert (tmp_path / "model").is_dir()


_SCRIPT = """
import os
import sys
from pathlib import Path

sys.path.insert(0, {tests!r})
import test_grpo_reference as here
import torch.distributed as dist

out, model, rows, reward, stop_at = sys.argv[1:]
try:
    lines = here.run(
        Path(out), Path(model), Path(rows), reward, "full", reference_replacement_steps=2,
        per_device_train_batch_size=4, max_steps=4, stop_at=int(stop_at) or None,
    )
except here.Killed:
    os._exit(9)
assert dist.get_world_size() == 2
kl = [line["kl"] for line in lines]
assert [abs(value) < 1e-6 for value in kl] == [True, False, True, False], kl
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_replace_and_resume_it_together(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(tests=str(Path(__file__).parent)))

    def launch(port: int, out: Path, stop_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
        command += [f"--master_port={port}", str(script), str(out), str(tiny_model_dir)]
        command += [str(rows_file), even_reward, str(stop_at)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    whole = launch(29641, tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr[-3000:]
    assert launch(29642, tmp_path / "cut", 4).returncode != 0
    again = launch(29643, tmp_path / "cut", 0)
    assert again.returncode == 0, again.stderr[-3000:]
    assert same(tmp_path / "whole", tmp_path / "cut")
