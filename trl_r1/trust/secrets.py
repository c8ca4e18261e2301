"""What is a secret, and texts and values without it: the one owner of both.

A secret is known by the name of its key (`hub_token`), by its shape (`hf_...`, `sk-...`, a password
in an address) or by its value: what environment variables like `HF_TOKEN` and the Hub's token files
hold, and what was read under such a key. Values are known in the forms that text carries them in,
too: as in an address, as in JSON, and as base64.

Left out: secrets that nothing marks as such.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote, quote_plus

MASK = "***"
NOT_STORED = "(not stored)"
# Not every `..._token`: `eos_token` and `pad_token` are settings.
_KEY = re.compile(
    r"(.*_)?(hub|hf|auth|access|api|bearer|refresh|session)_?token|token|authorization"
    r"|(.*_)?(passwd|pwd|cookie|credentials?)"
    r"|.*(api_?key|access_?key|private_?key|password|secret|secret_?key)"
)
_VARIABLE = re.compile(
    r"(.*_)?(TOKEN|API_?KEY|ACCESS_KEY|SECRET|SECRET_KEY|PRIVATE_KEY|PASSWORD|PASSWD|CREDENTIALS"
    r"|PAT)(_\d+)?",
    re.IGNORECASE,
)
# Shapes of secrets, each with texts of which one is in every text that has such a one: a look for
# these costs a tenth. A group is kept.
_SHAPES = tuple(
    (needles, re.compile(pattern, re.IGNORECASE if needles[0].islower() else 0))
    for needles, pattern in (
        # The Hub's; OpenAI's and of those that copy it; code hosts', clouds' and others'.
        (("hf_", "api_org_"), r"(\b)(?:hf_|api_org_|hf_oauth_)[A-Za-z0-9]{16,}"),
        (("sk-",), r"(\b)sk-[\w-]{16,}"),
        (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"(\b)gh[pousr]_[A-Za-z0-9]{20,}"),
        (("github_pat_", "glpat-"), r"(\b)(?:github_pat_\w{20,}|glpat-[\w-]{16,})"),
        (("xox", "e2b_"), r"(\b)(?:xox[abprs]-[\w-]{10,}|e2b_[A-Za-z0-9]{20,})"),
        (("AKIA", "ASIA", "AIza"), r"(\b)(?:(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,})"),
        # A JSON web token; a key in PEM; a header; a password, and a query, in an address.
        (("eyJ",), r"(\b)eyJ[\w-]{8,512}\.[\w-]{8,}\.[\w-]*"),
        (("PRIVATE KEY",), r"(PRIVATE KEY-----)[^-]+"),
        (("bearer ", "basic "), r"(\b(?:bearer|basic) )(?=\S*[\d=])[\w.~+/=-]{8,}"),
        (("://",), r"(://)[^\s/@:\"']*:[^\s/@\"']+(?=@)"),
        (
            ("?", "&"),
            r"([?&](?:token|(?:api_?)?key|access_token|password|sig(?:nature)?|x-amz-(?:signature"
            r"|security-token|credential))=)[^\s&#\"'<>]+",
        ),
    )
)
# Shorter values, and plain words, would be masked where they are no secret.
_SURE_LENGTH, _LEAST_LENGTH = 16, 8

_told: dict[str, None] = {}
_only_own: ContextVar[bool] = ContextVar("only_own", default=False)


class Secret(str):
    """A secret on its way to whoever needs it: a text, but neither shown nor pickled as one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (NOT_STORED,)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: Any) -> Secret:
        return self


def is_secret(key: str) -> bool:
    """Whether a key's name says that its value is a secret: `hub_token`, `api_key`."""
    return _KEY.fullmatch(key.lower().replace("-", "_")) is not None


def remember(value: Any) -> None:
    """Take a value, or every text in one, for a secret from now on; what is too short to be told
    apart is left."""
    if isinstance(value, str) and len(value.strip()) >= _LEAST_LENGTH:
        _told[value.strip()] = None
    for _, item in _paths(value, ""):
        if isinstance(item, str):
            remember(item)


def remember_in(value: Any) -> None:
    """Remember what stands under keys that name secrets, anywhere in a value."""
    for key, item in _pairs(value):
        if is_secret(key):
            remember(item)


def guarded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping whose secrets are `Secret`s, and remembered."""
    remember_in(values)
    return {
        key: Secret(value) if isinstance(value, str) and value and is_secret(key) else value
        for key, value in values.items()
    }


@contextmanager
def only_own_masked() -> Iterator[None]:
    """For a while only the user's own secrets are masked: a stranger, whose code is to be shown,
    could call it a secret, or write it in the shape of one."""
    token = _only_own.set(True)
    try:
        yield
    finally:
        _only_own.reset(token)


def mask(text: str, by: str = MASK) -> str:
    """A text with `***`, or something else, for every secret in it."""
    told = () if _only_own.get() else tuple(_told)
    known = _pattern((*_known(), *told))
    text = known.sub(by, text) if known else text
    if _only_own.get():
        return text
    small = text.lower()
    for needles, shape in _SHAPES:
        if any(needle in small or needle in text for needle in needles):
            text = shape.sub(rf"\g<1>{by}", text)
    return text


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values fit to be stored: those of keys that name a secret are replaced, secrets in texts
    masked."""
    return {
        key: NOT_STORED if is_secret(str(key)) and value not in (None, "") else clean(value)
        for key, value in values.items()
    }


@overload
def clean(value: str) -> str: ...
@overload
def clean(value: Any) -> Any: ...
def clean(value: Any) -> Any:
    """Plain data without secrets, as `without_secrets`."""
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return mask(value) if isinstance(value, str) else value


def nested_secrets(values: Mapping[str, Any]) -> Iterator[str]:
    """Keys inside of values that name a secret and hold one, as `model_init_kwargs.token`."""
    for key, value in values.items():
        for path, item in _paths(value, key):
            if item not in (None, "") and is_secret(path.rpartition(".")[2]):
                yield path


def holds_secret(text: str) -> bool:
    """Whether a text has a secret in it, by shape or value."""
    return mask(text) != text


def _paths(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path}.{key}", item
            yield from _paths(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
            yield from _paths(item, f"{path}[{index}]")


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key), item
            yield from _pairs(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _pairs(item)


def _known() -> Iterator[str]:
    """The user's own secrets: of the environment and the Hub's files."""
    for name, value in os.environ.items():
        if _VARIABLE.fullmatch(name) and _is_telling(value):
            yield value.strip()
    # As the Hub's client finds them; `Path.home` fails where there is no home.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache"))
    home = os.environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    token = Path(os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or str(Path(home) / "token")))  # noqa: PTH111
    yield from _of_files((token, token.with_name("stored_tokens")))


def _is_telling(value: str) -> bool:
    text = value.strip()
    if len(text) >= _SURE_LENGTH:
        return not text.startswith(("/", "~", "."))  # the path of a file with credentials
    return len(text) >= _LEAST_LENGTH and any(c.isdigit() for c in text) and not text.isdigit()


def _of_files(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        yield from _of_file(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _of_file(path: Path, changed: int, size: int) -> tuple[str, ...]:
    """The tokens in one of the Hub's files: alone, or as `hf_token = ...` of several."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace")[: 1 << 16].splitlines()
    except OSError:
        return ()
    found = (line.rpartition("=")[2].strip() for line in lines if not line.startswith("["))
    return tuple(text for text in found if len(text) >= _LEAST_LENGTH)


@lru_cache(maxsize=64)
def _pattern(known: tuple[str, ...]) -> re.Pattern[str] | None:
    forms = {form for value in known for form in _forms(value)}
    ordered = sorted(forms, key=len, reverse=True)  # a longer one may begin with a shorter one
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _forms(value: str) -> Iterator[str]:
    """A value as texts may carry it."""
    # A variable may hold bytes that are no text.
    quoted = (how(value, safe="", errors="surrogateescape") for how in (quote, quote_plus))
    yield from (value, *quoted, json.dumps(value)[1:-1])
    data = value.encode(errors="surrogateescape")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(3):  # as a part of something longer, it may begin at any of three bits
            text = encode(b"\0" * offset + data).decode().rstrip("=")
            first = (0, 2, 3)[offset]
            last = len(text) if (offset + len(data)) % 3 == 0 else len(text) - 1
            yield text[first:last]
