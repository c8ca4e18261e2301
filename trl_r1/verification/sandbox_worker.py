"""One worker of the sandbox: starts a supervisor process, hands it jobs, replaces it when lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from trl_r1.verification.isolation import frames

_START_SECONDS = 60.0
_GRACE_SECONDS = 6.0
_FOLDER = Path(__file__).parent
# The interpreter sees this folder only while it loads `isolation`, never the package around it.
_LOADER = (
    "import sys; sys.path[0] = sys.argv[1]; from isolation import supervisor; "
    "del sys.path[0]; supervisor.main()"
)


class SandboxUnavailableError(RuntimeError):
    """The kernel can't isolate programs; the message says what is missing and what to do."""


class SandboxWorker:
    """A supervisor process and its socket; one job at a time.

    Args:
        bwrap: path of bubblewrap, to start the supervisor in; None without.
        allow_unisolated: accept missing layers.
    """

    def __init__(self, bwrap: str | None, allow_unisolated: bool) -> None:
        self._bwrap = bwrap
        self._allow_unisolated = allow_unisolated
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_closed = False

    def start(self) -> tuple[str, ...]:
        """Start the supervisor; the names of the layers in force.

        Raises:
            SandboxUnavailableError: it can't isolate.
        """
        if sys.platform != "linux":
            raise SandboxUnavailableError(
                f"programs are isolated by what only Linux has, and this is {sys.platform}: use a "
                "remote backend (sandbox_fusion:URL, piston:URL, e2b), or a Linux container"
            )
        ours, theirs = socket.socketpair()
        arguments = [sys.executable, "-s", "-S", "-B", "-c", _LOADER, str(_FOLDER)]
        if self._bwrap:
            arguments = [self._bwrap, *_bwrap_options(), "--", *arguments]
        self._process = subprocess.Popen(
            arguments,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            # Nothing of the trainer's environment; fixed hashes, so that a verdict repeats.
            env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(_START_SECONDS)
        self._socket = ours
        try:
            frames.send(ours, {"allow_unisolated": self._allow_unisolated})
            received = frames.receive(ours)
        except OSError:
            received = None
        answer = received[0] if received else {"error": self._last_words()}
        if "error" in answer:
            self.stop()
            raise SandboxUnavailableError(_advice(answer["error"]))
        layers = tuple(answer["layers"])
        return ("bubblewrap", *layers) if self._bwrap else layers

    def _last_words(self) -> str:
        assert self._process is not None
        self._kill(self._process)
        words = self._process.stderr.read().decode(errors="replace") if self._process.stderr else ""
        return words.strip().rpartition("\n")[2] or "the supervisor ended without a word"

    def run(
        self, parts: list[tuple[str, dict[str, Any], bytes]], limits: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, list[bytes]]:
        """Run one job: its outcome and the streams of its first process (stdout, stderr, report).

        Args:
            parts: (role, job, standard input) of each of its processes.
            limits: see `Limits`.

        Returns:
            None for an outcome where the supervisor was lost twice.

        Raises:
            SandboxUnavailableError: the job's process could not lock itself down, twice.
        """
        with self._lock:
            problem = ""
            for _ in range(2):
                if self._is_closed:
                    raise RuntimeError("the Sandbox was closed while a program ran")
                if self._socket is None:
                    self.start()
                try:
                    received = self._exchange(parts, limits)
                except BaseException:  # an interrupt: the next answer would belong to this job
                    self.stop()
                    raise
                if received is None:
                    self.stop()
                    continue
                outcome, streams = received
                if _are_locked(streams) or outcome["is_cut"]:
                    return outcome, streams
                problem = b" ".join(streams[1::3]).decode(errors="replace").strip()
                problem = problem or f"not ready within {limits['wall_seconds']:g} s"
            if problem:
                raise SandboxUnavailableError(
                    _advice(f"a program's process is not locked: {problem}")
                )
            return None, []

    def _exchange(
        self, parts: list[tuple[str, dict[str, Any], bytes]], limits: dict[str, Any]
    ) -> tuple[dict[str, Any], list[bytes]] | None:
        """Send the job, wait for its outcome; None where the supervisor or its zygote is lost."""
        connection = self._socket
        assert connection is not None
        jobs = [(role, json.dumps(job).encode(), stdin) for role, job, stdin in parts]
        sizes = [
            {"role": role, "job_size": len(job), "stdin_size": len(stdin)}
            for role, job, stdin in jobs
        ]
        payload = b"".join(stdin + job for _, job, stdin in jobs)
        try:
            connection.settimeout(limits["wall_seconds"] + _GRACE_SECONDS)
            frames.send(connection, {"limits": limits, "parts": sizes}, payload)
            received = frames.receive(connection)
        except OSError:  # a timeout too: the supervisor no longer keeps its own limits
            return None
        if received is None or received[0]["report"] is None:
            return None
        outcome, data = received
        streams, offset = [], 0
        for size in outcome["sizes"]:
            streams.append(data[offset : offset + size])
            offset += size
        return outcome, streams

    def close(self) -> None:
        """End the supervisor for good, also under a job of another thread."""
        self._is_closed = True
        self.stop()

    def stop(self) -> None:
        """End the supervisor, and with it everything it started."""
        connection, self._socket = self._socket, None
        process, self._process = self._process, None
        if connection is not None:
            with contextlib.suppress(OSError):  # wakes a thread that waits on it
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if process is not None:
            self._kill(process)
            if process.stderr:
                process.stderr.close()

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _are_locked(streams: list[bytes]) -> bool:
    """Whether no program ran unlocked, by the reports of a job's processes.

    `locked` is written after the last lock and before the first line of a program. A process beside
    the first one may have said nothing yet when the first one was done: then it ran nothing.
    """
    first, *others = zip(streams[0::3], streams[1::3], streams[2::3], strict=True)
    return first[2].startswith(b"locked\n") and all(
        report.startswith(b"locked\n") or not (stdout or stderr or report)
        for stdout, stderr, report in others
    )


def _bwrap_options() -> list[str]:
    """Namespaces and a file system with the interpreter alone."""
    from trl_r1.verification.isolation import view  # loads the C library, as only Linux has it

    options = [
        "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --new-session",
        "--proc /proc --dev /dev --tmpfs /tmp",
    ]
    arguments = " ".join(options).split()
    for path in (*view.library_folders(), _FOLDER / "isolation", *_interpreter_paths()):
        arguments += ["--ro-bind", str(path), str(path)]
    return [*arguments, "--chdir", "/"]


def _interpreter_paths() -> list[Path]:
    """The interpreter, by name and behind its links, and a virtual environment's marker."""
    paths = [Path(sys.executable)]
    marker = Path(sys.prefix) / "pyvenv.cfg"
    if marker.is_file():
        paths.append(marker)
    paths.append(Path(sys.executable).resolve())
    return list(dict.fromkeys(paths))


def _advice(error: str) -> str:
    return (
        f"this machine can't isolate programs: {error}. Namespaces need a kernel and container "
        "that allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns=0, or a container started with "
        "--security-opt seccomp=unconfined --security-opt systempaths=unconfined); Landlock needs "
        "Linux 5.13. Or use a remote backend, or pass allow_unisolated=True for programs you trust"
    )
