"""Which checkpoint of a training is whole, so that it can go on from there.

Trainer writes `trainer_state.json` last, so a kill leaves a checkpoint without it. After a power
cut the system may have kept that file and lost the ends of larger ones, so these are looked at too:
at the frame of each file only, since reading gigabytes takes minutes. Every checkpoint is also
flushed to the disk before the one before it goes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("*.safetensors", "pytorch_model*", "adapter_model*", "global_step*")
# Other names are of DeepSpeed and FSDP.
_OPTIMIZERS = ("optimizer*", "global_step*")


class FlushCheckpoints(TrainerCallback):
    """Has the system write a checkpoint to the disk: a power cut then costs later steps only."""

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if not state.is_world_process_zero or not folder.is_dir():
            return
        for path in (*folder.rglob("*"), folder):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def last_complete_checkpoint(folder: Path, num_processes: int = 1) -> Path | None:
    """The checkpoint with the most steps among those that are whole.

    Passed over: one whose `trainer_state.json` is missing or cut off, that lacks weights or the
    optimizer's state, has a file that is cut off, or lacks the random state of a process.
    """
    if not folder.is_dir():
        return None
    checkpoints = sorted(
        (path for path in folder.iterdir() if checkpoint_step(path) >= 0), key=checkpoint_step
    )
    return next((path for path in reversed(checkpoints) if _is_complete(path, num_processes)), None)


def remove_incomplete_checkpoints(folder: Path, num_processes: int = 1) -> None:
    """Delete what a kill left half-written, so that nothing takes it for a checkpoint."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if checkpoint_step(path) >= 0 and not _is_complete(path, num_processes):
            shutil.rmtree(path)


def checkpoint_step(checkpoint: Path) -> int:
    """The step of a checkpoint folder by its name, -1 for anything else."""
    match = _CHECKPOINT.fullmatch(checkpoint.name)
    return int(match[1]) if match and checkpoint.is_dir() else -1


def _is_complete(checkpoint: Path, num_processes: int) -> bool:
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        step = int(state["global_step"])
    except (OSError, ValueError, TypeError, KeyError):
        return False
    random_states = list(checkpoint.glob("rng_state_*.pth"))
    if random_states and len(random_states) < num_processes:
        return False
    has_weights = any(any(checkpoint.glob(name)) for name in _WEIGHTS)
    # Under `save_only_model` there is neither; a schedule alone has lost its optimizer.
    has_optimizer = any(any(checkpoint.glob(name)) for name in _OPTIMIZERS)
    is_torn = (checkpoint / "scheduler.pt").exists() and not has_optimizer
    files = [path for path in checkpoint.iterdir() if path.is_file()]
    return (
        step == checkpoint_step(checkpoint)
        and has_weights
        and not is_torn
        and all(_is_whole(path) for path in files)
    )


def _is_whole(path: Path) -> bool:
    """Whether a file of tensors ends where it should; True for other files."""
    if path.suffix in (".pt", ".pth"):
        return zipfile.is_zipfile(path)  # what torch.save writes
    if path.suffix == ".safetensors":
        return _is_whole_safetensors(path)
    return True


def _is_whole_safetensors(path: Path) -> bool:
    """By its header, which says where each tensor ends."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if size < 8 + length:
            return False
        try:
            header = json.loads(file.read(length))
            ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
    return size == 8 + length + max(ends, default=0)
