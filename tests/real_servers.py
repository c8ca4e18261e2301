"""Real servers of models on this machine, for tests: `transformers serve` of this environment and
vLLM's, of the environment whose Python `VLLM_PYTHON` names (this one by default)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


VLLM_PYTHON = os.environ.get("VLLM_PYTHON", sys.executable)
COMMANDS = {
    "transformers": [
        sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve",
        "{model}", "--port", "{port}", "--host", "127.0.0.1", "--device", "cpu", "--dtype",
        "float32",
    ],
    "vllm": [
        VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--port",
        "{port}", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "512",
        "--enforce-eager",
    ],
}  # fmt: skip
# As TRL's server mode wants it where it sends adapters alone.
COMMANDS["vllm_lora"] = [*COMMANDS["vllm"], "--enable-lora", "--max-lora-rank", "8",
                         "--logprobs-mode", "processed_logprobs"]  # fmt: skip
_LORA = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "VLLM_ENABLE_V1_MULTIPROCESSING")  # fmt: skip


def needs_vllm() -> None:
    """Skip a test where no environment has vLLM."""
    if "VLLM_PYTHON" not in os.environ:
        pytest.importorskip("vllm", reason="VLLM_PYTHON names no Python that has vLLM")


def _environment(kind: str) -> dict[str, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    env = {name: value for name, value in env.items() if name not in _OF_RANKS}
    if kind == "vllm_lora":
        env.update(_LORA)
    if kind.startswith("vllm") and sys.executable != VLLM_PYTHON:
        env.pop("PYTHONPATH", None)  # of the other environment
    return env


class RealServer:
    """A server of a kind, which can be killed and started again at the same port."""

    def __init__(self, model: Path, kind: str = "transformers") -> None:
        self.model, self.kind, self.port = model, kind, free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [part.format(model=self.model, port=self.port) for part in COMMANDS[self.kind]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(self.kind),
            start_new_session=True,
        )

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/models", timeout=5).close()
                return
            except OSError:
                assert self.process.poll() is None, "the server ended"
                time.sleep(0.5)
        raise AssertionError("the server does not come up")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # vLLM's engine is a process of its own
        self.process.wait()


@contextmanager
def running(model: Path, *kinds: str) -> Iterator[list[RealServer]]:
    for package in ("fastapi", "uvicorn") if "transformers" in kinds else ():
        pytest.importorskip(package, reason="pip install 'transformers[serving]'")
    if "vllm" in kinds:
        needs_vllm()
    made = [RealServer(model, kind) for kind in kinds]
    try:
        for server in made:
            server.wait()
        yield made
    finally:
        for server in made:
            server.kill()
