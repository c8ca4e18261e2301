"""Runs for the tests of the report, in the formats that the stages write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trl_r1 import cli
from trl_r1.evaluation.record import keep_some
from trl_r1.evaluation.record import write_record as write_evaluation_record
from trl_r1.pipeline.ledger import Input, StageRecord, write_record
from trl_r1.pipeline.run_file import RunFile, write_run_file

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--\u2028\u2029\x00\x1b[31m"
    "\u202eevil\u202c ]]> &lt;b&gt; {{ 7*7 }} ${x} https://example.org/x.js"
)


def write_run(folder: Path, steps: int = 12, rows: int = 8, text: str = "") -> Path:
    """A run of a base, R1-Zero and rejection sampling, with `rows` completions a step."""
    folder.mkdir(parents=True)
    write_run_file(folder, RunFile("small", "recipes/small", ("base", "zero", "picked", "later")))
    before = {"pass@1": 0.25, "format": 0.5, "mean_length": 10.0}
    after = {"pass@1": 0.75, "format": 1.0, "mean_length": 20.0, "pass@1_interval": [0.7, 0.8]}
    model = {"model": {"hash": "aa", "kind": "model", "sizes": {}}}
    _stage(folder, StageRecord("base", "tiny_base", "finished", scores={"after": before},
                               artifacts=model))  # fmt: skip
    zero = StageRecord(
        "zero",
        "grpo",
        "finished",
        inputs=(Input("model_name_or_path", "@base", "weights", "aa", "base", "model"),),
        recipe={
            "reasoning_format": "zero_bare",
            "rewards": [{"use": "math_answer"}, {"use": "think_format", "weight": 0.2}],
        },
        scores={"before": before, "after": after},
        artifacts={"model": {"hash": "bb", "kind": "model"}},
    )
    _stage(folder, zero)
    logs = [metrics(step) for step in range(1, steps + 1)]
    (folder / "zero" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in logs))
    alarm = {"step": 5, "monitor": "kl_runaway", "action": "warn", "seen": "KL 3.1", "since": 4}
    advice = {"meaning": "too far", "advice": "beta 0.01", "figures": {}}
    (folder / "zero" / "monitors.jsonl").write_text(json.dumps({**alarm, **advice}) + "\n")
    for when in ("before", "after"):
        keep_some(folder / "zero" / "evaluation" / f"{when}.parquet", scored_rows(text))
    for step in range(steps):
        write_rollouts(folder / "zero" / "rollouts", step, rows, text)
    picked = StageRecord(
        "picked",
        "rejection_sampling",
        "finished",
        inputs=(Input("model_name_or_path", "@zero", "weights", "bb", "zero", "model"),),
        recipe={"reasoning_format": "zero_bare", "rewards": [{"use": "math_answer"}]},
        details={"kept": 3, "samples": 10, "rejected": {"wrong": 5, "duplicate": 2}},
    )
    _stage(folder, picked)
    return folder


def _stage(folder: Path, record: StageRecord) -> None:
    place = folder / record.name
    place.mkdir()
    for name in record.artifacts:
        (place / name).mkdir()
    write_record(place, record)


def metrics(step: int) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    return {
        "step": step,
        "accuracy": step / 100 % 1,
        "pass@1": step / 100 % 1,
        "pass@2": step / 100 % 1,
        "majority_accuracy": 0.5,
        "completions/mean_length": 10.0 + step,
        "completions/length_p10": 5.0,
        "completions/length_p90": 30.0 + step,
        "rewards/math_answer_reward/mean": 0.5,
        "rewards/think_format_reward/mean": 0.25,
        "rewards/name_reward/mean": None,
        "reward": 0.6,
        "kl": 9.0 if step == 7 else 0.01,
        "entropy": 0.3,
        "clip_ratio/low_mean": 0.001,
        "frac_reward_zero_std": 0.125,
        "loss": 1e-5,
    }


def write_rollouts(folder: Path, step: int, rows: int, text: str = "") -> None:
    """A file of rollouts; half of its answers are right, every fourth has nothing to grade."""
    folder.mkdir(exist_ok=True)
    right = [i % 2 == 0 for i in range(rows)]
    empty = [i % 4 == 3 for i in range(rows)]
    texts = [completion(step, i, right[i], empty[i], text) for i in range(rows)]
    columns: dict[str, Sequence[Any]] = {
        "step": [step] * rows,
        "prompt": [[{"role": "user", "content": f"{step}+{i}=? {text}"}] for i in range(rows)],
        "solution": [str(step + i) for i in range(rows)],
        "task": ["sums" if i % 8 else "rare" for i in range(rows)],
        "completion": [[{"role": "assistant", "content": t}] for t in texts],
        "length": [20] * rows,
        "is_truncated": [False] * rows,
        "reward_math_answer_reward": [float(r) for r in right],
        "reward_think_format_reward": [0.0 if e else 1.0 for e in empty],
        "verdict_math_answer_reward": ["malformed" if e else "ok" for e in empty],
        "verdict_think_format_reward": ["malformed" if e else "ok" for e in empty],
        "reward": [r + 0.2 * (not e) for r, e in zip(right, empty, strict=True)],
        "advantage": [0.5] * rows,
        "is_used": [True] * rows,
    }
    pq.write_table(pa.table(columns), folder / f"step-{step:07d}-0000-rank-000.parquet")


def scored_rows(text: str = "") -> list[dict[str, Any]]:
    """Samples of a scoring: one right, one wrong, one that could not be graded, one of small talk
    that a preference model scored."""
    question = [{"role": "user", "content": f"3+4=? {text}"}]
    right = f"<think>steps {text}</think><answer>7</answer>"
    common = {
        **{"prompt": question, "token_ids": [1], "token_source": "engine", "num_tokens": 20},
        **{"is_truncated": False, "finish_reason": "stop", "seed": 1, "solution": "7"},
        **{"task": "digit_sums", "problem_hash": "aa", "is_general": False},
        **{"is_well_formed": True, "preference": None, "language_share": 0.25},
        **{"answer": "7", "vote": "7"},
    }
    talk = {"is_general": True, "task": "my_talk", "solution": None, "answer": None, "vote": None}
    rows = [
        {"completion": right, "score": 1.0},
        {
            "completion": "<answer>8</answer>",
            "score": 0.0,
            "answer": "8",
            "vote": "8",
            "is_well_formed": False,
        },
        {"completion": right, "score": None, "answer": None, "vote": None},
        {"completion": "hi", "score": 0.5, "preference": 0.75, "language_share": None, **talk},
    ]
    return [{**common, "prompt_index": i, "sample_index": 0, **row} for i, row in enumerate(rows)]


def write_evaluation(folder: Path, model: str = "me/model", text: str = "") -> Path:
    """What `trl-r1 eval` leaves in a folder."""
    facts = {
        "model": model,
        "settings": {"temperature": 0.6, "top_p": 0.95, "max_new_tokens": 2048, "seed": 0},
        "template": {"reasoning_format": "zero_bare"},
        "versions": {"trl": "1.16.0"},
        "seconds": 3.5,
    }
    rows = scored_rows(text)
    keep_some(folder / "samples" / "train-00000-of-00001.parquet", rows)
    write_evaluation_record(folder, rows, len(rows), 1, facts)
    return folder


def completion(step: int, row: int, right: bool, empty: bool, text: str) -> str:
    """A completion: reasoning and answer in tags, or a text without any."""
    if empty:
        return f"no tags {text}"
    answer = step + row if right else -1
    return f"<think>steps {text}</think><answer>{answer}</answer>"


def report(*runs: Path, options: tuple[str, ...] = ()) -> str:
    """The text of a report."""
    output = runs[0].parent / "out" / "report.html"
    arguments = ["report", *map(str, runs), "--output", str(output), *options]
    assert cli.main(arguments) == 0
    return output.read_text(encoding="utf-8")
