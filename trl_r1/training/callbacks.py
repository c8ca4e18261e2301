"""What is written and shown while a stage trains.

Left out: monitors that judge the figures.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

ProgressFunction = Callable[[int, int, Mapping[str, float]], None]


class MetricsFile(TrainerCallback):
    """Appends every log to a file, one JSON object a line.

    Args:
        path: of the file. What it holds beyond the step that training goes on from is cut off, so
            that steps trained again are not in it twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            truncate_metrics(self.path, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        line = {"step": state.global_step, "time": round(time.time(), 3), **_finite(logs)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def truncate_metrics(path: Path, last_step: int) -> None:
    """Drop the lines beyond `last_step`, and a last line that a kill cut off."""
    if not path.exists():
        return
    kept = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line["step"] <= last_step:
            kept.append(text + "\n")
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class Progress(TrainerCallback):
    """Hands every log to `on_progress(step, max_steps, metrics)`, in the main process."""

    def __init__(self, on_progress: ProgressFunction) -> None:
        self.on_progress = on_progress

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            metrics = {k: v for k, v in _finite(logs or {}).items() if v is not None}
            self.on_progress(state.global_step, state.max_steps, metrics)


class SaveBetweenGenerations(TrainerCallback):
    """Moves a checkpoint that is due while RL still uses a batch of completions to its end.

    The completions at hand are not in a checkpoint. One taken between two uses of them would, on
    resuming, generate anew and go another way than an undisturbed run. Where evaluations decide
    which checkpoint is the best, they move too, so that each is of weights that are saved.

    Args:
        is_boundary: says whether the step that has just ended was the last use of its completions.
    """

    def __init__(self, is_boundary: Callable[[], bool]) -> None:
        self.is_boundary = is_boundary
        self.is_due = False
        self.is_evaluation_due = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        is_time = state.global_step >= state.max_steps or self.is_boundary()
        self.is_due = self.is_due or control.should_save
        control.should_save = self.is_due and is_time
        self.is_due = self.is_due and not is_time
        if args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST:
            self.is_evaluation_due = self.is_evaluation_due or control.should_evaluate
            control.should_evaluate = self.is_evaluation_due and is_time
            self.is_evaluation_due = self.is_evaluation_due and not is_time
        return control


def _finite(logs: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers among the logs; a NaN or infinity, which JSON lacks, becomes None."""
    figures: dict[str, float | None] = {}
    for key, value in logs.items():
        if isinstance(value, (int, float)):
            figures[key] = value if math.isfinite(value) else None
        elif value is None:
            figures[key] = None
    return figures
