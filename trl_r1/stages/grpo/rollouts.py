"""Every completion that RL generates, kept as parquet with its rewards.

One file a batch of completions and process, named by the optimizer step it was generated in, so
that steps trained again after a kill replace their files. `load_dataset(folder)` reads them all.
Left out: the prompt's token ids, which the chat template gives again.
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


class RolloutStore:
    """Writes rollouts to a folder.

    Args:
        folder: made where it is missing.
        reward_names: of the rewards; each becomes a column `reward_NAME`.
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
        self.reward_columns = _reward_columns(reward_names)
        own = pa.schema(
            [
                ("step", pa.int32()),
                ("completion", pa.string()),
                ("token_ids", pa.list_(pa.int32())),
                ("length", pa.int32()),
                ("is_truncated", pa.bool_()),
                *((name, pa.float32()) for name in self.reward_columns),
                ("reward", pa.float32()),
                ("advantage", pa.float32()),
            ]
        )
        self.data_columns = {
            name: f"data_{name}" if name in own.names else name for name in features
        }
        data = features.arrow_schema
        fields = [data.field(old).with_name(new) for old, new in self.data_columns.items()]
        self.schema = pa.schema([own.field("step"), *fields, *list(own)[1:]])
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
    ) -> Path:
        """Write this process's B completions of one generation.

        Args:
            step: optimizer step they were generated in, from 0.
            micro_step: micro-batch of that step.
            rows: their data set rows.
            completions: texts or messages.
            token_ids: completions as generated.
            end_ids: tokens that end one; where the last is none of them, it was cut off.
            rewards: B lists, one number or None a reward.
            totals: weighted sums, None where no reward applied.
            advantages: B numbers.
        """
        columns: dict[str, Any] = {
            "step": [step] * len(rows),
            **{new: [row.get(old) for row in rows] for old, new in self.data_columns.items()},
            "completion": [completion_text(completion) for completion in completions],
            "token_ids": token_ids,
            "length": [len(ids) for ids in token_ids],
            "is_truncated": [not ids or ids[-1] not in end_ids for ids in token_ids],
            "reward": totals,
            "advantage": advantages,
        }
        for i, name in enumerate(self.reward_columns):
            columns[name] = [row[i] for row in rewards]
        arrays = [pa.array(columns[f.name], type=f.type) for f in self.schema]
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        path = (
            self.folder / f"step-{step:07d}-{micro_step:04d}-rank-{self.process_index:03d}.parquet"
        )
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return path


def remove_rollouts_from(folder: Path, step: int) -> None:
    """Delete the rollouts of optimizer step `step` and later, and half-written files."""
    for path in folder.glob("step-*.parquet"):
        if int(path.name.split("-")[1]) >= step:
            path.unlink()
    for path in folder.glob(".*.partial"):
        path.unlink()


def _reward_columns(names: Sequence[str]) -> list[str]:
    """Column names of the rewards, a number behind a name that occurs again."""
    columns: list[str] = []
    for name in names:
        column, again = f"reward_{name}", 2
        while column in columns:
            column, again = f"reward_{name}_{again}", again + 1
        columns.append(column)
    return columns
