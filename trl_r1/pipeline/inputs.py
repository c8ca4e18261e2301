"""What flows into a stage, with content hashes, and the fingerprints that decide what is rerun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import util
from pathlib import Path
from typing import Any

from trl_r1.hub.references import commit_of, is_hub_reference
from trl_r1.pipeline.configs import Locate, path_keys, resolve_evaluation
from trl_r1.pipeline.hashing import FileHashes, hash_data
from trl_r1.pipeline.ledger import Input, StageFolder, StageRecord
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.recipe import SOURCE_KEYS, Pipeline, StageRecipe
from trl_r1.pipeline.references import Reference, find_path, find_references, is_reference
from trl_r1.stages import RewardSpec
from trl_r1.tasks import find_task, is_task_file
from trl_r1.tasks.sources import files_of_splits
from trl_r1.training.arguments import EvaluationSettings
from trl_r1.trust.secrets import is_secret, without_secrets

# Keys that change what is written down or shown, never what is learnt: changing them reruns
# nothing.
_INERT_KEYS = frozenset(
    (
        "logging_steps",
        "logging_first_step",
        "logging_strategy",
        "logging_nan_inf_filter",
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "save_steps",
        "save_strategy",
        "save_total_limit",
        "save_on_each_node",
        "report_to",
        "run_name",
        "project",
        "trackio_space_id",
        "disable_tqdm",
        "push_to_hub",
        "hub_model_id",
        "hub_strategy",
        "hub_private_repo",
        "hub_always_push",
        "hub_revision",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_prefetch_factor",
        "dataset_num_proc",
        "log_completions",
        "num_completions_to_print",
        "include_num_input_tokens_seen",
        "skip_memory_metrics",
        # What alarms do. Going back changes what is learnt, and the stage's details say so; a stage
        # that an alarm has stopped must be able to go on with another answer to it.
        "monitors",
        "max_rollbacks",
        "rollback_lr_factor",
        "metrics_language",
    )
)


class MissingInputError(PipelineError):
    """A stage needs an artifact that no finished stage has left."""


def artifact_path(pipeline: Pipeline, run_dir: Path, text: str) -> tuple[Path, StageRecord]:
    """The folder that a reference means in a run, and the record of the stage that made it.

    Raises:
        MissingInputError: the stage is not finished, or left no such artifact.
    """
    reference = Reference((), text)
    record = StageFolder(run_dir, reference.stage).finished()
    if record is None:
        raise MissingInputError(f"{text} is not there: stage {reference.stage!r} is not finished")
    artifact = reference.artifact
    if artifact is None:
        main = pipeline.stage(reference.stage).main_artifact
        artifact = main if main in record.artifacts else next(iter(record.artifacts), main)
    path = run_dir / reference.stage / artifact
    if artifact not in record.artifacts or not path.is_dir():
        left = ", ".join(record.artifacts) or "nothing"
        raise MissingInputError(
            f"{text} is not there: stage {reference.stage!r} left {left} in {path.parent}"
        )
    return path, record


def locator(pipeline: Pipeline, run_dir: Path) -> Locate:
    """Gives the absolute path of a reference in a run."""
    return lambda text: str(artifact_path(pipeline, run_dir, text)[0])


def references_of(recipe: StageRecipe) -> list[Reference]:
    """Every reference of a stage, in its keys and its rewards."""
    rewards = [dict(asdict(reward)) for reward in recipe.rewards]
    return [*find_references(dict(recipe.values)), *find_references(rewards, ("rewards",))]


def role_of(place: tuple[str | int, ...]) -> str:
    """How what a key names flows in: `weights`, `data` or `reward`."""
    return {"model_name_or_path": "weights", "rewards": "reward"}.get(str(place[0]), "data")


def gather_inputs(
    recipe: StageRecipe, pipeline: Pipeline, run_dir: Path, hashes: FileHashes
) -> tuple[Input, ...]:
    """Everything that flows into a stage.

    Raises:
        MissingInputError: an artifact is not there.
        OSError: a file can't be read.
    """
    inputs = []
    for reference in references_of(recipe):
        path, record = artifact_path(pipeline, run_dir, reference.text)
        inputs.append(
            Input(
                key=reference.key,
                source=reference.text,
                role=role_of(reference.place),
                hash=record.artifacts[path.name]["hash"],
                stage=reference.stage,
                artifact=path.name,
                fingerprint=record.fingerprint["stage"],
            )
        )
    for key, text, role in _outside_names(recipe, pipeline.folder):
        local = find_path(text, pipeline.folder)
        content, commit = (hashes.path(local), commit_of(local)) if local else (None, None)
        inputs.append(Input(key, text, role, content, commit=commit))
    for index, reward in enumerate(recipe.rewards):
        source = _reward_file(reward, pipeline.folder)
        if source is not None:
            inputs.append(Input(f"rewards[{index}].use", reward.use, "reward", hashes.path(source)))
    return tuple(inputs)


def _outside_names(recipe: StageRecipe, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Models and data sets from outside the run: key, name, role."""
    for key in path_keys(recipe.values):
        if not is_reference(recipe.values[key]):
            yield key, recipe.values[key], role_of((key,))
    yield from _hub_models_of_rewards(recipe)
    for key in SOURCE_KEYS:
        for index, source in enumerate(recipe.values.get(key) or ()):
            names = {part: source.get(part) for part in ("dataset_name", "pass_rates")}
            if is_task_file(source.get("task")):
                names["task"] = source["task"]
                if not names["dataset_name"]:
                    task = find_task(source["task"], folder)
                    own = task.default_source if task else None
                    names["task.source"] = own
                    if own and "{split}" in own:
                        files = files_of_splits(Path(own))
                        names |= {f"task.source[{file.name}]": str(file) for file in files}
            for part, name in names.items():
                if name and not is_reference(name):
                    yield f"{key}[{index}].{part}", name, "data"


def _hub_models_of_rewards(recipe: StageRecipe) -> Iterator[tuple[str, str, str]]:
    for index, reward in enumerate(recipe.rewards):
        for name, value in reward.args.items():
            if is_hub_reference(value):
                yield f"rewards[{index}].args.{name}", value, "reward"


def _reward_file(reward: RewardSpec, folder: Path) -> Path | None:
    """The file of a reward; None for one in a package that can't be found without importing it."""
    target, _, _ = reward.use.rpartition(":")
    if target.endswith(".py"):
        return find_path(target, folder)
    try:
        spec = util.find_spec(target or f"trl_r1.rewards.{reward.use}")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def recipe_document(recipe: StageRecipe) -> dict[str, Any]:
    """A stage's recipe with everything merged, as plain data fit for a stage file; no secrets."""
    document: dict[str, Any] = {"stage": recipe.stage}
    if recipe.preset is not None:
        document["preset"] = recipe.preset
    document.update(without_secrets(recipe.values))
    if recipe.rewards:
        document["rewards"] = [_without_defaults(reward) for reward in recipe.rewards]
    if recipe.allow_rl_weights:
        document["allow_rl_weights"] = True
    return document


def _without_defaults(reward: RewardSpec) -> dict[str, Any]:
    default = RewardSpec(use=reward.use)
    values = {k: v for k, v in asdict(reward).items() if k == "use" or v != getattr(default, k)}
    return without_secrets({k: list(v) if isinstance(v, tuple) else v for k, v in values.items()})


def changing_keys(document: dict[str, Any]) -> dict[str, Any]:
    """The part of a recipe document that changes what is learnt."""
    return {
        key: value
        for key, value in document.items()
        if key not in _INERT_KEYS and not is_secret(key) and key != "preset"
    }


def stage_seed(recipe: StageRecipe, pipeline: Pipeline) -> int:
    """The seed of a stage: its own key, or the pipeline's."""
    return int(recipe.values.get("seed", pipeline.seed))


def stage_fingerprint(recipe: StageRecipe, seed: int, inputs: tuple[Input, ...]) -> str:
    """The hash of what a result depends on: recipe, seed, inputs and how they were made."""
    return hash_data(
        {
            "recipe": changing_keys(recipe_document(recipe)),
            "seed": seed,
            "inputs": [[i.key, i.hash, i.artifact, i.fingerprint] for i in inputs],
        }
    )


def evaluation_of(
    recipe: StageRecipe, pipeline: Pipeline, run_dir: Path
) -> EvaluationSettings | None:
    """How a stage's model is scored, with paths resolved; None where it is not.

    A preference model made by a stage of the run scores the stages after it, once it is there.
    """
    settings = pipeline.evaluation
    if not recipe.is_trained or not (settings.datasets or settings.general):
        return None
    if is_reference(settings.preference_model):
        names = [stage.name for stage in pipeline.stages]
        maker = Reference((), str(settings.preference_model)).stage
        is_there = StageFolder(run_dir, maker).finished() is not None
        if maker not in names[: names.index(recipe.name)] or not is_there:
            settings = replace(settings, preference_model=None)
    return resolve_evaluation(settings, pipeline.folder, locator(pipeline, run_dir))


def evaluation_document(pipeline: Pipeline, settings: EvaluationSettings | None) -> dict[str, Any]:
    """How a stage's model is scored, as written in the pipeline, as plain data; no secrets.

    Args:
        pipeline: the pipeline.
        settings: the same with paths resolved, see `evaluation_of`; None where it is not scored.
    """
    if settings is None:
        return {}
    document = without_secrets(asdict(pipeline.evaluation))
    if settings.preference_model is None:
        document["preference_model"] = None
    return document


def scores_fingerprint(
    recipe: StageRecipe, settings: EvaluationSettings | None, hashes: FileHashes
) -> str:
    """The hash of how a stage's model is scored; equal ones give comparable scores."""
    if settings is None:
        return ""
    document = asdict(settings)
    names = [settings.preference_model]
    for source in [*settings.datasets, *settings.general]:
        names.append(source.get("dataset_name"))
        names += [source["task"]] if is_task_file(source.get("task")) else []
    content = [hashes.path(Path(name)) for name in names if name and Path(name).exists()]
    document.pop("batch_size")
    document["preference_model"] = settings.preference_model is not None
    keys = ("reasoning_format", "dtype", "load_in_4bit", "load_in_8bit")
    return hash_data([document, content, {key: recipe.values.get(key) for key in keys}])
