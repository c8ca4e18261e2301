"""The process that runs reward functions for the pool.

Started as a fresh interpreter, never forked from the trainer, so that it holds no copy of the
trainer's memory, locks or CUDA context. It loads functions by reference, calls them unit by unit,
and stamps which unit it is at; limits on time are the pool's business, from outside. It dies with
the trainer. Its standard output goes to standard error.

Imports neither torch nor TRL unless a reward does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import math
import mmap
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trl_r1.stages import RewardSpec
from trl_r1.trust.masked_streams import masked
from trl_r1.trust.secrets import remember_in
from trl_r1.verification import protocol
from trl_r1.verification.bound_reward import BoundReward, RewardError, words_of
from trl_r1.verification.description import describe_reward
from trl_r1.verification.loading import build_reward

# Finished units are reported at least this often, so that little is lost when a worker is killed.
_REPORT_SECONDS = 0.02
# What one call may log; the trainer keeps it all in memory.
_MAX_LOGGED_CHARS = 1 << 24
# Memory is as good as gone where so much of it is taken: the next allocation may be a large one.
_FULL_SHARE = 0.8
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A reward may replace the clock (tests of code that waits do).
_now = time.monotonic


def main(arguments: Sequence[str]) -> None:
    """Serve one pool until it hangs up.

    Args:
        arguments: file descriptors of the socket and of the stamp, and the pool's process id.
    """
    socket_fd, stamp_fd, parent_pid = (int(argument) for argument in arguments)
    for fd in (socket_fd, stamp_fd):
        # A program that a reward starts must not keep the pool's line open.
        os.set_inheritable(fd, False)
    _die_with(parent_pid)
    _redirect_output()
    sys.argv = ["reward-worker"]
    faulthandler.enable()
    worker = _Worker(socket.socket(fileno=socket_fd), mmap.mmap(stamp_fd, protocol.STAMP.size))
    worker.serve()


def _redirect_output() -> None:
    """Standard output goes to standard error, and both to nowhere where the trainer has none."""
    try:
        os.dup2(2, 1)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(nowhere, fd)
    _open_streams()
    sys.stdout, sys.stderr = masked(sys.stdout), masked(sys.stderr)


def _open_streams() -> None:
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if getattr(stream, "closed", stream is None):
            opened = open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)


def _die_with(parent_pid: int) -> None:
    """Never outlive the pool, never be stopped by a Ctrl-C, be the first that the kernel kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # What a reward starts stays beneath this process, where the pool finds it.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(0)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    os._exit(0)


class _Worker:
    def __init__(self, connection: socket.socket, stamp: mmap.mmap) -> None:
        self._socket = connection
        self._stamp = stamp
        self._pid = os.getpid()
        self._rewards: dict[protocol.RewardKey, BoundReward] = {}
        self._memory_mb = 0

    def serve(self) -> None:
        self._reply({"kind": "ready"})
        while True:
            header = self._receive(protocol.HEADER_BYTES)
            if header is None:
                return
            body = self._receive(protocol.request_size(header))
            if body is None:
                return
            request = pickle.loads(body)
            if isinstance(request, protocol.LoadRequest):
                self._limit_memory(request.memory_mb)
                self._reply(self._load(request.reward))
            else:
                self._run(request)

    def _receive(self, size: int) -> bytes | None:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                return None
            view = view[count:]
        return bytes(data)

    def _reply(self, reply: dict[str, Any]) -> None:
        self._socket.sendall(protocol.frame_reply(reply))

    def _load(self, key: protocol.RewardKey) -> dict[str, Any]:
        try:
            spec = RewardSpec(use=key.use, args=pickle.loads(key.args), name=key.name)
            remember_in(spec.args)
            reward = build_reward(spec, key.base_dir)
            reward.is_in_worker = True
            described = asdict(describe_reward(reward.function))
            # Here, since the time of a first call is the first row's own.
            getattr(reward.function, "prepare", lambda: None)()
        except BaseException as error:  # noqa: BLE001 - a module may raise SystemExit too
            known = isinstance(error, ValueError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            return {"kind": "load_failed", "message": text}
        self._rewards[key] = reward
        return {"kind": "loaded", "description": {**described, "name": reward.__name__}}

    def _run(self, request: protocol.RunRequest) -> None:
        self._limit_memory(request.memory_mb)
        finished: list[dict[str, Any]] = []
        began_at = reported = _now()
        constants = _read(request.constants)
        for number, payload in request.units:
            columns = constants if isinstance(constants, str) else _read(payload, constants)
            # Packed in one go, so that the pool never sees a new unit with an old start.
            start = _now()
            protocol.STAMP.pack_into(self._stamp, 0, number, start)
            result = self._run_unit(request, number, columns)
            now = _now()
            result["number"], result["seconds"] = number, now - start
            finished.append(result)
            protocol.STAMP.pack_into(self._stamp, 0, protocol.NO_UNIT, now)
            if now - reported > _REPORT_SECONDS:
                self._reply({"kind": "units", "units": finished})
                finished, reported = [], now
        seconds = _now() - began_at
        self._reply({"kind": "units", "units": finished, "is_last": True, "seconds": seconds})

    def _run_unit(
        self, request: protocol.RunRequest, number: int, columns: dict[str, Any] | str
    ) -> dict[str, Any]:
        """Call the reward once; what happened as plain data."""
        reward = self._rewards[request.reward]
        if isinstance(columns, str):
            return _misfit(reward, f"its columns can't be read in a worker process: {columns}")
        logs = _Logs() if request.wants_logs else None
        calls = logs.calls if logs else {}
        try:
            rewards = reward(**columns, **calls)
            malformed = reward.malformed_rows(columns, rewards)
        except BaseException as error:  # noqa: BLE001 - it belongs to its row, not to this loop
            result = {"kind": "memory"} if self._memory_is_full() else _fault(error)
            num_rows = len(columns["completions"])
            if result["kind"] == "error" and result["where"] and num_rows > 1:
                # Said before it is looked into: that may take longer than the pool allows.
                self._reply({"kind": "failing", "number": number, "result": result})
                row = reward.failing_row(columns, num_rows, error.__cause__ or error)
                return {**result, "row": row}
            return result
        finally:
            self._tidy_up()
        graded: dict[str, Any] = {"kind": "ok", "rewards": rewards}
        if malformed is not None:
            graded["malformed"] = malformed
        if logs is not None:
            if logs.num_chars > _MAX_LOGGED_CHARS:
                return _misfit(reward, f"it logged {logs.num_chars:,} characters in one call")
            graded.update(logs.as_plain_data())
        return graded

    def _tidy_up(self) -> None:
        """What one call must not leave to the next: a fork that answers, a timer, no streams."""
        if os.getpid() != self._pid:
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _open_streams()

    def _memory_is_full(self) -> bool:
        """Whether what was raised is for want of memory, whatever the name of the error.

        A thread that can't start, a C library that gives up: if the row is not the cause, it shows
        when the pool tries it in a new worker.
        """
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path("/proc/self/status").read_text()
            used_kb = int(status.partition("VmData:")[2].split()[0])
            return used_kb > _FULL_SHARE * self._memory_mb * 1024
        return False

    def _limit_memory(self, memory_mb: int) -> None:
        """Let allocations fail at the limit; what gets past this the pool sees and kills."""
        if memory_mb != self._memory_mb and sys.platform == "linux":
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            soft = memory_mb << 20
            with contextlib.suppress(ValueError, OSError):  # above the limit we were given
                resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        self._memory_mb = memory_mb


def _read(payload: bytes, others: Mapping[str, Any] | None = None) -> dict[str, Any] | str:
    """Keyword arguments, `others` among them; in words why they can't be read, if so."""
    try:
        return {**pickle.loads(payload), **(others or {})}
    except Exception as error:  # noqa: BLE001 - reading runs code of the values' own modules
        return f"{type(error).__name__}: {error}"


class _Logs:
    """What a reward logs in one call."""

    def __init__(self) -> None:
        self._extra: list[tuple[str, list[Any]]] = []
        self._metrics: list[tuple[str, float]] = []
        self.calls: dict[str, Any] = {
            "log_extra": self._log_extra,
            "log_metric": self._log_metric,
        }
        self.num_chars = 0

    def _log_extra(self, column: str, values: list[Any]) -> None:
        self._extra.append((str(column), list(values)))
        self.num_chars += len(json.dumps(self._extra[-1], default=str))

    def _log_metric(self, name: str, value: float) -> None:
        self._metrics.append((str(name), float(value)))

    def as_plain_data(self) -> dict[str, Any]:
        """Fields of a result; none where nothing was logged."""
        if not self._extra and not self._metrics:
            return {}
        metrics = [(name, value) for name, value in self._metrics if math.isfinite(value)]
        return {"extra": self._extra, "metrics": metrics}


def _misfit(reward: BoundReward, problem: str) -> dict[str, Any]:
    name = f"reward {reward.__name__!r} ({reward.use})"
    return {"kind": "error", "message": f"{name}: {problem}", "where": ""}


def _fault(error: BaseException) -> dict[str, Any]:
    cause = error.__cause__ if isinstance(error, RewardError) and error.__cause__ else error
    if isinstance(cause, MemoryError):
        return {"kind": "memory"}
    if cause is error and isinstance(error, RewardError):  # it returned something unusable
        return {"kind": "error", "message": str(error), "where": ""}
    frames = traceback.extract_tb(cause.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no line"
    return {
        "kind": "error",
        "message": f"{type(cause).__name__}: {words_of(cause)}",
        "where": where,
    }
