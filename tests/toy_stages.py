"""Stages that cost nothing, for tests of the runner: they take steps and write small artifacts.

`register()` puts them beside the real ones. A journal outside the run records every call and every
step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from trl_r1.stages import STAGES, StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, ModelArguments

# What a stage raises before a step, once: {("zero", 2): RuntimeError("...")}.
FAILURES: dict[tuple[str, int], BaseException] = {}


@dataclass
class ToyConfig:
    """Settings of a toy stage."""

    num_steps: int = field(default=3, metadata={"help": "Steps to take."})
    step_seconds: float = field(default=0.0, metadata={"help": "Time of a step."})
    gain: float = field(default=1.0, metadata={"help": "What a step adds to the model's value."})
    logging_steps: int = field(default=1, metadata={"help": "Changes nothing that is learnt."})
    hub_token: str | None = field(default=None, metadata={"help": "A secret."})
    journal: str | None = field(default=None, metadata={"help": "File of calls and steps."})


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def _note(journal: str | None, line: str) -> None:
    if journal:
        with Path(journal).open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def _input_value(path: str | None) -> float:
    return float((Path(path) / "value").read_text()) if path else 0.0


def run_toy(context: StageContext, artifacts: tuple[str, ...]) -> StageResult:
    """Take the steps that are left, then write the artifacts, each in one piece."""
    config = context.config(ToyConfig)
    model = next(
        (c.model_name_or_path for c in context.configs if isinstance(c, ModelArguments)), None
    )
    _note(config.journal, f"begin {context.name}")
    if all((context.output_dir / name).exists() for name in artifacts):
        return StageResult(details={"steps": config.num_steps})
    checkpoint = context.output_dir / "checkpoints" / "step"
    checkpoint.parent.mkdir(exist_ok=True, parents=True)
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(done + 1, config.num_steps + 1):
        if (context.name, step) in FAILURES:
            raise FAILURES.pop((context.name, step))
        time.sleep(config.step_seconds)
        _write(checkpoint, str(step))
        _note(config.journal, f"step {context.name} {step}")
        context.on_progress(step, config.num_steps, {"reward": step / config.num_steps})
    value = _input_value(model) + config.gain * config.num_steps
    for name in artifacts:
        if not (context.output_dir / name).exists():
            partial = context.output_dir / f".{name}.partial"
            partial.mkdir(exist_ok=True)
            (partial / "value").write_text(json.dumps(value / 2 if name == "student" else value))
            partial.rename(context.output_dir / name)
    sys.stdout.write("a line that a library prints\n")
    return StageResult(details={"steps": config.num_steps})


SPECS = {
    "toy_base": StageSpec((ToyConfig,), ("model", "student"), model_kind=None),
    "toy_rl": StageSpec(
        (ModelArguments, DatasetArguments, ToyConfig),
        ("model", "rollouts"),
        uses_rewards=True,
        updates_policy_with="rl",
        presets={"gentle": {"gain": 0.5, "num_steps": 2}},
    ),
    "toy_sampling": StageSpec(
        (ModelArguments, DatasetArguments, ToyConfig), ("dataset", "samples"), uses_rewards=True
    ),
    "toy_sft": StageSpec(
        (ModelArguments, DatasetArguments, ToyConfig),
        ("model",),
        updates_policy_with="sft",
        needs_untrained_start=True,
    ),
    "toy_reward_model": StageSpec((ModelArguments, DatasetArguments, ToyConfig), ("reward_model",)),
}


def register(put: Callable[[dict[str, str], str, str], None] = dict.__setitem__) -> None:
    """Make the toy stages known; a test passes `monkeypatch.setitem` to forget them after it."""
    for name, spec in SPECS.items():
        module: Any = ModuleType(f"registered_{name}")
        module.SPEC = spec
        module.run = lambda context, spec=spec: run_toy(context, spec.produces)
        sys.modules[module.__name__] = module
        put(STAGES, name, module.__name__)
