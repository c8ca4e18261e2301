"""One OpenAI-compatible server: what is known of it, and one exchange with it.

Left out: which request it gets, which is `server_pool`'s.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from trl_r1.sampling.dialects import Dialect, dialect_of
from trl_r1.sampling.server_address import ServerAddress, without_key

_PASSING = frozenset({408, 409, 425, 429, *range(500, 600)})
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_RETRY_AFTER = 0.5, 60.0, 600.0
# In the words of vLLM, SGLang, llama.cpp and OpenAI.
_CONTEXT = re.compile(r"context[\s_]*(length|size|window)", re.IGNORECASE)
_JITTER = random.SystemRandom()  # seeds of the run are left alone


class ServerError(RuntimeError):
    """A server refused a request, or none of them can be reached."""


class NoRoomError(ServerError):
    """A prompt fills a server's context, or does with the limit of the completion.

    Attributes:
        is_counted: the prompt's tokens were counted, so there is no doubt.
    """

    def __init__(self, message: str, is_counted: bool = False) -> None:
        super().__init__(message)
        self.is_counted = is_counted


class TryAgainError(Exception):
    """An answer that may be another one next time.

    Attributes:
        wait: seconds that the server asks to be left alone.
        is_unreachable: there was no answer at all.
        counts: whether it may be the request's fault.
    """

    def __init__(
        self,
        message: str,
        wait: float | None = None,
        is_unreachable: bool = False,
        counts: bool = True,
    ) -> None:
        super().__init__(message)
        self.wait, self.is_unreachable, self.counts = wait, is_unreachable, counts


@dataclass
class Server:
    """A server and its state.

    Attributes:
        address: where, and the key to it.
        model: name of the model in requests.
        dialect: what kind of server it is.
        max_length: context in tokens where the server tells.
        ready_at: when it may be asked again, on the monotonic clock.
        failing_since: when it began to fail; None while it answers.
        must_be_probed: it could not be reached, so it gets no request before it answers.
        num_answers: completions it has made.
    """

    address: ServerAddress
    model: str = ""
    dialect: Dialect = "openai"
    max_length: int | None = None
    ready_at: float = 0.0
    failing_since: float | None = None
    must_be_probed: bool = False
    num_pauses: int = 0
    num_answers: int = 0
    last_error: str = ""
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def learn(self, session: aiohttp.ClientSession, wanted: str | None) -> None:
        """Ask for its models and take in the answer.

        Raises:
            TryAgainError: where it does not answer.
            ServerError: where it does not have the wanted model.
        """
        try:
            models = await self.exchange(session, "models", None)
        except ServerError:
            if wanted is None:
                raise
            models = {}  # it does not tell; the name is all that is needed
        data = models.get("data")
        entries = [e for e in data if isinstance(e, Mapping)] if isinstance(data, list) else []
        names = [str(entry.get("id")) for entry in entries]
        if wanted is not None and names and wanted not in names:
            raise ServerError(f"{self.address.url} does not have {wanted!r}; it has {names}")
        if wanted is None and not names:
            raise ServerError(f"{self.address.url} lists no model; say which with served_name")
        self.model = wanted or names[0]
        entry = entries[names.index(self.model)] if self.model in names else {}
        self.dialect = dialect_of(entry)
        # An adapter's entry has no length; its base is listed, too.
        lengths = [e.get("max_model_len") for e in (entry, *entries)]
        self.max_length = next((n for n in lengths if isinstance(n, int)), None)
        self.must_be_probed, self.failing_since, self.num_pauses = False, None, 0

    def succeeded(self) -> None:
        """It made a completion."""
        self.num_answers += 1
        self.failing_since, self.num_pauses = None, 0

    def failed(self, failure: TryAgainError) -> None:
        """Leave it alone for a while, twice as long each time; half of it is chance."""
        now = time.monotonic()
        self.last_error = str(failure)
        self.must_be_probed |= failure.is_unreachable
        if self.failing_since is None:
            self.failing_since = now
        if self.ready_at <= now:  # what was under way together fails together, and counts once
            span = min(_FIRST_PAUSE * 2**self.num_pauses, _LONGEST_PAUSE)
            self.num_pauses += 1
            self.ready_at = now + span * _JITTER.uniform(0.5, 1.0)
        if failure.wait is not None:
            # The same answer goes to all who ask; they should not come back at the same moment.
            self.ready_at = max(self.ready_at, now + failure.wait * _JITTER.uniform(1.0, 1.1))

    async def exchange(
        self, session: aiohttp.ClientSession, path: str, body: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Send a body (None: just ask) and read the JSON of the answer.

        Raises:
            TryAgainError: where another try may help.
            NoRoomError: where it has no room for the prompt.
            ServerError: where the server refuses otherwise.
        """
        url, status, wait = f"{self.address.url}/{path}", 0, None
        try:
            async with session.request(
                "GET" if body is None else "POST",
                url,
                json=body,
                headers=self.address.headers(),
                allow_redirects=False,  # the key is for this server only
            ) as response:
                status = response.status
                wait = _retry_after(response.headers.get("Retry-After"))
                text = await response.text(errors="replace")
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise _no_answer(self.address.url, error) from error
        said = without_key(text, self.address)
        if status in _PASSING:
            raise TryAgainError(f"{url} answered {status}: {said}", wait, counts=status != 429)
        if status != 200:
            hint = self.address.key_hint(status)
            if 300 <= status < 400:
                hint = "it sends elsewhere; name the address that it sends to"
            is_context = status in (400, 413) and _CONTEXT.search(said)
            kind = NoRoomError if is_context else ServerError
            raise kind(f"{url} refused a request with {status}: {said}{hint}")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise TryAgainError(f"{url} answered with no JSON: {said}")
        return answer


def _no_answer(url: str, error: BaseException) -> TryAgainError:
    if isinstance(error, asyncio.TimeoutError) and not isinstance(error, aiohttp.ClientError):
        return TryAgainError(f"{url} took longer than server_timeout for a completion")
    what = str(error) or type(error).__name__
    return TryAgainError(f"{url} can't be reached: {what}", is_unreachable=True, counts=False)


def _retry_after(value: str | None) -> float | None:
    """Seconds of the header, a number or a date; None where there is none."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)
