"""Which rows a reward is for, and what became of each of them, in the words of the reward pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def recipe_entry(function: Any) -> Any:
    """The recipe's entry of a reward: a pooled one has it inside, a bound one is it."""
    return getattr(function, "spec", function)


def reward_applies(function: Any, rows: Sequence[Mapping[str, Any]], step: int) -> list[bool]:
    """For each row, whether a reward grades it at a step: its step window and its tasks.

    Args:
        function: a reward; one without a recipe's entry grades every row.
        rows: data set rows.
        step: optimizer step.
    """
    entry = recipe_entry(function)
    first, last = getattr(entry, "from_step", 0), getattr(entry, "until_step", None)
    tasks = getattr(entry, "tasks", ())
    is_on = first <= step and (last is None or step < last)
    return [is_on and (not tasks or row.get("task") in tasks) for row in rows]


def row_verdicts(
    functions: Sequence[Any],
    rewards: Sequence[Sequence[float | None]],
    rows: Sequence[Mapping[str, Any]],
    step: int,
    known: Mapping[int, Sequence[str]] | None = None,
) -> list[list[str]]:
    """What became of each row under each reward, in the words of the pool.

    Args:
        functions: the rewards.
        rewards: B lists, a number or None for each.
        rows: B data set rows.
        step: optimizer step.
        known: B verdicts by a reward's place, where a pool gave them.
    """
    columns: list[Sequence[str]] = []
    for place, function in enumerate(functions):
        if known is not None and place in known:
            columns.append(known[place])
            continue
        applies = reward_applies(function, rows, step)
        given = [row[place] for row in rewards]
        columns.append(
            [
                "ok" if reward is not None else "not gradable" if is_graded else "left out"
                for reward, is_graded in zip(given, applies, strict=True)
            ]
        )
    return [list(verdicts) for verdicts in zip(*columns, strict=True)]
