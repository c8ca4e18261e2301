"""Watches a training with `monitors.py`: warns, stops it, or sends it back to a good checkpoint.

Every alarm becomes a line of `monitors.jsonl` and of the log, once: it comes again only after the
monitor was silent for a while. What an alarm does is set per monitor. `stop` ends the training with
an error. `rollback` ends it with `RollbackNeeded`; a stage takes that as the order to drop the
checkpoints since the trouble began and to go on from the last good one with a lower learning rate
(`go_back`), a limited number of times.
"""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_r1.stages.grpo.alarms import (
    Alarm,
    AlarmError,
    RollbackNeeded,
    append_record,
    last_good_checkpoint,
    read_records,
)
from trl_r1.stages.grpo.history import History
from trl_r1.stages.grpo.monitors import MONITORS
from trl_r1.training.artifacts import write_text

ACTIONS = ("warn", "stop", "rollback", "off")
# Logs without a finding after which a monitor may raise the same alarm again.
_SILENCE = 10
_ADVISED = ("learning_rate", "beta", "temperature", "max_completion_length", "num_generations")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MonitorSetting:
    """What a recipe says of one monitor: what an alarm does, and its limits."""

    action: str
    limits: Mapping[str, float]


def read_monitors(given: Mapping[str, Any]) -> dict[str, MonitorSetting]:
    """The settings of every monitor.

    Args:
        given: `monitors` of a recipe: an action by name, or a mapping of `action` and limits.

    Raises:
        ValueError: an unknown monitor, action or limit, or a limit that is no number.
    """
    known = [*MONITORS, "all"]
    for name in given:
        if name not in known:
            hint = _suggestion(str(name), known) or f"; known: {', '.join(known)}"
            raise ValueError(f"monitors: unknown monitor {name!r}{hint}")
    default = _action("all", given.get("all", "warn"))
    settings = {}
    for name, monitor in MONITORS.items():
        value = given.get(name, default)
        entry = dict(value) if isinstance(value, Mapping) else {"action": value}
        action = _action(name, entry.pop("action", default))
        for key, limit in entry.items():
            if key not in monitor.limits:
                hint = _suggestion(str(key), monitor.limits)
                limits = ", ".join(monitor.limits)
                raise ValueError(
                    f"monitors: {name} has no limit {key!r}{hint or f'; has {limits}'}"
                )
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if not is_number or not math.isfinite(limit) or limit < 0:
                raise ValueError(
                    f"monitors: {name}: {key} should be a number from 0, not {limit!r}"
                )
            if key == "logs" and (limit < 2 or limit != int(limit)):
                raise ValueError(f"monitors: {name}: logs should be a whole number from 2")
        settings[name] = MonitorSetting(action, {**monitor.limits, **entry})
    return settings


def _action(name: str, value: Any) -> str:
    action = "off" if value is False else value  # YAML 1.1 reads off as false
    if action not in ACTIONS:
        raise ValueError(f"monitors: {name} should be one of {', '.join(ACTIONS)}, not {value!r}")
    return str(action)


class Watch(TrainerCallback):
    """Calls the monitors at every log. Its memory is Trainer's log history, which resumes.

    Args:
        settings: of every monitor, from `read_monitors`.
        file: where alarms are kept.
        accuracy_name: name of the reward that says what is right.
    """

    def __init__(
        self, settings: Mapping[str, MonitorSetting], file: Path, accuracy_name: str | None = None
    ) -> None:
        self.settings = settings
        self.file = file
        self.accuracy_name = accuracy_name
        self.history = History()
        self.ending: Alarm | None = None
        self._silent_logs: dict[str, int] = {}

    def look_back(self, state: TrainerState, args: TrainingArguments) -> None:
        """End a training before it begins that was cut short by an alarm, and would go on from
        where that came.

        Args:
            state: of the checkpoint that it would go on from.
            args: the training's.
        """
        self._recall(state, args)
        for name, setting in self.settings.items():
            if setting.action in ("stop", "rollback") and self.ending is None:
                finding = MONITORS[name].judge(self.history, setting.limits)
                if finding is not None:
                    self.ending = Alarm(int(state.global_step), name, setting.action, finding)

    def _recall(self, state: TrainerState, args: TrainingArguments) -> None:
        self.ending = None
        advised = {name: getattr(args, name, None) for name in _ADVISED}
        advised["accuracy_name"] = self.accuracy_name
        self.history = History(state.log_history, advised)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._recall(state, args)
        records = read_records(self.file)
        kept = [r for r in records if r["step"] <= state.global_step or r["action"] != "warn"]
        if state.is_world_process_zero and len(kept) < len(records):
            write_text(self.file, "".join(json.dumps(r) + "\n" for r in kept))
        self._silent_logs = {r["monitor"]: 0 for r in kept if r["action"] == "warn"}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not self.history.add({**(logs or {}), "step": state.global_step}):
            return
        for name, setting in self.settings.items():
            if setting.action != "off":
                self._watch(name, setting, state)
        if any(setting.action in ("stop", "rollback") for setting in self.settings.values()):
            # The figures are the same in every process; that they stop together must be certain.
            decision = [self.ending]
            broadcast_object_list(decision)
            self.ending = decision[0]
        if self.ending is not None:
            control.should_training_stop = True

    def _watch(self, name: str, setting: MonitorSetting, state: TrainerState) -> None:
        finding = MONITORS[name].judge(self.history, setting.limits)
        if finding is None:
            silent = self._silent_logs.pop(name, None)
            if silent is not None and silent + 1 < _SILENCE:
                self._silent_logs[name] = silent + 1
            return
        is_new = name not in self._silent_logs
        self._silent_logs[name] = 0
        if not is_new:
            return
        alarm = Alarm(int(state.global_step), name, setting.action, finding)
        if setting.action != "warn" and self.ending is None:
            self.ending = alarm
        if state.is_world_process_zero:
            _logger.warning("%s (%s)", alarm, finding.meaning)
            append_record(self.file, alarm.record())

    def raise_if_ended(self, checkpoints: Path) -> None:
        """Raise where an alarm has ended the training.

        Args:
            checkpoints: folder of the checkpoints, to name the last good one.

        Raises:
            RollbackNeeded: for the action `rollback`.
            AlarmError: for `stop`.
        """
        if self.ending is None:
            return
        good = last_good_checkpoint(checkpoints, self.ending)
        way = f"resume from {good.name}" if good else "no checkpoint is from before it began"
        kind = RollbackNeeded if self.ending.action == "rollback" else AlarmError
        raise kind(f"{self.ending}. Training was stopped; {way}", self.ending)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
