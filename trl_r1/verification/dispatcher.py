"""The thread behind a reward pool: which worker does what, and what a dead worker means.

One thread holds all workers, so nothing here needs a lock but the list that jobs come in by. Linux
kills a worker when the thread that started it ends, so this thread starts them all and lives as
long as the pool.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trl_r1.verification.description import RewardDescription
from trl_r1.verification.job import Job
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.protocol import NO_UNIT, LoadRequest, RewardKey, RunRequest
from trl_r1.verification.units import Unit
from trl_r1.verification.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.01  # how often busy workers are looked at
_MAX_FAILED_STARTS = 3
# Seconds beyond the limit that a worker may spend between two units before it counts as stuck.
_STUCK_SECONDS = 10.0
# A worker that has filled this share of the memory left to it is replaced between two units, so
# that a reward that leaks does not cost an innocent row its grade.
_RETIRE_SHARE = 0.6


class PoolError(RuntimeError):
    """The pool can't run anything: its workers don't start, or it is closed."""


@dataclass(eq=False)
class _Slot:
    """A worker and what it is doing: `starting`, `loading`, `idle` or `running`."""

    process: WorkerProcess
    state: str = "starting"
    since: float = field(default_factory=time.monotonic)
    job: Job | None = None
    chunk: dict[int, Unit] = field(default_factory=dict)
    chunk_size: int = 0
    loaded: set[RewardKey] = field(default_factory=set)
    num_run: int = 0
    memory_mb: int = 0
    loaded_mb: float = 0.0
    ran_out_of_memory: bool = False

    def becomes(self, state: str) -> None:
        self.state, self.since = state, time.monotonic()

    @property
    def is_new(self) -> bool:
        return self.num_run == 0


class Dispatcher:
    """Works off jobs on worker processes, on one thread.

    Args:
        num_workers: how many workers to keep.
        num_threads: threads that numeric libraries may use in each.
        startup_timeout: seconds that a worker may take to start, and to load a reward.
    """

    def __init__(self, num_workers: int, num_threads: int, startup_timeout: float) -> None:
        self.num_workers = num_workers
        self._num_threads = num_threads
        self._startup_timeout = startup_timeout
        self._lock = threading.Lock()
        self._incoming: list[Job] = []
        self._jobs: list[Job] = []
        self._slots: list[_Slot] = []
        self._num_failed_starts = 0
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="reward-pool", daemon=True)
        self._thread.start()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers there are now."""
        return [slot.process.pid for slot in list(self._slots)]

    def add(self, job: Job) -> None:
        """Take a job; its future gets the outcomes.

        Raises:
            PoolError: it is closed.
        """
        with self._lock:
            if self._is_closed:
                raise PoolError("the reward pool is closed")
            self._incoming.append(job)
        self._wake()

    def close(self) -> None:
        """End all workers; jobs that are not over fail."""
        with self._lock:
            self._is_closed = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake anyway; closed: it is gone
            self._wake_in.send(b"\0")

    # From here on everything runs on the dispatcher's thread.

    def _serve(self) -> None:
        error: Exception = PoolError("the reward pool was closed before the batch was graded")
        try:
            while not self._is_closed:
                self._take_incoming()
                self._start_workers()
                self._hand_out()
                for key, _ in self._selector.select(self._watch_interval()):
                    if key.data is None:
                        self._wake_out.recv(4096)
                    else:
                        self._read(key.data)
                self._enforce_limits()
        except Exception as caught:  # noqa: BLE001 - whoever waits must hear of it
            error = caught if isinstance(caught, PoolError) else PoolError(f"pool: {caught!r}")
            error.__cause__ = caught if error is not caught else None
        with self._lock:
            self._is_closed = True
        self._take_incoming()
        for job in self._jobs:
            job.fail(error)
        for slot in list(self._slots):
            self._discard(slot)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _take_incoming(self) -> None:
        with self._lock:
            self._jobs += self._incoming
            self._incoming.clear()
        self._jobs = [job for job in self._jobs if not job.is_over]

    def _watch_interval(self) -> float | None:
        return _WATCH_SECONDS if any(slot.state != "idle" for slot in self._slots) else None

    def _start_workers(self) -> None:
        wanted = 0
        if self._jobs:
            wanted = 1 if all(job.only_describes for job in self._jobs) else self.num_workers
        while len(self._slots) < wanted:
            slot = _Slot(WorkerProcess(self._num_threads))
            self._slots.append(slot)
            self._selector.register(slot.process, selectors.EVENT_READ, slot)

    def _hand_out(self) -> None:
        for slot in list(self._slots):
            for job in self._jobs:
                if slot.state == "idle" and not job.is_over:
                    self._give(slot, job)
        # A unit under suspicion waits for a new worker: make room for one if none is on its way.
        suspects = any(job.suspects and not job.is_over for job in self._jobs)
        if suspects and not any(slot.is_new for slot in self._slots):
            for slot in [slot for slot in self._slots if slot.state == "idle"][:1]:
                self._discard(slot)
                self._start_workers()

    def _give(self, slot: _Slot, job: Job) -> None:
        """Give an idle worker something of a job, if the job has something for it."""
        if job.only_describes and job.record.description is not None:
            job.end([])
        elif job.reward not in slot.loaded:
            if job.only_describes or job.queue or (job.suspects and slot.is_new):
                slot.job, slot.memory_mb = job, job.limits.memory_mb
                slot.becomes("loading")
                self._send(slot, LoadRequest(job.reward, job.limits.memory_mb))
        elif units := job.take(self.num_workers, slot.is_new):
            slot.job, slot.memory_mb = job, job.limits.memory_mb
            slot.chunk, slot.chunk_size = {unit.number: unit for unit in units}, len(units)
            slot.becomes("running")
            payloads = tuple((unit.number, unit.payload) for unit in units)
            self._send(
                slot,
                RunRequest(
                    job.reward, job.constants, payloads, job.limits.memory_mb, job.wants_logs
                ),
            )

    def _send(self, slot: _Slot, request: LoadRequest | RunRequest) -> None:
        try:
            slot.process.send(request)
        except OSError:
            self._bury(slot, "crashed")

    def _read(self, slot: _Slot) -> None:
        if slot not in self._slots:
            return  # buried a moment ago
        try:
            for reply in slot.process.receive():
                self._take_reply(slot, reply)
        except EOFError:
            # It is ending by itself: how it does is worth knowing, so it is not killed at once.
            slot.process.wait(1.0)
            self._bury(slot, "crashed")

    def _take_reply(self, slot: _Slot, reply: Mapping[str, Any]) -> None:
        kind = reply["kind"]
        if kind == "ready":
            self._num_failed_starts = 0
            slot.becomes("idle")
        elif kind == "units":
            self._take_results(slot, reply["units"])
            if reply.get("is_last"):
                self._end_chunk(slot)
        elif slot.job is not None:  # loaded, or not
            if kind == "loaded":
                slot.loaded.add(slot.job.reward)
                slot.loaded_mb = slot.process.memory_mb()
                slot.job.record.description = RewardDescription(**reply["description"])
            else:
                self._fail_loading(slot.job.reward, str(reply["message"]))
            slot.becomes("idle")

    def _take_results(self, slot: _Slot, results: Iterable[Mapping[str, Any]]) -> None:
        for result in results:
            unit = slot.chunk.pop(int(result["number"]), None)
            if unit is None or slot.job is None:
                continue
            if result["kind"] == "memory":
                slot.ran_out_of_memory = True
                self._suspect(slot, slot.job, unit, "out of memory", _memory_words(slot))
            else:
                slot.job.finish(unit, result)
            slot.num_run += 1

    def _end_chunk(self, slot: _Slot) -> None:
        job, memory_mb = slot.job, slot.process.memory_mb()
        assert job is not None
        job.record.note_speed(time.monotonic() - slot.since, slot.chunk_size)
        slot.chunk = {}
        slot.becomes("idle")
        has_grown = memory_mb - slot.loaded_mb > _RETIRE_SHARE * (slot.memory_mb - slot.loaded_mb)
        if has_grown and not slot.ran_out_of_memory:
            self._warn_of_leak(job, slot, memory_mb)
        if has_grown or slot.ran_out_of_memory:
            self._discard(slot)

    def _warn_of_leak(self, job: Job, slot: _Slot, memory_mb: float) -> None:
        if not job.record.warned_of_leak:
            job.record.warned_of_leak = True
            logger.warning(
                "%s: its worker grew from %d to %d MB over %d calls and is replaced "
                "(memory_mb=%d); the reward may leak memory",
                job.label,
                slot.loaded_mb,
                memory_mb,
                slot.num_run,
                slot.memory_mb,
            )

    def _enforce_limits(self) -> None:
        for slot in list(self._slots):
            if slot.state == "idle":
                continue
            began_at, allowed = slot.since, self._startup_timeout
            if slot.state == "running" and slot.job is not None:
                number, stamped_at = slot.process.current_unit()
                allowed = slot.job.limits.timeout
                if number == NO_UNIT:
                    began_at, allowed = max(stamped_at, slot.since), allowed + _STUCK_SECONDS
                else:
                    began_at = stamped_at
            if time.monotonic() - began_at > allowed:
                self._bury(slot, "timed out")
            elif slot.memory_mb and slot.process.memory_mb() > slot.memory_mb:
                self._bury(slot, "out of memory")

    def _bury(self, slot: _Slot, verdict: str) -> None:
        """Kill a worker, keep what it had finished, settle the unit it was at."""
        killed_at = time.monotonic()
        for reply in self._discard(slot):
            if reply["kind"] == "units":
                self._take_results(slot, reply["units"])
        if slot.state == "starting":
            self._note_failed_start(slot)
        elif slot.state == "loading" and slot.job is not None:
            words = self._loading_words(slot, verdict)
            self._fail_loading(slot.job.reward, f"{slot.job.label} {words}")
        elif slot.job is not None and slot.chunk:
            self._settle(slot, slot.job, verdict, killed_at)

    def _settle(self, slot: _Slot, job: Job, verdict: str, killed_at: float) -> None:
        number, began_at = slot.process.current_unit()
        rest = dict(slot.chunk)
        unit = rest.pop(number if number in rest else next(iter(rest)))
        if verdict == "timed out" and number == unit.number:
            if killed_at - began_at > job.limits.timeout:
                job.condemn(unit, verdict, f"timed out after {job.limits.timeout:g} s")
            else:  # it had gone on to another unit in the last moment
                rest = {unit.number: unit, **rest}
        elif verdict == "out of memory":
            self._suspect(slot, job, unit, verdict, _memory_words(slot))
        else:
            how = f"crashed its worker, which {slot.process.how_it_ended()}"
            self._suspect(slot, job, unit, "crashed", how)
        job.put_back(rest.values())

    def _suspect(self, slot: _Slot, job: Job, unit: Unit, verdict: str, detail: str) -> None:
        """Condemn a unit that failed as the first in its worker; try any other again, alone."""
        if slot.is_new:
            job.condemn(unit, verdict, detail)
        else:
            job.suspects.append(unit)

    def _fail_loading(self, reward: RewardKey, message: str) -> None:
        for job in self._jobs:
            if job.reward == reward:
                job.fail(RewardReferenceError(message))

    def _loading_words(self, slot: _Slot, verdict: str) -> str:
        if verdict == "timed out":
            return f"was not loaded within startup_timeout={self._startup_timeout:g} s"
        if verdict == "out of memory":
            return f"takes more than memory_mb={slot.memory_mb} MB to load"
        return f"crashed while it was loaded: its worker {slot.process.how_it_ended()}"

    def _note_failed_start(self, slot: _Slot) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise PoolError(
                f"reward workers do not start: the last one {slot.process.how_it_ended()}; "
                "what it wrote to standard error says why"
            )

    def _discard(self, slot: _Slot) -> list[dict[str, Any]]:
        """Forget a worker and kill it; what it had reported comes back."""
        if slot in self._slots:
            self._slots.remove(slot)
            self._selector.unregister(slot.process)
        return slot.process.kill()


def _memory_words(slot: _Slot) -> str:
    return f"took more than memory_mb={slot.memory_mb} MB"
