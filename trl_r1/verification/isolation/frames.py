"""Frames between trainer and supervisor: a JSON header and raw bytes, each with its length."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("!II")


def send(connection: socket.socket, header: dict[str, Any], payload: bytes = b"") -> None:
    """Send one frame.

    Raises:
        OSError: the other side is gone, or slower than the socket's timeout.
    """
    encoded = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(encoded), len(payload)) + encoded + payload)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None at the end of the connection.

    Raises:
        OSError: likewise, or past the socket's timeout.
    """
    lengths = _exactly(connection, _LENGTHS.size)
    if lengths is None:
        return None
    header_size, payload_size = _LENGTHS.unpack(lengths)
    header, payload = _exactly(connection, header_size), _exactly(connection, payload_size)
    if header is None or payload is None:
        return None
    parsed: dict[str, Any] = json.loads(header)
    return parsed, payload


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return bytes(buffer)
