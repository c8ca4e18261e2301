"""Requests to any number of OpenAI-compatible servers: every one is answered once, or an error says
why not.

Each server has a few workers that take requests from one queue, so a fast server does more. A
request that fails in a way that may pass (429, 5xx, a broken connection, an answer that is no JSON)
goes back to the head of the queue, for whichever server is ready first; its server pauses, longer
each time, with jitter, or as long as `Retry-After` says. One that can't be reached is asked for its
models until it answers, so that it holds no request meanwhile. Left out on purpose: retries inside
the HTTP client, which would know neither of the other servers nor of the pause.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from trl_r1.sampling.dialects import ONE_AT_A_TIME
from trl_r1.sampling.server import Server, ServerError, TryAgainError
from trl_r1.sampling.server_address import ServerAddress

# Failures of one request, by itself, after which it is taken to be the request's own fault.
_MAX_FAILURES = 8
_CONNECT_SECONDS = 10.0
_CONCURRENCY = 16

Build = Callable[[Server], tuple[str, dict[str, Any]]]
Read = Callable[[Server, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class PoolSettings:
    """How the servers are used.

    Attributes:
        model: name of the model in requests; None for the first that a server lists.
        concurrency: requests at a time, a server; None for 16, and 1 for `transformers serve`,
            whose seeds hold only then.
        timeout: seconds that a completion may take.
        patience: seconds for which all servers have to fail before they are given up.
    """

    model: str | None = None
    concurrency: int | None = None
    timeout: float = 3600.0
    patience: float = 600.0


@dataclass
class _Request:
    build: Build
    read: Read
    answer: asyncio.Future[Any]
    num_failures: int = 0


class ServerPool:
    """Sends requests; its coroutines all belong in one event loop.

    Args:
        addresses: at least one server.
        settings: how they are used.
    """

    def __init__(self, addresses: Sequence[ServerAddress], settings: PoolSettings) -> None:
        self.settings = settings
        self.servers = [Server(address) for address in addresses]
        self._queue: deque[_Request] = deque()
        self._filled = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def check(self) -> None:
        """Ask every server once for its models.

        Raises:
            ServerError: a server lacks the model, or none of them answers.
        """
        session = self._open_session()
        errors = await asyncio.gather(
            *(server.learn(session, self.settings.model) for server in self.servers),
            return_exceptions=True,
        )
        for error in errors:
            if error is not None and not isinstance(error, TryAgainError):
                raise error
        if all(errors):
            said = "; ".join(str(error) for error in errors)
            raise ServerError(f"no server answers: {said}; start it, or mend its address")

    async def ask(self, build: Build, read: Read) -> Any:
        """Have one request answered.

        Args:
            build: gives the path (`chat/completions`) and the body for a server.
            read: makes the result of a server's JSON; a KeyError, TypeError, ValueError,
                IndexError or AttributeError means that the answer is broken.

        Raises:
            ServerError: a server refused it for good, or it failed again and again.
        """
        self._open_session()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._serve(server)) for server in self.servers]
        request = _Request(build, read, asyncio.get_running_loop().create_future())
        await self._put(request)
        return await request.answer

    async def close(self) -> None:
        """Give up everything that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._queue:
            self._queue.popleft().answer.cancel()
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The workers are the bound; the client's own would cut a large one short.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=self.settings.timeout, sock_connect=_CONNECT_SECONDS
                ),
            )
        return self._session

    async def _serve(self, server: Server) -> None:
        """Get to know a server, then have workers work for it."""
        server.must_be_probed = not server.model
        await self._until_ready(server)
        number = self.settings.concurrency
        if number is None:
            number = 1 if server.dialect in ONE_AT_A_TIME else _CONCURRENCY
        workers = [asyncio.create_task(self._work(server)) for _ in range(number)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, server: Server) -> None:
        while True:
            await self._until_ready(server)
            request = await self._take(server)
            if request is None:
                continue
            try:
                result = await self._answer(server, request)
                if not request.answer.done():  # else nobody waits for it any more
                    request.answer.set_result(result)
            except TryAgainError as failure:
                await self._failed(server, request, failure)
            except asyncio.CancelledError:
                request.answer.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                _tell(request, error)

    async def _answer(self, server: Server, request: _Request) -> Any:
        path, body = request.build(server)
        answer = await server.exchange(self._open_session(), path, body)
        try:
            result = request.read(server, answer)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            message = f"{server.address.url} gave a broken answer: {error!r}"
            raise TryAgainError(message) from error
        server.succeeded()
        return result

    async def _until_ready(self, server: Server) -> None:
        while True:
            if (wait := server.ready_at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            elif server.must_be_probed:
                async with server.probing:
                    if server.must_be_probed:
                        await self._probe(server)
            else:
                return

    async def _probe(self, server: Server) -> None:
        try:
            await server.learn(self._open_session(), self.settings.model)
        except TryAgainError as failure:
            self._blame(server, failure)
        except ServerError as error:
            self._fail_all(error)
            self._blame(server, TryAgainError(str(error)))

    async def _put(self, request: _Request, is_first: bool = False) -> None:
        async with self._filled:
            (self._queue.appendleft if is_first else self._queue.append)(request)
            self._filled.notify()

    async def _take(self, server: Server) -> _Request | None:
        """The next request; None where the server has to be waited for first."""
        async with self._filled:
            await self._filled.wait_for(lambda: bool(self._queue))
            if server.must_be_probed or server.ready_at > time.monotonic():
                self._filled.notify()  # somebody else's, then
                return None
            request = self._queue.popleft()
        return None if request.answer.done() else request

    async def _failed(self, server: Server, request: _Request, failure: TryAgainError) -> None:
        request.num_failures += failure.counts
        if request.answer.cancelled():
            return
        if request.num_failures >= _MAX_FAILURES:
            message = f"a request failed {_MAX_FAILURES} times, the last time so: {failure}"
            _tell(request, ServerError(message))
        else:
            await self._put(request, is_first=True)
        self._blame(server, failure)

    def _blame(self, server: Server, failure: TryAgainError) -> None:
        server.failed(failure)
        limit = time.monotonic() - self.settings.patience
        if all(s.failing_since is not None and s.failing_since < limit for s in self.servers):
            errors = "; ".join(dict.fromkeys(s.last_error for s in self.servers))
            self._fail_all(
                ServerError(
                    f"no server has answered for {self.settings.patience:g} s ({errors}); what is "
                    "done is kept: see to the servers and run the same command again"
                )
            )

    def _fail_all(self, error: ServerError) -> None:
        while self._queue:
            _tell(self._queue.popleft(), error)


def _tell(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
