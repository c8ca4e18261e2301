"""What a run will do, stage by stage, and why: told before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.inputs import (
    MissingInputError,
    changing_keys,
    evaluation_of,
    gather_inputs,
    recipe_document,
    references_of,
    scores_fingerprint,
    stage_fingerprint,
    stage_seed,
)
from trl_r1.pipeline.ledger import Input, StageFolder, StageRecord, damage
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.recipe import Pipeline, StageRecipe

Action = Literal["skip", "run", "resume", "rerun", "score", "outside"]


@dataclass(frozen=True)
class PlannedStage:
    """What happens to one stage.

    Attributes:
        recipe: the stage.
        action: `skip` a finished one, `run`, `resume` one that was cut short, `rerun` a changed
            one, `score` one whose model stays and whose scores are missing or outdated, `outside`
            of the selection.
        reason: why, in words.
        makes_result: what depends on it will find something new.
    """

    recipe: StageRecipe
    action: Action
    reason: str
    makes_result: bool = False

    @property
    def is_work(self) -> bool:
        return self.action not in ("skip", "outside")


def select(
    pipeline: Pipeline, first: str | None = None, last: str | None = None, only: str | None = None
) -> list[str]:
    """The names of the stages to run.

    Raises:
        PipelineError: an unknown name, or an empty range.
    """
    names = [stage.name for stage in pipeline.stages]
    if only is not None:
        if first is not None or last is not None:
            raise PipelineError("--only goes with neither --from nor --until")
        return [pipeline.stage(only).name]
    start = names.index(pipeline.stage(first).name) if first else 0
    end = names.index(pipeline.stage(last).name) if last else len(names) - 1
    if start > end:
        raise PipelineError(f"--from {first} comes after --until {last}: nothing to run")
    return names[start : end + 1]


def make_plan(
    pipeline: Pipeline, run_dir: Path, selected: Sequence[str], hashes: FileHashes
) -> list[PlannedStage]:
    """The plan for a run folder; changes nothing in it.

    Args:
        pipeline: the pipeline.
        run_dir: folder of the run.
        selected: names of the stages to run.
        hashes: of files.

    Raises:
        MissingInputError: a selected stage needs an artifact that neither is there nor will be
            made.
    """
    plan: list[PlannedStage] = []
    busy: set[str] = set()
    for recipe in pipeline.stages:
        if recipe.name not in selected:
            plan.append(PlannedStage(recipe, "outside", _outside(run_dir, recipe)))
            continue
        planned = _plan_stage(recipe, pipeline, run_dir, busy, hashes)
        if planned.makes_result:
            busy.add(recipe.name)
        plan.append(planned)
    return plan


def _outside(run_dir: Path, recipe: StageRecipe) -> str:
    return "finished" if StageFolder(run_dir, recipe.name).finished() else "not run"


def _plan_stage(
    recipe: StageRecipe, pipeline: Pipeline, run_dir: Path, busy: set[str], hashes: FileHashes
) -> PlannedStage:
    folder = StageFolder(run_dir, recipe.name)
    finished, unfinished = folder.finished(), folder.unfinished()
    waits_for = dict.fromkeys(r.stage for r in references_of(recipe) if r.stage in busy)
    if waits_for:
        cause = f"{', '.join('@' + name for name in waits_for)} changes"
        if finished:
            return PlannedStage(recipe, "rerun", cause, makes_result=True)
        return PlannedStage(recipe, "run", "not run yet", makes_result=True)
    try:
        inputs = gather_inputs(recipe, pipeline, run_dir, hashes)
    except MissingInputError as error:
        needed = ", ".join(dict.fromkeys(r.stage for r in references_of(recipe)))
        raise MissingInputError(
            f"{recipe.where}: {error}; run {needed} first (leave out --only or --from)"
        ) from None
    seed = stage_seed(recipe, pipeline)
    fingerprint = stage_fingerprint(recipe, seed, inputs)
    if finished is not None:
        if is_current(finished, fingerprint, folder.place):
            return _finished(recipe, pipeline, run_dir, finished, busy, hashes)
        action: Action = "rerun"
        reason = why_changed(finished, recipe, seed, inputs, folder.place)
    else:
        action, reason = "run", "not run yet"
    if unfinished is not None and unfinished.fingerprint.get("stage") == fingerprint:
        if unfinished.status == "trained":
            return PlannedStage(recipe, "score", "trained, not scored yet", makes_result=True)
        step = unfinished.details.get("step")
        reason = f"cut short at step {step}" if step else "cut short"
        return PlannedStage(recipe, "resume", reason, makes_result=True)
    return PlannedStage(recipe, action, reason, makes_result=True)


def _finished(
    recipe: StageRecipe,
    pipeline: Pipeline,
    run_dir: Path,
    finished: StageRecord,
    busy: set[str],
    hashes: FileHashes,
) -> PlannedStage:
    settings = evaluation_of(recipe, pipeline, run_dir)
    if finished.fingerprint.get("scores", "") != scores_fingerprint(recipe, settings, hashes):
        return PlannedStage(recipe, "score", "the evaluation changed; the model stays")
    maker = str(pipeline.evaluation.preference_model)[1:].partition("/")[0]
    names = [stage.name for stage in pipeline.stages]
    if settings is not None and maker in busy and names.index(maker) < names.index(recipe.name):
        return PlannedStage(recipe, "score", "its preference model changes")
    return PlannedStage(recipe, "skip", "finished")


def is_current(record: StageRecord, fingerprint: str, place: Path) -> bool:
    """Whether a finished result is of this recipe and these inputs, and still whole."""
    return record.fingerprint.get("stage") == fingerprint and damage(record, place) is None


def why_changed(
    record: StageRecord, recipe: StageRecipe, seed: int, inputs: Sequence[Input], place: Path
) -> str:
    """What makes a finished result outdated, in words."""
    if fault := damage(record, place):
        return fault
    # Through the ledger's eyes: JSON knows no tuples.
    old, new = changing_keys(dict(record.recipe)), changing_keys(recipe_document(recipe))
    changes = [
        f"{key}: {_short(old, key)} -> {_short(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if _plain(old.get(key)) != _plain(new.get(key))
    ]
    if record.seed != seed:
        changes.append(f"seed: {record.seed} -> {seed}")
    before = {item.key: (item.hash, item.fingerprint) for item in record.inputs}
    changes += [
        f"{item.source} changed"
        for item in inputs
        if item.key in before and before[item.key] != (item.hash, item.fingerprint)
    ]
    return "; ".join(dict.fromkeys(changes)) or "its inputs changed"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _short(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "(default)"
    text = str(values[key])
    return text if len(text) <= 40 else f"{text[:37]}..."


def plan_lines(plan: Sequence[PlannedStage], run_dir: Path) -> list[str]:
    """The plan as lines to print."""
    width = max(len(planned.recipe.name) for planned in plan)
    words = {"outside": "leave", "score": "score"}
    lines = [f"Plan for {run_dir}:"]
    for planned in plan:
        action = words.get(planned.action, planned.action)
        lines.append(f"  {planned.recipe.name:<{width}}  {action:<6}  {planned.reason}")
    return lines
