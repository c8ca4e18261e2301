"""A reward that is graded by worker processes and looks to TRL like any other.

    from trl_r1.verification.pooled_reward import pooled

    GRPOTrainer(reward_funcs=[pooled("rewards/math_answer.py:math_answer_reward")], ...)

The function is loaded and run in the workers only. By default it is called for one row at a time,
so that a row that hangs is known and costs itself alone; `description.py` says how a function asks
for its prompt's group or the batch. Metrics that it logs are averaged over its calls.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.description import RewardDescription
from trl_r1.verification.job import Limits
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.pending_rewards import OwnPart, PendingRewards
from trl_r1.verification.pool import RewardPool, default_num_workers
from trl_r1.verification.ranks import GatheredColumns, gather_columns
from trl_r1.verification.references import Reward, reward_key, reward_spec
from trl_r1.verification.units import (
    UnsendableColumnError,
    build_units,
    pickle_constants,
    prompt_groups,
    split_columns,
)
from trl_r1.verification.verdict_cache import VerdictCache

_LOG_CALLS = ("log_extra", "log_metric")
_shared: RewardPool | None = None
_shared_lock = threading.Lock()


def shared_pool(num_workers: int | None = None) -> RewardPool:
    """The pool that all rewards of this process use unless they are given one.

    Args:
        num_workers: workers it should have at least; one a core (and rank) by default.
    """
    global _shared
    with _shared_lock:
        if _shared is None or _shared.is_closed:  # one that broke down is no use to the next call
            _shared = RewardPool(num_workers or default_num_workers())
        elif num_workers is not None:
            _shared.grow(num_workers)
        return _shared


def close_shared_pool() -> None:
    """End the workers of the shared pool; the next call starts new ones."""
    global _shared
    with _shared_lock:
        pool, _shared = _shared, None
    if pool is not None:
        pool.close()


def _forget_shared_pool() -> None:
    """In a forked child: the pool and its lock are the parent's."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared_pool)


def pooled(
    reward: Reward,
    *,
    args: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
    timeout: float = 5.0,
    memory_mb: int = 1024,
    on_kill: str = "zero",
    on_error: str = "raise",
    cache: bool | None = None,
    base_dir: str | Path | None = None,
    pool: RewardPool | None = None,
    even_if_it_should_stay: bool = False,
) -> PooledReward:
    """A reward function that runs in worker processes, within limits.

    Args:
        reward: a reference (`math_answer`, `package.module:function`, `file.py:function`), an entry
            of a recipe, a reward made by `build_reward`, or a function of an importable module.
        args: keyword arguments bound to the function.
        num_workers: worker processes of the shared pool, at least; one a core and rank by default.
        timeout: seconds of wall time for one call.
        memory_mb: memory of a worker in MB, the loaded reward included.
        on_kill: what a row gets that was killed or crashed its worker: `zero`, `none`, or `raise`.
        on_error: what a bug in the reward does: `raise` an error, or give `none` and a warning.
        cache: whether rows with equal content are graded once; what the function says by default.
        base_dir: folder that a relative file reference starts from, before the working directory.
        pool: a pool of its own instead of the one that the process shares.
        even_if_it_should_stay: also a reward that asks to run in the trainer's process.

    Raises:
        RewardReferenceError: the reward can't be loaded, or has to stay in the trainer's process.
        ValueError: a setting makes no sense.
    """
    limits = Limits(timeout, memory_mb, on_kill, on_error)
    if pool is not None and num_workers is not None:
        raise ValueError("num_workers is the pool's: give it to RewardPool, not to pooled")
    spec = reward_spec(reward, args)
    if base_dir is None:
        base_dir = getattr(reward, "base_dir", None)
    made = PooledReward(spec, limits, cache, num_workers, Path(base_dir) if base_dir else None)
    made.use_pool(pool)
    if made.description.runs_in_trainer and not even_if_it_should_stay:
        raise RewardReferenceError(
            f"reward {spec.use!r} asks to stay in the trainer's process (runs_in_trainer); give it "
            "to the trainer as it is"
        )
    return made


class PooledReward:
    """What `pooled` makes. Pickles as its settings; the copy uses the shared pool of its process.

    Attributes:
        description: what the function says about itself.
    """

    def __init__(
        self,
        spec: Any,
        limits: Limits,
        cache: bool | None,
        num_workers: int | None,
        base_dir: Path | None,
    ) -> None:
        self.spec = spec
        self.limits = limits
        self._key = reward_key(spec, base_dir)
        self._wants_cache = cache
        self._num_workers = num_workers
        self._own_pool: RewardPool | None = None
        self._cache = VerdictCache()

    def use_pool(self, pool: RewardPool | None) -> None:
        """Use this pool (None: the shared one), and load the reward in it.

        Raises:
            RewardReferenceError: the reward can't be loaded.
        """
        self._own_pool = pool
        self.description: RewardDescription = self._pool().describe(self._key, self.limits)
        self.__name__ = self.description.name
        self.__doc__ = self.description.summary
        self.__signature__ = self._signature()

    def __repr__(self) -> str:
        return f"PooledReward({self.__name__!r}, use={self.spec.use!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own_pool": None, "_cache": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cache=VerdictCache())

    def __call__(self, completions: list[Any], **kwargs: Any) -> list[float | None]:
        """Rewards of B completions.

        Args:
            completions: B completions.
            kwargs: `prompts` and the columns, each a list of length B, and what else TRL passes.

        Raises:
            RewardError: the reward has a bug, or a row was killed and `on_kill` is `raise`.
        """
        return self.submit(completions, **kwargs).result()

    def submit(self, completions: list[Any], **kwargs: Any) -> PendingRewards | OwnPart:
        """Start grading and return at once; `.result()` waits, and replays what was logged.

        Where the function needs its group or the batch and a trainer calls on several ranks, their
        rows are gathered first, so all of them have to call.

        Raises:
            RewardError: a column that the function asks for can't be passed to a worker.
        """
        logs = {name: kwargs.pop(name, None) for name in _LOG_CALLS}
        gathered = GatheredColumns.of_one({"completions": completions, **kwargs})
        if self.description.needs != "rows":
            gathered = gather_columns(gathered.columns, len(completions))
            logs["log_extra"] = gathered.own_log_extra(logs["log_extra"])
        pending = self._submit(gathered, logs)
        return pending.own_part(gathered.own_rows) if gathered.is_shared else pending

    def _submit(self, gathered: GatheredColumns, logs: Mapping[str, Any]) -> PendingRewards:
        num_rows, columns = gathered.num_rows, gathered.columns
        groups = prompt_groups(columns.get("prompts"), num_rows)
        rows = self._rows(num_rows, columns)
        if gathered.is_shared and self.description.needs == "group":
            own_groups = {groups[row] for row in gathered.own_rows}
            rows = [row for row in rows if groups[row] in own_groups]
        says_malformed = self.description.says_malformed
        pending = PendingRewards(self.__name__, num_rows, rows, says_malformed, **logs)
        if not rows:
            return pending
        bound = set(self.spec.args)
        columns = {name: value for name, value in columns.items() if name not in bound}
        try:
            by_row, constants = split_columns(columns, num_rows, self.description)
            units = build_units(by_row, groups, rows, self.description)
        except UnsendableColumnError as error:
            raise RewardError(f"reward {self.__name__!r} ({self.spec.use}): {error}") from error
        payload = pickle_constants(constants)
        if self._is_cached:
            units = pending.answer_from(self._cache, units, payload)
        if units:
            wants_logs = any(call is not None for call in logs.values())
            future = self._pool().submit(
                self._key, self.limits, payload, units, num_rows, wants_logs
            )
            pending.wait_for(future, units)
        return pending

    @property
    def _is_cached(self) -> bool:
        wanted = self.description.is_pure if self._wants_cache is None else self._wants_cache
        return wanted and self.description.needs == "rows"

    def _pool(self) -> RewardPool:
        return self._own_pool or shared_pool(self._num_workers)

    def _rows(self, num_rows: int, kwargs: Mapping[str, Any]) -> list[int]:
        """The rows it applies to now: none outside its steps, those of its tasks inside."""
        step = getattr(kwargs.get("trainer_state"), "global_step", None)
        first, last = self.spec.from_step, self.spec.until_step
        if step is not None and (step < first or (last is not None and step >= last)):
            return []
        if not self.spec.tasks:
            return list(range(num_rows))
        if not isinstance(kwargs.get("task"), list):
            raise RewardError(
                f"reward {self.__name__!r} ({self.spec.use}) is limited to the tasks "
                f"{', '.join(self.spec.tasks)}, but the rows have no 'task' column"
            )
        return [row for row, task in enumerate(kwargs["task"]) if task in self.spec.tasks]

    def _signature(self) -> inspect.Signature:
        """The function's, so that whoever asks for its columns sees them."""
        kind = inspect.Parameter.KEYWORD_ONLY
        bound = set(self.spec.args)
        required = [name for name in self.description.required if name not in bound]
        if self.spec.tasks and "task" not in required:
            required.append("task")
        optional = [n for n in self.description.optional if n not in bound and n not in required]
        return inspect.Signature(
            [
                *(inspect.Parameter(name, kind) for name in required),
                *(inspect.Parameter(name, kind, default=None) for name in optional),
                # A column may be called `kwargs` (IFEval has one), so that name may be taken.
                inspect.Parameter("_kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )
