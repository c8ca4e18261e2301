"""Against two real servers on this machine, one killed and restarted midway, one in front of which
429 and 500 are answered at times. Needs `pip install 'transformers[serving]'`; the test with two
kinds of server also vLLM (see `real_servers`) and the folder of SmolLM2 in SMOLLM2."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import TroubledProxy, in_background
from real_servers import RealServer, running

from trl_r1.sampling.server_address import ServerAddress
from trl_r1.sampling.server_pool import PoolSettings
from trl_r1.sampling.server_sampler import ServerSampler

pytestmark = pytest.mark.slow

PROMPTS = [[{"role": "user", "content": f"{i}+{i}=?"}] for i in range(100)]
SETTINGS = {"num_samples": 4, "temperature": 1.0, "max_new_tokens": 12, "seed": 5}


@pytest.fixture
def servers(tiny_model_dir: Path) -> Iterator[list[RealServer]]:
    with running(tiny_model_dir, "transformers", "transformers") as made:
        yield made


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


@pytest.mark.vllm
@pytest.mark.parametrize("killed", ["vllm", "transformers"])
def test_two_kinds_of_server_share_a_job_and_either_may_die(tmp_path: Path, killed: str) -> None:
    if "SMOLLM2" not in os.environ:
        pytest.skip("SMOLLM2 names no folder of a model that both can load")
    model = Path(os.environ["SMOLLM2"])
    other = {"vllm": "transformers", "transformers": "vllm"}[killed]
    with running(model, killed, other) as (mortal, refusing):
        proxy = TroubledProxy(refusing.url, share=0.2)
        url, loop = in_background(proxy.start)
        sampler = sampler_of(model, mortal.url, url)
        sampler.keep_answers_in(tmp_path)
        result: list[Any] = []
        asked = threading.Thread(target=lambda: result.append(sampler.sample(PROMPTS, **SETTINGS)))
        asked.start()
        while sampler.servers[0].num_answers == 0 or _answers(sampler) < 40:
            time.sleep(0.01)
        mortal.kill()
        at_kill = sampler.servers[0].num_answers
        while _answers(sampler) < 80:
            time.sleep(0.01)
        mortal.start()
        asked.join(1500)
        (drawn,) = result
        assert [len(group) for group in drawn] == [4] * 100
        seeds = [sample.seed for group in drawn for sample in group]
        assert len(set(seeds)) == 400
        (log,) = tmp_path.glob(".answers-*.jsonl")
        assert len(log.read_text().splitlines()) == _answers(sampler) == 400
        assert proxy.refused[429] > 0
        assert proxy.refused[500] > 0
        by_engine = sum(s.token_source == "engine" for group in drawn for s in group)
        assert 0 < by_engine < 400, "vLLM gives tokens, `transformers serve` none"
        seen = [server.num_answers for server in sampler.servers]
        report = (
            f"{killed}: {at_kill} at the kill; in the end {seen}, of which {by_engine} with the "
            f"engine's tokens; refused {dict(proxy.refused)}\n"
        )
        with Path(os.environ.get("SERVERS_REPORT", os.devnull)).open("a") as file:
            file.write(report)
        sampler.close()
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)


def _answers(sampler: ServerSampler) -> int:
    return sum(server.num_answers for server in sampler.servers)
