"""Checks of the columns that a stage and its rewards can't do without.

Left out: where the columns of a source are known from (`check_data`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.pipeline.recipe import StageRecipe
from trl_r1.reasoning_format import FORMATS, ReasoningFormat
from trl_r1.stages import RewardSpec
from trl_r1.tasks import DatasetSource, find_task
from trl_r1.verification.loading import RewardReferenceError, build_reward, required_columns

# What TRL passes to rewards beside the columns.
_PASSED_BY_TRL = {"prompts", "completions", "trainer_state", "log_extra", "log_metric"}


def stage_column_faults(recipe: StageRecipe, columns: set[str], place: str) -> Iterator[str]:
    """Columns that a stage of this kind can't do without."""
    if recipe.spec.produces[0] == "reward_model":
        needed = {"chosen", "rejected"}
    elif recipe.spec.updates_policy_with == "sft":
        needed = set() if "messages" in columns else {"prompt", "completion"}
    else:
        needed = {"prompt"}
    clash = sorted(columns & _PASSED_BY_TRL) if recipe.spec.uses_rewards else []
    if clash:
        yield f"{place} has a column {one_of(clash)}, a name by which rewards get something else"
    missing = sorted(needed - columns)
    if missing:
        yield (
            f"{place} has no column {one_of(missing)}, which a {recipe.stage} stage needs; it has "
            f"{one_of(sorted(columns))}"
        )


def reward_column_faults(
    rewards: Sequence[RewardSpec],
    known: Sequence[tuple[DatasetSource, set[str]]],
    folder: Path,
) -> Iterator[str]:
    """Columns that a reward can't do without and that no row it applies to has.

    Args:
        rewards: of the stage.
        known: its sources, all of them, and the columns of each.
        folder: of the pipeline.
    """
    for index, reward in enumerate(rewards):
        try:
            needed = required_columns(build_reward(reward, folder))
        except RewardReferenceError:
            continue  # told where rewards are checked
        rows = [
            columns
            for source, columns in known
            if not reward.tasks or not source.task or task_name(source.task, folder) in reward.tasks
        ]
        if not rows:
            continue
        there = set().union(*rows)
        for column in sorted(needed - there):
            near = suggestion(column, there) or f"; there is {one_of(sorted(there))}"
            yield f"rewards[{index}] ({reward.use}) needs a column {column!r} of the rows{near}"


def task_name(task: str | None, folder: Path) -> str:
    """The value of a source's `task` column; of a task file that can't be read, its path."""
    try:
        found = find_task(task, folder)
    except ValueError:  # told where sources are checked
        return str(task)
    return found.name if found else str(task)


def format_of(recipe: StageRecipe) -> ReasoningFormat:
    """The response format of a stage; where the recipe names an unknown one, the first."""
    configs = recipe.spec.configs
    default = next((c.reasoning_format for c in configs if hasattr(c, "reasoning_format")), "zero")
    return FORMATS.get(recipe.values.get("reasoning_format", default), FORMATS["zero"])
