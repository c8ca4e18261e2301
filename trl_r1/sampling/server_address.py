"""Where a server is, and the key to it, which comes from the environment and goes nowhere else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from trl_r1.trust.secrets import MASK, mask, remember

KEY_VARIABLE = "TRL_R1_API_KEY"


@dataclass(frozen=True)
class ServerAddress:
    """A server.

    Attributes:
        url: its base, `http://host:8000/v1`.
        key: sent to it as a bearer token; never shown or stored.
        key_variable: environment variable that the key is from.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    key_variable: str = KEY_VARIABLE

    @classmethod
    def parse(cls, text: str, key_variable: str = KEY_VARIABLE) -> ServerAddress:
        """An address as people write it; `/v1` is added where there is no path.

        Raises:
            ValueError: for what is no http(s) address, or has a password in it.
        """
        try:
            parts = urlsplit(text.strip())
            is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_server = is_server and parts.port != 0  # which raises for what is no port
        except ValueError:
            is_server = False
        if not is_server:
            raise ValueError(f"{_shown(text)!r} is no server; write http://host:port/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError(
                f"the server at {parts.hostname} has a key or a query in its address, and "
                f"addresses are stored; put the key into the environment variable {key_variable}"
            )
        path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
        url = f"{parts.scheme}://{parts.netloc}{path or '/v1'}"
        key = os.environ.get(key_variable) or None
        remember(key)
        return cls(url, key, key_variable)

    def headers(self) -> dict[str, str]:
        """Of every request to it."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def key_hint(self, status: int) -> str:
        """What to do about a refusal for want of a key; empty for other refusals."""
        if status not in (401, 403):
            return ""
        state = "holds another one" if self.key else "is not set"
        return f"; it wants a key, and the environment variable {self.key_variable} {state}"


def is_server(text: str) -> bool:
    """Whether a name is the address of a server."""
    return text.lower().startswith(("http://", "https://"))


def lacks_scheme(text: str) -> bool:
    """Whether a name is the address of a server but for `http://`: `localhost:8000/v1`."""
    return re.fullmatch(r"[\w.-]+:\d{2,5}(/v1)?/?", text) is not None


def _shown(text: str) -> str:
    """An address without what may be a key in it."""
    return re.sub(r"//.*@", "//***@", text).partition("?")[0]


def without_key(text: str, address: ServerAddress) -> str:
    """What a server said, cut short, without the key that some servers repeat."""
    # Before the cut, which may leave half of a key.
    clean = mask(text.replace(address.key, MASK) if address.key else text)
    return " ".join(clean.split())[:300]
