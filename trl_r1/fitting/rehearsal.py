"""`trl-r1 rehearse`: every stage for two steps with a tiny model, to break here what would break
hours into a run.

The stages, the runner, the ledger and the rewards are the run's own; only models, rows and sizes
are stand-ins (`tiny_models`, `stand_in_rows`, `scaled_recipe`). Random weights answer nothing
right, so samples for data stages are the rows' own gold answers, which the recipe's rewards then
have to accept. A stage that breaks takes along what depends on it; the others are rehearsed all the
same. What only shows at the real sizes is looked at without running it (`real_scale`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from trl_r1.fitting.real_scale import WHOLE_RUN, Concern, concerns
from trl_r1.fitting.scaled_recipe import scaled_stage
from trl_r1.fitting.stand_in_rows import RowsError, small_source
from trl_r1.fitting.tiny_models import make_tiny_model
from trl_r1.pipeline.configs import path_keys
from trl_r1.pipeline.display import duration, make_display
from trl_r1.pipeline.execution import Job, OnProgress, run_here
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.inputs import references_of
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.plan import make_plan
from trl_r1.pipeline.quiet import QuietLog
from trl_r1.pipeline.recipe import SOURCE_KEYS, Pipeline, StageRecipe
from trl_r1.pipeline.references import is_model_key, is_reference, outside_name
from trl_r1.pipeline.run import Runner, StageFailedError
from trl_r1.reasoning_format import get_format
from trl_r1.sampling import Sample
from trl_r1.stages import StageResult
from trl_r1.training.arguments import DatasetArguments

Say = Callable[[str], None]

# At most, in the texts of reasoning data.
_BYTES_PER_TOKEN = 5
BAD = ("BROKE", "WOULD BREAK")


@dataclass(frozen=True)
class Outcome:
    """What became of one stage.

    Attributes:
        name: of the stage.
        status: `ok`, `BROKE`, `not rehearsed` where a stage before it broke; `WOULD BREAK` and
            `beware` of what was looked at without running it.
        text: what broke, or why it was left out.
        seconds: it took.
        notes: what stood in for what.
    """

    name: str
    status: str
    text: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


def rehearse(pipeline: Pipeline, run_dir: Path, log: QuietLog, say: Say) -> bool:
    """Rehearse a pipeline that has passed the check; returns whether all of it went well.

    Args:
        pipeline: as read.
        run_dir: where the run itself would write; it is looked at, never touched.
        log: where libraries' output goes.
        say: gets each line for the person.
    """
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="trl-r1-rehearsal-"))
    try:
        is_broken = _told(Rehearsal(pipeline, folder, log), concerns(pipeline, run_dir), say)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    took = duration(time.monotonic() - started)
    if is_broken:
        say(f"\nIt would break; the tracebacks are in {folder}. Nothing else was written. ({took})")
        return False
    shutil.rmtree(folder, ignore_errors=True)
    count = len(pipeline.stages)
    say(f"\n{count} stages rehearsed in {took}: none broke. Nothing was kept.")
    return True


def _told(rehearsal: Rehearsal, of_real_run: Iterable[Concern], say: Say) -> bool:
    """Say what becomes of each stage as it ends; whether anything breaks."""
    worries = defaultdict(list)
    for concern in of_real_run:
        worries[concern.where].append(concern)
    said: set[str] = set()
    is_broken = False
    for outcome in chain(_outcomes_of(worries[WHOLE_RUN]), rehearsal.outcomes()):
        for note in outcome.notes:
            if note not in said:
                say(f"  note: {note}")
            said.add(note)
        more = [] if outcome.name == WHOLE_RUN else worries[outcome.name]
        shown = [outcome] if outcome.status != "ok" or not more else []
        for one in (*shown, *_outcomes_of(more)):
            time_taken = f"  {one.seconds:.0f} s" if one.seconds >= 1 else ""
            say(f"{one.name:<18} {one.status:<13} {one.text}{time_taken}".rstrip())
            is_broken = is_broken or one.status in BAD
    return is_broken


def _outcomes_of(worries: Sequence[Concern]) -> list[Outcome]:
    """What is to be said of a place in the real run."""
    return [
        Outcome(concern.where, "WOULD BREAK" if concern.breaks else "beware", concern.text)
        for concern in worries
    ]


class Rehearsal:
    """The rehearsal of a pipeline in a folder of its own.

    Args:
        pipeline: as read.
        folder: for models, rows and the run; empty.
        log: where libraries' output goes.
    """

    def __init__(self, pipeline: Pipeline, folder: Path, log: QuietLog) -> None:
        self.pipeline, self.folder, self.log = pipeline, folder, log
        self._tiny: dict[tuple[str, bool], Any] = {}
        self._lost: set[str] = set()
        self._on_bytes: set[str] = set()
        self._small = replace(pipeline, stages=())

    def outcomes(self) -> Iterator[Outcome]:
        """The outcome of each stage, as it ends."""
        broken_evaluation = self._scale_evaluation()
        if broken_evaluation is not None:
            yield broken_evaluation
        for recipe in self.pipeline.stages:
            waits_for = [r.stage for r in references_of(recipe) if r.stage in self._lost]
            if waits_for:
                self._lost.add(recipe.name)
                yield Outcome(recipe.name, "not rehearsed", f"it needs @{waits_for[0]}")
                continue
            started = time.monotonic()
            notes: list[str] = []
            try:
                self._rehearse(recipe, notes)
                text, status = "", "ok"
            except PipelineError as error:
                text, status = self._in_real_names(_what_broke(error)), "BROKE"
                self._lost.add(recipe.name)
            yield Outcome(recipe.name, status, text, time.monotonic() - started, tuple(notes))

    def _rehearse(self, recipe: StageRecipe, notes: list[str]) -> None:
        small = self._scaled(recipe, notes)
        self._small = replace(self._small, stages=(*self._small.stages, small))
        run_dir = self.folder / "run"
        run_dir.mkdir(exist_ok=True)
        hashes = FileHashes()
        plan = make_plan(self._small, run_dir, [small.name], hashes)
        with (self.folder / "progress.txt").open("a", encoding="utf-8") as progress:
            display = make_display(progress)
            try:
                _Runner(self._small, run_dir, display, self.log, hashes).run(plan)
            finally:
                display.close()
                self.log.switch(self.folder / "log.txt")

    def _scaled(self, recipe: StageRecipe, notes: list[str]) -> StageRecipe:
        """The recipe with small sizes, tiny models and a handful of rows."""
        small, left_out = scaled_stage(recipe)
        notes += left_out
        values = dict(small.values)
        scores = recipe.stage == "reward_model"
        for key in path_keys(values):
            if not is_reference(values[key]):
                values[key] = self._model(values[key], False, notes)
        fmt = get_format(values.get("reasoning_format", "r1"))
        kind = "pairs" if scores else "targets" if _learns_targets(recipe) else "prompts"
        for key in SOURCE_KEYS:
            if isinstance(values.get(key), list):
                values[key] = [self._source(s, kind, fmt, notes) for s in values[key]]
        self._lengthen(values, recipe)
        rewards = tuple(
            replace(reward, args=self._reward_args(reward.args, notes)) for reward in small.rewards
        )
        return replace(small, values=values, rewards=rewards)

    def _scale_evaluation(self) -> Outcome | None:
        """Put small settings of scoring into place; what broke, if it did."""
        settings, notes = self.pipeline.evaluation, list[str]()
        fmt = get_format("r1")
        try:
            model = settings.preference_model
            if model is not None and not is_reference(model):
                model = self._model(model, True, notes)
            small = replace(
                settings,
                datasets=[self._few(s, fmt, notes) for s in settings.datasets],
                general=[self._few(s, fmt, notes) for s in settings.general],
                preference_model=model,
                max_new_tokens=min(settings.max_new_tokens, 8),
                num_samples=min(settings.num_samples, 2),
                batch_size=4,
                engine="transformers",
                vllm_options={},
            )
        except PipelineError as error:
            self._small = replace(self._small, evaluation=type(settings)())
            return Outcome("evaluation", "BROKE", str(error))
        self._small = replace(self._small, evaluation=small)
        return Outcome("evaluation", "ok", "(settings of scoring)", notes=tuple(notes))

    def _few(self, source: Mapping[str, Any], fmt: Any, notes: list[str]) -> dict[str, Any]:
        small = self._source(source, "prompts", fmt, notes)
        return {**small, "num_rows": 2} if not is_reference(source.get("dataset_name")) else small

    def _source(
        self, source: Mapping[str, Any], kind: str, fmt: Any, notes: list[str]
    ) -> dict[str, Any]:
        given = dict(source)
        if given.get("dataset_name") is None and given.get("task") in self.pipeline.sources:
            given["dataset_name"] = self.pipeline.sources[given["task"]]
        for key in ("dataset_name", "task"):
            if given.get(key):
                given[key] = outside_name(given[key], self.pipeline.folder)
        try:
            small, more = small_source(given, kind, fmt, self.folder / "rows")
        except RowsError as error:
            raise PipelineError(f"datasets: {error}") from error
        notes += more
        return small

    def _model(self, name: str, is_scorer: bool, notes: list[str]) -> str:
        name = outside_name(name, self.pipeline.folder)
        key = (name, is_scorer)
        if key not in self._tiny:
            folder = self.folder / "models" / f"{len(self._tiny):02d}"
            try:
                self._tiny[key] = make_tiny_model(name, folder, is_scorer)
            except (OSError, ValueError, KeyError) as error:
                text = " ".join(str(error).split())
                raise PipelineError(
                    f"{name}: no tiny model of its kind can be made ({text})"
                ) from error
        notes += self._tiny[key].notes
        return str(self._tiny[key].folder)

    def _reward_args(self, args: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        return {
            key: self._model(value, True, notes)
            if is_model_key(key) and isinstance(value, str) and not is_reference(value)
            else value
            for key, value in args.items()
        }

    def _lengthen(self, values: dict[str, Any], recipe: StageRecipe) -> None:
        """Make room in `max_length` where bytes stand in for tokens, of which there are fewer."""
        of_bytes = {str(t.folder) for t in self._tiny.values() if not t.has_own_tokenizer}
        named = {values[key] for key in path_keys(values)}
        if named & of_bytes or self._on_bytes & {r.stage for r in references_of(recipe)}:
            self._on_bytes.add(recipe.name)
            if isinstance(values.get("max_length"), int):
                values["max_length"] *= _BYTES_PER_TOKEN

    def _in_real_names(self, text: str) -> str:
        for (name, _), tiny in self._tiny.items():
            text = text.replace(str(tiny.folder), name)
        return text


class _Runner(Runner):
    """Runs the stages as ever, with answers in the place of a random model's samples."""

    def run_job(self, job: Job, on_progress: OnProgress) -> StageResult:
        if job.stage != "rejection_sampling":
            return super().run_job(job, on_progress)
        answers = _gold_answers(job)
        if not any(answers.values()):
            # Without a gold answer there is nothing that the rewards would have to accept.
            job = replace(job, rewards=())
        fmt = get_format(job.values.get("reasoning_format", "zero"))
        return run_here(job, on_progress, lambda sampler: _Answering(sampler, answers, fmt))


def _gold_answers(job: Job) -> dict[str, str]:
    from trl_r1.training.data import load_mixture

    fmt = get_format(job.values.get("reasoning_format", "zero"))
    sources = DatasetArguments([dict(source) for source in job.values["datasets"]]).sources()
    rows = load_mixture(sources, fmt, 0)
    return {
        json.dumps(row["prompt"], sort_keys=True): str(row.get("solution") or "") for row in rows
    }


class _Answering:
    """A sampler that draws, and then says the gold answer."""

    def __init__(self, sampler: Any, answers: Mapping[str, str], fmt: Any) -> None:
        self.sampler, self.answers, self.fmt = sampler, answers, fmt

    def sample(self, prompts: Sequence[Any], **settings: Any) -> list[list[Sample]]:
        drawn = self.sampler.sample(prompts, **settings)
        return [
            [self._answer(prompt, number, sample) for number, sample in enumerate(group)]
            for prompt, group in zip(prompts, drawn, strict=True)
        ]

    def _answer(self, prompt: Any, number: int, sample: Sample) -> Sample:
        text = self._text(prompt, number)
        return replace(sample, text=text, is_truncated=False, finish_reason="stop")

    def _text(self, prompt: Any, number: int) -> str:
        gold = self.answers.get(json.dumps(prompt, sort_keys=True)) or "none"
        reasoning = f"The question has one answer, and it is known; this is way {number + 1} to it."
        text = str(self.fmt.render(reasoning, f"\\boxed{{{gold}}}"))
        return text.removeprefix("<think>") if self.fmt.is_prefilled else text


def _learns_targets(recipe: StageRecipe) -> bool:
    return recipe.spec.updates_policy_with == "sft"


def _what_broke(error: PipelineError) -> str:
    cause = error.__cause__ if isinstance(error, StageFailedError) else None
    if cause is None or isinstance(cause, PipelineError):
        return " ".join(str(cause or error).split())
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text if len(text) <= 600 else text[:597] + '...'}"
