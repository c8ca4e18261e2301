"""Runs reward functions in worker processes, within limits on time and memory.

A pool has a thread of its own (`dispatcher.py`) that starts workers, hands units out, and kills a
worker whose unit takes too long or too much memory. Only that unit is settled; what else the
worker had been given goes to another. Starting up and loading never count against a unit's limit.

Each process has its own pool (a rank of `accelerate`, a forked child), and a pool's workers die
with it. POSIX only; memory is watched from outside where there is a `/proc`.

Left out: taking batches apart and putting rewards together again (`pooled_reward.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from trl_r1.verification.description import RewardDescription
from trl_r1.verification.dispatcher import Dispatcher, PoolError
from trl_r1.verification.job import Job, Limits, Record
from trl_r1.verification.protocol import RewardKey
from trl_r1.verification.units import Outcome, Unit

__all__ = ["PoolError", "RewardPool", "container_cores", "default_num_workers"]

_MAX_DEFAULT_WORKERS = 16


def default_num_workers() -> int:
    """Workers for this process: the cores it may use, shared among the ranks on the machine.

    At most 16: more bring little for rewards, and each takes the memory of an interpreter.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    share = min(cores, container_cores()) // max(1, int(ranks) if ranks.isdigit() else 1)
    return max(1, min(int(share), _MAX_DEFAULT_WORKERS))


def container_cores(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that a container may use at a time, infinite where it has no such limit.

    Args:
        root: where control groups are.
    """
    with contextlib.suppress(OSError, ValueError):  # version 2: "200000 100000", or "max 100000"
        quota, period = (root / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else float(quota) / float(period)
    with contextlib.suppress(OSError, ValueError):  # version 1, -1 for no limit
        quota, period = (
            (root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        return float(quota) / float(period) if float(quota) > 0 else float("inf")
    return float("inf")


class RewardPool:
    """Worker processes that run reward functions.

    Args:
        num_workers: how many; by default one a core, shared among the ranks on the machine.
        startup_timeout: seconds that a worker may take to start, and to load a reward.

    Raises:
        ValueError: fewer than one worker, or not a POSIX system.
    """

    def __init__(self, num_workers: int | None = None, startup_timeout: float = 180.0) -> None:
        if os.name != "posix":
            raise ValueError("a reward pool needs Linux or macOS; call the reward without a pool")
        self._num_workers = default_num_workers() if num_workers is None else num_workers
        if self._num_workers < 1:
            raise ValueError(f"num_workers={num_workers!r}: it must be at least 1")
        self._startup_timeout = startup_timeout
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._records: dict[RewardKey, Record] = {}
        self._dispatcher: Dispatcher | None = None
        self._is_closed = False

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_workers(self) -> int:
        """Worker processes that it keeps, once there is work."""
        return self._num_workers

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers there are now."""
        return self._dispatcher.worker_pids if self._dispatcher else []

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more work: closed, or broken down."""
        dispatcher = self._dispatcher
        return self._is_closed or (dispatcher is not None and dispatcher.is_closed)

    def grow(self, num_workers: int) -> None:
        """Keep at least so many workers from now on."""
        self._num_workers = max(self._num_workers, num_workers)
        if self._dispatcher is not None:
            self._dispatcher.num_workers = self._num_workers

    def describe(self, reward: RewardKey, limits: Limits) -> RewardDescription:
        """Load a reward in a worker and say what it is; its code never runs in this process.

        Raises:
            RewardReferenceError: it can't be loaded.
            PoolError: the pool is closed, or no worker starts.
        """
        record = self._record(reward)
        if record.description is None:
            self._add(Job(reward, record, limits)).result()
        assert record.description is not None
        return record.description

    def submit(
        self,
        reward: RewardKey,
        limits: Limits,
        constants: bytes,
        units: Sequence[Unit],
        num_rows: int,
        wants_logs: bool,
    ) -> Future[list[Outcome]]:
        """Have the units graded; returns at once.

        Args:
            reward: what the workers load.
            limits: for each unit.
            constants: pickled keyword arguments that go to every unit.
            units: at least one.
            num_rows: rows of the batch, for messages.
            wants_logs: whether the log calls are passed to the function.

        Returns:
            A future of the outcomes, in the order of `units`; `RewardError` where the reward has a
            bug, `RewardReferenceError` where it can't be loaded. Cancelling it drops what has not
            begun.
        """
        record = self._record(reward)
        return self._add(Job(reward, record, limits, constants, units, num_rows, wants_logs))

    def close(self) -> None:
        """End all workers; calls that wait get a `PoolError`. May be called twice."""
        if self._owner != os.getpid():
            return  # a forked child: the workers are its parent's
        with self._lock:
            self._is_closed = True
        if self._dispatcher is not None:
            self._dispatcher.close()
        atexit.unregister(self.close)

    def _record(self, reward: RewardKey) -> Record:
        # Before the lock: a fork may have a copy that nobody will ever release.
        if self._owner != os.getpid():
            raise PoolError("this pool belongs to the parent process; make one in the child")
        with self._lock:
            return self._records.setdefault(reward, Record())

    def _add(self, job: Job) -> Future[list[Outcome]]:
        with self._lock:
            if self._is_closed:
                raise PoolError("the reward pool is closed")
            if self._dispatcher is None:
                threads = max(1, default_num_workers() // self._num_workers)
                self._dispatcher = Dispatcher(self._num_workers, threads, self._startup_timeout)
                atexit.register(self.close)
        self._dispatcher.add(job)
        return job.future
