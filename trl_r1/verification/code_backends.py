"""Clients of remote sandboxes, behind the interface of `Sandbox`: SandboxFusion, Piston, E2B.

Left out on purpose: starting such services.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from trl_r1.verification.programs import CodeBackend, Limits
from trl_r1.verification.remote_backend import (
    BackendError,
    RemoteBackend,
    RemoteRun,
    post_json,
)

__all__ = [
    "BackendError",
    "E2BBackend",
    "PistonBackend",
    "SandboxFusionBackend",
    "open_backend",
]


def open_backend(spec: str) -> CodeBackend:
    """The backend of a string, as recipes have it.

    Args:
        spec: `local`, `sandbox_fusion:URL`, `piston:URL` (up to and with `/api/v2`), or `e2b`.

    Raises:
        ValueError: anything else.
    """
    name, _, url = spec.partition(":")
    if name == "local":
        from trl_r1.verification.sandbox import shared_sandbox

        return shared_sandbox()
    if name == "e2b":
        return E2BBackend()
    if name in ("sandbox_fusion", "piston") and url:
        return SandboxFusionBackend(url) if name == "sandbox_fusion" else PistonBackend(url)
    raise ValueError(
        f"unknown code backend {spec!r}; it is local, sandbox_fusion:URL, piston:URL or e2b"
    )


class SandboxFusionBackend(RemoteBackend):
    """ByteDance's SandboxFusion: `POST /run_code`.

    Args:
        url: of the service, e.g. `http://localhost:8080`.
        limits, num_workers: see `RemoteBackend`.
    """

    def __init__(self, url: str, limits: Limits | None = None, num_workers: int = 8) -> None:
        super().__init__(limits, num_workers)
        self.url = url.rstrip("/")

    def execute(self, script: str, stdin: str) -> RemoteRun:
        answer = post_json(
            f"{self.url}/run_code",
            {
                "code": script,
                "language": "python",
                "stdin": stdin,
                "run_timeout": self.limits.wall_seconds,
                "memory_limit_MB": self.limits.memory_mb,
            },
            self.limits.wall_seconds + 30,
        )
        if answer.get("status") == "SandboxError":
            raise BackendError(f"SandboxFusion at {self.url}: {answer.get('message')}")
        result = answer.get("run_result") or {}
        streams = result.get("stdout") or "", result.get("stderr") or ""
        if result.get("status") == "TimeLimitExceeded":
            return RemoteRun(*streams, "timeout", f"longer than {self.limits.wall_seconds:g} s")
        return _ended(streams, result.get("return_code"))


class PistonBackend(RemoteBackend):
    """Piston: `POST /execute` of its API v2.

    Args:
        url: up to and with `/api/v2`.
        version: of Python there; `*` for the newest.
        limits, num_workers: see `RemoteBackend`.
    """

    def __init__(
        self,
        url: str,
        version: str = "*",
        limits: Limits | None = None,
        num_workers: int = 4,
    ) -> None:
        super().__init__(limits, num_workers)
        self.url, self.version = url.rstrip("/"), version

    def execute(self, script: str, stdin: str) -> RemoteRun:
        answer = post_json(
            f"{self.url}/execute",
            {
                "language": "python",
                "version": self.version,
                "files": [{"name": "main.py", "content": script}],
                "stdin": stdin,
                "run_timeout": int(1000 * self.limits.wall_seconds),
                "run_memory_limit": self.limits.memory_mb << 20,
            },
            self.limits.wall_seconds + 30,
        )
        result = answer.get("run")
        if not isinstance(result, dict):
            raise BackendError(f"Piston at {self.url}: {answer.get('message') or answer}")
        streams = result.get("stdout") or "", result.get("stderr") or ""
        # Newer servers name the limit (`TO`, `OL`, ...); older ones only kill.
        limit = {"TO": "timeout", "OL": "output_limit", "EL": "output_limit"}.get(
            result.get("status") or ""
        )
        if limit or result.get("signal") == "SIGKILL":
            status: Any = limit or "timeout"
            return RemoteRun(*streams, status, str(result.get("message") or "killed"))
        return _ended(streams, result.get("code"))


class E2BBackend(RemoteBackend):
    """E2B's code interpreter, by its own client (`pip install e2b-code-interpreter`).

    A fresh sandbox per program, so that none sees what another left.

    Args:
        create: makes a sandbox; by default `e2b_code_interpreter.Sandbox.create`, which reads
            `E2B_API_KEY`.
        limits, num_workers: see `RemoteBackend`.

    Raises:
        BackendError: the client is not installed.
    """

    def __init__(
        self,
        create: Callable[[], Any] | None = None,
        limits: Limits | None = None,
        num_workers: int = 8,
    ) -> None:
        super().__init__(limits, num_workers)
        if create is None:
            try:
                client = importlib.import_module("e2b_code_interpreter")
            except ImportError as error:
                raise BackendError("E2B: pip install e2b-code-interpreter") from error
            create = client.Sandbox.create
        self._create = create

    def execute(self, script: str, stdin: str) -> RemoteRun:
        sandbox = self._create()
        try:
            # Run as a file: the notebook kernel has no standard input, and shows values of its own.
            sandbox.files.write("/tmp/main.py", script)
            sandbox.files.write("/tmp/stdin", stdin)
            result = sandbox.commands.run(
                "python3 /tmp/main.py < /tmp/stdin; echo status=$? >&2",
                timeout=self.limits.wall_seconds,
            )
        except Exception as error:  # the client's own classes, which are not importable everywhere
            if "Timeout" in type(error).__name__:
                return RemoteRun("", "", "timeout", f"longer than {self.limits.wall_seconds:g} s")
            raise BackendError(f"E2B: {type(error).__name__}: {error}") from error
        finally:
            sandbox.kill()
        stderr, _, status = result.stderr.rstrip().rpartition("status=")
        return _ended((result.stdout, stderr), int(status) if status.isdigit() else None)


def _ended(streams: tuple[str, str], code: Any) -> RemoteRun:
    if code == 0:
        return RemoteRun(*streams)
    detail = f"exited with status {code}" if code is not None else "no exit status"
    return RemoteRun(*streams, "error", detail)
