"""Samples as rows of a parquet file: what every stage that samples keeps of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from trl_r1.sampling import Sample

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def text_type(value: Any) -> pa.DataType:
    """The column type of a prompt or completion: text, or a list of messages."""
    return pa.string() if isinstance(value, str) else _MESSAGES


def sample_row(
    row: Mapping[str, Any], prompt_index: int, sample_index: int, sample: Sample
) -> dict[str, Any]:
    """What there is to keep of a sample whatever it is for.

    Args:
        row: the row it answers.
        prompt_index: which prompt of the stage that is.
        sample_index: which sample of the prompt this is.
        sample: the completion.
    """
    solution = row.get("solution")
    return {
        "prompt_index": prompt_index,
        "sample_index": sample_index,
        "prompt": row["prompt"],
        "completion": sample.text,
        "token_ids": sample.token_ids,
        "token_source": sample.token_source,
        "num_tokens": sample.length,
        "is_truncated": sample.is_truncated,
        "finish_reason": sample.finish_reason,
        "seed": sample.seed,
        "solution": None if solution is None else str(solution),
        "task": row.get("task"),
    }


def sample_schema(prompt: Any, extra: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """Column types of `sample_row`, then of the stage's own columns.

    Args:
        prompt: any row's prompt; all are text, or all are messages.
        extra: names and types of further columns.
    """
    return pa.schema(
        [
            ("prompt_index", pa.int64()),
            ("sample_index", pa.int64()),
            ("prompt", text_type(prompt)),
            ("completion", pa.string()),
            ("token_ids", pa.list_(pa.int64())),
            ("token_source", pa.string()),
            ("num_tokens", pa.int64()),
            ("is_truncated", pa.bool_()),
            ("finish_reason", pa.string()),
            ("seed", pa.int64()),
            ("solution", pa.string()),
            ("task", pa.string()),
            *extra,
        ]
    )
