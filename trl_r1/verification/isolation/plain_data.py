"""Plain data on the wire: JSON with tags, the only thing that leaves a program.

Encoding happens beside untrusted code and may be subverted; decoding trusts nothing. What arrives
is rebuilt out of the built-in types below and no other, so an object with an `__eq__` of its own, a
`str` that lies or a pickle can't come out. Left out on purpose: instances of classes, functions,
modules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Set
from typing import Any

_SAFE_INT = 1 << 53
_MAX_DEPTH = 200
_MAX_COLLISIONS = 32


class NotPlainError(TypeError):
    """A value that plain data can't stand for."""


class MalformedError(ValueError):
    """Bytes that are no encoding of plain data, or are built to be costly."""


def dumps(value: Any) -> bytes:
    """The encoding of a value, one line of ASCII.

    Subclasses of built-in types are sent as the built-in type; iterators are used up.

    Raises:
        NotPlainError: for anything else, or nesting deeper than 200.
    """
    return json.dumps(_encode(value, 0), separators=(",", ":")).encode("ascii")


def loads(data: bytes | str) -> Any:
    """The value that was encoded. A `range` and an iterator come back as such.

    Raises:
        MalformedError: for anything that `dumps` would not have written.
    """
    try:
        return _decode(json.loads(data, parse_int=_short_int, parse_constant=_no_constant), 0)
    except (ValueError, TypeError, RecursionError, OverflowError, KeyError) as error:
        raise MalformedError(f"{type(error).__name__}: {error}"[:200]) from None


def _short_int(text: str) -> int:
    if len(text) > 17:  # long ones come as hexadecimal, which is read in linear time
        raise ValueError("integer literal out of range")
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"constant {text}")


def _encode(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise NotPlainError("nested too deep")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value
    if isinstance(value, bool | int):
        number = int.__index__(value)
        return number if -_SAFE_INT < number < _SAFE_INT else {"i": format(number, "x")}
    if isinstance(value, float):
        number_f = float.__float__(value)
        return number_f if math.isfinite(number_f) else {"f": float.__repr__(number_f)}
    if isinstance(value, complex):
        return {"c": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    return _encode_collection(value, depth + 1)


def _encode_collection(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return [_encode(item, depth) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"t": [_encode(item, depth) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {"d": [[_encode(k, depth), _encode(v, depth)] for k, v in dict.items(value)]}
    if isinstance(value, set):
        return {"s": [_encode(item, depth) for item in set.__iter__(value)]}
    if isinstance(value, frozenset):
        return {"z": [_encode(item, depth) for item in frozenset.__iter__(value)]}
    if isinstance(value, range):
        return {"r": [_encode(n, depth) for n in (value.start, value.stop, value.step)]}
    is_iterator = isinstance(value, Iterator | Set) or type(value).__name__ == "dict_values"
    if is_iterator and type(value).__module__ in ("builtins", "itertools", "collections"):
        return {"n": [_encode(item, depth) for item in value]}
    if type(value).__module__ == "collections" and type(value).__name__ == "deque":
        return {"n": [_encode(item, depth) for item in value]}
    raise NotPlainError(f"a {type(value).__name__} is not plain data")


def _decode(tree: Any, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH + 4:
        raise MalformedError("nested too deep")
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, list):
        return [_decode(item, depth + 1) for item in tree]
    if not isinstance(tree, dict) or len(tree) != 1:
        raise MalformedError("not a tagged value")
    (tag, body) = next(iter(tree.items()))
    return _decode_tagged(tag, body, depth + 1)


def _decode_tagged(tag: str, body: Any, depth: int) -> Any:
    if tag in _SCALARS:
        return _SCALARS[tag](body)
    if not isinstance(body, list):
        raise MalformedError("a collection without its items")
    if tag == "d":
        pairs = [(_decode(k, depth), _decode(v, depth)) for k, v in body]
        _check_collisions([k for k, _ in pairs])
        return dict(pairs)
    if tag not in _COLLECTIONS:
        raise MalformedError(f"unknown tag {tag[:20]!r}")
    items = [_decode(item, depth) for item in body]
    if tag in ("s", "z"):
        _check_collisions(items)
    return _COLLECTIONS[tag](items)


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "i": lambda body: int(body, 16),
    "f": lambda body: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[body],
    "c": lambda body: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "b": bytes.fromhex,
}
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "t": tuple,
    "s": set,
    "z": frozenset,
    "r": lambda items: range(*[int(n) for n in items]),
    "n": iter,
}


def _check_collisions(keys: list[Any]) -> None:
    """Refuse keys chosen to share a hash: a table of them takes quadratic time to build."""
    hashes = sorted(map(hash, keys))
    step = _MAX_COLLISIONS
    if any(a == b for a, b in zip(hashes, hashes[step:], strict=False)):
        raise MalformedError("keys that collide")
