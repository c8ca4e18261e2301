"""What an evaluation leaves in its folder, of `trl-r1 eval` and of the stage `evaluation`.

- `samples/*.parquet`: every sample: `prompt_index`, `sample_index`, `prompt`, `completion`,
  `token_ids`, `token_source`, `num_tokens`, `is_truncated`, `finish_reason`, `seed`, `solution`,
  `task`, then `problem_hash` (`problems.problem_hash`), `is_general`, `score` (1.0 right, 0.0
  wrong, null where it could not be graded, which counts as wrong), `is_well_formed`, `preference`,
  `answer` (as read by the grader, null for none), `vote` (the problem's first answer that means the
  same; null where none is cast) and `language_share`.
- `problems.parquet`: a row a problem: `problem_index`, `problem_hash`, `task`, `solution`,
  `is_general`, `num_samples`, `num_right`, `num_ungraded`, `pass_rate`, `majority_answer`,
  `majority_votes`, `majority_score`, `mean_length` (tokens), `truncated`, `format` (shares).
- `evaluation.json`: `version` (2); `model`; `scores` over all problems and `tasks`, the same of
  each task by name (keys: see `scores`); `problems`, `samples`, `duplicates`, `ungradable`;
  `settings`; `template` (`reasoning_format`, the `system_prompt` and the `chat_template_hash`,
  null where a server has its own); `versions` of packages; `seconds`, `made_at` (UTC).

The runner, which scores a model before and after each stage, leaves a part of the samples in
`RUN/STAGE/evaluation/after.parquet`, and in `before.parquet` where that model was scored for this
stage: the columns of `samples` without tokens, at most 400 rows, problems spread evenly.

Every file is written to a temporary name and renamed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trl_r1.evaluation.scores import problem_rows, summarise
from trl_r1.sampling.sample_rows import sample_schema
from trl_r1.sampling.shards import write_atomically, write_table
from trl_r1.trust.secrets import clean

RECORD_FILE = "evaluation.json"
PROBLEMS_FILE = "problems.parquet"
KEPT_FOLDER = "evaluation"
VERSION = 2
MAX_KEPT = 400

OWN_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("problem_hash", pa.string()),
    ("is_general", pa.bool_()),
    ("score", pa.float64()),
    ("is_well_formed", pa.bool_()),
    ("preference", pa.float64()),
    ("answer", pa.string()),
    ("vote", pa.string()),
    ("language_share", pa.float64()),
]
_PROBLEM_SCHEMA = pa.schema(
    [
        ("problem_index", pa.int64()),
        ("problem_hash", pa.string()),
        ("task", pa.string()),
        ("solution", pa.string()),
        ("is_general", pa.bool_()),
        ("num_samples", pa.int64()),
        ("num_right", pa.int64()),
        ("num_ungraded", pa.int64()),
        ("pass_rate", pa.float64()),
        ("majority_answer", pa.string()),
        ("majority_votes", pa.int64()),
        ("majority_score", pa.float64()),
        ("mean_length", pa.float64()),
        ("truncated", pa.float64()),
        ("format", pa.float64()),
    ]
)


def write_record(
    folder: Path,
    samples: Iterable[Mapping[str, Any]],
    num_problems: int,
    num_samples: int,
    facts: Mapping[str, Any],
    ks: Sequence[int] = (),
) -> dict[str, Any]:
    """Write `problems.parquet` and `evaluation.json`; returns what the latter holds.

    Args:
        folder: of the evaluation.
        samples: all of them, with the columns `SCORED`.
        num_problems, num_samples: that were to be drawn, and of each.
        facts: what else `evaluation.json` holds: `model`, `settings`, `template`, ...
        ks: of pass@k.

    Raises:
        RuntimeError: other numbers of samples were drawn.
    """
    rows = list(samples)
    problems = problem_rows(rows, num_problems, num_samples)
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task"] or "none", []).append(row)
    document = {
        "version": VERSION,
        "scores": summarise(rows, num_problems, num_samples, ks),
        "tasks": {
            task: summarise(part, len(part) // num_samples, num_samples, ks)
            for task, part in by_task.items()
        },
        "problems": num_problems,
        "samples": len(rows),
        "duplicates": num_problems - len({row["problem_hash"] for row in problems}),
        **facts,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_table(folder / PROBLEMS_FILE, problems, _PROBLEM_SCHEMA)
    text = json.dumps(clean(document), indent=1, default=str) + "\n"
    write_atomically(folder / RECORD_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    return document


def keep_some(path: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """Write at most `MAX_KEPT` of the samples, without tokens: all of evenly spread problems."""
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for row in samples:
        groups.setdefault(row["prompt_index"], []).append(row)
    indices = sorted(groups)
    size = max((len(group) for group in groups.values()), default=1)
    number = min(max(MAX_KEPT // size, 1), len(indices))
    chosen = [indices[i * len(indices) // number] for i in range(number)]
    rows = [row for index in chosen for row in groups[index][:MAX_KEPT]]
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = sample_schema(rows[0]["prompt"], OWN_COLUMNS)
    schema = schema.remove(schema.get_field_index("token_ids"))
    write_table(path, [{name: row[name] for name in schema.names} for row in rows], schema)
