"""The keys of a recipe: which there are, of what type, and what to say of a wrong one.

Keys are the fields of dataclasses (TRL's configs and ours); types are checked strictly against
their annotations with pydantic, except that a whole number is a number.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal

import pydantic

from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.pipeline.ranges import range_fault

# YAML 1.1 wants a point and a signed exponent; without them it reads text.
_SCIENTIFIC = re.compile(r"([-+]?\d+)(?:\.(\d*))?[eE]([-+]?)(\d+)")


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a recipe.

    Attributes:
        name: the key.
        annotation: its type.
        owner: the dataclass whose field it is; None for an argument of a function.
    """

    name: str
    annotation: Any
    owner: type | None


@cache
def keys_of(*configs: type) -> Mapping[str, Key]:
    """The keys of dataclasses; a field of an earlier one hides its namesake in a later one."""
    keys: dict[str, Key] = {}
    for config in configs:
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if field.init and field.name not in keys:
                keys[field.name] = Key(field.name, hints[field.name], config)
    return keys


def check_keys(
    given: Mapping[str, Any], keys: Mapping[str, Key], also: Iterable[str] = (), prefix: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The values whose key is known and whose type is right, and what to say of the others.

    Args:
        given: the mapping as read.
        keys: the known keys.
        also: further keys that are known elsewhere; left out of the result.
        prefix: what to put before a nested key in messages, like `datasets[0].`.
    """
    values, messages = {}, []
    for name, value in given.items():
        if name in also:
            continue
        if name not in keys:
            messages.append(unknown_key(name, [*keys, *also], prefix))
            continue
        value, message = check_value(keys[name], value, prefix)
        if message:
            messages.append(message)
        else:
            values[name] = value
    return values, messages


def unknown_key(name: Any, known: Iterable[str], prefix: str = "") -> str:
    """The message for an unknown key."""
    place = f" in {prefix.rstrip('.')}" if prefix else ""
    return f"unknown key {name!r}{place}{suggestion(str(name), known)}"


def check_value(key: Key, value: Any, prefix: str = "") -> tuple[Any, str | None]:
    """The value in the key's type, or what is wrong with it."""
    name = f"{prefix}{key.name}"
    text = _number_as_text(value)
    if text is not None:
        return None, (
            f"{name} holds {text!r}, which YAML reads as text, not as a number; "
            f"write {as_yaml_float(text)}"
        )
    try:
        # JSON, since there a list may become a tuple and text an enum even in strict mode.
        document = json.dumps(value)
    except TypeError:
        return None, f"{name}: {value!r} is not plain data; put dates and the like in quotes"
    try:
        read = _adapter(key).validate_json(document, strict=True)
    except pydantic.ValidationError:
        hint = "; write null for nothing" if value == "None" else ""
        return (
            None,
            f"{name} should be {in_words(key.annotation)}, not {_short(value)}{hint}",
        )
    fault = range_fault(key.name, value) or _choice_fault(key, value)
    return (None, f"{name} {fault}") if fault else (read, None)


def _choice_fault(key: Key, value: Any) -> str | None:
    """For texts of which the config itself lists the allowed ones, as argparse would read it."""
    fields = dataclasses.fields(key.owner) if key.owner else ()
    field = next((f for f in fields if f.name == key.name), None)
    choices = list(field.metadata.get("choices") or ()) if field else []
    if not choices or value is None or value in choices:
        return None
    return f"should be one of {one_of(map(str, choices))}, not {_short(value)}" + suggestion(
        str(value), map(str, choices)
    )


@cache
def _adapter(key: Key) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(key.annotation)


def in_words(annotation: Any) -> str:
    """A type as people call it: `a whole number`, `text or a list`."""
    plain = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    if annotation in plain:
        return plain[annotation]
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return f"one of {one_of(map(str, typing.get_args(annotation)))}"
    if origin in (typing.Union, types.UnionType):
        arms = [in_words(a) for a in typing.get_args(annotation) if a is not type(None)]
        return " or ".join(dict.fromkeys(arms))
    base = origin or annotation
    if isinstance(base, type):
        if issubclass(base, Enum):
            return f"one of {one_of(str(member.value) for member in base)}"
        if issubclass(base, Mapping):
            return "a mapping"
        if issubclass(base, (list, tuple, set, typing.Sequence)):
            arguments = [a for a in typing.get_args(annotation) if a is not Ellipsis]
            of = {float: " of numbers", int: " of whole numbers", str: " of texts"}
            of[dict] = " of mappings"
            kinds = {typing.get_origin(a) or a for a in arguments}
            return "a list" + (of.get(kinds.pop(), "") if len(kinds) == 1 else "")
    return str(getattr(annotation, "__name__", annotation))


def as_yaml_float(text: str) -> str:
    """`1e-6` as YAML reads a number: `1.0e-6`."""
    match = _SCIENTIFIC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no number in scientific notation")
    whole, fraction, sign, exponent = match.groups()
    return f"{whole}.{fraction or '0'}e{sign or '+'}{exponent}"


def _number_as_text(value: Any) -> str | None:
    """The first text like `1e-6` in a value; nobody means text by it."""
    if isinstance(value, str):
        return value if _SCIENTIFIC.fullmatch(value.strip()) else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((text for item in items if (text := _number_as_text(item)) is not None), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
