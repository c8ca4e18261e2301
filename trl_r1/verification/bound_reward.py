"""A reward with everything a recipe says about it: arguments, step window, tasks, a name.

It is a TRL reward function itself, checks what the function it wraps returns, and says whose fault
an exception is. It pickles as its reference and is loaded again on the other side, so that it can
go to a spawned process even where it comes from a file.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# How long an exception may be looked into for the row that caused it.
_BLAME_SECONDS = 2.0
_MAX_WORDS = 1000  # characters of a reward's own exception


class RewardError(RuntimeError):
    """A reward function raised, or returned what is not a list of rewards: a bug in it."""


class BoundReward:
    """A reward function with its arguments, its step window and its tasks.

    Args:
        use: reference it was loaded from.
        name: what logs call it; becomes `__name__`, which is what TRL reads.
        args: keyword arguments bound to the function; they win over columns of the same name.
        from_step, until_step: optimizer steps in which it counts. Outside it returns None for
            every row. Where no `trainer_state` is passed (sampling, evaluation) there are no steps
            and it always counts.
        tasks: rows it applies to, by their `task` column; empty for all.
        base_dir: folder that relative file references start from.
        function: the loaded function.

    Attributes:
        is_in_worker: whether a worker of the pool calls it, which looks for the row that an
            exception comes from, and counts what became of the rows, by itself.
    """

    def __init__(
        self,
        use: str,
        name: str,
        args: Mapping[str, Any],
        from_step: int,
        until_step: int | None,
        tasks: tuple[str, ...],
        base_dir: Path | None,
        function: Callable[..., Any],
    ) -> None:
        self.use = use
        self.__name__ = name
        self.args = dict(args)
        self.from_step = from_step
        self.until_step = until_step
        self.tasks = tasks
        self.base_dir = base_dir
        self.function = function
        self.is_in_worker = False

    def __repr__(self) -> str:
        return f"BoundReward({self.__name__!r}, use={self.use!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["function"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        from trl_r1.verification.loading import load_reward  # it imports this module

        self.__dict__.update(state)
        self.function = load_reward(self.use, self.base_dir)

    def __call__(self, completions: list[Any], **kwargs: Any) -> list[float | None]:
        """Rewards of B completions, None where it does not apply.

        Args:
            completions: B completions.
            kwargs: `prompts`, `completion_ids` and the columns, each a list of length B, and
                whatever else TRL passes.

        Raises:
            RewardError: the function raised, or did not return B numbers or Nones; also where
                `tasks` is given and the rows have no `task` column.
        """
        num_rows = len(completions)
        if not self._is_in_window(kwargs.get("trainer_state")):
            return [None] * num_rows
        columns = {"completions": completions, **kwargs}
        if not self.tasks:
            return self._logged_rewards(columns, num_rows)
        if not isinstance(kwargs.get("task"), list):
            raise RewardError(
                f"reward {self.__name__!r} ({self.use}) is limited to the tasks "
                f"{', '.join(self.tasks)}, but the rows have no 'task' column"
            )
        rows = [i for i, task in enumerate(kwargs["task"]) if task in self.tasks]
        rewards: list[float | None] = [None] * num_rows
        if rows:
            part = self._logged_rewards(_take_rows(columns, rows, num_rows), len(rows))
            for i, reward in zip(rows, part, strict=True):
                rewards[i] = reward
        return rewards

    def _is_in_window(self, trainer_state: Any) -> bool:
        step = getattr(trainer_state, "global_step", None)
        if step is None:
            return True
        return self.from_step <= step and (self.until_step is None or step < self.until_step)

    def malformed_rows(
        self, columns: Mapping[str, Any], rewards: Sequence[float | None]
    ) -> list[bool] | None:
        """Which rows hold nothing that could be graded, of those with no reward above zero.

        Args:
            columns: the keyword arguments that the rewards are for.
            rewards: of each row.

        Returns:
            None where the function does not say (see `description.py`).
        """
        is_malformed = getattr(self.function, "malformed", None)
        if is_malformed is None:
            return None
        flags = [False] * len(rewards)
        rows = [row for row, reward in enumerate(rewards) if reward is not None and reward <= 0]
        if rows:
            part = _take_rows({**columns, **_SILENT}, rows, len(rewards))
            for row, flag in zip(rows, is_malformed(**{**part, **self.args}), strict=True):
                flags[row] = bool(flag)
        return flags

    def _logged_rewards(self, columns: Mapping[str, Any], num_rows: int) -> list[float | None]:
        """The rewards; the shares that the pool would log are logged where there is none."""
        rewards = self._rewards(columns, num_rows)
        log_metric = columns.get("log_metric")
        if log_metric is not None and not self.is_in_worker and num_rows:
            prefix = f"rewards/{self.__name__}"
            log_metric(f"{prefix}/not_gradable", rewards.count(None) / num_rows)
            malformed = self.malformed_rows(columns, rewards)
            if malformed is not None:
                log_metric(f"{prefix}/malformed", sum(malformed) / num_rows)
        return rewards

    def _rewards(self, columns: Mapping[str, Any], num_rows: int) -> list[float | None]:
        try:
            returned = self._call(columns)
        except KeyboardInterrupt:
            raise
        # Any bug of the function is reported under its name; `sys.exit()` would end the run.
        except BaseException as error:
            if isinstance(error, TypeError) and (lacking := self._lacking(columns)):
                raise RewardError(
                    f"reward {self.__name__!r} ({self.use}) needs {', '.join(lacking)}, which "
                    "the rows do not have; give the data set such a column, or set it in args"
                ) from None
            row = None if self.is_in_worker else self.failing_row(columns, num_rows, error)
            at = "" if row is None else f" at row {row} of {num_rows}"
            raise RewardError(
                f"reward {self.__name__!r} ({self.use}) raised {type(error).__name__}{at}: "
                f"{words_of(error)}"
            ) from error
        return self._checked(returned, num_rows)

    def _call(self, columns: Mapping[str, Any]) -> Any:
        result = self.function(**{**columns, **self.args})
        if inspect.isawaitable(result):
            # A thread of its own, since the caller's may already run an event loop (a notebook).
            with ThreadPoolExecutor(max_workers=1) as pool:
                return pool.submit(asyncio.run, _awaited(result)).result()
        return result

    def _lacking(self, columns: Mapping[str, Any]) -> list[str]:
        """Parameters without a default that neither a column nor `args` gives."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # a builtin may have none
            return []
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        needed = [p.name for p in parameters if p.kind in kinds and p.default is p.empty]
        return [name for name in needed if name not in columns and name not in self.args]

    def failing_row(
        self, columns: Mapping[str, Any], num_rows: int, error: BaseException
    ) -> int | None:
        """The first row that raises the same alone, looked for no longer than two seconds.

        Args:
            columns: the keyword arguments that it raised with.
            num_rows: length of its columns.
            error: what it raised.
        """
        if num_rows == 1:
            return 0
        kind = type(error)
        quiet = {**columns, **_SILENT}
        if issubclass(kind, (MemoryError, RecursionError)):
            return None
        deadline = time.monotonic() + _BLAME_SECONDS
        for row in range(num_rows):
            if time.monotonic() > deadline:
                return None
            try:
                self._call(_take_rows(quiet, [row], num_rows))
            except kind:
                return row
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - another failure of a lone row proves nothing
                continue
        return None

    def _checked(self, returned: Any, num_rows: int) -> list[float | None]:
        if hasattr(returned, "tolist"):  # a tensor or an array
            returned = returned.tolist()
        if not isinstance(returned, (list, tuple)) or len(returned) != num_rows:
            got = (
                f"{len(returned)} rewards"
                if isinstance(returned, (list, tuple))
                else f"a {type(returned).__name__}"
            )
            raise RewardError(
                f"reward {self.__name__!r} ({self.use}) returned {got} for {num_rows} "
                "completions; it must return a list with one number or None for each"
            )
        return [self._checked_value(value, row) for row, value in enumerate(returned)]

    def _checked_value(self, value: Any, row: int) -> float | None:
        if value is None:
            return None
        try:
            reward = float(value) if not isinstance(value, str) else math.nan
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise RewardError(
                f"reward {self.__name__!r} ({self.use}) returned {value!r} at row {row}; it must "
                "be a finite number, or None for a row that can't be graded"
            )
        return reward


def words_of(error: BaseException) -> str:
    """What an exception says, cut where it says very much."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the exception's own code
        return "(its text can't be had)"
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}... ({len(text)} characters)"


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _ignore(*_: Any) -> None:
    """Stands in for TRL's log calls where a row is looked at once more."""


_SILENT = {"log_extra": _ignore, "log_metric": _ignore}


def _take_rows(columns: Mapping[str, Any], rows: list[int], num_rows: int) -> dict[str, Any]:
    """The columns cut to some of their rows; what is not a list of B values stays as it is."""
    part = {
        key: [value[i] for i in rows]
        if isinstance(value, list) and len(value) == num_rows
        else value
        for key, value in columns.items()
    }
    log_extra = columns.get("log_extra")
    if log_extra is not None and log_extra is not _ignore:
        # TRL's table of completions wants a value for every row of the batch.
        def log_padded(column: str, values: list[Any]) -> None:
            by_row = dict(zip(rows, values, strict=True))
            log_extra(column, [by_row.get(i) for i in range(num_rows)])

        part["log_extra"] = log_padded
    return part
