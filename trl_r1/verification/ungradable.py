"""Rows that no completion could be graded on: gold answers and tests, looked at as data is loaded.

A reward says so by its attribute `row_fault` (see `description.py`), which the built-in ones have
that compare with something. It is a plain function of the row, so a whole data set takes moments.

    for fault in ungradable_rows(reward_funcs, dataset): ...
    warn_of_ungradable_rows(reward_funcs, dataset)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trl_r1.verification.loading import builtin_rewards, load_reward

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_MAX_NAMED = 5


@dataclass(frozen=True)
class RowFault:
    """A row that a reward can't grade, whatever the completion.

    Attributes:
        row: its number, from 0.
        reward: name of the reward.
        reason: as "not gradable because ...".
    """

    row: int
    reward: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row} is {self.reason}"


def ungradable_rows(
    rewards: Sequence[Callable[..., Any]], rows: Dataset | Sequence[Mapping[str, Any]]
) -> list[RowFault]:
    """Every row that one of the rewards, if it applies to it, says it can't grade.

    Args:
        rewards: functions; also what `pooled` and `build_reward` make of them.
        rows: a data set, or any rows with its columns. Only columns that a reward looks at are
            read, and equal ones once.
    """
    faults: list[RowFault] = []
    for reward in rewards:
        ask = _row_fault_of(reward)
        if ask is None:
            continue
        tasks, bound = _tasks_and_arguments(reward)
        known: dict[str, str | None] = {}
        for number, (task, row) in enumerate(_looked_at(rows, ask)):
            if tasks and task not in tasks:
                continue
            key = repr(row)
            if key not in known:
                known[key] = ask(**{**row, **bound})
            reason = known[key]
            if reason is not None:
                faults.append(RowFault(number, getattr(reward, "__name__", "?"), reason))
    return sorted(faults, key=lambda fault: fault.row)


def _looked_at(
    rows: Dataset | Sequence[Mapping[str, Any]], ask: Callable[..., Any]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each row's task, and the columns of it that a function names."""
    names = list(inspect.signature(ask).parameters)
    part: Any = rows
    if not isinstance(rows, Sequence):  # a data set: decode no more than is looked at
        part = rows.select_columns([n for n in rows.column_names if n in {*names, "task"}])
    for row in part:
        yield row.get("task"), {name: row[name] for name in names if name in row}


def warn_of_ungradable_rows(
    rewards: Sequence[Callable[..., Any]], rows: Dataset | Sequence[Mapping[str, Any]]
) -> list[RowFault]:
    """Likewise, and log how many there are and what the first are, once a reward."""
    faults = ungradable_rows(rewards, rows)
    for name in dict.fromkeys(fault.reward for fault in faults):
        logger.warning(
            "%s", in_words([fault for fault in faults if fault.reward == name], len(rows))
        )
    return faults


def in_words(faults: Sequence[RowFault], num_rows: int) -> str:
    """How many rows of one reward can't be graded, and what the first ones are.

    Args:
        faults: at least one.
        num_rows: rows of the data set.
    """
    shown = "; ".join(map(str, faults[:_MAX_NAMED]))
    more = len(faults) - _MAX_NAMED
    return (
        f"{len(faults)} of {num_rows} rows ({len(faults) / num_rows:.1%}) can't be graded by "
        f"reward {faults[0].reward!r}: {shown}"
        + (f"; and {more} more" if more > 0 else "")
        + "; mend these rows or leave them out"
    )


def _row_fault_of(reward: Any) -> Callable[..., str | None] | None:
    spec = getattr(reward, "spec", None)
    if spec is not None:  # a pooled one: a user's code runs in the workers only
        return getattr(load_reward(spec.use), "row_fault", None) if _is_builtin(spec.use) else None
    return getattr(getattr(reward, "function", reward), "row_fault", None)


def _is_builtin(use: str) -> bool:
    return use in builtin_rewards() or use.startswith("trl_r1.rewards.")


def _tasks_and_arguments(reward: Any) -> tuple[Sequence[str], Mapping[str, Any]]:
    settings = getattr(reward, "spec", reward)
    return getattr(settings, "tasks", ()), getattr(settings, "args", {})
