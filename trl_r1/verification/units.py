"""A batch taken apart into the calls that grade it.

A unit is what one call of the reward function gets: a row, a prompt's group, or the batch. It
travels pickled and is killed, retried, cached and judged as one.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from trl_r1.verification.description import RewardDescription

_PLAIN = (bool, int, float, str, type(None))


@dataclass
class Unit:
    """One call of a reward function.

    Attributes:
        number: its place in the batch's list of units.
        rows: rows of the batch it grades, in the order of the columns it carries.
        group: which prompt group it belongs to.
        payload: pickled columns.
        twins: rows with equal content, which get the same reward without a call.
    """

    number: int
    rows: tuple[int, ...]
    group: int
    payload: bytes
    twins: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What became of a unit.

    Attributes:
        verdict: `ok`, `timed out`, `out of memory`, `crashed` or `error`.
        rewards: one number or None for each of its rows.
        malformed: whether each of its rows holds nothing to grade; none where nobody said.
        extra: columns it logged, each with a value for each of its rows.
        metrics: metrics it logged.
        detail: what happened, in words, where the verdict is not `ok`.
        seconds: of the call; 0 where its worker had to be killed.
    """

    verdict: str
    rewards: tuple[float | None, ...]
    extra: tuple[tuple[str, list[Any]], ...] = ()
    metrics: tuple[tuple[str, float], ...] = ()
    detail: str = ""
    malformed: tuple[bool, ...] = ()
    seconds: float = 0.0


class UnsendableColumnError(ValueError):
    """A column that the function names can't be passed to another process."""


def split_columns(
    columns: Mapping[str, Any], num_rows: int, description: RewardDescription
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """What varies by row and what does not, of the columns that the function wants.

    Args:
        columns: keyword arguments as TRL passes them, without its log calls.
        num_rows: B; a list of this length is a column.
        description: the function's.

    Raises:
        UnsendableColumnError: a constant that the function names can't be pickled.
    """
    by_row: dict[str, list[Any]] = {}
    constants: dict[str, Any] = {}
    for name, value in columns.items():
        if not description.wants(name):
            continue
        if name == "trainer_state":
            constants[name] = snapshot(value)
        elif isinstance(value, list) and len(value) == num_rows:
            by_row[name] = value
        else:
            constants[name] = value
    for name in [name for name, value in constants.items() if not _is_sendable(value)]:
        _refuse_if_named(name, description)
        del constants[name]
    return by_row, constants


def snapshot(state: Any) -> SimpleNamespace:
    """The plain numbers, texts and flags of a trainer's state; its long log history stays."""
    items = vars(state).items() if hasattr(state, "__dict__") else ()
    return SimpleNamespace(**{key: value for key, value in items if isinstance(value, _PLAIN)})


def build_units(
    by_row: Mapping[str, list[Any]],
    groups: Sequence[int],
    rows: Sequence[int],
    description: RewardDescription,
) -> list[Unit]:
    """The units of some rows of a batch.

    Args:
        by_row: columns, each of length B.
        groups: prompt group of each of the B rows, see `prompt_groups`.
        rows: the rows to grade.
        description: the function's; its `needs` says how much goes into one call.

    Raises:
        UnsendableColumnError: a column that the function names can't be pickled.
    """
    if description.needs == "batch":
        parts = [tuple(rows)] if rows else []
    elif description.needs == "group":
        parts = []
        for row in rows:
            if parts and groups[parts[-1][0]] == groups[row]:
                parts[-1] = (*parts[-1], row)
            else:
                parts.append((row,))
    else:
        parts = [(row,) for row in rows]
    units: list[Unit] = []
    for part in parts:
        columns = {name: [values[row] for row in part] for name, values in by_row.items()}
        payload = _pickled(columns, description)
        units.append(Unit(number=len(units), rows=part, group=groups[part[0]], payload=payload))
    return units


def prompt_groups(prompts: Sequence[Any] | None, num_rows: int) -> list[int]:
    """Number of the prompt group of each row: neighbours with equal prompts form one."""
    if prompts is None:
        return list(range(num_rows))
    groups = [0] * num_rows
    for row in range(1, num_rows):
        groups[row] = groups[row - 1] + (prompts[row] != prompts[row - 1])
    return groups


def pickle_constants(constants: Mapping[str, Any]) -> bytes:
    """The keyword arguments that every unit gets, as the workers take them."""
    return pickle.dumps(dict(constants), protocol=pickle.HIGHEST_PROTOCOL)


def merge_twins(units: list[Unit]) -> list[Unit]:
    """The units without those whose content another one has; their rows become its twins."""
    first: dict[bytes, Unit] = {}
    for unit in units:
        known = first.setdefault(unit.payload, unit)
        if known is not unit:
            known.twins.extend(unit.rows)
    return list(first.values())


def _pickled(columns: dict[str, list[Any]], description: RewardDescription) -> bytes:
    try:
        return pickle.dumps(columns, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - pickle raises what the value's code does
        for name in [name for name, values in columns.items() if not _is_sendable(values)]:
            _refuse_if_named(name, description)
            del columns[name]
        return pickle.dumps(columns, protocol=pickle.HIGHEST_PROTOCOL)


def _is_sendable(value: Any) -> bool:
    try:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - pickle raises what the value's code does
        return False
    return True


def _refuse_if_named(name: str, description: RewardDescription) -> None:
    """A column that only `**kwargs` would catch is left out; one that is asked for is not."""
    if name in description.required or name in description.optional:
        raise UnsendableColumnError(
            f"its column {name!r} holds what can't be passed to another process; run this reward "
            "without the pool"
        )
