"""Every mistake of a pipeline at once, before a model is loaded.

What a single file says wrong is found while reading it (`reading.py`); here is what needs the
whole: references, lineage, batch arithmetic, rewards, data and TRL's own validation. Loads no model
and downloads nothing.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trl_r1.hub.access import setting_faults as push_setting_faults
from trl_r1.pipeline.check_batches import batch_fault
from trl_r1.pipeline.check_data import SourceChecker
from trl_r1.pipeline.check_names import allowed_by, name_fault
from trl_r1.pipeline.check_rewards import reward_faults
from trl_r1.pipeline.check_settings import setting_faults
from trl_r1.pipeline.configs import build_configs, path_keys, resolve
from trl_r1.pipeline.inputs import references_of
from trl_r1.pipeline.keys import keys_of
from trl_r1.pipeline.mistakes import Mistake, one_of, suggestion
from trl_r1.pipeline.recipe import Pipeline, StageRecipe
from trl_r1.pipeline.references import MODEL_KINDS, Reference, artifact_kind, is_reference
from trl_r1.pipeline.yaml_files import PIPELINE_FILE
from trl_r1.reasoning_format import CHAT_TEMPLATES, FORMATS
from trl_r1.tasks import TASKS
from trl_r1.trust.code_references import leaves, place_text
from trl_r1.trust.secrets import holds_secret, is_secret, nested_secrets


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        mistakes: what has to be mended before a run.
        notes: what could not be checked, and why.
    """

    mistakes: tuple[Mistake, ...] = ()
    notes: tuple[str, ...] = ()


def check_pipeline(pipeline: Pipeline, processes: int = 1) -> Report:
    """Check a pipeline as it was read.

    Args:
        pipeline: from `read_pipeline`.
        processes: how many processes each stage will run in.

    Returns:
        The mistakes beyond those that reading found.
    """
    checker = _Checker(pipeline, processes)
    for recipe in pipeline.stages:
        checker.stage(recipe)
    checker.evaluation()
    return Report(tuple(dict.fromkeys(checker.mistakes)), tuple(dict.fromkeys(checker.notes)))


class _Checker:
    def __init__(self, pipeline: Pipeline, processes: int) -> None:
        self.pipeline = pipeline
        self.processes = processes
        self.mistakes: list[Mistake] = []
        self.notes: list[str] = []
        self.names = [stage.name for stage in pipeline.stages]
        self.data = SourceChecker(pipeline.folder, self.notes.append)

    def stage(self, recipe: StageRecipe) -> None:
        """All checks of one stage."""
        found: list[tuple[str, str]] = []
        for check in (
            self._references,
            self._model,
            self._untrained_start,
            self._adapter_keys,
            self._formats,
            self._secrets,
            self._rewards,
            self._data,
            self._settings,
        ):
            found += check(recipe)
        for key, message in found:
            self.mistakes.append(Mistake(recipe.origins.get(key, recipe.where), message))

    # Each check yields (key, message); the key says in which file the mistake is.

    def _references(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        for reference in references_of(recipe):
            message = self._reference_fault(reference, recipe)
            if message:
                yield str(reference.place[0]), f"{reference.key}: {message}"

    def _reference_fault(self, reference: Reference, recipe: StageRecipe | None) -> str | None:
        earlier = self.names if recipe is None else self.names[: self.names.index(recipe.name)]
        name = reference.stage
        if name in self.pipeline.unread:
            return None  # its own mistakes come first
        if name not in self.names:
            known = f"; earlier stages: {', '.join(earlier)}" if earlier else "; it is the first"
            return f"{reference.text}: no stage {name!r}{suggestion(name, earlier) or known}"
        if name not in earlier:
            if recipe is not None and name == recipe.name:
                return f"{reference.text} is this stage itself"
            return f"{reference.text} comes later than this stage; numbers give the running order"
        maker = self.pipeline.stage(name)
        artifact = reference.artifact or maker.main_artifact
        if artifact not in {*maker.spec.produces, maker.main_artifact}:
            made = one_of(maker.spec.produces)
            near = suggestion(artifact, maker.spec.produces)
            hint = near or f"; it leaves {made}"
            return f"{reference.text}: stage {name!r} leaves no {artifact!r}{hint}"
        wanted, kind = self._wanted_kinds(reference, recipe), artifact_kind(artifact)
        if wanted and kind not in wanted:
            fitting = [
                f"@{stage}"
                if made == self.pipeline.stage(stage).main_artifact
                else f"@{stage}/{made}"
                for stage in earlier
                for made in self.pipeline.stage(stage).spec.produces
                if artifact_kind(made) in wanted
            ]
            hint = f"; there is {', '.join(fitting)}" if fitting else ""
            return f"{reference.text} is a {_word(kind)}, and a {_word(wanted[0])} is needed{hint}"
        return None

    def _wanted_kinds(self, reference: Reference, recipe: StageRecipe | None) -> tuple[str, ...]:
        if recipe is None or str(reference.place[0]) == "preference_model":
            return ("reward_model",)
        first, last = reference.place[0], reference.place[-1]
        if first == "model_name_or_path":
            kind = recipe.spec.model_kind or "model"
            return MODEL_KINDS if kind in MODEL_KINDS else (kind,)
        if last in ("dataset_name", "pass_rates"):
            return ("dataset",)
        if first == "rewards" and isinstance(reference.place[1], int):
            use = recipe.rewards[reference.place[1]].use
            return ("reward_model",) if use == "preference_model" else ()
        return MODEL_KINDS if str(last).endswith("model_name_or_path") else ()

    def _model(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        takes_model = "model_name_or_path" in keys_of(*recipe.spec.configs)
        given = recipe.values.get("model_name_or_path")
        is_told = _is_told("model_name_or_path", recipe)
        if recipe.spec.model_kind and takes_model and not given and not is_told:
            yield "", 'model_name_or_path is missing; a folder, a Hub id or "@stage"'
        for key in path_keys(recipe.values):
            if recipe.values[key] and not is_reference(recipe.values[key]):
                fault, note = name_fault(
                    recipe.values[key], "model", self.pipeline.folder, allowed_by(recipe.values)
                )
                if fault:
                    yield key, f"{key}: {fault}"
                if note:
                    self.notes.append(f"{recipe.where}: {key}: {note}")

    def _untrained_start(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        if not recipe.spec.needs_untrained_start or recipe.allow_rl_weights:
            return
        path, current = [recipe.name], recipe
        while is_reference(text := current.values.get("model_name_or_path")):
            name = Reference((), str(text)).stage
            if name not in self.names[: self.names.index(current.name)]:
                return
            current = self.pipeline.stage(name)
            path.append(name)
            if current.spec.updates_policy_with == "rl":
                yield (
                    "model_name_or_path",
                    f"the weights of {recipe.name} come from RL: {' <- '.join(path)}; "
                    f"in the paper a {recipe.stage} stage starts from the base model; start from "
                    "it, or set allow_rl_weights: true",
                )
                return

    def _adapter_keys(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        if recipe.values.get("use_peft"):
            return
        for key in recipe.values:
            if key.startswith("lora_") and recipe.origins[key] == recipe.where:
                yield key, f"{key} has no effect without use_peft: true"

    def _formats(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        for key, known in (("reasoning_format", FORMATS), ("chat_template", CHAT_TEMPLATES)):
            value = recipe.values.get(key)
            if isinstance(value, str) and value not in known:
                hint = suggestion(value, known) or f"; known: {one_of(known)}"
                yield key, f"unknown {key} {value!r}{hint}"

    def _secrets(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        for path in nested_secrets(recipe.values):
            yield (
                re.split(r"[.[]", path)[0],
                f"{path}: a secret that libraries would write down with their settings; set an "
                "environment variable (HF_TOKEN, the server's key variable) or run `hf auth login`",
            )
        texts = {key: value for key, value in recipe.values.items() if not is_secret(key)}
        texts["rewards"] = [asdict(reward) for reward in recipe.rewards]
        for place, value in leaves(texts):
            is_told = any(is_secret(str(part)) for part in place)
            if isinstance(value, str) and not is_told and holds_secret(value):
                yield (
                    str(place[0]),
                    f"{place_text(place)}: {value} holds a secret, and recipes are stored with the "
                    "run; take it out, and put it into an environment variable",
                )

    def _rewards(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        for message in reward_faults(recipe, self.pipeline.folder):
            yield "rewards", message

    def _data(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        values = recipe.values
        if "datasets" not in keys_of(*recipe.spec.configs):
            return
        if not values.get("datasets"):
            if not _is_told("datasets", recipe):
                yield "datasets", "datasets is missing; it lists where rows come from"
            return
        for message in self.data.stage(recipe):
            yield "datasets", message

    def _settings(self, recipe: StageRecipe) -> Iterator[tuple[str, str]]:
        batch = batch_fault(recipe, self.processes)
        if batch:
            yield "num_generations", batch
            return
        yield from setting_faults(recipe)
        yield from push_setting_faults(recipe.values)
        if recipe.spec.check is not None:
            yield from recipe.spec.check(dict(recipe.values))
        resolved = resolve(recipe, self.pipeline.folder, lambda text: f"/run/{text[1:]}")
        try:
            with _silence():
                build_configs(
                    recipe.spec, resolved.values, Path("/run") / recipe.name, 0, self.processes
                )
        except Exception as error:  # noqa: BLE001 - all sorts; each is a mistake of the recipe
            yield _named_key(str(error), recipe.values), f"{_first_sentence(error)}"

    def evaluation(self) -> None:
        """The checks of `evaluation:` and `sources:` in pipeline.yaml."""
        where = f"{self.pipeline.shown}/{PIPELINE_FILE}"
        settings = self.pipeline.evaluation
        known = f"; known: {one_of(TASKS)}"
        found = [
            f"sources: unknown task {task!r}" + (suggestion(task, TASKS) or known)
            for task in self.pipeline.sources
            if task not in TASKS
        ]
        model = settings.preference_model
        if is_reference(model):
            fault = self._reference_fault(Reference(("preference_model",), str(model)), None)
        else:
            fault, note = (
                name_fault(model, "model", self.pipeline.folder) if model else (None, None)
            )
            self.notes += [f"{where}: evaluation.preference_model: {note}"] if note else []
        found += [f"evaluation.preference_model: {fault}"] if fault else []
        found += self.data.evaluation(settings, where)
        self.mistakes += [Mistake(where, message) for message in found]


def _is_told(key: str, recipe: StageRecipe) -> bool:
    """Whether a key is written but of the wrong type, which was said when it was read."""
    return key in recipe.origins and key not in recipe.values


def _word(kind: str) -> str:
    return kind.replace("_", " ")


def _named_key(message: str, values: Mapping[str, Any]) -> str:
    """The key of the recipe that an error message names, so that the right file is blamed."""
    return next((key for key in values if f"`{key}`" in message or f"{key} " in message), "")


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what config classes print and warn from the report, and forget the device they chose."""
    from accelerate.state import AcceleratorState, GradientState

    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
