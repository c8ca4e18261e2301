"""A small run to make cards of, in the formats that the stages write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trl_r1.hub.cards import Link, Subject
from trl_r1.pipeline.ledger import Input, StageRecord
from trl_r1.pipeline.references import artifact_kind
from trl_r1.pipeline.run_file import RunFile, write_run_file

SCORED_ON = {
    "datasets": [{"task": "digit_sums", "split": "test", "num_rows": 400}],
    "general": [{"task": "small_talk", "split": "test", "num_rows": 150}],
    "temperature": 1.0,
    "top_p": 1.0,
    "max_new_tokens": 40,
    "num_samples": 4,
    "seed": 0,
    "extraction": "strict",
    "preference_model": None,
}
VERSIONS = {"python": "3.11.7", "trl-r1": "0.1.0", "trl": "1.16.0"}


def scores(right: float) -> dict[str, Any]:
    """Scores with an interval, as `trl_r1.evaluation.scores` makes them."""
    return {
        "pass@1": right,
        "pass@1_interval": [right - 0.02, right + 0.02],
        "format": 0.75,
        "mean_length": 12.25,
        "general": 0.5,
    }


def artifacts(stage: str, *names: str) -> dict[str, dict[str, Any]]:
    """Artifacts of a stage, with hashes that tell them apart."""
    return {
        name: {"hash": hash_for(stage, name), "kind": artifact_kind(name), "sizes": {}}
        for name in names
    }


def hash_for(stage: str, name: str) -> str:
    """A hash of 32 hex digits that begins with the names."""
    return f"{stage}{name}".encode().hex()[:32].ljust(32, "0")


def weights(stage: str, name: str = "model") -> Input:
    """That a stage starts from another's model."""
    source = f"@{stage}" if name == "model" else f"@{stage}/{name}"
    return Input(
        "model_name_or_path", source, "weights", hash_for(stage, name), stage, name, f"{stage}-f"
    )


def small_run() -> dict[str, StageRecord]:
    """A base, R1-Zero, its samples, a cold start on them, a preference model, RL and an exam."""
    reward = Input("rewards[0].use", "math_answer", "reward", "cc" * 16)
    zero = {"stage": "grpo", "preset": "zero", "learning_rate": 3e-4, "max_steps": 120,
            "reasoning_format": "zero_bare", "datasets": [{"task": "digit_sums", "num_rows": 64}],
            "rewards": [{"use": "math_answer", "tasks": ["digit_sums"]}]}  # fmt: skip
    picked = Input("datasets[0].dataset_name", "@picked", "data", hash_for("picked", "dataset"),
                   "picked", "dataset")  # fmt: skip
    judge = Input("rewards[1].args.model", "@pref", "reward", hash_for("pref", "reward_model"),
                  "pref", "reward_model")  # fmt: skip
    made = [
        _record("base", "tiny_base", (), ("model", "student"), {}, scores={"after": scores(0.25)}),
        _record("zero", "grpo", (weights("base"), reward), ("model", "rollouts"), zero,
                {"steps": 120, "alarms": {"kl_runaway": 2}, "prompts_by_task": {"digit_sums": 960}},
                {"before": scores(0.25), "after": scores(0.75)}),
        _record("picked", "rejection_sampling", (weights("zero"), reward), ("dataset", "samples"),
                {"stage": "rejection_sampling", "num_samples": 2,
                 "datasets": [{"task": "digit_sums", "num_rows": 600}]},
                {"prompts": 600, "samples": 1200, "kept": 300,
                 "rejected": {"wrong": 600, "mixed_language": 300}}),
        _record("cold", "cold_start", (weights("base"), picked), ("model",),
                {"stage": "cold_start", "datasets": [{"dataset_name": "@picked"}]},
                scores={"before": scores(0.25), "after": scores(0.5)}),
        _record("pref", "reward_model", (weights("cold"),), ("reward_model",),
                {"stage": "reward_model", "datasets": [{"task": "small_talk_preferences",
                                                       "num_rows": 1600}]},
                {"pairs": 90, "held_out_pairs": 10, "accuracy": 0.8}),
        _record("general", "grpo", (weights("cold"), reward, judge), ("model",), zero,
                scores={"before": scores(0.5), "after": scores(0.625)}),
        _record("exam", "evaluation", (weights("general"),), ("samples",),
                {"stage": "evaluation", "datasets": [{"task": "gsm8k"}], "num_samples": 8},
                {"problems": 1319}, {"pass@1": 0.125, "pass@1_interval": [0.1, 0.15]}),
    ]  # fmt: skip
    return {record.name: record for record in made}


def _record(
    name: str,
    stage: str,
    inputs: tuple[Input, ...],
    names: tuple[str, ...],
    recipe: Mapping[str, Any],
    details: Mapping[str, Any] | None = None,
    scores: Mapping[str, Any] | None = None,
) -> StageRecord:
    return StageRecord(
        name,
        stage,
        "finished",
        inputs=inputs,
        recipe=recipe or {"stage": stage},
        versions=VERSIONS,
        scores=scores or {},
        scored_on=SCORED_ON if scores and stage != "evaluation" else {},
        seconds=61.0,
        artifacts=artifacts(name, *names),
        details=details or {},
    )


def write_folders(run_dir: Path, ledger: Mapping[str, StageRecord]) -> None:
    """The folders of a run's artifacts, with two rows in each data set."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_run_file(run_dir, RunFile("small", "recipes/small", tuple(ledger)))
    rows = [
        {"prompt": [{"role": "user", "content": f"{i}+1=?"}], "completion": str(i + 1),
         "solution": str(i + 1), "task": "digit_sums"}
        for i in range(2)
    ]  # fmt: skip
    for record in ledger.values():
        for name, artifact in record.artifacts.items():
            folder = run_dir / record.name / name
            folder.mkdir(parents=True, exist_ok=True)
            if artifact["kind"] == "dataset":
                pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")


def subject(
    run_dir: Path,
    ledger: Mapping[str, StageRecord],
    stage: str,
    artifact: str = "model",
    links: Mapping[tuple[str, str], Link] | None = None,
    **changes: Any,
) -> Subject:
    """What a card is made of, for an artifact of a run."""
    facts: dict[str, Any] = {
        "run": "small",
        "description": "A small run",
        "record": ledger[stage],
        "artifact": artifact,
        "folder": run_dir / stage / artifact,
        "ledger": ledger,
        "links": links or {},
        "repo_id": f"me/small-{stage}",
        "run_link": "me/small",
    }
    return Subject(**{**facts, **changes})


def all_links(ledger: Mapping[str, StageRecord]) -> dict[tuple[str, str], Link]:
    """As if everything was pushed, each at a commit of its own."""
    found = {}
    for record in ledger.values():
        for name, artifact in record.artifacts.items():
            kind = "dataset" if artifact["kind"] == "dataset" else "model"
            commit = f"{len(found) + 1:040x}"
            found[record.name, name] = Link(f"me/small-{record.name}-{name}", kind, commit)
    return found
