"""HTTP for the fake Hub: two threaded servers, one for the Hub and one for its storage.

Large files lie at another address, as on the real Hub, so that a test sees who gets a token.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

from fake_hub.faults import Drop, Fail, Fault, Stall
from fake_hub.routes import Request, Response, parse_query

READ_BYTES = 1 << 16


class Owner(Protocol):
    """What the servers need: faults and answers."""

    def receive(self, request: Request) -> Fault | None: ...
    def answer(self, request: Request) -> Response: ...


class _BrokenError(Exception):
    """The connection is to be closed without (the rest of) an answer."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Every thread of a client may connect at once.
    request_queue_size = 128

    def __init__(self, owner: Owner, origin: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner, self.origin = owner, origin
        self.connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection, remembered until it ends."""
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        """The end of a connection."""
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else is shown."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body go out apart; waiting for the other's acknowledgement costs 40 ms a request.
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """The log is `FakeHub.requests`."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        query = parse_query(parts.query)
        request = Request(self.server.origin, self.command, parts.path, query, headers)
        fault = self.server.owner.receive(request)
        try:
            self._read(request, fault)
            if isinstance(fault, Stall) and fault.is_between:
                fault.hold()
            if isinstance(fault, Fail):
                response = fault.response()
            else:
                response = self.server.owner.answer(request)
            self._send(request, response, fault)
        except (_BrokenError, ConnectionError):
            self._close(reset=isinstance(fault, Drop) and fault.reset)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _read(self, request: Request, fault: Fault | None) -> None:
        """Read the body, with what befalls the request meanwhile."""
        cut = fault.request_bytes if isinstance(fault, (Drop, Stall)) else None
        if isinstance(fault, Drop) and cut is None and fault.response_bytes is None:
            raise _BrokenError
        chunks: list[bytes] = []
        for chunk in self._pieces(request, cut):
            chunks.append(chunk)
            request.num_received += len(chunk)
            if cut is not None and request.num_received >= cut:
                if isinstance(fault, Drop):
                    raise _BrokenError
                if isinstance(fault, Stall):
                    fault.hold()
                    cut = None
        request.body = b"".join(chunks)
        if cut is not None and isinstance(fault, Drop):
            raise _BrokenError

    def _pieces(self, request: Request, cut: int | None) -> Iterator[bytes]:
        """The body in pieces, one of which ends at byte `cut`."""
        if "chunked" not in request.headers.get("transfer-encoding", ""):
            yield from self._exactly(int(request.headers.get("content-length", "0")), cut)
            return
        seen = 0
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            yield from self._exactly(size, None if cut is None or cut <= seen else cut - seen)
            seen += size
            self.rfile.readline()
        self.rfile.readline()

    def _exactly(self, length: int, cut: int | None) -> Iterator[bytes]:
        done = 0
        while done < length:
            stop = cut if cut is not None and done < cut < length else length
            chunk = self.rfile.read(min(READ_BYTES, stop - done))
            if not chunk:
                raise _BrokenError
            done += len(chunk)
            yield chunk

    def _send(self, request: Request, response: Response, fault: Fault | None) -> None:
        body = response.content()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        # Set once here, so that a test can count what a client was told even if it goes away.
        request.status = response.status
        with contextlib.suppress(ValueError):
            headers["X-Request-Id"] = f"fake-{HTTPStatus(response.status).name.lower()}"
        cut = fault.response_bytes if isinstance(fault, (Drop, Stall)) else None
        if isinstance(fault, Drop) and cut == 0:
            request.status = None
            raise _BrokenError
        self.send_response_only(response.status)
        for key, value in {"Date": formatdate(usegmt=True), **headers, **response.headers}.items():
            # Headers are latin-1; a message may hold anything.
            self.send_header(key, value.encode("latin-1", "replace").decode("latin-1"))
        self.end_headers()
        body = b"" if request.method == "HEAD" else body
        first = body if cut is None else body[:cut]
        self.wfile.write(first)
        request.num_sent = len(first)
        if cut is not None and isinstance(fault, Drop):
            raise _BrokenError
        if cut is not None and isinstance(fault, Stall):
            fault.hold()
            self.wfile.write(body[cut:])
            request.num_sent = len(body)

    def _close(self, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def serve(owner: Owner, origin: str) -> tuple[str, Callable[[], None]]:
    """Start a server; returns its address and what stops it."""
    server = _Server(owner, origin)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        # A client keeps its connections, and would get answers on them.
        for connection in list(server.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()

    return f"http://127.0.0.1:{server.server_address[1]}", stop
