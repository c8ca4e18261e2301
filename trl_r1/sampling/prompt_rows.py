"""The rows of a sampling job: one a prompt, read from where they lie as they are needed.

All samples of a prompt lie in one shard, to be compared, so rows that repeat a prompt are left out.
A `Dataset` stays memory-mapped: what is kept here is a number and a hash a prompt (at 200,000
prompts 156 MB, file pages included, where as many dictionaries took 623 MB).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from datasets import Dataset

from trl_r1.sampling.prompts import check_prompt

_ROWS_AT_A_TIME = 1000
# A completion of the source is no column of a sample, and rewards get the sample's by these names.
_OF_THE_SAMPLE = frozenset({"completion", "completions", "completion_ids", "prompts"})


class PromptRows:
    """The first row of each prompt.

    Args:
        rows: each with a `prompt`; a `Dataset` or a list.

    Attributes:
        columns: names of what the rows hold.
        fingerprint: hash of what they hold.

    Raises:
        ValueError: for a prompt or task that is none, with its row.
    """

    def __init__(self, rows: Dataset | Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self._numbers = array("q")
        content = sha256()
        seen: set[bytes] = set()
        self._kinds: set[bool] = set()
        columns: dict[str, None] = {}
        for number, row in enumerate(_each(rows)):
            self._check(row, number)
            prompt = sha256(json.dumps(row["prompt"], sort_keys=True).encode()).digest()[:16]
            if prompt in seen:
                continue
            seen.add(prompt)
            self._numbers.append(number)
            kept = _own_columns(row)
            columns.update(dict.fromkeys(kept))
            text = json.dumps(kept, sort_keys=True, default=str)
            content.update(text.encode() + b"\n")
        self.columns = tuple(columns)
        self.fingerprint = content.hexdigest()[:16]

    def _check(self, row: Mapping[str, Any], number: int) -> None:
        check_prompt(row["prompt"], number)
        self._kinds.add(isinstance(row["prompt"], str))
        if len(self._kinds) > 1:
            raise ValueError(
                f"row {number}: its prompt is of another kind than those before; make all prompts "
                "texts, or all lists of messages"
            )
        task = row.get("task")
        if task is not None and not isinstance(task, str):
            raise ValueError(f"row {number}: its task is {task!r}; it has to be a name, or null")

    @classmethod
    def of(cls, rows: PromptRows | Dataset | Sequence[Mapping[str, Any]]) -> PromptRows:
        """The rows as such; those that are already are not read again."""
        return rows if isinstance(rows, PromptRows) else cls(rows)

    def __len__(self) -> int:
        return len(self._numbers)

    def part(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Rows `start` to `stop`, the end left out."""
        numbers = self._numbers[start:stop]
        if isinstance(self._rows, Dataset):
            found: Iterator[Mapping[str, Any]] = iter(self._rows.select(numbers))
        else:
            found = (self._rows[number] for number in numbers)
        return [_own_columns(row) for row in found]


def _each(rows: Dataset | Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    if not isinstance(rows, Dataset):
        yield from rows
        return
    for batch in rows.iter(_ROWS_AT_A_TIME):
        columns = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _own_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _OF_THE_SAMPLE}
