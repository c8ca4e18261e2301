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
from trl_r1.verification import protocol
from trl_r1.verification.bound_reward import BoundReward, RewardError
from trl_r1.verification.description import describe_reward
from trl_r1.verification.loading import build_reward

# Finished units are reported at least this often, so that little is lost when a worker is killed.
_REPORT_SECONDS = 0.02
_PR_SET_PDEATHSIG = 1


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
    os.dup2(2, 1)
    sys.argv = ["reward-worker"]
    faulthandler.enable()
    worker = _Worker(socket.socket(fileno=socket_fd), mmap.mmap(stamp_fd, protocol.STAMP.size))
    worker.serve()


def _die_with(parent_pid: int) -> None:
    """Never outlive the pool, never be stopped by a Ctrl-C, be the first that the kernel kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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
            reward = build_reward(spec, key.base_dir)
            described = asdict(describe_reward(reward.function))
        except BaseException as error:  # noqa: BLE001 - a module may raise SystemExit too
            known = isinstance(error, ValueError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            return {"kind": "load_failed", "message": text}
        self._rewards[key] = reward
        return {"kind": "loaded", "description": {**described, "name": reward.__name__}}

    def _run(self, request: protocol.RunRequest) -> None:
        self._limit_memory(request.memory_mb)
        reward = self._rewards[request.reward]
        constants = pickle.loads(request.constants)
        finished: list[dict[str, Any]] = []
        began_at = reported = time.monotonic()
        for number, payload in request.units:
            columns = {**pickle.loads(payload), **constants}
            # Packed in one go, so that the pool never sees a new unit with an old start.
            start = time.monotonic()
            protocol.STAMP.pack_into(self._stamp, 0, number, start)
            result = _run_unit(reward, number, columns, request.wants_logs)
            now = time.monotonic()
            finished.append({**result, "seconds": now - start})
            protocol.STAMP.pack_into(self._stamp, 0, protocol.NO_UNIT, now)
            if now - reported > _REPORT_SECONDS:
                self._reply({"kind": "units", "units": finished})
                finished, reported = [], now
        seconds = time.monotonic() - began_at
        self._reply({"kind": "units", "units": finished, "is_last": True, "seconds": seconds})

    def _limit_memory(self, memory_mb: int) -> None:
        """Let allocations fail at the limit; what gets past this the pool sees and kills."""
        if memory_mb != self._memory_mb and sys.platform == "linux":
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            soft = memory_mb << 20
            with contextlib.suppress(ValueError, OSError):  # above the limit we were given
                resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        self._memory_mb = memory_mb


def _run_unit(
    reward: BoundReward, number: int, columns: Mapping[str, Any], wants_logs: bool
) -> dict[str, Any]:
    """Call the reward once; what happened as plain data."""
    extra: list[tuple[str, list[Any]]] = []
    metrics: list[tuple[str, float]] = []
    logs: dict[str, Any] = {}
    if wants_logs:
        logs = {
            "log_extra": lambda column, values: extra.append((str(column), list(values))),
            "log_metric": lambda name, value: metrics.append((str(name), float(value))),
        }
    result: dict[str, Any] = {"number": number, "kind": "ok"}
    try:
        result["rewards"] = reward(**columns, **logs)
    except BaseException as error:  # noqa: BLE001 - it belongs to its row, not to this loop
        cause = error.__cause__ if isinstance(error, RewardError) and error.__cause__ else error
        if isinstance(cause, MemoryError):
            return {"number": number, "kind": "memory"}
        return {"number": number, "kind": "error", **_fault(error, cause)}
    if extra or metrics:
        result["extra"] = extra
        result["metrics"] = [(name, value) for name, value in metrics if math.isfinite(value)]
    return result


def _fault(error: BaseException, cause: BaseException) -> dict[str, Any]:
    if cause is error and isinstance(error, RewardError):  # it returned something unusable
        return {"message": str(error), "where": ""}
    frames = traceback.extract_tb(cause.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {"message": f"{type(cause).__name__}: {cause}", "where": where}
