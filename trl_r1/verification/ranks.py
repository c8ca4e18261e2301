"""A batch that lies on several training processes, put together for a reward that needs it whole.

TRL gives each process (rank) its own rows, so the completions of one prompt may lie on two of them.
A reward that looks at its whole group, or at the batch, then sees a part only. Here the ranks'
columns are gathered, in rank order, and each rank takes its own rewards out of the result. All
ranks have to call at the same time, which TRL's do. Left out: rewards that judge rows one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

LogExtra = Callable[[str, list[Any]], None]


@dataclass(frozen=True)
class GatheredColumns:
    """The rows of all ranks.

    Attributes:
        columns: keyword arguments; lists of B rows have those of all ranks now.
        first: where this rank's rows begin.
        num_own: B, this rank's rows.
        num_rows: rows of all ranks.
    """

    columns: dict[str, Any]
    first: int
    num_own: int
    num_rows: int

    @classmethod
    def of_one(cls, columns: dict[str, Any]) -> GatheredColumns:
        """The columns of one rank, whose rows are all there are."""
        num_rows = len(columns["completions"])
        return cls(columns, 0, num_rows, num_rows)

    @property
    def is_shared(self) -> bool:
        return self.num_rows > self.num_own

    @property
    def own_rows(self) -> range:
        return range(self.first, self.first + self.num_own)

    def own_log_extra(self, log_extra: LogExtra | None) -> LogExtra | None:
        """TRL's `log_extra` for values of all rows; TRL wants those of this rank."""
        if log_extra is None or not self.is_shared:
            return log_extra
        return lambda column, values: log_extra(column, [values[row] for row in self.own_rows])


def needs_of(function: Callable[..., Any]) -> str:
    """What a reward function has to see in one call: `rows`, `group` or `batch`."""
    return str(getattr(function, "needs", "rows"))


def gather_columns(columns: Mapping[str, Any], num_rows: int) -> GatheredColumns:
    """The columns of all ranks where a trainer calls on several; else the columns as they are.

    Args:
        columns: keyword arguments as TRL passes them, `completions` among them. Only a trainer
            passes `trainer_state`: without it ranks need not be in step, and nothing is gathered.
        num_rows: B; a list of this length is a column. All ranks have the same columns.
    """
    if "trainer_state" not in columns or not _has_ranks():
        return GatheredColumns.of_one(dict(columns))
    from accelerate.utils import gather_object

    names = sorted(
        name
        for name, value in columns.items()
        if isinstance(value, list) and len(value) == num_rows
    )
    parts = gather_object([{name: columns[name] for name in names}])
    whole = {name: [value for part in parts for value in part[name]] for name in names}
    sizes = [len(part["completions"]) for part in parts]
    first = sum(sizes[: _rank()])
    return GatheredColumns({**columns, **whole}, first, num_rows, sum(sizes))


class WholeGroups:
    """A reward function that sees all ranks' rows; pass it to a trainer like any other.

    Args:
        reward: TRL reward function that needs its group or the batch at once.
    """

    def __init__(self, reward: Callable[..., Any]) -> None:
        self.reward = reward
        update_wrapper(self, reward)

    def __call__(self, completions: list[Any], **kwargs: Any) -> list[float | None]:
        """Rewards of this rank's B completions; see `gather_columns`."""
        gathered = gather_columns({"completions": completions, **kwargs}, len(completions))
        columns = dict(gathered.columns)
        if "log_extra" in columns:
            columns["log_extra"] = gathered.own_log_extra(columns["log_extra"])
        rewards = self.reward(**columns)
        return [rewards[row] for row in gathered.own_rows]


def _has_ranks() -> bool:
    # A process that trains on several has imported torch; one that has not need not.
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _rank() -> int:
    import torch

    return int(torch.distributed.get_rank())
