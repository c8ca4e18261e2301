"""A worker of the pool with what it is doing, and whether that is too much.

Left out: what follows from it (`dispatcher.py`), and the process itself (`worker_process.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trl_r1.verification.job import Job
from trl_r1.verification.protocol import NO_UNIT, LoadRequest, RewardKey, RunRequest
from trl_r1.verification.units import Unit
from trl_r1.verification.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

# Seconds beyond the limit that a worker may spend between two units before it counts as stuck.
_STUCK_SECONDS = 10.0
# A worker that has filled this share of the memory left to it is replaced between two units, so
# that a reward that leaks does not cost an innocent row its grade.
_RETIRE_SHARE = 0.6


@dataclass(eq=False)
class Slot:
    """A worker and what it is doing: `starting`, `loading`, `idle` or `running`.

    Attributes:
        job: what it loads or runs, or did last.
        chunk: the units it was given and has not reported, by number.
        failed: what it said of units that raised, before it looked for the row; by number.
        loaded: rewards it has loaded.
        num_run: units it has finished.
        memory_mb: its limit, 0 before it has one.
        loaded_mb: its memory after the latest reward was loaded.
    """

    process: WorkerProcess
    state: str = "starting"
    since: float = field(default_factory=time.monotonic)
    job: Job | None = None
    chunk: dict[int, Unit] = field(default_factory=dict)
    chunk_size: int = 0
    failed: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    loaded: set[RewardKey] = field(default_factory=set)
    num_run: int = 0
    memory_mb: int = 0
    loaded_mb: float = 0.0
    ran_out_of_memory: bool = False

    @property
    def is_new(self) -> bool:
        return self.num_run == 0

    @property
    def memory_words(self) -> str:
        return f"took more than memory_mb={self.memory_mb} MB"

    def becomes(self, state: str) -> None:
        """Enter a state now."""
        self.state, self.since = state, time.monotonic()

    def load(self, job: Job) -> None:
        """Have it load a job's reward.

        Raises:
            OSError: it has hung up.
        """
        self.job, self.memory_mb = job, job.limits.memory_mb
        self.becomes("loading")
        self.process.send(LoadRequest(job.reward, job.limits.memory_mb))

    def run(self, job: Job, units: list[Unit]) -> None:
        """Have it run some units of a job.

        Raises:
            OSError: it has hung up.
        """
        self.job, self.memory_mb = job, job.limits.memory_mb
        self.chunk, self.chunk_size = {unit.number: unit for unit in units}, len(units)
        self.failed = {}
        self.becomes("running")
        payloads = tuple((unit.number, unit.payload) for unit in units)
        self.process.send(
            RunRequest(job.reward, job.constants, payloads, self.memory_mb, job.wants_logs)
        )

    def end_chunk(self, seconds: float) -> None:
        """Note that all its units are reported, and took it so many seconds."""
        assert self.job is not None
        handover = time.monotonic() - self.since - seconds
        self.job.record.note_speed(seconds, self.chunk_size, handover)
        self.chunk = {}
        self.becomes("idle")

    def is_overdue(self, startup_timeout: float) -> bool:
        """Whether what it does takes longer than it may."""
        if self.state == "idle":
            return False
        began_at, allowed = self.since, startup_timeout
        if self.state == "running" and self.job is not None:
            number, stamped_at = self.process.current_unit()
            began_at, allowed = stamped_at, self.job.limits.timeout
            if number == NO_UNIT:
                began_at, allowed = max(stamped_at, self.since), allowed + _STUCK_SECONDS
        return time.monotonic() - began_at > allowed

    def is_too_big(self) -> bool:
        """Whether it has more memory than it may."""
        if not self.memory_mb:
            return False
        return self.process.memory_mb(self.memory_mb) > self.memory_mb

    def has_grown(self) -> bool:
        """Whether it has filled most of the memory left to it; warns of it, once a reward."""
        memory_mb = self.process.memory_mb(self.memory_mb)
        grown = memory_mb - self.loaded_mb
        if grown <= _RETIRE_SHARE * (self.memory_mb - self.loaded_mb):
            return False
        if self.job is not None and not self.job.record.warned_of_leak:
            self.job.record.warned_of_leak = True
            logger.warning(
                "%s: its worker grew from %d to %d MB over %d calls and is replaced "
                "(memory_mb=%d); the reward may leak memory",
                self.job.label,
                self.loaded_mb,
                memory_mb,
                self.num_run,
                self.memory_mb,
            )
        return True

    def why_not_loaded(self, verdict: str, startup_timeout: float) -> str:
        """In words, once it has died of loading a reward."""
        if verdict == "timed out":
            return f"was not loaded within startup_timeout={startup_timeout:g} s"
        if verdict == "out of memory":
            return f"takes more than memory_mb={self.memory_mb} MB to load"
        return f"crashed while it was loaded: its worker {self.process.how_it_ended()}"
