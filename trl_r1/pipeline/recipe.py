"""Recipes as dataclasses: a pipeline, and the stages in it. `reading.py` makes them from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_r1.pipeline.mistakes import PipelineError, suggestion
from trl_r1.stages import RewardSpec, StageSpec
from trl_r1.training.arguments import EvaluationSettings

# Keys of a stage file that are no field of a config.
STAGE_KEYS = ("stage", "preset", "rewards", "allow_rl_weights")
# Keys that list sources of rows; the second is an evaluation's.
SOURCE_KEYS = ("datasets", "general")
OWNED_KEYS = {
    "output_dir": "a stage writes to its own folder in the run; set --output_dir for the whole run",
    "resume_from_checkpoint": "a run goes on from its last checkpoint by itself",
    "overwrite_output_dir": "a changed stage is rerun by itself",
}


@dataclass(frozen=True)
class StageRecipe:
    """One stage of a pipeline.

    Attributes:
        name: `zero` of `02_zero.yaml`.
        stage: its type, a key of `STAGES`.
        spec: what its module says of itself.
        where: its file as mistakes call it.
        values: keys of the configs, merged and in their types; `@` references and paths as written.
        origins: where each of them comes from, in the words of mistakes.
        rewards: parsed `rewards:`.
        preset: name of the preset, if any.
        allow_rl_weights: an SFT stage may start from RL weights although the paper's does not.
    """

    name: str
    stage: str
    spec: StageSpec
    where: str
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    rewards: tuple[RewardSpec, ...] = ()
    preset: str | None = None
    allow_rl_weights: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether it leaves a model that can be scored."""
        return self.spec.produces[0] in ("model", "adapter")

    @property
    def main_artifact(self) -> str:
        """The artifact that `@name` means: a folder that may hold an adapter alone."""
        return self.spec.produces[0]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline.

    Attributes:
        name: of the run's folder.
        folder: the absolute path of its folder.
        shown: the folder as the user named it.
        stages: in running order.
        evaluation: how models are scored; `@` references and paths as written.
        sources: `dataset_name` by task, for datasets that name a task only.
        seed: of every stage that does not set its own.
        threads: CPU threads; None leaves them alone.
        unread: names of stages that are there, but whose files can't be read; of the others'
            references to them nothing is said.
    """

    name: str
    folder: Path
    shown: str
    stages: tuple[StageRecipe, ...] = ()
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    description: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    threads: int | None = None
    unread: frozenset[str] = frozenset()

    def stage(self, name: str) -> StageRecipe:
        """The stage of that name. Raises PipelineError with a suggestion."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = [stage.name for stage in self.stages]
        hint = f"{suggestion(name, names)}; it has {', '.join(names)}"
        raise PipelineError(f"{self.shown} has no stage {name!r}{hint}")
