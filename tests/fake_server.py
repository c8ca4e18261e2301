"""A small OpenAI-compatible server for tests, deterministic by prompt and seed; also a proxy that
makes trouble in front of a real one.

Run as a script it serves until it is killed: `python fake_server.py PORT [--seconds S]`. It counts
what it is asked, and can be told to fail.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

Trouble = Callable[[int, dict[str, Any]], "web.Response | None"]


def completion_of(prompt: Any, seed: int) -> str:
    """What the server says: the same for the same prompt and seed, right for some; a verdict where
    one is asked for."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    number = int(hashlib.sha256(f"{text}/{seed}".encode()).hexdigest(), 16) % 7
    if "VERDICT: " in text:
        return f"VERDICT: {'in' * (number < 3)}correct"
    return f"<think>I see {number}</think><answer>{number}</answer>"


class FakeServer:
    """The server.

    Args:
        seconds: that a completion takes.
        trouble: called with the number of a request and its body; a response it gives is sent
            instead of the answer.
        owner: `owned_by` in the list of models, which says what kind of server it is.
        key: that requests have to bring.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        trouble: Trouble | None = None,
        owner: str = "vllm",
        key: str | None = None,
    ) -> None:
        self.seconds, self.trouble, self.owner, self.key = seconds, trouble, owner, key
        self.num_requests = 0
        self.num_at_once = self.most_at_once = 0
        self.answered: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Serve; returns the base URL."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/count", self._count)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Stop serving, cutting off what is under way."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": "fake", "object": "model", "owned_by": self.owner, "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [entry]})

    async def _count(self, request: web.Request) -> web.Response:
        return web.json_response(self.answered)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.num_requests += 1
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(
                status=401, text=f"wrong key {request.headers.get('Authorization')}"
            )
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            trouble = self.trouble(self.num_requests, body) if self.trouble else None
            if trouble is not None:
                return trouble
            await asyncio.sleep(self.seconds)
        finally:
            self.num_at_once -= 1
        self.bodies.append(body)
        return self._answer(body)

    def _answer(self, body: dict[str, Any]) -> web.Response:
        prompt = body.get("messages", body.get("prompt"))
        text = completion_of(prompt, body["seed"])
        self.answered[f"{json.dumps(prompt)}/{body['seed']}"] += 1
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if body.get("return_token_ids"):
            choice["token_ids"] = [*text.encode(), 0]
        usage = {"completion_tokens": len(text) + 1}
        return web.json_response({"model": "fake", "choices": [choice], "usage": usage})


class TroubledProxy:
    """Passes requests on to a real server; some get a 429 or a 500 instead.

    Args:
        target: base URL of the server behind it.
        share: of the completions that are refused, half each.
    """

    def __init__(self, target: str, share: float = 0.3, seed: int = 0) -> None:
        self.target, self.share = target, share
        self.refused: Counter[int] = Counter()
        self._draw = random.Random(seed)
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Serve; returns the base URL."""
        app = web.Application()
        app.router.add_route("*", "/v1/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Stop serving."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.Response:
        if request.method == "POST" and self._draw.random() < self.share:
            status = self._draw.choice((429, 500))
            self.refused[status] += 1
            headers = {"Retry-After": "1"} if status == 429 else {}
            return web.Response(status=status, headers=headers, text="trouble")
        url = f"{self.target}/{request.match_info['path']}"
        data = await request.read()
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=data or None, headers=headers) as answer,
        ):
            return web.Response(
                status=answer.status, body=await answer.read(), content_type="application/json"
            )


def in_background(start: Callable[[], Awaitable[str]]) -> tuple[str, asyncio.AbstractEventLoop]:
    """Serve from a thread of its own; returns the URL, and the loop to stop it in."""
    import threading

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(start(), loop).result(10), loop


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args()
    await FakeServer(options.seconds).start(options.port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
