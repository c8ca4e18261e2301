"""Against servers that fail: every request is answered once, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_server import FakeServer, completion_of, in_background

from trl_r1.sampling import RemoteSampler, derive_seed
from trl_r1.sampling.dialects import answer_text, dialect_of, sampling_fields
from trl_r1.sampling.server import Server, ServerError, TryAgainError
from trl_r1.sampling.server_address import ServerAddress
from trl_r1.sampling.server_pool import PoolSettings
from trl_r1.sampling.server_sampler import ServerSampler

PROMPTS = [[{"role": "user", "content": f"number {i}?"}] for i in range(12)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl_r1.sampling.server._FIRST_PAUSE", 0.02)
    monkeypatch.setattr("trl_r1.sampling.server._LONGEST_PAUSE", 0.2)


class Farm:
    """Fake servers and samplers that end with the test."""

    def __init__(self) -> None:
        self.running: list[tuple[FakeServer, asyncio.AbstractEventLoop]] = []
        self.samplers: list[ServerSampler] = []

    def serve(self, server: FakeServer, port: int = 0) -> str:
        url, loop = in_background(lambda: server.start(port))
        self.running.append((server, loop))
        return url

    def stop(self, server: FakeServer) -> None:
        loop = next(loop for other, loop in self.running if other is server)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)

    def sampler(self, *urls: str, **settings: Any) -> ServerSampler:
        addresses = [ServerAddress.parse(url) for url in urls]
        made = ServerSampler(addresses, settings=PoolSettings(**{"patience": 20.0, **settings}))
        self.samplers.append(made)
        return made


@pytest.fixture
def farm() -> Iterator[Farm]:
    made = Farm()
    yield made
    for sampler in made.samplers:
        sampler.close()
    for server, loop in made.running:
        made.stop(server)
        loop.call_soon_threadsafe(loop.stop)


def texts(sampler: ServerSampler, num_samples: int = 2, seed: int = 3) -> list[list[str]]:
    return [[s.text for s in group] for group in sampler.sample(PROMPTS, num_samples, seed=seed)]


def expected(num_samples: int = 2, seed: int = 3) -> list[list[str]]:
    return [
        [completion_of(p, derive_seed(seed, i, n) % 2**31) for n in range(num_samples)]
        for i, p in enumerate(PROMPTS)
    ]


def test_samples_come_back_in_order_with_tokens_reason_and_seed(farm: Farm) -> None:
    sampler = farm.sampler(farm.serve(FakeServer()))
    assert isinstance(sampler, RemoteSampler)
    assert texts(sampler) == expected()
    ((sample,), *_) = sampler.sample(PROMPTS[:1], 1, seed=5)
    assert sample.token_ids == [*sample.text.encode(), 0]
    assert (sample.finish_reason, sample.is_truncated) == ("stop", False)
    assert (sample.seed, sample.token_source) == (derive_seed(5, 0, 0) % 2**31, "engine")


def test_no_more_than_the_bound_is_asked_at_a_time(farm: Farm) -> None:
    server = FakeServer(seconds=0.02)
    texts(farm.sampler(farm.serve(server), concurrency=3), num_samples=3)
    assert server.most_at_once == 3


def test_servers_share_the_work_and_the_fast_one_does_more(farm: Farm) -> None:
    slow, fast = FakeServer(seconds=0.2), FakeServer(seconds=0.002)
    sampler = farm.sampler(farm.serve(slow), farm.serve(fast), concurrency=2)
    assert texts(sampler) == expected()
    assert 0 < sum(slow.answered.values()) < sum(fast.answered.values())
    assert set(slow.answered) & set(fast.answered) == set()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again_and_paid_once(farm: Farm, status: int) -> None:
    def trouble(number: int, body: dict[str, Any]) -> web.Response | None:
        return web.Response(status=status, text="busy") if number % 3 == 0 else None

    server = FakeServer(trouble=trouble)
    assert texts(farm.sampler(farm.serve(server), concurrency=4)) == expected()
    assert set(server.answered.values()) == {1}
    assert server.num_requests > 24


def test_retry_after_is_kept_to(farm: Farm) -> None:
    times: list[float] = []

    def trouble(number: int, body: dict[str, Any]) -> web.Response | None:
        times.append(time.monotonic())
        if number == 1:
            return web.Response(status=429, headers={"Retry-After": "0.5"})
        return None

    sampler = farm.sampler(farm.serve(FakeServer(trouble=trouble)), concurrency=1)
    texts(sampler, num_samples=1)
    assert times[1] - times[0] >= 0.5


@pytest.mark.parametrize("body", ["<html>", "[]", '{"choices": []}', '{"error": "x"}'])
def test_a_broken_answer_is_asked_for_again(farm: Farm, body: str) -> None:
    def trouble(number: int, _: dict[str, Any]) -> web.Response | None:
        return web.Response(text=body) if number in (1, 5) else None

    assert texts(farm.sampler(farm.serve(FakeServer(trouble=trouble)))) == expected()


def test_a_server_that_dies_leaves_its_work_to_the_other_and_comes_back(farm: Farm) -> None:
    first, second = FakeServer(seconds=0.05), FakeServer(seconds=0.05)
    url = farm.serve(first)
    sampler = farm.sampler(url, farm.serve(second), concurrency=2)
    result: list[Any] = []
    asked = threading.Thread(target=lambda: result.append(texts(sampler, num_samples=8)))
    asked.start()
    time.sleep(0.3)
    farm.stop(first)
    time.sleep(0.5)
    again = FakeServer(seconds=0.05)
    farm.serve(again, int(url.rsplit(":", 1)[1].split("/")[0]))
    asked.join(30)
    assert result == [expected(8)]
    assert again.answered
    done = first.answered + second.answered + again.answered
    # What the first server was at when it died is made again: no more than its two requests.
    assert sum(count - 1 for count in done.values()) <= 2


def test_a_request_that_always_fails_is_named_and_not_tried_for_ever(farm: Farm) -> None:
    def trouble(number: int, body: dict[str, Any]) -> web.Response | None:
        is_poison = "number 7?" in json.dumps(body)
        return web.Response(status=500, text="boom") if is_poison else None

    server = FakeServer(trouble=trouble)
    with pytest.raises(ServerError, match=r"failed 8 times, the last time so: .*500: boom"):
        texts(farm.sampler(farm.serve(server)), num_samples=1)


def test_a_refusal_for_good_ends_the_job_at_once(farm: Farm) -> None:
    def trouble(number: int, body: dict[str, Any]) -> web.Response | None:
        return web.Response(status=400, text="prompt too long")

    server = FakeServer(trouble=trouble)
    with pytest.raises(ServerError, match="refused a request with 400: prompt too long"):
        texts(farm.sampler(farm.serve(server), concurrency=1))
    assert server.num_requests <= 2


def test_servers_that_never_answer_are_given_up(farm: Farm) -> None:
    url = "http://127.0.0.1:9/v1"
    with pytest.raises(ServerError, match=r"no server answers: http://127\.0\.0\.1:9/v1 can't be"):
        farm.sampler(url).check()
    with pytest.raises(ServerError, match=r"no server has answered for 0\.3 s"):
        texts(farm.sampler(url, patience=0.3))


def test_answers_on_disk_are_not_asked_for_again(farm: Farm, tmp_path: Path) -> None:
    server = FakeServer()
    url = farm.serve(server)
    sampler = farm.sampler(url)
    sampler.keep_answers_in(tmp_path)
    first = texts(sampler)
    (path,) = tmp_path.glob(".answers-*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 24
    path.write_text("".join(lines[:10]) + lines[10][:40])  # a kill cuts a line short
    again = farm.sampler(url)
    again.keep_answers_in(tmp_path)
    before = server.num_requests
    assert texts(again) == first == expected()
    assert server.num_requests - before == 14
    assert texts(again) == first
    assert server.num_requests - before == 14
    again.forget_answers(3)
    assert not list(tmp_path.iterdir())


def test_the_key_goes_to_the_server_and_nowhere_else(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = farm.serve(FakeServer(key="sk-secret"))
    with pytest.raises(ServerError, match=r"wants a key, and .* TRL_R1_API_KEY is not set"):
        texts(farm.sampler(url))
    monkeypatch.setenv("TRL_R1_API_KEY", "sk-wrong-one")
    with pytest.raises(ServerError, match="TRL_R1_API_KEY holds another one") as caught:
        texts(farm.sampler(url))
    assert "sk-wrong-one" not in str(caught.value)
    monkeypatch.setenv("TRL_R1_API_KEY", "sk-secret")
    sampler = farm.sampler(url)
    sampler.keep_answers_in(tmp_path)
    assert texts(sampler) == expected()
    assert "sk-secret" not in repr(sampler.servers)
    assert all("sk-secret" not in path.read_text() for path in tmp_path.iterdir())


def test_a_key_in_an_address_is_refused() -> None:
    for text in ("http://user:pass@host/v1", "http://host/v1?api_key=1"):
        with pytest.raises(ValueError, match="environment variable TRL_R1_API_KEY"):
            ServerAddress.parse(text)
    with pytest.raises(ValueError, match="is no server"):
        ServerAddress.parse("localhost:8000")
    assert ServerAddress.parse("http://h:1").url == "http://h:1/v1"
    assert ServerAddress.parse("https://h/api/v1/chat/completions").url == "https://h/api/v1"


def test_a_model_that_a_server_lacks_is_named(farm: Farm) -> None:
    url = farm.serve(FakeServer())
    with pytest.raises(ServerError, match=r"does not have 'other'; it has \['fake'\]"):
        farm.sampler(url, model="other").check()


def test_closing_gives_up_what_is_under_way(farm: Farm) -> None:
    sampler = farm.sampler(farm.serve(FakeServer(seconds=60)))
    errors: list[Exception] = []

    def ask() -> None:
        try:
            texts(sampler)
        except ServerError as error:
            errors.append(error)

    asked = threading.Thread(target=ask)
    asked.start()
    time.sleep(0.3)
    sampler.close()
    asked.join(10)
    assert "given up" in str(errors[0])


def test_pauses_grow_with_jitter_and_end_with_an_answer() -> None:
    server, pauses = Server(ServerAddress("http://h/v1")), []
    for _ in range(4):
        server.ready_at = 0.0
        before = time.monotonic()
        server.failed(TryAgainError("x"))
        pauses.append(server.ready_at - before)
    assert all(0.01 * 2**i <= pause <= 0.0201 * 2**i for i, pause in enumerate(pauses))
    server.succeeded()
    assert (server.num_pauses, server.failing_since) == (0, None)


def test_each_kind_of_server_is_told_to_sample_plainly() -> None:
    status = {"status": {"value": "loaded"}, "owned_by": "someone"}
    assert dialect_of(status) == "transformers"
    assert [dialect_of({"owned_by": o}) for o in ("vllm", "llamacpp", "system")] == [
        "vllm",
        "llamacpp",
        "openai",
    ]
    fields = sampling_fields("vllm", 0.6, 0.95, 100, 7)
    assert (fields["top_k"], fields["repetition_penalty"], fields["return_token_ids"]) == (
        -1,
        1.0,
        True,
    )
    assert sampling_fields("llamacpp", 0.6, 0.95, 100, 7)["top_k"] == 0
    assert set(sampling_fields("openai", 0.0, 0.95, None, 7)) == {"seed", "stream", "temperature"}
    config = json.loads(sampling_fields("transformers", 0.0, 1.0, 9, 7)["generation_config"])
    assert (config["do_sample"], config["max_new_tokens"]) == (False, 9)


def test_reasoning_that_a_server_took_out_is_put_back() -> None:
    message = {"content": "4", "reasoning_content": "two and two"}
    assert answer_text({"message": message}) == "<think>\ntwo and two\n</think>\n4"
    assert answer_text({"message": {"content": "4", "reasoning_content": None}}) == "4"


def test_what_had_not_asked_yet_is_given_up_too(farm: Farm) -> None:
    url = farm.serve(FakeServer(seconds=0.01))
    for _ in range(5):
        sampler, ended = farm.sampler(url), []

        def draw(sampler: ServerSampler = sampler, ended: list[str] = ended) -> None:
            try:
                sampler.sample(PROMPTS, num_samples=2)
            except ServerError as error:
                ended.append(str(error))
            else:
                ended.append("drawn")

        threads = [threading.Thread(target=draw, daemon=True) for _ in range(6)]
        for number, thread in enumerate(threads):
            thread.start()
            if number == 3:
                sampler.close()
        for thread in threads:
            thread.join(10)
        assert len(ended) == 6, "a thread waits for an answer that nobody gives"
        assert ended[-1] == "sampling was given up"


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"text": 5, "finish_reason": "stop"}]},
        {"choices": ["text"]},
        {"choices": [{"message": "text", "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": "abc"}]},
    ],
)
def test_an_answer_of_wrong_types_is_asked_for_again(farm: Farm, answer: dict[str, Any]) -> None:
    def trouble(number: int, body: dict[str, Any]) -> web.Response | None:
        return web.json_response(answer) if number == 1 else None

    server = FakeServer(trouble=trouble)
    ((sample,),) = farm.sampler(farm.serve(server)).sample(PROMPTS[:1])
    assert sample.text == completion_of(PROMPTS[0], sample.seed or 0)
    assert server.num_requests == 2


def test_half_characters_and_odd_counts_can_be_stored(farm: Farm) -> None:
    choice = '{"message": {"content": "a\\ud800b"}, "finish_reason": "stop"}'
    text = f'{{"choices": [{choice}], "usage": [1]}}'
    server = FakeServer(trouble=lambda *_: web.Response(text=text))
    ((sample,),) = farm.sampler(farm.serve(server)).sample(PROMPTS[:1])
    assert sample.text == "a\ufffdb"
