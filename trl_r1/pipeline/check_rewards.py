"""Checks of a stage's `rewards:`: that each can be had, takes its arguments, and counts at all."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import pydantic

from trl_r1.pipeline.check_columns import format_of, task_name
from trl_r1.pipeline.check_names import allowed_by, name_fault
from trl_r1.pipeline.keys import Key, check_value
from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.pipeline.recipe import StageRecipe
from trl_r1.pipeline.references import is_model_key, is_reference
from trl_r1.stages import RewardSpec
from trl_r1.tasks import TASKS
from trl_r1.trust.withholding import WithheldError
from trl_r1.verification.bound_reward import BoundReward
from trl_r1.verification.loading import RewardReferenceError, build_reward

# A wrong argument shows when a reward is called: with one row, or without any where a row would
# load or start something.
_QUICK = (
    "choice",
    "instruction",
    "language_consistency",
    "length_within_group",
    "math_answer",
    "overlong",
    "repetition",
    "think_format",
)
_QUICK_WITHOUT_ROWS = ("code_tests", "preference_model", "reasoning_gym")
_ROW = {
    "prompts": "1",
    "completions": "<think>1</think> <answer>1</answer>",
    "completion_ids": [1],
    "solution": "1",
    "language": "en",
    "tests": [],
    "entry": None,
}


def reward_faults(recipe: StageRecipe, folder: Path) -> Iterator[str]:
    """Mistakes in the rewards of a stage, each with the place of the reward before it.

    Args:
        recipe: the stage.
        folder: of the pipeline.
    """
    names: dict[str, int] = {}
    for index, reward in enumerate(recipe.rewards):
        place = f"rewards[{index}]"
        yield from _window_fault(reward, place)
        yield from _task_faults(recipe, reward, folder, place)
        try:
            function = build_reward(reward, folder, format_of(recipe))
        except WithheldError:  # a stranger's: by its name it is known, by nothing else
            names.setdefault(reward.name or reward.use.rpartition(":")[2], index)
            continue
        except RewardReferenceError as error:
            yield f"{place}: {error}"
            continue
        yield from _argument_faults(reward, function, folder, place)
        if function.__name__ in names:
            yield (
                f"{place} and rewards[{names[function.__name__]}] are both called "
                f"{function.__name__!r}; give one another `name`"
            )
        names.setdefault(function.__name__, index)
    yield from _named_reward_faults(recipe, names)


def _named_reward_faults(recipe: StageRecipe, names: Mapping[str, int]) -> Iterator[str]:
    """Settings that name a reward which is not there."""
    for key in ("accuracy_reward", "dynamic_sampling_reward"):
        wanted = recipe.values.get(key)
        if wanted is not None and names and wanted not in names:
            hint = suggestion(str(wanted), names) or f"; there are: {one_of(names)}"
            yield f"{key}: {wanted!r} is no reward of the stage{hint}"


def _window_fault(reward: RewardSpec, place: str) -> Iterator[str]:
    if reward.until_step is not None and reward.until_step <= reward.from_step:
        yield (
            f"{place}: until_step {reward.until_step} is not after from_step {reward.from_step}; "
            "it would never count"
        )


def _task_faults(
    recipe: StageRecipe, reward: RewardSpec, folder: Path, place: str
) -> Iterator[str]:
    sources = recipe.values.get("datasets") or ()
    tasks = {task_name(source.get("task"), folder) for source in sources} | set(TASKS)
    for task in reward.tasks:
        if task not in tasks and all(source.get("task") for source in sources):
            yield f"{place}.tasks: no rows of task {task!r}{suggestion(task, tasks)}"


def _argument_faults(
    reward: RewardSpec, function: BoundReward, folder: Path, place: str
) -> Iterator[str]:
    """Arguments of a wrong type, or that name a model that is not there."""
    faults = []
    for name, value in reward.args.items():
        if is_reference(value):
            continue
        key = Key(name, _annotation(function, name), None)
        faults.append(check_value(key, value, f"{place}.args.")[1])
        if is_model_key(name) and isinstance(value, str):
            fault = name_fault(value, "model", folder, allowed_by(reward.args))[0]
            faults.append(f"{place}.args.{name}: {fault}" if fault else None)
    found = [fault for fault in faults if fault]
    yield from found
    if not found and reward.use in (*_QUICK, *_QUICK_WITHOUT_ROWS) and reward.args:
        num_rows = int(reward.use in _QUICK)
        columns = {name: [value] * num_rows for name, value in _ROW.items()}
        try:
            function.function(**{**columns, **function.args})
        except WithheldError:  # its arguments name a stranger's code
            return
        except Exception as error:  # noqa: BLE001 - whatever it says to its arguments
            yield f"{place}: reward {reward.use!r}: args: {error}"


def _annotation(function: BoundReward, name: str) -> object:
    """The type of an argument; any, where its author wrote none that can be checked."""
    try:
        annotation = typing.get_type_hints(function.function).get(name, typing.Any)
        pydantic.TypeAdapter(annotation)
    except Exception:  # noqa: BLE001 - annotations are evaluated, and may hold anything
        return typing.Any
    return annotation
