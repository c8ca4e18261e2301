"""Alarms of the monitors: their records, the errors they end a training with, and the way back."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_r1.stages.grpo.history import Finding
from trl_r1.training.checkpoints import checkpoint_step

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Alarm:
    """A finding that was reported.

    Attributes:
        step: optimizer step of the log that gave it.
        monitor: the monitor's name.
        action: what was done.
        finding: what it found.
    """

    step: int
    monitor: str
    action: str
    finding: Finding

    def __str__(self) -> str:
        found = self.finding
        return f"{self.monitor} at step {self.step}: {found.seen}. Change: {found.advice}"

    def record(self) -> dict[str, Any]:
        """As a line of `monitors.jsonl`."""
        head = {"step": self.step, "time": round(time.time(), 3), "monitor": self.monitor}
        return {**head, "action": self.action, **asdict(self.finding)}


class AlarmError(RuntimeError):
    """An alarm ended the training.

    Attributes:
        alarm: which.
    """

    def __init__(self, message: str, alarm: Alarm) -> None:
        super().__init__(message)
        self.alarm = alarm


class RollbackNeeded(AlarmError):  # noqa: N818 - an order more than an error
    """An alarm ended the training, and it is to go on from the last good checkpoint."""


def last_good_checkpoint(folder: Path, alarm: Alarm) -> Path | None:
    """The last checkpoint from before what an alarm is about; None where there is none.

    A step's figures are of the weights before its update, so the last good log vouches for the
    checkpoint before it only.
    """
    found = folder.iterdir() if folder.is_dir() else ()
    good = [path for path in found if 0 <= checkpoint_step(path) < alarm.finding.since]
    return max(good, key=checkpoint_step, default=None)


def go_back(checkpoints: Path, file: Path, alarm: Alarm, learning_rate: float) -> None:
    """Delete the checkpoints since the trouble began, so that training goes on before it.

    Args:
        checkpoints: folder of the checkpoints.
        file: `monitors.jsonl`, which gets a line of it.
        alarm: what happened.
        learning_rate: that it goes on with.
    """
    good = last_good_checkpoint(checkpoints, alarm)
    for path in list(checkpoints.iterdir()) if checkpoints.is_dir() else ():
        if checkpoint_step(path) >= max(alarm.finding.since, 1):
            shutil.rmtree(path)
    step = checkpoint_step(good) if good else 0
    if good is None:
        _logger.warning(
            "No checkpoint from before step %d is left, so the stage begins again; keep more with "
            "save_total_limit, or save more often",
            alarm.finding.since,
        )
    # Last: after a kill before this line, the alarm comes again.
    append_record(
        file,
        {
            "step": alarm.step,
            "time": round(time.time(), 3),
            "monitor": alarm.monitor,
            "action": "went back",
            "to_step": step,
            "learning_rate": learning_rate,
        },
    )
    _logger.warning("went back to step %d, with learning_rate %.2e", step, learning_rate)


def append_record(file: Path, record: Mapping[str, Any]) -> None:
    """Add a line to `monitors.jsonl`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")


def read_records(file: Path) -> list[dict[str, Any]]:
    """The lines of `monitors.jsonl`; one that a kill cut off is left out."""
    if not file.is_file():
        return []
    records = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def num_rollbacks(file: Path) -> int:
    """How often a stage went back."""
    return sum(record["action"] == "went back" for record in read_records(file))


def alarm_counts(file: Path) -> dict[str, int]:
    """Alarms by monitor."""
    alarms = (r["monitor"] for r in read_records(file) if r["action"] != "went back")
    return dict(Counter(alarms))


class LearningRateOfSettings(TrainerCallback):
    """Where a checkpoint has another learning rate than the settings, uses that of the settings.

    Trainer restores the checkpoint's; after a rollback it is to be lower. Groups of weights that
    have a rate of their own keep their proportion, and a schedule its shape.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer, scheduler = kwargs.get("optimizer"), kwargs.get("lr_scheduler")
        inner: Any = getattr(scheduler, "scheduler", scheduler)
        rates = getattr(inner, "base_lrs", None)
        if optimizer is None or not rates or not max(rates) or args.learning_rate <= 0:
            return
        factor = args.learning_rate / max(rates)
        if math.isclose(factor, 1.0, rel_tol=1e-9):
            return
        inner.base_lrs = [rate * factor for rate in rates]
        inner._last_lr = [rate * factor for rate in inner._last_lr]
        for group in optimizer.param_groups:
            group["lr"] *= factor
            group["initial_lr"] = group.get("initial_lr", args.learning_rate / factor) * factor
