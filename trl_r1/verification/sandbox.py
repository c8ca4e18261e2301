"""A sandbox for Python programs that nobody trusts: code and inputs go in, plain data comes out.

What holds: user, process, network, mount, IPC and host-name namespaces with a read-only view of
nothing but the interpreter's libraries; Landlock; a seccomp allowlist; rlimits; time limits kept
from outside by killing. Where the kernel can't do that, `Sandbox` refuses, unless told otherwise.
Expected outputs are no part of a program here: compare what comes back, outside. bubblewrap is the
outer layer where it is installed. Left out on purpose: packages beyond the standard library,
programs that start programs, and scratch files.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Literal

from trl_r1.verification.programs import (
    Call,
    CallOutcome,
    CodeBackend,
    Limits,
    Program,
    ProgramResult,
    Status,
    result_of_lines,
    text_of,
)
from trl_r1.verification.sandbox_worker import SandboxUnavailableError, SandboxWorker

__all__ = [
    "Call",
    "CallOutcome",
    "CodeBackend",
    "Limits",
    "Program",
    "ProgramResult",
    "Sandbox",
    "SandboxUnavailableError",
    "Status",
    "result_of_lines",
    "shared_sandbox",
]


class Sandbox:
    """Runs programs in isolated processes on this machine; safe to use from several threads.

    Args:
        num_workers: programs that run at the same time.
        limits: of each program.
        bubblewrap: `auto` uses `bwrap` as the outer layer where it is on the path; True demands it,
            False leaves it out.
        allow_unisolated: run where the kernel lacks a layer, with the ones there are. A program can
            then read this user's files and more. Never the default.

    Raises:
        SandboxUnavailableError: where the kernel can't isolate and `allow_unisolated` is not set.

    Attributes:
        layers: names of what is in force.
    """

    def __init__(
        self,
        num_workers: int = 2,
        limits: Limits | None = None,
        bubblewrap: bool | Literal["auto"] = "auto",
        allow_unisolated: bool = False,
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"Sandbox: num_workers is {num_workers}; it has to be at least 1")
        self.limits = limits or Limits()
        bwrap = shutil.which("bwrap") if bubblewrap else None
        if bubblewrap is True and bwrap is None:
            raise SandboxUnavailableError("bubblewrap is asked for, but `bwrap` is not on the path")
        try:
            self._open(num_workers, bwrap, allow_unisolated)
        except SandboxUnavailableError:
            # The inner layers are whole by themselves, and `layers` says which there are.
            if bwrap is None or bubblewrap is True:
                raise
            self._open(num_workers, None, allow_unisolated)

    def _open(self, num_workers: int, bwrap: str | None, allow_unisolated: bool) -> None:
        workers = [SandboxWorker(bwrap, allow_unisolated) for _ in range(num_workers)]
        self.layers = workers[0].start()
        self._idle: queue.SimpleQueue[SandboxWorker] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._num_workers = num_workers
        self._finalizer = weakref.finalize(self, _close, workers, os.getpid())

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """Run programs, `num_workers` at a time; one result each, in order.

        Raises:
            SandboxUnavailableError: a worker can't be started again.
            RuntimeError: the sandbox is closed.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this Sandbox is closed; make a new one")
        jobs = iter(enumerate(programs))
        results: dict[int, ProgramResult] = {}
        problems: list[BaseException] = []
        lock = threading.Lock()

        def work() -> None:
            while not problems:
                with lock:
                    number, program = next(jobs, (-1, None))
                if program is None:
                    return
                try:
                    results[number] = self._run_one(program)
                except BaseException as problem:  # noqa: BLE001 - raised again by the caller's thread
                    problems.append(problem)

        # Daemons, not an executor: Python waits for an executor's threads before it lets anything
        # be closed at exit.
        num_others = min(self._num_workers, len(programs)) - 1
        others = [threading.Thread(target=work, daemon=True) for _ in range(num_others)]
        for thread in others:
            thread.start()
        work()
        for thread in others:
            thread.join()
        if problems:
            raise problems[0]
        return [results[number] for number in range(len(programs))]

    def _run_one(self, program: Program) -> ProgramResult:
        worker = self._idle.get()
        try:
            return _run_on(worker, program, self.limits)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End every process of the sandbox; it also happens at exit."""
        self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(workers: list[SandboxWorker], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the trainer is going, not the trainer
        return
    for worker in workers:
        worker.close()


_shared_lock = threading.Lock()
_shared: dict[tuple[Any, ...], Sandbox] = {}


def shared_sandbox(
    num_workers: int = 2, limits: Limits | None = None, allow_unisolated: bool = False
) -> Sandbox:
    """The process's sandbox with those settings, made on first use and closed at exit."""
    key = (os.getpid(), num_workers, limits or Limits(), allow_unisolated)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Sandbox(num_workers, limits, allow_unisolated=allow_unisolated)
        return _shared[key]


def _run_on(worker: SandboxWorker, program: Program, limits: Limits) -> ProgramResult:
    job: dict[str, Any] = {"code": program.code}
    if program.tests:
        tester = {"setup": program.setup, "tests": list(program.tests)}
        parts = [("test", tester, b""), ("serve", job, b"")]
    elif program.calls:
        calls = [c if isinstance(c, str) else c.encode() for c in program.calls]
        parts = [("calls", {**job, "setup": program.setup, "calls": calls}, b"")]
    else:
        parts = [("script", job, _bytes_of(program.stdin))]
    settings = {
        "cpu_seconds": limits.cpu_seconds,
        "wall_seconds": limits.wall_seconds,
        "memory_bytes": limits.memory_mb << 20,
        "max_threads": limits.max_threads,
        "max_output_bytes": limits.max_output_bytes,
    }
    outcome, streams = worker.run(parts, settings)
    if outcome is None:
        return result_of_lines(
            program, "crashed", "the sandbox worker was lost and is started again", []
        )
    return _read_outcome(program, limits, outcome, streams)


def _bytes_of(text: str) -> bytes:
    """Text as bytes, whatever half characters a data set has in it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _read_outcome(
    program: Program, limits: Limits, outcome: dict[str, Any], streams: list[bytes]
) -> ProgramResult:
    report = outcome["report"]
    lines = streams[2].split(b"\n")[1:-1]
    process = report["processes"][0]
    kinds = {line[:1] for line in lines}
    status: Status = "ok"
    detail = ""
    if outcome["is_cut"]:
        status, detail = "output_limit", f"wrote more than {limits.max_output_bytes} bytes"
    elif report["reason"] == "cpu":
        status, detail = "timeout", f"used more than {limits.cpu_seconds:g} s of processor time"
    elif report["reason"] == "wall":
        status, detail = "timeout", f"took longer than {limits.wall_seconds:g} s"
    elif b"m" in kinds:
        status, detail = "memory", f"used more than {limits.memory_mb} MB"
    elif b"x" in kinds:
        status, detail = "error", text_of(next(x for x in lines if x[:1] == b"x")[1:])
    elif b"." not in kinds:
        status, detail = "crashed", _exit_words(process["exit"])
    elif process["exit"]:
        status, detail = "error", _exit_words(process["exit"])
    used = {
        "stdout": text_of(streams[0]),
        "stderr": text_of(streams[1]),
        "cpu_seconds": sum(p["cpu_seconds"] for p in report["processes"]),
        "wall_seconds": report["wall_seconds"],
        "max_memory_mb": max(p["max_memory_bytes"] for p in report["processes"]) / (1 << 20),
    }
    return result_of_lines(program, status, detail, lines, **used)


def _exit_words(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exited with status {code}"
