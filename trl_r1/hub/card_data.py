"""What a data set's files hold, for its card: rows, columns, a sample row, what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trl_r1.data.card import DataLog
from trl_r1.hub.card_text import code, inline, row_as_json, table
from trl_r1.pipeline.ledger import StageRecord

# Beside those of the data that the rows come from.
COLUMN_WORDS = {
    "prompt": "messages up to the answer",
    "completion": "the answer",
    "solution": "the gold answer",
    "task": "which task the row is of",
    "source": "what made the row",
    "language": "language of the row",
    "chosen": "the better answer",
    "rejected": "the worse answer",
    "prompt_index": "which prompt of the stage",
    "sample_index": "which sample of the prompt",
    "token_ids": "of the completion",
    "token_source": "who gave the token ids",
    "num_tokens": "of the completion",
    "length": "of the completion in tokens",
    "is_truncated": "cut off at the limit of tokens",
    "finish_reason": "why generation ended",
    "seed": "of the sample",
    "target": "the completion as a target of SFT, tidied",
    "is_rewritten": "whether a model has rewritten its reasoning",
    "verdict": "`kept`, or why not",
    "step": "optimizer step that it was generated in",
    "weights": "hash of the weights that wrote it",
    "reward": "weighted sum of the rewards",
    "advantage": "over its group",
    "round": "0 for scheduled prompts, more for those that dynamic sampling has drawn",
    "is_used": "whether it was trained on",
    "problem_hash": "of the problem",
    "is_general": "a general prompt and no problem",
    "score": "1 right, 0 wrong, null where it could not be graded",
    "is_well_formed": "whether the format was kept",
    "preference": "score of the preference model",
    "answer": "as the grader read it",
    "vote": "the first answer of the problem that means the same",
    "language_share": "share of the reasoning in the wanted language",
}
REASON_WORDS = {
    "no_room": "the prompt left no room for an answer",
    "truncated": "cut off at the limit of tokens",
    "malformed": "not in the format",
    "ungradable": "could not be graded",
    "wrong": "a reward was below the limit",
    "repetitive": "repeats itself",
    "long_paragraph": "a long paragraph in the reasoning",
    "code_block": "a block of code in the reasoning",
    "mixed_language": "reasoning in more than one language",
    "duplicate": "the same response to the same prompt as another",
    "surplus": "more than wanted of one prompt",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
          (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"))  # fmt: skip


@dataclass(frozen=True)
class DataFiles:
    """The parquet files of a folder.

    Attributes:
        paths: of the files, in order.
        splits: `data_files` of a card's config.
        schema: of the first file; None without any.
        num_rows: of all.
    """

    paths: tuple[Path, ...]
    splits: list[dict[str, str]]
    schema: pa.Schema | None
    num_rows: int


def data_files(folder: Path) -> DataFiles:
    """What a folder's parquet files hold. Raises OSError or ArrowException for broken ones."""
    paths = tuple(sorted(folder.glob("*.parquet")))
    schema = pq.read_schema(paths[0]) if paths else None
    num_rows = sum(pq.read_metadata(path).num_rows for path in paths)
    return DataFiles(paths, [{"split": "train", "path": "*.parquet"}], schema, num_rows)


def size_category(num_rows: int) -> str:
    """The Hub's word for a number of rows."""
    return next((words for limit, words in _SIZES if num_rows < limit), "100M<n<1B")


def columns_table(schema: pa.Schema | None) -> str:
    """A row a column: name, type, meaning where it is known."""
    if schema is None:
        return ""
    rows = []
    for field in schema:
        reward = field.name.partition("reward_")[2]
        verdict = field.name.partition("verdict_")[2]
        words = COLUMN_WORDS.get(field.name, "")
        if not words and field.name.startswith("reward_"):
            words = f"the reward {inline(reward)}"
        elif not words and field.name.startswith("verdict_"):
            words = f"what became of grading with {inline(verdict)}"
        rows.append([code(field.name), code(_type_words(field.type)), words])
    return table(["column", "type", "what"], rows)


def _type_words(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_type
        if pa.types.is_struct(inner) and {field.name for field in inner} == {"role", "content"}:
            return "messages"
        return f"list of {_type_words(inner)}"
    return "struct" if pa.types.is_struct(kind) else str(kind)


def sample_row(files: DataFiles) -> str:
    """The first row as JSON, long values cut; empty where there is none."""
    for path in files.paths:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1):
            return row_as_json(batch.to_pylist()[0])
    return ""


def left_out_table(record: StageRecord) -> str:
    """What rejection sampling kept and why it left out the rest; empty for other stages."""
    details = record.details
    kept, samples = details.get("kept"), details.get("samples")
    if not isinstance(kept, int) or not isinstance(samples, int):
        return ""
    rows = [["**kept**", f"{kept:,}", _share(kept, samples), ""]]
    rejected = details.get("rejected")
    for reason, count in rejected.items() if isinstance(rejected, Mapping) else ():
        words = REASON_WORDS.get(str(reason), "")
        rows.append([inline(reason), _count(count), _share(count, samples), words])
    text = f"Of {samples:,} samples of {_count(details.get('prompts', 'the'))} prompts:"
    if details.get("rewritten"):
        text = f"{_count(details['rewritten'])} were rewritten by a model. {text}"
    return f"{text}\n\n{table(['verdict', 'samples', 'share', 'why'], rows)}"


def _share(count: Any, total: int) -> str:
    return f"{count / total:.1%}" if isinstance(count, int) and total else ""


def steps_table(log: DataLog) -> str:
    """The steps that the folder's own card told of; empty without any."""
    rows = [
        [inline(record.step), f"{_count(record.rows_before)} → {_count(record.rows_after)}",
         inline(record.text, 500)]
        for record in log.records
    ]  # fmt: skip
    return table(["step", "rows", "what"], rows) if rows else ""


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else inline(value)
