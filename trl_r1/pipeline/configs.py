"""From a stage's recipe to instances of its configs.

`resolve` puts paths in for references; `build_configs` constructs the dataclasses, with the
settings that belong to the runner under everything a recipe says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trl_r1.pipeline.keys import Key, keys_of
from trl_r1.pipeline.recipe import SOURCE_KEYS, StageRecipe
from trl_r1.pipeline.references import (
    find_path,
    is_model_key,
    is_reference,
    replace_texts,
)
from trl_r1.stages import RewardSpec, StageSpec
from trl_r1.tasks import is_task_file
from trl_r1.training.arguments import EvaluationSettings
from trl_r1.trust.secrets import guarded

# Given `@zero/rollouts`, the absolute path of that artifact.
Locate = Callable[[str], str]


@dataclass(frozen=True)
class ResolvedStage:
    """A stage's recipe with absolute paths in place of references and relative paths.

    Attributes:
        recipe: where it comes from.
        values: keys of the configs.
        rewards: the rewards.
    """

    recipe: StageRecipe
    values: Mapping[str, Any]
    rewards: tuple[RewardSpec, ...]


def resolve(recipe: StageRecipe, folder: Path, locate: Locate) -> ResolvedStage:
    """A stage with its references and relative paths replaced.

    Args:
        recipe: the stage.
        folder: of the pipeline; relative paths are looked for there first.
        locate: gives the path of a reference.
    """

    def reference(text: str) -> str:
        return locate(text) if is_reference(text) else text

    values = replace_texts(dict(recipe.values), reference)
    for key in path_keys(values):
        values[key] = _absolute(values[key], folder)
    for key in SOURCE_KEYS:
        if isinstance(values.get(key), list):
            values[key] = [_absolute_source(source, folder) for source in values[key]]
    rewards = tuple(
        replace(
            reward,
            use=_absolute_reward(reward.use, folder),
            args=_absolute_models(replace_texts(dict(reward.args), reference), folder),
        )
        for reward in recipe.rewards
    )
    return ResolvedStage(recipe, values, rewards)


def resolve_evaluation(
    settings: EvaluationSettings, folder: Path, locate: Locate
) -> EvaluationSettings:
    """Evaluation settings with references and relative paths replaced."""
    model = settings.preference_model
    if model is not None:
        model = locate(model) if is_reference(model) else _absolute(model, folder)
    return replace(
        settings,
        preference_model=model,
        datasets=[_absolute_source(source, folder) for source in settings.datasets],
        general=[_absolute_source(source, folder) for source in settings.general],
    )


def path_keys(values: Mapping[str, Any]) -> list[str]:
    """The keys that name a model, by their ending."""
    return [key for key, value in values.items() if isinstance(value, str) and is_model_key(key)]


def build_configs(
    spec: StageSpec,
    values: Mapping[str, Any],
    output_dir: Path,
    seed: int,
    processes: int = 1,
) -> tuple[Any, ...]:
    """An instance of each of the stage's configs.

    Args:
        spec: the stage's.
        values: resolved keys.
        output_dir: the stage's folder.
        seed: for configs with a `seed` that the recipe does not set.
        processes: for a check alone: how many processes the stage will run in. Batch sizes are
            scaled, so that TRL's arithmetic comes out as it will there.

    Raises:
        ValueError: TRL's own, for values that don't go together.
    """
    keys = keys_of(*spec.configs)
    # Trainer pickles its arguments with every checkpoint, a token among them.
    settings = {**runner_settings(spec, values), **{"seed": seed}, **guarded(values)}
    if processes > 1:
        for key, default in (("per_device_train_batch_size", 8), ("per_device_eval_batch_size", 8)):
            if key in keys:
                settings[key] = settings.get(key, default) * processes
    if "push_to_hub" in keys:
        # Trainer's own push asks the Hub before the first step and pushes folders named
        # "checkpoints": the runner does it, and a Hub that is away costs nothing.
        settings["push_to_hub"] = False
    if "output_dir" in keys:
        settings["output_dir"] = str(output_dir / "checkpoints")
    return tuple(
        config(**{k: v for k, v in settings.items() if k in keys and _takes(config, keys[k])})
        for config in spec.configs
    )


# A field of TRL's configs and of ours, which all have to know.
_SHARED = frozenset(("trust_remote_code",))


def _takes(config: type, key: Key) -> bool:
    return key.owner is config or (key.name in _SHARED and key.name in keys_of(config))


def runner_settings(spec: StageSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the runner, under everything a recipe says; only keys that the stage has."""
    settings: dict[str, Any] = {
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "steps",
        # A share of all steps; RL steps are long, so there every 25 whatever the length.
        "save_steps": 25 if spec.updates_policy_with == "rl" else 0.1,
        "save_total_limit": 2,
    }
    max_steps = values.get("max_steps")
    if spec.updates_policy_with == "rl" and isinstance(max_steps, int) and max_steps > 0:
        settings["save_steps"] = max(1, min(25, max_steps // 4))
    if not has_accelerator():
        settings.update(use_cpu=True, bf16=False)
    keys = keys_of(*spec.configs)
    return {key: value for key, value in settings.items() if key in keys}


def has_accelerator() -> bool:
    """Whether torch sees a device to train on besides the CPU."""
    import torch

    return bool(torch.accelerator.is_available())


def _absolute(text: str, folder: Path) -> str:
    path = find_path(text, folder)
    return str(path) if path else text


def _absolute_models(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {
        key: _absolute(value, folder) if is_model_key(key) and isinstance(value, str) else value
        for key, value in arguments.items()
    }


def _absolute_source(source: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    paths = {key: source[key] for key in ("dataset_name", "pass_rates") if source.get(key)}
    if is_task_file(source.get("task")):
        paths["task"] = source["task"]
    return {**source, **{key: _absolute(path, folder) for key, path in paths.items()}}


def _absolute_reward(use: str, folder: Path) -> str:
    file, colon, function = use.partition(".py:")
    path = find_path(f"{file}.py", folder) if colon else None
    return f"{path}:{function}" if path else use
