"""A training goes on from the last checkpoint that is whole, whatever became of later ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Killed
from safetensors.torch import save_file
from test_training_resume import _grpo, _metrics, _rollouts, _same_weights

from trl_r1.stages import grpo
from trl_r1.training.checkpoints import last_complete_checkpoint, remove_incomplete_checkpoints


def make_checkpoint(folder: Path, step: int, ranks: int = 0) -> Path:
    """A checkpoint with the files that Trainer writes."""
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    save_file({"w": torch.arange(100.0), "b": torch.ones(3)}, path / "model.safetensors")
    names = ["optimizer.pt", "scheduler.pt", "rng_state.pth"]
    for name in names if not ranks else [*names[:2], *(f"rng_state_{r}.pth" for r in range(ranks))]:
        torch.save({"step": step, "x": torch.ones(64)}, path / name)
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return path


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no_state": lambda c: (c / "trainer_state.json").unlink(),
    "half_a_state": lambda c: halve(c / "trainer_state.json"),
    "odd_state": lambda c: (c / "trainer_state.json").write_text("[]"),
    "no_weights": lambda c: (c / "model.safetensors").unlink(),
    "half_the_weights": lambda c: halve(c / "model.safetensors"),
    "blank_weights": lambda c: (c / "model.safetensors").write_bytes(b""),
    "zero_weights": lambda c: (c / "model.safetensors").write_bytes(b"\0" * 500),
    "no_optimizer": lambda c: (c / "optimizer.pt").unlink(),
    "half_an_optimizer": lambda c: halve(c / "optimizer.pt"),
    "half_a_schedule": lambda c: halve(c / "scheduler.pt"),
    "no_random_state": lambda c: halve(c / "rng_state.pth"),
    "empty": lambda c: (shutil.rmtree(c), c.mkdir()),
    "a_file": lambda c: (shutil.rmtree(c), c.write_text("")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_and_removed(kind: str, tmp_path: Path) -> None:
    whole, damaged = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4)
    assert last_complete_checkpoint(tmp_path) == damaged
    DAMAGE[kind](damaged)
    assert last_complete_checkpoint(tmp_path) == whole
    remove_incomplete_checkpoints(tmp_path)
    assert whole.is_dir()
    assert not damaged.is_dir()


def test_where_there_is_no_checkpoint_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-x").mkdir()
    assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "none") is None


def test_a_checkpoint_of_the_model_only_is_whole(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, 2)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).unlink()
    assert last_complete_checkpoint(tmp_path) == path


def test_a_checkpoint_that_lacks_a_process_is_passed_over(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 2, ranks=2)
    make_checkpoint(tmp_path, 4, ranks=1)
    assert last_complete_checkpoint(tmp_path, num_processes=2) == tmp_path / "checkpoint-2"


def test_rl_goes_on_before_a_torn_checkpoint_with_the_same_result(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    common = (tiny_model_dir, rows_file, even_reward)
    grpo.run(_grpo(tmp_path, "whole", *common))
    with pytest.raises(Killed):
        grpo.run(_grpo(tmp_path, "cut", *common, stop_at=5))
    last = last_complete_checkpoint(tmp_path / "cut" / "checkpoints")
    assert last is not None
    assert last.name == "checkpoint-4"
    halve(last / "optimizer.pt")
    grpo.run(_grpo(tmp_path, "cut", *common))
    assert _same_weights(tmp_path / "whole" / "model", tmp_path / "cut" / "model")
    assert _metrics(tmp_path / "whole") == _metrics(tmp_path / "cut")
    whole, cut = (_rollouts(tmp_path / name / "rollouts") for name in ("whole", "cut"))
    assert whole == cut
