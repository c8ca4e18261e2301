"""Scores of a stage's model before and after it: taken from the ledger where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trl_r1.pipeline.configs import resolve
from trl_r1.pipeline.display import Display, duration
from trl_r1.pipeline.execution import clean_up, make_job, set_up
from trl_r1.pipeline.inputs import locator
from trl_r1.pipeline.ledger import StageRecord, records
from trl_r1.pipeline.recipe import Pipeline, StageRecipe
from trl_r1.training.arguments import EvaluationSettings, ModelArguments


class Scorer:
    """Scores models of a run.

    Args:
        pipeline: the pipeline.
        run_dir: folder of the run, absolute.
        display: what a person sees.
    """

    def __init__(self, pipeline: Pipeline, run_dir: Path, display: Display) -> None:
        self.pipeline, self.run_dir, self.display = pipeline, run_dir, display

    def before(
        self,
        recipe: StageRecipe,
        record: StageRecord,
        settings: EvaluationSettings,
        scoring: str,
        home: Path,
    ) -> dict[str, Any]:
        """The scores of the model the stage starts from, from the ledger where they are known.

        Args:
            recipe, record: of the stage.
            settings, scoring: how models are scored, and the hash of that.
            home: the stage's folder; samples go there where the model has to be scored.
        """
        start = next((item for item in record.inputs if item.role == "weights"), None)
        if start is None:
            return {}
        if record.fingerprint.get("scores") == scoring and record.scores.get("before"):
            return {"before": record.scores["before"]}
        for other in records(self.run_dir).values():
            if other.fingerprint.get("scores") != scoring or other.status != "finished":
                continue
            if other.name == start.stage and next(iter(other.artifacts), None) == start.artifact:
                return {"before": other.scores.get("after")}
            theirs = next((item for item in other.inputs if item.role == "weights"), None)
            if theirs is not None and theirs.hash == start.hash is not None:
                return {"before": other.scores.get("before")}
        self.display.phase("scoring the model it starts from")
        place = resolve(recipe, self.pipeline.folder, locator(self.pipeline, self.run_dir))
        path = place.values["model_name_or_path"]
        return {"before": self.score(recipe, Path(path), settings, home, "before")}

    def score(
        self,
        recipe: StageRecipe,
        model: Path,
        settings: EvaluationSettings,
        home: Path,
        when: Literal["before", "after"],
    ) -> dict[str, Any]:
        """Score a model, and keep a part of the samples in the stage's folder `home`."""
        from trl_r1.evaluation.record import KEPT_FOLDER
        from trl_r1.reasoning_format import get_format
        from trl_r1.stages.evaluation import evaluate_model

        resolved = resolve(recipe, self.pipeline.folder, locator(self.pipeline, self.run_dir))
        job = make_job(resolved, model.parent, settings.seed, self.pipeline.threads)
        set_up(job)
        arguments = model_arguments(recipe, resolved.values)
        try:
            scores: dict[str, Any] = evaluate_model(
                str(model),
                settings,
                get_format(arguments.reasoning_format),
                arguments,
                home / KEPT_FOLDER / f"{when}.parquet",
            )
        finally:
            clean_up()
        return scores


def model_arguments(recipe: StageRecipe, values: Mapping[str, Any]) -> ModelArguments:
    """How to load a stage's model for scoring: its own arguments, as far as it has them."""
    keys = {k: v for k, v in values.items() if k in ModelArguments.__dataclass_fields__}
    if "reasoning_format" not in keys:
        for config in recipe.spec.configs:
            default = getattr(config, "reasoning_format", None)
            if isinstance(default, str):
                keys["reasoning_format"] = default
    return ModelArguments(**keys)


def result_text(record: StageRecord) -> str:
    """A finished stage in a line: time, scores, samples kept."""
    parts = []
    after, before = record.scores.get("after") or {}, record.scores.get("before") or {}
    for key in ("pass@1", "format", "mean_length", "general", "preference"):
        if key in after:
            digits = 0 if key == "mean_length" else 3
            old = f"{before[key]:.{digits}f} -> " if key in before else ""
            parts.append(f"{key} {old}{after[key]:.{digits}f}")
    if "kept" in record.details and "samples" in record.details:
        parts.append(f"kept {record.details['kept']} of {record.details['samples']} samples")
    return f"finished in {duration(record.seconds)}{': ' if parts else ''}{', '.join(parts)}"
