"""Every completion that RL generates, kept as parquet with what became of it.

One file a batch of completions and process, named by the optimizer step it was generated in, so
that steps trained again after a kill replace their files. A file is complete or not there.
`load_dataset(folder)` reads them all, and a later stage can take them as `@zero/rollouts`: prompt
and completion are in the form that TRL trains on. Left out: the prompt's token ids, which the chat
template gives again, and tool calls, of which the token ids tell.

Columns, beside those of the data set: `step`; `weights`, which policy it was
(`weights_hash.py`); `completion`, as messages where the prompts are; `token_ids`, `length`,
`is_truncated`; for each reward `reward_NAME` and `verdict_NAME` (`ok`, `not gradable`, `left out`
where it does not apply, and the pool's `timed out`, `out of memory`, `crashed`, `error`); `reward`,
their weighted sum; `advantage`; `round`, 0 for the scheduled prompts and more for those that
dynamic sampling has drawn; `is_used`, whether the row was trained on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features

from trl_r1.rewards.think_format import completion_text

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


class RolloutStore:
    """Writes rollouts to a folder.

    Args:
        folder: made where it is missing.
        reward_names: of the rewards; each becomes the columns `reward_NAME` and `verdict_NAME`.
        features: of the data set; its columns are kept, as `data_NAME` where one has the name of a
            column here.
        process_index: of this process, part of the file names.
    """

    def __init__(
        self,
        folder: Path,
        reward_names: Sequence[str],
        features: Features,
        process_index: int = 0,
    ) -> None:
        self.folder = folder
        self.process_index = process_index
        self.names = _unique(reward_names)
        self._written: set[str] = set()
        prompt = features.arrow_schema.field("prompt").type if "prompt" in features else None
        self.is_conversational = prompt is not None and not pa.types.is_string(prompt)
        own = pa.schema(
            [
                ("step", pa.int32()),
                ("weights", pa.string()),
                ("completion", _MESSAGES if self.is_conversational else pa.string()),
                ("token_ids", pa.list_(pa.int32())),
                ("length", pa.int32()),
                ("is_truncated", pa.bool_()),
                *((f"reward_{name}", pa.float32()) for name in self.names),
                *((f"verdict_{name}", pa.string()) for name in self.names),
                ("reward", pa.float32()),
                ("advantage", pa.float32()),
                ("round", pa.int32()),
                ("is_used", pa.bool_()),
            ]
        )
        self.data_columns: dict[str, str] = {}
        for name in features:
            column = name
            while column in own.names or column in self.data_columns.values():
                column = f"data_{column}"  # rollouts that are data again have such names already
            self.data_columns[name] = column
        data = features.arrow_schema
        fields = [data.field(old).with_name(new) for old, new in self.data_columns.items()]
        self.schema = pa.schema([*list(own)[:2], *fields, *list(own)[2:]])
        folder.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        step: int,
        micro_step: int,
        rows: Sequence[Mapping[str, Any]],
        completions: Sequence[Any],
        token_ids: Sequence[Sequence[int]],
        end_ids: set[int],
        rewards: Sequence[Sequence[float | None]],
        totals: Sequence[float | None],
        advantages: Sequence[float],
        verdicts: Sequence[Sequence[str]] | None = None,
        weights: str = "",
        round_index: int = 0,
        is_used: Sequence[bool] | None = None,
    ) -> Path:
        """Write this process's B completions of one generation.

        Args:
            step: optimizer step they were generated in, from 0.
            micro_step: micro-batch of that step. Where one step generates several times, the files
                of one call after another get numbers.
            rows: their data set rows.
            completions: texts or messages.
            token_ids: completions as generated.
            end_ids: tokens that end one; where the last is none of them, it was cut off.
            rewards: B lists, one number or None a reward.
            totals: weighted sums, None where no reward applied.
            advantages: B numbers.
            verdicts: B lists, one text a reward; without them `ok`, or `not gradable` for a None.
            weights: hash of the weights that generated them.
            round_index: 0 for the scheduled prompts, then the rounds of dynamic sampling.
            is_used: B answers whether the row is trained on; None for all.
        """
        if verdicts is None:
            verdicts = [["not gradable" if r is None else "ok" for r in row] for row in rewards]
        columns: dict[str, Any] = {
            "step": [step] * len(rows),
            "weights": [weights] * len(rows),
            **{new: [row.get(old) for row in rows] for old, new in self.data_columns.items()},
            "completion": [self._completion(completion) for completion in completions],
            "token_ids": token_ids,
            "length": [len(ids) for ids in token_ids],
            "is_truncated": [not ids or ids[-1] not in end_ids for ids in token_ids],
            "reward": totals,
            "advantage": advantages,
            "round": [round_index] * len(rows),
            "is_used": [True] * len(rows) if is_used is None else is_used,
        }
        for i, name in enumerate(self.names):
            columns[f"reward_{name}"] = [row[i] for row in rewards]
            columns[f"verdict_{name}"] = [row[i] for row in verdicts]
        arrays = [pa.array(columns[f.name], type=f.type) for f in self.schema]
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        path = self._path(step, micro_step)
        _write_in_one_piece(table, path)
        return path

    def _completion(self, completion: Any) -> Any:
        if not self.is_conversational:
            return completion_text(completion)
        if completion is None or isinstance(completion, str):
            return [{"role": "assistant", "content": completion or ""}]
        return [
            {
                "role": message.get("role"),
                "content": completion_text([{"content": message.get("content")}]),
            }
            for message in completion
        ]

    def _path(self, step: int, micro_step: int) -> Path:
        stem = f"step-{step:07d}-{micro_step:04d}-rank-{self.process_index:03d}"
        name, again = f"{stem}.parquet", 2
        while name in self._written:
            name, again = f"{stem}-{again}.parquet", again + 1
        self._written.add(name)
        return self.folder / name

    def forget_from(self, step: int) -> None:
        """Let the files of optimizer step `step` and later be written again."""
        self._written = {name for name in self._written if int(name.split("-")[1]) < step}


def _write_in_one_piece(table: pa.Table, path: Path) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def remove_rollouts_from(folder: Path, step: int) -> None:
    """Delete the rollouts of optimizer step `step` and later, and half-written files."""
    for path in folder.glob("step-*.parquet"):
        if int(path.name.split("-")[1]) >= step:
            path.unlink()
    for path in folder.glob(".*.partial"):
        path.unlink()


def _unique(names: Sequence[str]) -> list[str]:
    """The names, a number behind one that occurs again."""
    unique: list[str] = []
    for name in names:
        own, again = name, 2
        while own in unique:
            own, again = f"{name}_{again}", again + 1
        unique.append(own)
    return unique
