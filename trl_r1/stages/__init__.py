"""The stages of the recipe, and the contract between a stage and the runner.

A stage is a module that defines `SPEC`, a `StageSpec`, and `run(context)`. No stage imports
another; what they share lives in `trl_r1.training` and `trl_r1.sampling`. `STAGES` maps a recipe's
`stage:` to its module and is resolved on demand, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from trl_r1.hub.checkpoints import CheckpointRepo

_Config = TypeVar("_Config")

STAGES: dict[str, str] = {
    "tiny_base": "trl_r1.stages.tiny_base",
    "cold_start": "trl_r1.stages.cold_start",
    "grpo": "trl_r1.stages.grpo",
    "rejection_sampling": "trl_r1.stages.rejection_sampling",
    "mixed_sft": "trl_r1.stages.mixed_sft",
    "reward_model": "trl_r1.stages.reward_model",
    "distillation": "trl_r1.stages.distillation",
    "evaluation": "trl_r1.stages.evaluation",
}


@dataclass(frozen=True)
class StageSpec:
    """What the recipe reader and the runner need to know of a stage.

    Attributes:
        configs: dataclasses whose fields are the keys a recipe may use; a field of an earlier one
            hides its namesake in a later one. The last is TRL's config (or a subclass) where the
            stage trains.
        produces: the artifacts it leaves, each a folder of that name in the stage's folder:
            `model`, `adapter`, `dataset`, `rollouts`, `samples`, `reward_model`. The first is what
            `@name` means.
        model_kind: kind of artifact its `model_name_or_path` takes; None for a stage that takes no
            model.
        uses_rewards: whether `rewards:` is allowed.
        needs_rewards: whether at least one reward is required.
        updates_policy_with: `sft`, `rl` or None; what lineage checks go by.
        needs_untrained_start: True for stages that the paper starts from the base model, never from
            RL weights.
        presets: named settings (recipe key `preset`), between the recipe's keys and the configs'
            defaults.
        check: extra checks of the resolved recipe that need no model; yields (key, message) pairs.
    """

    configs: tuple[type, ...]
    produces: tuple[str, ...]
    model_kind: str | None = "model"
    uses_rewards: bool = False
    needs_rewards: bool = False
    updates_policy_with: str | None = None
    needs_untrained_start: bool = False
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], list[tuple[str, str]]] | None = None


@dataclass(frozen=True)
class RewardSpec:
    """One entry of a recipe's `rewards:`.

    Attributes:
        use: name of a file in `rewards/`, `package.module:function` or `file.py:function`.
        weight: factor of the reward in the sum.
        args: keyword arguments bound to the function.
        from_step, until_step: optimizer steps in which it counts, `from_step <= step < until_step`.
        tasks: rows it applies to, by their `task` column; empty for all. Elsewhere it returns None.
        name: what logs call it; the function's name by default.
        timeout: seconds for a call of it; the stage's `reward_timeout` by default.
    """

    use: str
    weight: float = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)
    from_step: int = 0
    until_step: int | None = None
    tasks: tuple[str, ...] = ()
    name: str | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class StageContext:
    """What the runner hands to `run`.

    Attributes:
        name: the stage's name in its pipeline (`zero` of `02_zero.yaml`).
        output_dir: absolute folder to write artifacts, checkpoints and `metrics.jsonl` to. What an
            earlier, killed attempt with the same recipe and inputs left there is to be resumed,
            never restarted.
        configs: an instance of each of the stage's `SPEC.configs`, with `@` references replaced by
            absolute paths and TRL's `output_dir` set to `checkpoints_dir`.
        rewards: parsed `rewards:`.
        on_progress: called with (step, max_steps, metrics) at each log; cheap, may be called often.
        checkpoint_repo: where checkpoints are pushed while it trains; None to push none.
        wrap_sampler: put around what draws the samples of a data stage; a rehearsal's answers come
            in there.
    """

    name: str
    output_dir: Path
    configs: tuple[Any, ...]
    rewards: tuple[RewardSpec, ...] = ()
    on_progress: Callable[[int, int, Mapping[str, float]], None] = lambda *_: None
    checkpoint_repo: CheckpointRepo | None = None
    wrap_sampler: Callable[[Any], Any] = lambda sampler: sampler

    @property
    def checkpoints_dir(self) -> Path:
        return self.output_dir / "checkpoints"

    def config(self, cls: type[_Config]) -> _Config:
        """The config of that class, or of a subclass of it."""
        for config in self.configs:
            if isinstance(config, cls):
                return config
        raise LookupError(f"stage {self.name!r} has no {cls.__name__}")


@dataclass(frozen=True)
class StageResult:
    """What `run` returns: figures for the ledger's `details` and scores that only the stage can
    know.

    Attributes:
        details: plain data worth keeping (rows kept, rejections by reason, shares, steps).
        scores: scores to store as they are (an `evaluation` stage's); None for the runner's
            before/after.
    """

    details: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] | None = None


def load_stage(name: str) -> Any:
    """The module of a stage, imported on demand.

    Raises:
        KeyError: for a name that is not in `STAGES`.
    """
    return importlib.import_module(STAGES[name])
