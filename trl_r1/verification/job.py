"""One reward on one batch, as the pool works it off: its queue, its outcomes, its verdicts.

Knows nothing of processes. All of it runs on the pool's own thread, but for the future.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.description import RewardDescription
from trl_r1.verification.protocol import RewardKey
from trl_r1.verification.units import Outcome, Unit

logger = logging.getLogger(__name__)

# Work given to a worker at once: long enough that handing it over costs little beside it (which is
# more on a busy machine), short enough that not much waits behind a row that hangs.
_CHUNK_SECONDS = 0.03
_CHUNK_HANDOVERS = 4
_MAX_CHUNK_SECONDS = 0.25
_MIN_CHUNK_SECONDS = 0.001
_FIRST_CHUNK_UNITS = 8
# A reward that has graded nothing yet and has been killed this often is itself at fault.
_MAX_KILLS_BEFORE_FIRST_GRADE = 8
_MAX_ROWS_NAMED = 4
_ROW = re.compile(r" at row (\d+)\b")


@dataclass(frozen=True)
class Limits:
    """What a unit may take, and what happens when it takes more or fails.

    Attributes:
        timeout: seconds of wall time for one unit.
        memory_mb: memory of the worker, in MB, the loaded reward included.
        on_kill: what a row gets whose unit timed out, took too much memory or crashed its worker:
            `zero`, `none`, or `raise` for an error that stops the run.
        on_error: what becomes of an exception in the reward or a result that can't be used:
            `raise`, or `none` for None and a warning.
    """

    timeout: float = 5.0
    memory_mb: int = 1024
    on_kill: str = "zero"
    on_error: str = "raise"

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout!r}: it must be a number of seconds above 0")
        if self.memory_mb < 64:
            raise ValueError(
                f"memory_mb={self.memory_mb!r}: a Python process alone takes about 30 MB; "
                "it must be at least 64"
            )
        for name, known in (
            ("on_kill", ("zero", "none", "raise")),
            ("on_error", ("raise", "none")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: it must be one of {', '.join(known)}"
                )


@dataclass
class Record:
    """What the pool remembers of a reward from batch to batch."""

    description: RewardDescription | None = None
    seconds_per_unit: float | None = None
    handover_seconds: float = 0.0
    num_graded: int = 0
    num_killed: int = 0
    warned_of_leak: bool = False

    def note_speed(self, seconds: float, num_units: int, handover: float) -> None:
        """Take in how long a worker took for some units, and what handing them over took."""
        latest = max(seconds / num_units, 1e-6)
        known = self.seconds_per_unit
        if known is None:
            self.seconds_per_unit = latest
        else:
            # A busy machine makes a chunk look slow, never fast: faster is believed sooner.
            trust = 0.5 if latest < known else 0.1
            self.seconds_per_unit = (1 - trust) * known + trust * latest
        self.handover_seconds = 0.7 * self.handover_seconds + 0.3 * max(handover, 0.0)

    def units_at_once(self, num_left: int, num_workers: int) -> tuple[int, int]:
        """How many units make a chunk, and how many are one worker's share of what is left."""
        share = -(-num_left // num_workers)
        if self.seconds_per_unit is None:
            return min(_FIRST_CHUNK_UNITS, share), share
        seconds = max(_CHUNK_SECONDS, _CHUNK_HANDOVERS * self.handover_seconds)
        num_units = max(1, int(min(seconds, _MAX_CHUNK_SECONDS) / self.seconds_per_unit))
        # Less than a second handover costs is not worth splitting.
        worth = int(max(_MIN_CHUNK_SECONDS, self.handover_seconds) / self.seconds_per_unit)
        share = min(max(share, worth), num_left)
        return min(num_units, share), share


@dataclass
class Job:
    """Units of one reward on one batch.

    Attributes:
        reward: what the workers load.
        record: what is remembered of this reward.
        limits: for each unit.
        constants: pickled keyword arguments of every unit.
        units: all of them; none for a job that only asks for the reward's description.
        num_rows: B, for messages.
        wants_logs: whether the log calls are passed on.
        future: gets the outcomes in the order of `units`.
    """

    reward: RewardKey
    record: Record
    limits: Limits
    constants: bytes = b""
    units: Sequence[Unit] = ()
    num_rows: int = 0
    wants_logs: bool = False
    future: Future[list[Outcome]] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self._groups: dict[int, deque[Unit]] = {}
        for unit in self.units:
            self._groups.setdefault(unit.group, deque()).append(unit)
        self._free = deque(self._groups)
        self._begun: dict[int, int] = {}  # by worker
        # Units whose worker died of memory or a crash: each is tried once more, first and alone in
        # a new worker, since what went before it in the old one may have been the cause.
        self.suspects: deque[Unit] = deque()
        self.outcomes: dict[int, Outcome] = {}

    @property
    def is_over(self) -> bool:
        return self.future.done()

    @property
    def only_describes(self) -> bool:
        return not self.units

    @property
    def label(self) -> str:
        name = self.record.description.name if self.record.description else self.reward.name
        return f"reward {name!r} ({self.reward.use})" if name else f"reward {self.reward.use!r}"

    def take(self, num_workers: int, worker: int, worker_is_new: bool) -> list[Unit]:
        """Units for an idle worker; whole prompt groups where there is work for all workers.

        A group's rows go to one worker, so that its gold answer is parsed once; one that has
        nothing left of its own helps with the last group.

        Args:
            num_workers: how many share the work.
            worker: which one asks.
            worker_is_new: whether it has run nothing yet.
        """
        if self.suspects and worker_is_new:
            return [self.suspects.popleft()]
        if not self._groups:
            return []
        num_left = sum(map(len, self._groups.values()))
        num_units, share = self.record.units_at_once(num_left, num_workers)
        most = max(num_units, min(2 * num_units - 1, share))
        units: list[Unit] = []
        while len(units) < num_units and (group := self._next_group(worker, not units)) is not None:
            rest = self._groups[group]
            while rest and len(units) < most:
                units.append(rest.popleft())
            if not rest:
                del self._groups[group]
        return units

    def _next_group(self, worker: int, may_help: bool) -> int | None:
        """The group it has begun, or one that nobody has, or the last one of another's."""
        begun = self._begun.get(worker)
        if begun in self._groups:
            return begun
        while self._free:
            group = self._free.popleft()
            if group in self._groups:
                self._begun[worker] = group
                return group
        return next(reversed(self._groups), None) if may_help else None

    def put_back(self, units: Iterable[Unit]) -> None:
        """Units that a worker was given and did not get to."""
        for unit in reversed(list(units)):
            self._groups.setdefault(unit.group, deque()).appendleft(unit)
            self._free.appendleft(unit.group)

    def finish(self, unit: Unit, result: Mapping[str, Any]) -> None:
        """Take a worker's result for a unit."""
        if self.is_over:
            return
        if result["kind"] == "error":
            self._take_error(unit, result)
            return
        self.record.num_graded += 1
        self._note(
            unit,
            Outcome(
                verdict="ok",
                rewards=tuple(result["rewards"]),
                extra=tuple((column, values) for column, values in result.get("extra", ())),
                metrics=tuple((name, value) for name, value in result.get("metrics", ())),
                seconds=float(result["seconds"]),
                malformed=tuple(map(bool, result.get("malformed") or ())),
            ),
        )

    def condemn(self, unit: Unit, verdict: str, detail: str) -> None:
        """Settle a unit whose worker had to be killed or died of it."""
        if self.is_over:
            return
        self.record.num_killed += 1
        message = f"{self.label}: {_rows_in_words(unit)} of {self.num_rows} {detail}"
        if self.limits.on_kill == "raise":
            self.fail(RewardError(f"{message}; on_kill='zero' would let the run go on"))
            return
        never_graded = self.record.num_graded == 0
        if never_graded and self.record.num_killed >= _MAX_KILLS_BEFORE_FIRST_GRADE:
            self.fail(
                RewardError(
                    f"{message}; none of the {self.record.num_killed} calls so far has come back: "
                    "the reward itself is at fault, or its limits are too tight"
                )
            )
            return
        reward = 0.0 if self.limits.on_kill == "zero" else None
        self._note(unit, Outcome(verdict, (reward,) * len(unit.rows), detail=detail))

    def fail(self, error: Exception) -> None:
        """End the job with an error."""
        with contextlib.suppress(InvalidStateError):  # it may be cancelled at any moment
            self.future.set_exception(error)

    def end(self, outcomes: list[Outcome]) -> None:
        """End the job with its outcomes."""
        with contextlib.suppress(InvalidStateError):  # it may be cancelled at any moment
            self.future.set_result(outcomes)

    def _take_error(self, unit: Unit, result: Mapping[str, Any]) -> None:
        if result["where"]:
            message = f"{self.label} raised {result['message']} ({result['where']})"
        else:
            # It counts rows within the call; here those of the batch are what can be looked up.
            message = _ROW.sub(lambda match: f" for {_row_of(unit, match)}", str(result["message"]))
        row = result.get("row")
        place = _rows_in_words(unit) if row is None else f"row {unit.rows[int(row)]}"
        message += f"; at {place} of {self.num_rows} of the batch"
        if self.limits.on_error == "raise":
            self.fail(RewardError(message))
        else:
            self._note(unit, Outcome("error", (None,) * len(unit.rows), detail=message))

    def _note(self, unit: Unit, outcome: Outcome) -> None:
        self.outcomes[unit.number] = outcome
        if len(self.outcomes) == len(self.units) and not self.is_over:
            self._warn_of_failures()
            self.end([self.outcomes[unit.number] for unit in self.units])

    def _warn_of_failures(self) -> None:
        failed = [unit for unit in self.units if self.outcomes[unit.number].verdict != "ok"]
        if not failed:
            return
        shown = [
            f"{_rows_in_words(unit)}: {self.outcomes[unit.number].detail}"
            for unit in failed[:_MAX_ROWS_NAMED]
        ]
        more = len(failed) - len(shown)
        logger.warning(
            "%s: %d of %d calls of a batch of %d rows failed: %s%s",
            self.label,
            len(failed),
            len(self.units),
            self.num_rows,
            "; ".join(shown),
            f"; and {more} more" if more else "",
        )


def _row_of(unit: Unit, match: re.Match[str]) -> str:
    row = int(match[1])
    return f"row {unit.rows[row]}" if row < len(unit.rows) else match[0].strip()


def _rows_in_words(unit: Unit) -> str:
    if len(unit.rows) == 1:
        return f"row {unit.rows[0]}"
    return f"rows {unit.rows[0]} to {unit.rows[-1]}"
