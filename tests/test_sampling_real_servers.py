"""Against two real servers on this machine, one killed and restarted midway, one in front of which
429 and 500 are answered at times. Needs `pip install 'transformers[serving]'`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import TroubledProxy, in_background

from trl_r1.sampling.server_address import ServerAddress
from trl_r1.sampling.server_pool import PoolSettings
from trl_r1.sampling.server_sampler import ServerSampler

pytestmark = pytest.mark.slow

PROMPTS = [[{"role": "user", "content": f"{i}+{i}=?"}] for i in range(100)]
SETTINGS = {"num_samples": 4, "temperature": 1.0, "max_new_tokens": 12, "seed": 5}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class RealServer:
    """`transformers serve`, which can be killed and started again at the same port."""

    def __init__(self, model: Path) -> None:
        self.model, self.port = model, free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        code = "from transformers.cli.transformers import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", str(self.model), "--port", str(self.port),
             "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

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
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def servers(tiny_model_dir: Path) -> Iterator[list[RealServer]]:
    pytest.importorskip("fastapi", reason="pip install 'transformers[serving]'")
    pytest.importorskip("uvicorn", reason="pip install 'transformers[serving]'")
    made = [RealServer(tiny_model_dir), RealServer(tiny_model_dir)]
    try:
        for server in made:
            server.wait()
        yield made
    finally:
        for server in made:
            server.kill()


def sampler_of(model: Path, *urls: str) -> ServerSampler:
    from transformers import AutoTokenizer

    addresses = [ServerAddress.parse(url) for url in urls]
    return ServerSampler(addresses, AutoTokenizer.from_pretrained(model), PoolSettings())


def test_a_kill_and_refusals_lose_and_duplicate_nothing(
    servers: list[RealServer], tiny_model_dir: Path, tmp_path: Path
) -> None:
    calm = sampler_of(tiny_model_dir, servers[0].url)
    expected = calm.sample(PROMPTS, **SETTINGS)
    calm.close()
    proxy = TroubledProxy(servers[1].url, share=0.2)
    url, loop = in_background(proxy.start)
    sampler = sampler_of(tiny_model_dir, servers[0].url, url)
    sampler.keep_answers_in(tmp_path)
    result: list[Any] = []
    asked = threading.Thread(target=lambda: result.append(sampler.sample(PROMPTS, **SETTINGS)))
    asked.start()
    while sum(server.num_answers for server in sampler.servers) < 100:
        time.sleep(0.01)
    servers[0].kill()
    at_kill = sampler.servers[0].num_answers
    while sum(server.num_answers for server in sampler.servers) < 150:
        time.sleep(0.01)
    servers[0].start()
    asked.join(500)
    assert result == [expected]
    assert {sample.finish_reason for group in expected for sample in group} <= {"length", "stop"}
    (log,) = tmp_path.glob(".answers-*.jsonl")
    assert len(log.read_text().splitlines()) == 400
    assert sum(server.num_answers for server in sampler.servers) == 400
    assert proxy.refused[429] > 0
    assert proxy.refused[500] > 0
    seen = [server.num_answers for server in sampler.servers]
    report = f"before the kill {at_kill}; in the end {seen}; refused {dict(proxy.refused)}"
    Path(os.environ.get("SERVERS_REPORT", os.devnull)).write_text(report)
    sampler.close()
    asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
