"""Runs the stages of a pipeline in order: skips what is finished, goes on where a run stopped.

What a kill costs is the steps since a stage's last checkpoint: every status is written before and
after the work it stands for, and a finished result keeps its place until its successor is complete.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trl_r1.pipeline.configs import resolve
from trl_r1.pipeline.display import Display
from trl_r1.pipeline.execution import Job, Launch, OnProgress, make_job, run_here, run_launched
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.inputs import (
    evaluation_document,
    evaluation_of,
    gather_inputs,
    locator,
    recipe_document,
    scores_fingerprint,
    stage_fingerprint,
    stage_seed,
)
from trl_r1.pipeline.ledger import (
    RECIPE_FILE,
    StageFolder,
    StageRecord,
    damage,
    read_record,
    write_record,
    write_text,
)
from trl_r1.pipeline.mistakes import PipelineError, os_message
from trl_r1.pipeline.plan import PlannedStage, is_current
from trl_r1.pipeline.quiet import QuietLog
from trl_r1.pipeline.recipe import Pipeline, StageRecipe
from trl_r1.pipeline.references import artifact_kind
from trl_r1.pipeline.scoring import Scorer, result_text
from trl_r1.pipeline.versions import package_versions
from trl_r1.stages import StageResult
from trl_r1.training.arguments import EvaluationSettings

# How often a running stage notes its step and time in the ledger.
_NOTE_SECONDS = 5.0
_LITTLE_SPACE = 64 << 20  # bytes


class StageFailedError(PipelineError):
    """A stage ended with an error; its text says which, where the traceback is and how to go on."""


@dataclass
class Runner:
    """Runs planned stages.

    Attributes:
        pipeline: the pipeline.
        run_dir: folder of the run, absolute.
        display: what a person sees.
        log: where everything else goes.
        hashes: of files.
        launch: how to start a stage's processes; None to run in this one.
    """

    pipeline: Pipeline
    run_dir: Path
    display: Display
    log: QuietLog
    hashes: FileHashes
    launch: Launch | None = None

    def __post_init__(self) -> None:
        self.scorer = Scorer(self.pipeline, self.run_dir, self.display)

    def run(self, plan: Sequence[PlannedStage]) -> None:
        """Run what a plan says.

        Raises:
            StageFailedError: a stage failed; the ones before it are finished.
        """
        work = [planned for planned in plan if planned.is_work]
        for planned in plan:
            if planned.action == "skip":
                StageFolder(self.run_dir, planned.recipe.name).drop_attempt()
        # What the imports made stays anyway; without it, collecting garbage after a stage is quick.
        gc.freeze()
        try:
            self._run_all(work, self._push([p.recipe for p in plan if p.action == "skip"]))
        finally:
            gc.unfreeze()

    def _push(self, stages: Sequence[StageRecipe]) -> list[StageRecipe]:
        """Push those that ask for it; returns those that did not arrive."""
        if not any(recipe.values.get("push_to_hub") for recipe in stages):
            return []
        from trl_r1.hub.after_stage import push_stages

        return push_stages(self.run_dir, self.pipeline.folder, stages, self.display.line)

    def _run_all(self, work: Sequence[PlannedStage], unpushed: list[StageRecipe]) -> None:
        for number, planned in enumerate(work, start=1):
            recipe = planned.recipe
            how = (
                planned.action
                if planned.action == "run"
                else f"{planned.action} ({planned.reason})"
            )
            self.display.stage_started(recipe.name, number, len(work), how)
            try:
                self._run_stage(recipe)
            except PipelineError as error:
                raise StageFailedError(f"{recipe.name}: {error} {self._way_on(recipe)}") from error
            except OSError as error:
                _log_traceback()
                raise StageFailedError(
                    f"{recipe.name}: {os_message(error)} {self._way_on(recipe)}"
                ) from error
            except KeyboardInterrupt:
                raise
            # A bug of a stage or a library, which may even call `sys.exit()`: one line here, the
            # rest in the log.
            except BaseException as error:
                _log_traceback()
                text = " ".join(str(error).split())
                text = text if len(text) <= 400 else f"{text[:397]}..."
                text = f"{type(error).__name__}: {text}{_space_hint(self.run_dir)}"
                raise StageFailedError(f"{recipe.name}: {text} {self._way_on(recipe)}") from error
            unpushed += self._push([recipe])
        if work and unpushed:
            self._push(unpushed)

    def _way_on(self, recipe: StageRecipe) -> str:
        return (
            f"(more in {_shown(self.log.path)}; the same command goes on with {recipe.name} "
            "when that is mended)"
        )

    def _run_stage(self, recipe: StageRecipe) -> None:
        folder = StageFolder(self.run_dir, recipe.name)
        inputs = gather_inputs(recipe, self.pipeline, self.run_dir, self.hashes)
        seed = stage_seed(recipe, self.pipeline)
        fingerprint = stage_fingerprint(recipe, seed, inputs)
        settings = evaluation_of(recipe, self.pipeline, self.run_dir)
        scoring = scores_fingerprint(recipe, settings, self.hashes)
        finished = folder.finished()
        if finished is not None and is_current(finished, fingerprint, folder.place):
            # Only its scores are missing: the old ones stay until the new ones are there.
            self.log.switch(folder.place / "log.txt")
            self._score(recipe, folder, finished, settings, scoring)
            return
        record = folder.unfinished()
        if record is None or record.fingerprint.get("stage") != fingerprint:
            folder.start_afresh()
            record = StageRecord(recipe.name, recipe.stage, "running")
        work_dir = folder.work_dir()
        if damage(record, work_dir):
            record = replace(record, status="running", artifacts={})
        self.log.switch(work_dir / "log.txt")
        record = replace(
            record,
            inputs=inputs,
            recipe=recipe_document(recipe),
            seed=seed,
            versions=package_versions(),
            fingerprint={**record.fingerprint, "stage": fingerprint},
        )
        write_text(
            work_dir / RECIPE_FILE,
            yaml.safe_dump(recipe_document(recipe), sort_keys=False, allow_unicode=True),
        )
        write_record(work_dir, record)
        if record.status == "running":
            record = self._train(recipe, folder, record, settings, scoring)
        self._score(recipe, folder, record, settings, scoring)

    def _train(
        self,
        recipe: StageRecipe,
        folder: StageFolder,
        record: StageRecord,
        settings: EvaluationSettings | None,
        scoring: str,
    ) -> StageRecord:
        """Run the stage itself; returns its record with the artifacts."""
        work_dir = folder.work_dir()
        clock = _Clock(work_dir, record)
        if settings is not None:
            clock.note(
                scores=self.scorer.before(recipe, record, settings, scoring, work_dir),
                fingerprint={**record.fingerprint, "scores": scoring},
            )
        resolved = resolve(recipe, self.pipeline.folder, locator(self.pipeline, self.run_dir))
        job = make_job(resolved, work_dir, record.seed, self.pipeline.threads)

        def on_progress(step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
            self.display.progress(step, max_steps, metrics)
            clock.tick(step, max_steps)

        result = self.run_job(job, on_progress)
        return clock.note(
            status="trained",
            artifacts=self._artifacts(recipe, work_dir),
            details={**clock.record.details, **result.details},
            **self._own_scores(result, clock.record),
        )

    def run_job(self, job: Job, on_progress: OnProgress) -> StageResult:
        """Run a stage's job, here or in processes of its own."""
        if self.launch is None:
            return run_here(job, on_progress)
        return run_launched(job, self.launch, sys.stdout, on_progress)

    def _own_scores(self, result: StageResult, record: StageRecord) -> dict[str, Any]:
        return {} if result.scores is None else {"scores": {**record.scores, **result.scores}}

    def _artifacts(self, recipe: StageRecipe, work_dir: Path) -> dict[str, dict[str, Any]]:
        produced = [name for name in recipe.spec.produces if (work_dir / name).is_dir()]
        if recipe.main_artifact not in produced and recipe.stage != "evaluation":
            raise PipelineError(f"it ended without its {recipe.main_artifact} in {work_dir}")
        return {
            name: {
                "hash": self.hashes.path(work_dir / name),
                "kind": artifact_kind(name),
                "sizes": self.hashes.sizes(work_dir / name),
            }
            for name in produced
        }

    def _score(
        self,
        recipe: StageRecipe,
        folder: StageFolder,
        record: StageRecord,
        settings: EvaluationSettings | None,
        scoring: str,
    ) -> None:
        """Score the stage's model, and finish the stage."""
        home = folder.place if record.status == "finished" else folder.work_dir()
        # The artifacts are complete: nothing goes on from a checkpoint any more, and they are
        # large.
        shutil.rmtree(home / "checkpoints", ignore_errors=True)
        clock = _Clock(home, record)
        scores = dict(record.scores)
        if settings is not None:
            scores = self.scorer.before(recipe, record, settings, scoring, home)
            self.display.phase("scoring")
            made = home / recipe.main_artifact
            scores["after"] = self.scorer.score(recipe, made, settings, home, "after")
        clock.note(
            status="finished",
            scores=scores,
            scored_on=evaluation_document(self.pipeline, settings),
            fingerprint={**record.fingerprint, "scores": scoring},
        )
        folder.settle()
        done = read_record(folder.place)
        assert done is not None, "settle leaves the finished result in its place"
        self.display.stage_finished(result_text(done))


class _Clock:
    """Keeps a stage's record in the ledger up to date, its wall time included."""

    def __init__(self, folder: Path, record: StageRecord) -> None:
        self.folder = folder
        self.record = record
        self._started = self._noted = time.monotonic()
        self._before = record.seconds

    def note(self, **changes: Any) -> StageRecord:
        """Write the record with these changes."""
        self._noted = time.monotonic()
        seconds = round(self._before + self._noted - self._started, 2)
        self.record = replace(self.record, **{"seconds": seconds, **changes})
        write_record(self.folder, self.record)
        return self.record

    def tick(self, step: int, max_steps: int) -> None:
        """Note a step, every few seconds."""
        if time.monotonic() - self._noted >= _NOTE_SECONDS:
            self.note(details={**self.record.details, "step": step, "max_steps": max_steps})


def _space_hint(folder: Path) -> str:
    """What torch and others do not say where they can't write on: the disk is full."""
    free = shutil.disk_usage(folder).free
    if free >= _LITTLE_SPACE:
        return ""
    return f"; only {free >> 20} MiB are free on the disk of {folder}, which may be the reason"


def _log_traceback() -> None:
    # Where the disk is full the log can't be written either.
    with contextlib.suppress(OSError):
        traceback.print_exc()


def _shown(path: Path | None) -> str:
    if path is None:
        return "the log"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
