"""The thread behind a reward pool: which worker does what, and what a dead worker means.

One thread holds all workers, so nothing here needs a lock but the list that jobs come in by. Linux
kills a worker when the thread that started it ends, so this thread starts them all and lives as
long as the pool.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from trl_r1.verification.description import RewardDescription
from trl_r1.verification.job import Job
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.protocol import RewardKey
from trl_r1.verification.slot import Slot
from trl_r1.verification.units import Unit
from trl_r1.verification.worker_process import WorkerProcess

_WATCH_SECONDS = 0.01  # how often busy workers are looked at
# How often memory is: each worker has a limit of its own for what is not shared or somebody else's.
_MEMORY_SECONDS = 0.05
_LAST_WORD_SECONDS = 0.2  # for one that hung up to end by itself
_MAX_FAILED_STARTS = 3


class PoolError(RuntimeError):
    """The pool can't run anything: its workers don't start, or it is closed."""


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
        # Rewards that have been loaded, each as a job that has nothing to run.
        self._known: dict[RewardKey, Job] = {}
        self._slots: list[Slot] = []
        self._has_buried = False
        self._weighed_at = 0.0
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

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more jobs."""
        return self._is_closed

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
        # Once one had to be killed a spare stands by, so that the next death costs no start-up.
        while len(self._slots) < self.num_workers + self._has_buried:
            slot = Slot(WorkerProcess(self._num_threads))
            self._slots.append(slot)
            self._selector.register(slot.process, selectors.EVENT_READ, slot)

    def _hand_out(self) -> None:
        # Used workers first: a new one is worth keeping for a unit under suspicion.
        for slot in sorted(self._slots, key=lambda slot: slot.is_new):
            for job in [*self._jobs, *self._known.values()]:
                num_running = sum(other.state == "running" for other in self._slots)
                if slot.state == "idle" and num_running < self.num_workers and not job.is_over:
                    self._give(slot, job)
        # A unit under suspicion waits for a new worker: make room for one if none is on its way.
        suspects = any(job.suspects and not job.is_over for job in self._jobs)
        if suspects and not any(slot.is_new for slot in self._slots):
            for slot in [slot for slot in self._slots if slot.state == "idle"][:1]:
                self._discard(slot)
                self._start_workers()

    def _give(self, slot: Slot, job: Job) -> None:
        """Give an idle worker something of a job, if the job has something for it."""
        try:
            if job.reward not in slot.loaded:
                # Also when it has nothing to run: every worker loads what any of them has loaded.
                slot.load(job)
            elif units := job.take(self.num_workers, slot.process.pid, slot.is_new):
                slot.run(job, units)
        except OSError:
            self._bury(slot, "crashed")

    def _read(self, slot: Slot) -> None:
        if slot not in self._slots:
            return  # buried a moment ago
        try:
            for reply in slot.process.receive():
                self._take_reply(slot, reply)
        except EOFError:
            # It is ending by itself: how it does is worth knowing, so it is not killed at once.
            slot.process.wait(_LAST_WORD_SECONDS)
            self._bury(slot, "crashed")

    def _take_reply(self, slot: Slot, reply: Mapping[str, Any]) -> None:
        kind = reply["kind"]
        if kind == "ready":
            self._num_failed_starts = 0
            slot.becomes("idle")
        elif kind == "units":
            self._take_results(slot, reply["units"])
            if reply.get("is_last"):
                self._end_chunk(slot, float(reply["seconds"]))
        elif kind == "failing":
            slot.failed[int(reply["number"])] = reply["result"]
        elif slot.job is not None:  # loaded, or not
            if kind == "loaded":
                slot.loaded.add(slot.job.reward)
                slot.loaded_mb = slot.process.memory_mb(slot.memory_mb)
                slot.job.record.description = RewardDescription.from_reply(reply["description"])
                self._end_descriptions()
                self._known.setdefault(
                    slot.job.reward, Job(slot.job.reward, slot.job.record, slot.job.limits)
                )
            else:
                self._fail_loading(slot.job.reward, str(reply["message"]))
            slot.becomes("idle")

    def _end_descriptions(self) -> None:
        for job in self._jobs:
            if job.only_describes and job.record.description is not None:
                job.end([])

    def _take_results(self, slot: Slot, results: Iterable[Mapping[str, Any]]) -> None:
        for result in results:
            unit = slot.chunk.pop(int(result["number"]), None)
            if unit is None or slot.job is None:
                continue
            if result["kind"] == "memory":
                slot.ran_out_of_memory = True
                self._suspect(slot, slot.job, unit, "out of memory", slot.memory_words)
            else:
                slot.job.finish(unit, result)
            slot.num_run += 1

    def _end_chunk(self, slot: Slot, seconds: float) -> None:
        slot.end_chunk(seconds)
        if slot.ran_out_of_memory or slot.has_grown():
            self._discard(slot)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        is_time_to_weigh = now - self._weighed_at > _MEMORY_SECONDS
        if is_time_to_weigh:
            self._weighed_at = now
        for slot in list(self._slots):
            if slot.is_overdue(self._startup_timeout):
                self._bury(slot, "timed out")
            elif is_time_to_weigh and slot.is_too_big():
                self._bury(slot, "out of memory")
            elif slot.process.has_ended():  # what it started may hold its line open
                self._bury(slot, "crashed")

    def _bury(self, slot: Slot, verdict: str) -> None:
        """Kill a worker, keep what it had finished, settle the unit it was at."""
        killed_at = time.monotonic()
        self._has_buried = True
        for reply in self._discard(slot):
            if reply["kind"] in ("units", "failing"):
                self._take_reply(slot, {**reply, "is_last": False})
        if slot.state == "starting":
            self._note_failed_start(slot)
        elif slot.state == "loading" and slot.job is not None:
            words = slot.why_not_loaded(verdict, self._startup_timeout)
            self._fail_loading(slot.job.reward, f"{slot.job.label} {words}")
        elif slot.job is not None and slot.chunk:
            self._settle(slot, slot.job, verdict, killed_at)

    def _settle(self, slot: Slot, job: Job, verdict: str, killed_at: float) -> None:
        number, began_at = slot.process.current_unit()
        rest = dict(slot.chunk)
        unit = rest.pop(number if number in rest else next(iter(rest)))
        if unit.number in slot.failed:  # it raised, and looking for its row took too long
            job.finish(unit, slot.failed[unit.number])
        elif verdict == "timed out" and number == unit.number:
            if killed_at - began_at > job.limits.timeout:
                job.condemn(unit, verdict, f"timed out after {job.limits.timeout:g} s")
            else:  # it had gone on to another unit in the last moment
                rest = {unit.number: unit, **rest}
        elif verdict == "out of memory":
            self._suspect(slot, job, unit, verdict, slot.memory_words)
        else:
            how = f"crashed its worker, which {slot.process.how_it_ended()}"
            self._suspect(slot, job, unit, "crashed", how)
        job.put_back(rest.values())

    def _suspect(self, slot: Slot, job: Job, unit: Unit, verdict: str, detail: str) -> None:
        """Condemn a unit that failed as the first in its worker; try any other again, alone."""
        if slot.is_new:
            job.condemn(unit, verdict, detail)
        else:
            job.suspects.append(unit)

    def _fail_loading(self, reward: RewardKey, message: str) -> None:
        self._known.pop(reward, None)
        for job in self._jobs:
            if job.reward == reward:
                job.fail(RewardReferenceError(message))

    def _note_failed_start(self, slot: Slot) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise PoolError(
                f"reward workers do not start: the last one {slot.process.how_it_ended()}; "
                "what it wrote to standard error says why"
            )

    def _discard(self, slot: Slot) -> list[dict[str, Any]]:
        """Forget a worker and kill it; what it had reported comes back."""
        if slot in self._slots:
            self._slots.remove(slot)
            self._selector.unregister(slot.process)
        return slot.process.kill()
