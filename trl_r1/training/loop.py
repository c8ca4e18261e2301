"""The run of a training stage: go on from the last checkpoint, train, store the result.

Shared by every stage that trains. Left out: what a stage trains on and how, which is its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, Trainer, TrainerState

from trl_r1.hub.checkpoints import OUTBOX, PushCheckpoints
from trl_r1.stages import StageContext
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.artifacts import save_model_artifact, write_details
from trl_r1.training.callbacks import MetricsFile, Progress
from trl_r1.training.checkpoints import (
    FlushCheckpoints,
    checkpoint_step,
    last_complete_checkpoint,
    remove_incomplete_checkpoints,
)
from trl_r1.training.models import missing_gradient_is_an_error
from trl_r1.training.trackers import tracked


def train_and_save(
    trainer: Trainer,
    context: StageContext,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    *,
    artifact: str = "model",
    figures: Callable[[], dict[str, Any]] = dict,
    part: str = "",
) -> dict[str, Any]:
    """Train, from the last complete checkpoint where there is one, and store the model.

    Args:
        trainer: built from the stage's start model, also when it goes on: a reference model that
            the trainer makes from it is then the same as in the first attempt.
        artifact: folder to store it as, `model` or `reward_model`.
        figures: called after training; what the stage adds to the details. It may finish other
            artifacts of the stage, since `artifact` is written last.
        part: name of one of several trainings of a stage, which keeps checkpoints and metrics of
            its own.

    Returns:
        Details of the stage: optimizer steps, rows, the last loss and those of `figures`.
    """
    is_main = trainer.accelerator.is_main_process
    checkpoints = context.checkpoints_dir / part
    metrics = f"{part}_metrics.jsonl" if part else "metrics.jsonl"
    trainer.add_callback(MetricsFile(context.output_dir / metrics))
    trainer.add_callback(Progress(context.on_progress))
    trainer.add_callback(FlushCheckpoints())
    if context.checkpoint_repo is not None and not part:
        trainer.add_callback(PushCheckpoints(context.output_dir / OUTBOX, context.checkpoint_repo))
    num_processes = trainer.accelerator.num_processes
    if is_main:
        remove_incomplete_checkpoints(checkpoints, num_processes)
    trainer.accelerator.wait_for_everyone()
    checkpoint = last_complete_checkpoint(checkpoints, num_processes)
    first_step = checkpoint_step(checkpoint) if checkpoint else 0
    with (
        missing_gradient_is_an_error(),
        tracked(trainer, context, checkpoints, first_step, part),
    ):
        steps = _train(trainer, checkpoint)
        details = {"steps": steps, "train_loss": _last(trainer, "loss"), **figures()}
    if is_main:
        write_details(context.output_dir, details)
    save_model_artifact(trainer, context.output_dir, tokenizer, model_args, name=artifact)
    if is_main:  # optimizer states are of no use any more, and large
        shutil.rmtree(checkpoints, ignore_errors=True)
    return details


def _train(trainer: Trainer, checkpoint: Path | None) -> int:
    """Train to the end; the number of optimizer steps."""
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if state.global_step >= state.max_steps:
            # Killed after the last step. Trainer would take one more before it notices.
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.state = state
            return int(state.global_step)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return int(trainer.state.global_step)


def _last(trainer: Trainer, key: str) -> float | None:
    """The last logged value of a figure."""
    return next((log[key] for log in reversed(trainer.state.log_history) if key in log), None)
