"""Checks of the rows that a stage will get: columns, gold answers, sources that can't be read.

Rows of tasks that make them and of local files are built as the stage will build them; artifacts of
earlier stages do not exist yet, and Hub data is left alone.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.pipeline.check_columns import (
    format_of,
    reward_column_faults,
    stage_column_faults,
    task_name,
)
from trl_r1.pipeline.check_names import name_fault
from trl_r1.pipeline.check_texts import text_faults
from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.pipeline.recipe import SOURCE_KEYS, StageRecipe
from trl_r1.pipeline.references import find_path, is_reference
from trl_r1.pipeline.source_faults import (
    argument_faults,
    gold_report,
    pass_rate_faults,
    share_faults,
)
from trl_r1.reasoning_format import FORMATS
from trl_r1.stages import RewardSpec
from trl_r1.tasks import TASKS, DatasetSource, Task, find_task, is_task_file, load_rows
from trl_r1.training.arguments import EvaluationSettings
from trl_r1.trust.withholding import WithheldError
from trl_r1.verification.loading import RewardReferenceError, build_reward

if TYPE_CHECKING:
    from datasets import Dataset

# Rewards that say of a gold answer whether they can grade it.
_CHECK_GOLDS = ("math_answer", "choice")
# A made set of more rows than this is checked on as many; a file is read whole, but judged on as
# many.
_MAX_ROWS = 20_000


class SourceChecker:
    """Checks data sources; remembers rows, since stages share sources.

    Args:
        folder: of the pipeline.
        note: called with what could not be checked.
    """

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.folder = folder
        self.note = note
        self._rows: dict[str, tuple[Dataset | None, str | None]] = {}
        self._task_files: dict[str, str] = {}
        self._gold: dict[tuple[str, str], tuple[str | None, str | None]] = {}

    def stage(self, recipe: StageRecipe) -> Iterator[str]:
        """Mistakes in the `datasets` of a stage."""
        if EvaluationSettings in recipe.spec.configs:
            yield from self._held_out(recipe.values, "", recipe.where)
            return
        sources = list(_sources(recipe.values["datasets"]))
        yield from share_faults(sources)
        yield from self._best_by(recipe)
        fmt = format_of(recipe).name
        known: list[tuple[DatasetSource, set[str]]] = []
        is_all_known = True
        for index, source in enumerate(sources):
            place = f"datasets[{index}]"
            faults = list(self._source(source, place, recipe.where))
            yield from faults
            columns = None if faults else self._columns(source, fmt)
            if isinstance(columns, str):
                yield f"{place}: {columns}"
                columns = None
            if columns is None:
                is_all_known = False
                continue
            known.append((source, columns))
            yield from stage_column_faults(recipe, columns, place)
            rows, _ = self._load(source, fmt)
            if rows is not None:
                yield from text_faults(rows, place)
            yield from self._gold_answers(source, recipe.rewards, fmt, place, recipe.where)
        if is_all_known:
            yield from reward_column_faults(recipe.rewards, known, self.folder)

    def _best_by(self, recipe: StageRecipe) -> Iterator[str]:
        """A reward that samples are chosen by and that the stage does not have."""
        wanted = recipe.values.get("best_by")
        if not isinstance(wanted, str):
            return
        names = []
        for reward in recipe.rewards:
            try:
                names.append(reward.name or build_reward(reward, self.folder).__name__)
            except RewardReferenceError:
                return  # told where rewards are checked
        if wanted not in names:
            hint = suggestion(wanted, names) or f"; the rewards are {one_of(names)}"
            yield f"best_by: no reward is called {wanted!r}{hint}"

    def evaluation(self, settings: EvaluationSettings, where: str) -> Iterator[str]:
        """Mistakes in the data of `evaluation:`."""
        values = {key: getattr(settings, key) for key in SOURCE_KEYS}
        yield from self._held_out(values, "evaluation.", where)

    def _held_out(self, values: Mapping[str, Any], prefix: str, where: str) -> Iterator[str]:
        for key in SOURCE_KEYS:
            given = [{"split": "test", **source} for source in values.get(key) or ()]
            for index, source in enumerate(_sources(given)):
                place = f"{prefix}{key}[{index}]"
                if is_reference(source.dataset_name):
                    yield (
                        f"{place}: {source.dataset_name}: held-out problems can't be what a "
                        "stage of the same run makes"
                    )
                    continue
                faults = list(self._source(source, place, where))
                yield from faults
                columns = None if faults else self._columns(source, "zero")
                if isinstance(columns, str):
                    yield f"{place}: {columns}"
                elif columns is not None:
                    rows, _ = self._load(source, "zero")
                    if rows is not None:
                        yield from text_faults(rows, place)
                    if missing := {"prompt", "solution"} - columns:
                        yield f"{place}: has no column {one_of(sorted(missing))}"
                    task = self._task(source)
                    grader = task.grader if task else "math_answer"
                    rewards = (RewardSpec(grader),) if key == "datasets" else ()
                    yield from self._gold_answers(source, rewards, "zero", place, where)

    def _source(self, source: DatasetSource, place: str, where: str) -> Iterator[str]:
        """What is wrong with a source before any row is read."""
        task = None
        if source.task is not None:
            try:
                task = find_task(source.task, self.folder)
            except ValueError as error:
                yield f"{place}.task: {error}"
                return
            if task is None:
                hint = suggestion(source.task, TASKS) or f"; known: {one_of(TASKS)}"
                yield f"{place}: unknown task {source.task!r}{hint}"
                return
            yield from self._task_file(source, task, place, where)
            yield from argument_faults(source, task, place)
        elif source.args:
            yield f"{place}.args: there is no task to take them"
        name = source.dataset_name
        if name is None and not (task and (task.makes_rows or task.default_source)):
            wanted = "its task makes no rows" if task else "there is no task either"
            yield f"{place}: dataset_name is missing, and {wanted}"
        yield from self._names(source, place, where)
        yield from pass_rate_faults(source, place)
        if source.num_rows is not None and source.num_rows < 1:
            yield f"{place}.num_rows should be at least 1"

    def _task_file(
        self, source: DatasetSource, task: Task, place: str, where: str
    ) -> Iterator[str]:
        """A task file's source that is not there, and two files whose tasks have one name."""
        if not is_task_file(source.task):
            return
        first = self._task_files.setdefault(task.name, str(source.task))
        if first != source.task:
            yield (
                f"{place}.task: {source.task} and {first} both declare the task {task.name!r}; "
                "give each a `name` of its own"
            )
        if source.dataset_name is None and task.default_source and not _is_local(task):
            fault, note = name_fault(task.default_source, "dataset", self.folder)
            if fault:
                yield f"{place}.task: {source.task}: source: {fault}"
            if note:
                self.note(f"{where}: {place}.task: {source.task}: source: {note}")

    def _names(self, source: DatasetSource, place: str, where: str) -> Iterator[str]:
        """Data that a source names and that is not there."""
        for key, text in (("dataset_name", source.dataset_name), ("pass_rates", source.pass_rates)):
            if text is None or is_reference(text):
                continue
            fault, note = name_fault(text, "dataset", self.folder)
            if fault:
                yield f"{place}.{key}: {fault}"
            if note:
                self.note(f"{where}: {place}.{key}: {note}")

    def _task(self, source: DatasetSource) -> Task | None:
        return find_task(source.task, self.folder)

    def _columns(self, source: DatasetSource, fmt: str) -> set[str] | str | None:
        """The columns of a source's rows; a text for what is wrong with it; None for unknown."""
        rows, fault = self._load(source, fmt)
        if fault is not None:
            return fault
        more = {"pass_rate"} if source.pass_rates else set()
        if rows is not None:
            return set(rows.column_names) | more
        task = self._task(source)
        return set(task.columns) | more if task else None

    def _load(self, source: DatasetSource, fmt: str) -> tuple[Dataset | None, str | None]:
        """The rows, as far as they can be had here and now, or what is wrong with them."""
        task = self._task(source)
        local = find_path(source.dataset_name, self.folder) if source.dataset_name else None
        has_own = source.dataset_name is None and task is not None
        if local is None and not (has_own and task and (task.makes_rows or _is_local(task))):
            return None, None
        made = replace(source, dataset_name=str(local) if local else None)
        if is_task_file(source.task):
            made = replace(made, task=task.name if task else None)
        made = _judged_here(made, self.folder)
        if local is None and (source.num_rows or 0) > _MAX_ROWS:
            made = replace(made, num_rows=_MAX_ROWS)
        key = f"{made}|{fmt}"
        if key not in self._rows:
            self._rows[key] = _load_quietly(made, fmt)
        return self._rows[key]

    def _gold_answers(
        self,
        source: DatasetSource,
        rewards: Sequence[RewardSpec],
        fmt: str,
        place: str,
        where: str,
    ) -> Iterator[str]:
        """Gold answers of a source that the accuracy reward could not grade."""
        task = self._task(source)
        name = task_name(source.task, self.folder)
        uses = [
            reward.use
            for reward in rewards
            if reward.use in _CHECK_GOLDS and (not reward.tasks or name in reward.tasks)
        ]
        if not uses or (task and (task.kind != "reasoning" or task.grader != "math_answer")):
            return
        rows, _ = self._load(source, fmt)
        if rows is None or "solution" not in rows.column_names:
            return
        key = (f"{source}", f"{fmt} {uses[0]}")
        if key not in self._gold:
            options = rows["options"] if "options" in rows.column_names else None
            self._gold[key] = gold_report(uses[0], rows["solution"][:_MAX_ROWS], options)
        fault, note = self._gold[key]
        if fault:
            yield f"{place}: {fault}"
        if note:
            self.note(f"{where}: {place}: {note}")


def _sources(given: Sequence[Mapping[str, Any]]) -> Iterator[DatasetSource]:
    for source in given:
        yield DatasetSource(**source)


def _judged_here(source: DatasetSource, folder: Path) -> DatasetSource:
    """A source whose samples are there is filtered by them; one whose are not, is left whole."""
    path = find_path(source.pass_rates, folder) if source.pass_rates else None
    if path is not None:
        return replace(source, pass_rates=str(path))
    return replace(source, pass_rates=None, min_pass_rate=None, max_pass_rate=None, order="random")


def _is_local(task: Task) -> bool:
    """Whether its rows come from a file that lies beside the task's."""
    return task.default_source is not None and Path(task.default_source).is_absolute()


def _load_quietly(source: DatasetSource, fmt: str) -> tuple[Dataset | None, str | None]:
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            rows = load_rows(source, FORMATS[fmt])
    except WithheldError:  # a stranger's task makes the rows
        return None, None
    except Exception as error:  # noqa: BLE001 - all sorts; each is a mistake of the recipe
        cause = error.__cause__ or error
        text = " ".join(str(error).split()) or type(error).__name__
        if cause is not error and str(cause) not in text:
            text += f" ({' '.join(str(cause).split())})"
        return None, text if len(text) <= 300 else f"{text[:297]}..."
    if not len(rows):
        return None, "has no rows"
    return rows, None
