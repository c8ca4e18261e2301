"""Texts with a row's columns in them: `{question}`, and `{meta[level]}` for a field inside of one.

A name between braces is a column's to the letter, with dots and blanks; brackets go into mappings
and lists. Left out: attributes of objects (`{a.b}` is the column `a.b`), conversions (`{a!r}`) and
formats (`{a:>10}`); a function (`prepare`) writes those.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from typing import Any

_FIELD = re.compile(r"[^\[\]]+(?:\[[^\[\]]+\])*")


class _Template(string.Formatter):
    """`str.format` for columns and what is in them, and not for attributes of objects."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        name, *inner = field_name.replace("]", "").split("[")
        value = kwargs[name]
        for key in inner:
            if value is None:
                break
            value = value[int(key)] if isinstance(value, (list, tuple)) else value[key]
        if isinstance(value, (Mapping, list, tuple)):
            return text_of(value), name
        return ("" if value is None else value), name


_template = _Template()


def fill(template: str, row: Mapping[str, Any]) -> str:
    """A template with a row's columns in it.

    What is None is an empty text, lists and mappings are JSON, all else is as Python writes it.
    """
    return _template.vformat(template, (), row)


def columns_of(template: str) -> list[str]:
    """The columns that a template names."""
    fields = [name for _, name, _, _ in _template.parse(template) if name is not None]
    return [name.partition("[")[0] for name in fields]


def template_fault(template: str) -> str | None:
    """What is wrong with a template, whatever the columns are."""
    try:
        parts = list(_template.parse(template))
    except ValueError as error:
        return f"{error}; a brace that is no column's is written twice, {{{{ or }}}}"
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if conversion or form:
            return (
                f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}: "
                f"conversions and formats are not supported; write {{{name}}}, or use `prepare`"
            )
        if not _FIELD.fullmatch(name) or not name.strip():
            return f"{{{name}}} names no column; write {{question}} or {{meta[level]}}"
    return None


def as_template(text: str) -> str:
    """A column's name or a template, as a template."""
    return text if "{" in text else f"{{{text}}}"


def value_of(text: str, row: Mapping[str, Any]) -> Any:
    """What a column's name or a template stands for."""
    return fill(text, row) if "{" in text else row[text]


def text_of(value: Any) -> str | None:
    """A value as a text: JSON for what is none."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
