"""A finished `samples/`: its figures, and the dataset of what was accepted."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trl_r1.sampling.judging import KEPT, REASONS
from trl_r1.sampling.sample_rows import sample_schema, text_type
from trl_r1.sampling.shards import partial_folder, promote, read_shards, write_table


def judged_schema(prompt: Any, rewards: Sequence[str]) -> pa.Schema:
    """Column types of judged samples.

    Args:
        prompt: any row's prompt.
        rewards: names of what scored them.
    """
    scores = [(f"reward_{name}", pa.float64()) for name in rewards]
    rest = [("target", pa.string()), ("is_rewritten", pa.bool_()), ("verdict", pa.string())]
    return sample_schema(prompt, [*scores, *rest])


def sample_figures(samples: Path) -> dict[str, Any]:
    """Figures of a finished `samples/`: prompts, samples, kept, rejected by reason, rewritten, mean
    lengths in tokens."""
    verdicts: Counter[str] = Counter()
    prompts: set[int] = set()
    tokens = kept_tokens = rewritten = 0
    columns = ("prompt_index", "num_tokens", "verdict", "is_rewritten")
    for _, rows in read_shards(samples, columns):
        verdicts.update(row["verdict"] for row in rows)
        prompts.update(row["prompt_index"] for row in rows)
        tokens += sum(row["num_tokens"] for row in rows)
        kept_tokens += sum(row["num_tokens"] for row in rows if row["verdict"] == KEPT)
        rewritten += sum(bool(row["is_rewritten"]) for row in rows)
    total = sum(verdicts.values())
    kept = verdicts[KEPT]
    return {
        "prompts": len(prompts),
        "samples": total,
        "kept": kept,
        "rejected": {reason: verdicts[reason] for reason in REASONS if verdicts[reason]},
        **({"rewritten": rewritten} if rewritten else {}),
        "mean_length": tokens / total if total else 0.0,
        "mean_length_kept": kept_tokens / kept if kept else 0.0,
    }


def write_accepted(samples: Path, dataset: Path, source: str) -> None:
    """Write the accepted samples as rows for SFT.

    Args:
        samples: the finished folder.
        dataset: folder to write, with `prompt`, `completion`, `solution`, `task` and `source`.
        source: value of that column.
    """
    partial = partial_folder(dataset)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    schema: pa.Schema | None = None
    for path, rows in read_shards(samples):
        kept = [_dataset_row(row, source) for row in rows if row["verdict"] == KEPT]
        if not kept:
            continue
        schema = schema or _dataset_schema(kept[0]["prompt"])
        write_table(partial / path.name, kept, schema)
    promote(partial, dataset)


def _dataset_row(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    is_chat = not isinstance(row["prompt"], str)
    message = [{"role": "assistant", "content": row["target"]}]
    completion = message if is_chat else row["target"]
    carried = {key: row[key] for key in ("prompt", "solution", "task")}
    return {**carried, "completion": completion, "source": source}


def _dataset_schema(prompt: Any) -> pa.Schema:
    texts = [(name, text_type(prompt)) for name in ("prompt", "completion")]
    return pa.schema([*texts, *((name, pa.string()) for name in ("solution", "task", "source"))])
