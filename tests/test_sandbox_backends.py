"""Clients of remote sandboxes, against servers that speak their protocol and run the code."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trl_r1.rewards.code_tests import code_tests_reward
from trl_r1.verification import remote_backend
from trl_r1.verification.code_backends import (
    BackendError,
    E2BBackend,
    PistonBackend,
    SandboxFusionBackend,
    open_backend,
)
from trl_r1.verification.remote_backend import post_json
from trl_r1.verification.sandbox import Call, Limits, Program

_LIMITS = Limits(wall_seconds=2)
Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


def _run(script: str, stdin: str, timeout: float) -> tuple[int | None, str, str]:
    command = [sys.executable, "-I", "-c", script]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, "", ""
    return done.returncode, done.stdout, done.stderr


def _sandbox_fusion(path: str, body: dict[str, Any]) -> dict[str, Any]:
    assert path == "/run_code"
    assert set(body) == {"code", "language", "stdin", "run_timeout", "memory_limit_MB"}
    assert body["language"] == "python"
    assert body["memory_limit_MB"] == _LIMITS.memory_mb
    code, out, err = _run(body["code"], body["stdin"], body["run_timeout"])
    result = {
        "status": "TimeLimitExceeded" if code is None else "Finished",
        "execution_time": 0.1,
        "return_code": code,
        "stdout": out,
        "stderr": err,
    }
    return {
        "status": "Success" if code == 0 else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": {},
    }


def _piston(path: str, body: dict[str, Any]) -> dict[str, Any]:
    assert path == "/api/v2/execute"
    known = {"language", "version", "files", "stdin", "run_timeout", "run_memory_limit"}
    assert set(body) == known
    assert body["run_memory_limit"] == _LIMITS.memory_mb << 20
    script, timeout = body["files"][0]["content"], body["run_timeout"] / 1000
    code, out, err = _run(script, body["stdin"], timeout)
    signal = "SIGKILL" if code is None else None
    run = {"stdout": out, "stderr": err, "code": code, "signal": signal, "output": out + err}
    return {"language": "python", "version": "3.11.0", "run": run}


@contextmanager
def _server(answer: Answer, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(answer(self.path, body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _FakeE2B:
    """What of E2B's sandbox the client uses, with a folder for its file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_killed = False
        self.files = SimpleNamespace(write=self._write)
        self.commands = SimpleNamespace(run=self._command)

    def _write(self, path: str, text: str) -> None:
        (self.folder / Path(path).name).write_text(text)

    def _command(self, command: str, timeout: float) -> Any:
        assert command.startswith("python3 /tmp/main.py < /tmp/stdin")
        script = (self.folder / "main.py").read_text()
        code, out, err = _run(script, (self.folder / "stdin").read_text(), timeout)
        if code is None:
            raise TimeoutError("deadline exceeded")
        return SimpleNamespace(stdout=out, stderr=f"{err}status={code}\n")

    def kill(self) -> None:
        self.is_killed = True


@pytest.fixture(params=["sandbox_fusion", "piston", "e2b"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "e2b":
        made: list[_FakeE2B] = []

        def create() -> _FakeE2B:
            folder = tmp_path / str(len(made))
            folder.mkdir()
            made.append(_FakeE2B(folder))
            return made[-1]

        yield E2BBackend(create, _LIMITS, num_workers=1)
        assert made
        assert all(sandbox.is_killed for sandbox in made)
    elif request.param == "piston":
        with _server(_piston) as url:
            yield PistonBackend(f"{url}/api/v2", limits=_LIMITS)
    else:
        with _server(_sandbox_fusion) as url:
            yield SandboxFusionBackend(url, _LIMITS)


def test_calls_and_scripts_come_back_as_from_the_local_sandbox(backend: Any) -> None:
    called, script, ended, loops, beside = backend.run(
        [
            Program(
                "print('v9')\ndef f(x): print('v1'); return (x, {x})\ndef g(): return open",
                calls=(Call("f", (2**70,)), "f(2)", "g()", "h()"),
            ),
            Program("print(input() * 2)", stdin="ab\n"),
            Program("import sys; sys.exit(3)"),
            Program("while True: pass"),
            Program("def f(): return 1", tests=("assert f() == 1",)),
        ]
    )
    assert called.status == "ok"
    assert [o.value for o in called.outcomes] == [(2**70, {2**70}), (2, {2}), None, None]
    assert "not plain data" in str(called.outcomes[2].error)
    assert "NameError" in str(called.outcomes[3].error)
    assert (script.status, script.stdout) == ("ok", "abab\n")
    assert ended.status == "error"
    assert loops.status == "timeout"
    assert (beside.status, beside.verdicts) == ("unsupported", (None,))


def test_the_reward_takes_a_remote_backend(backend: Any) -> None:
    blocks = [
        f"```python\n{code}\n```" for code in ("def f(x): return x", "import os; os._exit(0)")
    ]
    tests = ["assert f(1) == 1", "assert f('a') == 'a'"]
    assert code_tests_reward(blocks, [tests] * 2, backend=backend) == [1.0, 0.0]
    beside = ["assert abs(f(1) - 1) < 1"]
    assert code_tests_reward(blocks[:1], [beside], backend=backend) == [None]


def test_a_service_that_fails_is_an_error_that_says_where() -> None:
    def failed(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"status": "SandboxError", "message": "out of workers"}

    with _server(failed) as url, pytest.raises(BackendError, match="out of workers"):
        SandboxFusionBackend(url).run([Program("1")])
    unknown = _server(lambda path, body: {"message": "runtime is unknown"})
    with unknown as url, pytest.raises(BackendError, match="runtime is unknown"):
        PistonBackend(url).run([Program("1")])
    refused = {"message": "run_timeout cannot exceed the configured limit of 3000"}
    with (
        _server(lambda path, body: refused, 400) as url,
        pytest.raises(BackendError, match=r"HTTP 400: .*configured limit of 3000"),
    ):
        PistonBackend(url).run([Program("1")])
    missing = _server(lambda path, body: {"detail": "no"}, 404)
    with missing as url, pytest.raises(BackendError, match="HTTP 404"):
        SandboxFusionBackend(url).run([Program("1")])


def test_a_busy_service_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_backend.time, "sleep", lambda seconds: None)
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(path)
        return {}

    with _server(answer, 503) as url, pytest.raises(BackendError, match="HTTP 503"):
        post_json(f"{url}/x", {}, 5)
    assert asked == ["/x"] * 3


def test_backends_open_by_name() -> None:
    assert isinstance(open_backend("sandbox_fusion:http://h:1"), SandboxFusionBackend)
    piston = open_backend("piston:http://h:1/api/v2/")
    assert isinstance(piston, PistonBackend)
    assert piston.url == "http://h:1/api/v2"
    for spec in ("piston", "docker", "e3b:x"):
        with pytest.raises(ValueError, match="unknown code backend"):
            open_backend(spec)
    with pytest.raises(BackendError, match="pip install e2b-code-interpreter"):
        open_backend("e2b")
