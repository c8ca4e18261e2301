"""Whether the prompts and targets of rows are texts, or conversations that a template can render.

A template renders much that is wrong (a message without content, a number) to something, so that
training on it shows no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

# Columns that hold text or messages; a reference answer (`solution`) is looked at elsewhere.
_COLUMNS = ("prompt", "completion", "messages", "chosen", "rejected")
_MAX_ROWS = 2_000


def text_faults(rows: Dataset, place: str) -> Iterator[str]:
    """What is wrong with the texts of a source's first rows, a line a column.

    Args:
        rows: of one source.
        place: what messages call the source.
    """
    first = rows.select(range(min(len(rows), _MAX_ROWS)))
    for column in _COLUMNS:
        if column not in rows.column_names:
            continue
        found = [
            (i, fault) for i, value in enumerate(first[column]) if (fault := _fault(value, column))
        ]
        if found:
            index, fault = found[0]
            yield (
                f"{place}: {len(found)} of {len(first)} values of {column!r} can't be used, first "
                f"row {index}: {fault}; mend these rows or leave them out"
            )


def _fault(value: Any, column: str) -> str | None:
    if isinstance(value, str):
        # No answer at all may well be the worse one of a pair.
        return None if value.strip() or column == "rejected" else "it is empty"
    if value is None:
        return "it is missing"
    if not isinstance(value, list):
        return f"it is {str(value)[:40]!r}, neither text nor a list of messages"
    if not value:
        return "it has no messages"
    return next((fault for message in value if (fault := _message_fault(message))), None)


def _message_fault(message: Any) -> str | None:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        return f"{str(message)[:60]!r} is no message like {{role: user, content: ...}}"
    if not isinstance(message["role"], str):
        return f"a message's role is {message['role']!r}"
    # Calls of tools stand beside the content, which may then be missing.
    if message["content"] is None and not message.get("tool_calls"):
        return f"the content of a message of {message['role']!r} is missing"
    return None
