"""Trouble on request: answers that are errors, connections that break, requests that are held."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field

from fake_hub.routes import RefusalError, Request, Response


@dataclass
class Fault:
    """What befalls the requests that match.

    Args:
        method: of the request; None for any.
        path_regex: searched in the path, which is still quoted and has no query.
        times: how many requests it befalls; None for all.
        skip: how many requests that match pass before.
        origin: `hub`, `storage`, or None for both.

    Attributes:
        num_hits: requests that it has befallen.
    """

    method: str | None = None
    path_regex: str = ""
    times: int | None = 1
    skip: int = 0
    origin: str | None = None
    num_hits: int = field(default=0, init=False)

    def takes(self, request: Request) -> bool:
        """Whether it befalls this request; counts it if so."""
        if self.method not in (None, request.method) or self.times == 0:
            return False
        if self.origin not in (None, request.origin):
            return False
        if not re.search(self.path_regex, request.path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.num_hits += 1
        return True


@dataclass
class Fail(Fault):
    """An error instead of an answer; nothing is done. `headers` go with it."""

    status: int = 500
    retry_after: int | None = None
    error_code: str | None = None
    message: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """The error as the Hub would send it."""
        refusal = RefusalError(
            self.status, self.message or f"injected {self.status}", self.error_code
        )
        refusal.headers.update(self.headers)
        if self.retry_after is not None:
            refusal.headers["Retry-After"] = str(self.retry_after)
        return refusal.response()


@dataclass
class Drop(Fault):
    """A connection that closes.

    With `request_bytes` it does so after so many bytes of the request's body, and nothing is done;
    with `response_bytes` everything is done, and so many bytes of the answer's body go out (0: the
    answer is lost); with neither at once. `reset` sends a TCP reset instead of an orderly end.
    """

    request_bytes: int | None = None
    response_bytes: int | None = None
    reset: bool = False


@dataclass
class Stall(Fault):
    """A request that is held until `release`.

    With `request_bytes` it is held after so many bytes of its body; with `response_bytes` after
    everything is done and so many bytes of the answer's body are out; with neither when all of it
    has come in and nothing is done yet.
    """

    request_bytes: int | None = None
    response_bytes: int | None = None
    _reached: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    @property
    def is_between(self) -> bool:
        """Whether it holds a request between its coming in and its being done."""
        return self.request_bytes is None and self.response_bytes is None

    def wait(self, timeout: float = 30.0) -> None:
        """Return when a request is held.

        Raises:
            TimeoutError: if none came in time.
        """
        if not self._reached.wait(timeout):
            raise TimeoutError(f"no {self.method or 'request'} of {self.path_regex!r} was held")

    def release(self) -> None:
        """Let what is held, and what comes after, go on."""
        self._released.set()

    def hold(self) -> None:
        """Hold the thread that serves the request."""
        self._reached.set()
        self._released.wait()
