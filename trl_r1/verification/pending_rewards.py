"""Rewards of a batch that is being graded.

Puts the outcomes of the calls together into one reward a row, and passes on what the function
logged and how many rows met which fate.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from trl_r1.verification.units import Outcome, Unit, merge_twins
from trl_r1.verification.verdict_cache import Grade, VerdictCache

# Share of the batch's rows with these verdicts, as metrics `rewards/<name>/<key>`.
_METRICS = {
    "not_gradable": ("not gradable", "error"),
    "malformed": ("malformed",),
    "timed_out": ("timed out",),
    "crashed": ("crashed", "out of memory"),
}


class PendingRewards:
    """What `PooledReward.submit` returns: ask for `result()` once.

    Args:
        name: the reward's, for its metrics.
        num_rows: B.
        rows: the rows that the reward applies to; others stay None.
        says_malformed: whether it says which completions hold nothing to grade.
        log_extra, log_metric: TRL's log calls, or None.

    Attributes:
        verdicts: what became of each row once there is a result: `ok`, `not gradable`, `malformed`
            (graded, but there was nothing in it to grade), `timed out`, `out of memory`, `crashed`,
            `error`, or `left out` where the reward does not apply.
        details: what happened to each row, in words; `""` where nothing did.
        seconds: how long the call took that graded each row; 0 where none did.
    """

    def __init__(
        self,
        name: str,
        num_rows: int,
        rows: Sequence[int],
        says_malformed: bool,
        log_extra: Callable[[str, list[Any]], None] | None,
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        self._name = name
        self._rows = rows
        self._says_malformed = says_malformed
        self._rewards: list[float | None] = [None] * num_rows
        self._log_extra = log_extra
        self._log_metric = log_metric
        self._cache: VerdictCache | None = None
        self._digests: dict[int, bytes] = {}
        self._num_cached = 0
        self._units: Sequence[Unit] = ()
        self._future: Future[list[Outcome]] | None = None
        self._is_logged = False
        self.details = [""] * num_rows
        self.seconds = [0.0] * num_rows
        self.verdicts = ["left out"] * num_rows
        for row in rows:
            self.verdicts[row] = "ok"

    def answer_from(self, cache: VerdictCache, units: list[Unit], constants: bytes) -> list[Unit]:
        """Take what is known from the cache; the units that are left have to be graded."""
        self._cache = cache
        unknown = []
        for unit in units:
            digest = hashlib.blake2b(unit.payload, digest_size=16, salt=_salt(constants)).digest()
            known = cache.get(digest)
            if known is not None:
                self._set(unit.rows, [known], "ok")
                self._num_cached += 1
            else:
                self._digests[unit.number] = digest
                unknown.append(unit)
        merged = merge_twins(unknown)
        self._num_cached += len(unknown) - len(merged)
        return merged

    def wait_for(self, future: Future[list[Outcome]], units: Sequence[Unit]) -> None:
        """Remember where the other rewards will come from."""
        self._future, self._units = future, units

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._future is None or self._future.done()

    def cancel(self) -> None:
        """Drop what has not begun; `result` must not be asked for then."""
        if self._future is not None:
            self._future.cancel()

    def own_part(self, rows: Sequence[int]) -> OwnPart:
        """The rewards of some of the rows."""
        return OwnPart(self, rows)

    def result(self, timeout: float | None = None) -> list[float | None]:
        """The rewards, one for each row of the batch; logs once.

        Args:
            timeout: seconds to wait at most.

        Raises:
            RewardError: the reward has a bug, or a row was killed and that is to stop the run.
            TimeoutError: they are not there yet; the grading goes on.
        """
        if self._future is not None:
            try:
                outcomes = self._future.result(timeout)
            except KeyboardInterrupt:
                self.cancel()
                raise
            self._future = None
            self._take(outcomes)
        if not self._is_logged:
            self._is_logged = True
            self._log_verdicts()
        return list(self._rewards)

    def _take(self, outcomes: Sequence[Outcome]) -> None:
        extra: dict[str, dict[int, Any]] = defaultdict(dict)
        metrics: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for unit, outcome in zip(self._units, outcomes, strict=True):
            malformed = outcome.malformed or (False,) * len(outcome.rewards)
            grades = [Grade(*pair) for pair in zip(outcome.rewards, malformed, strict=True)]
            self._set(unit.rows, grades, outcome.verdict)
            for row in (*unit.rows, *unit.twins):
                self.details[row] = outcome.detail
                self.seconds[row] = outcome.seconds
            self._set(unit.twins, grades[:1] * len(unit.twins), outcome.verdict)
            logged = outcome.extra or outcome.metrics
            if self._cache is not None and outcome.verdict == "ok" and not logged:
                self._cache.put(self._digests[unit.number], grades[0])
            for column, values in outcome.extra:
                extra[column].update(zip(unit.rows, values, strict=False))
                extra[column].update((row, values[0]) for row in unit.twins if values)
            for name, value in outcome.metrics:
                metrics[name].append((value, len(unit.rows) + len(unit.twins)))
        if self._log_extra is not None:
            for column, by_row in extra.items():
                # TRL's table of completions wants a value for every row of the batch.
                self._log_extra(column, [by_row.get(row) for row in range(len(self._rewards))])
        if self._log_metric is not None:
            for name, weighted in metrics.items():
                total = sum(value * weight for value, weight in weighted)
                self._log_metric(name, total / sum(weight for _, weight in weighted))

    def _set(self, rows: Sequence[int], grades: Sequence[Grade], verdict: str) -> None:
        for row, grade in zip(rows, grades, strict=True):
            self._rewards[row] = grade.reward
            self.verdicts[row] = verdict
            if verdict == "ok" and grade.reward is None:
                self.verdicts[row] = "not gradable"
            elif grade.is_malformed:
                self.verdicts[row] = "malformed"

    def _log_verdicts(self) -> None:
        if self._log_metric is None or not self._rows:
            return
        num_rows = len(self._rows)
        for key, verdicts in _METRICS.items():
            if key == "malformed" and not self._says_malformed:
                continue
            num_met = sum(self.verdicts.count(verdict) for verdict in verdicts)
            self._log_metric(f"rewards/{self._name}/{key}", num_met / num_rows)
        if self._cache is not None:
            self._log_metric(f"rewards/{self._name}/cached", self._num_cached / num_rows)


class OwnPart:
    """One rank's rows of rewards that were graded for several; used like `PendingRewards`.

    Args:
        pending: of all ranks' rows.
        rows: this rank's.
    """

    def __init__(self, pending: PendingRewards, rows: Sequence[int]) -> None:
        self._pending = pending
        self._rows = rows

    @property
    def verdicts(self) -> list[str]:
        return [self._pending.verdicts[row] for row in self._rows]

    @property
    def details(self) -> list[str]:
        return [self._pending.details[row] for row in self._rows]

    @property
    def seconds(self) -> list[float]:
        return [self._pending.seconds[row] for row in self._rows]

    def done(self) -> bool:
        return self._pending.done()

    def cancel(self) -> None:
        self._pending.cancel()

    def result(self, timeout: float | None = None) -> list[float | None]:
        rewards = self._pending.result(timeout)
        return [rewards[row] for row in self._rows]


def _salt(constants: bytes) -> bytes:
    return hashlib.blake2b(constants, digest_size=16).digest()
