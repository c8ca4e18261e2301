"""Trackers of `report_to`: each stage is a run of its own, and an interrupted one goes on in its.

What is sent, and where, is transformers' business (`WANDB_PROJECT`, `project`, `trackio_space_id`);
the figures are those of `metrics.jsonl`. Here is what transformers leaves open, since it knows of
one training only: a name for each stage's run, the end of the run of Weights & Biases after the
stage, and a place for TensorBoard's files that lasts longer than the checkpoints.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.integrations.integration_utils import TensorBoardCallback

from trl_r1.pipeline.run_file import RUN_FILE
from trl_r1.stages import StageContext

_NAME_FILE = "tracked_as.txt"


@contextmanager
def tracked(
    trainer: Trainer, context: StageContext, checkpoints: Path, first_step: int, part: str = ""
) -> Iterator[None]:
    """Within it, what a trainer logs goes to runs of this training alone.

    TensorBoard's files go to `tensorboard/` in the stage's folder, or to a folder of the stage's
    name in `TENSORBOARD_LOGGING_DIR`.

    Args:
        trainer: before it trains.
        context: of the stage.
        checkpoints: holds the name of the run, so that it lives as long as the training does.
        first_step: optimizer steps that are done already; what was logged beyond is void.
        part: name of one of several trainings of a stage.
    """
    args = trainer.args
    with ExitStack() as stack:
        if args.report_to and trainer.is_world_process_zero():
            args.run_name = args.run_name or _run_name(context, checkpoints, part)
            if "tensorboard" in args.report_to:
                stack.callback(_keep_tensorboard(trainer, context, first_step, part).close)
            if "wandb" in args.report_to and (run := _open_wandb(args.run_name)) is not None:
                stack.callback(run.finish)
        yield


def _run_name(context: StageContext, checkpoints: Path, part: str) -> str:
    """`PIPELINE/STAGE` and when it began: a stage that is run again is another run."""
    file = checkpoints / _NAME_FILE
    if not file.exists():
        checkpoints.mkdir(parents=True, exist_ok=True)
        folders = context.output_dir.parents
        run_dir = next((path for path in folders if (path / RUN_FILE).exists()), folders[0])
        stage = f"{context.name}-{part}" if part else context.name
        began = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write_text(f"{run_dir.name}/{stage} {began}", encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _keep_tensorboard(trainer: Trainer, context: StageContext, first_step: int, part: str) -> Any:
    given = os.environ.get("TENSORBOARD_LOGGING_DIR")
    own = context.output_dir / "tensorboard"
    place = (Path(given).expanduser() / context.name if given else own) / part
    callbacks = trainer.callback_handler.callbacks
    callback = next(own for own in callbacks if isinstance(own, TensorBoardCallback))
    # Torch's or tensorboardX's, whichever transformers has found.
    callback.tb_writer = callback._SummaryWriter(log_dir=str(place), purge_step=first_step + 1)
    return callback.tb_writer


def _open_wandb(name: str | None) -> Any:
    """A run that transformers will log to; None where the caller has one open, which it takes."""
    import wandb

    if wandb.run is not None:
        return None
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", "huggingface"),
        name=name,
        id=re.sub(r"[^A-Za-z0-9_-]", "-", name)[-100:] if name else None,
        resume="allow",
    )
