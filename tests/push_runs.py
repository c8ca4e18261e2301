"""A run to push: small, of the formats that the stages write, with hashes that are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import make_tiny_model

from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.ledger import Input, StageRecord, write_record
from trl_r1.pipeline.references import artifact_kind
from trl_r1.pipeline.run_file import RunFile, write_run_file

STAGES = ("base", "zero", "picked")
# Repositories of this run on the Hub, when `me` pushes it as `small`.
REPOS = {
    ("model", "me/small-base"),
    ("model", "me/small-zero"),
    ("dataset", "me/small-zero-rollouts"),
    ("dataset", "me/small-picked"),
    ("space", "me/small-report"),
    ("dataset", "me/small"),
}
BEFORE = {"pass@1": 0.25, "format": 0.5, "mean_length": 10.0}
AFTER = {"pass@1": 0.75, "format": 1.0, "mean_length": 20.0, "pass@1_interval": [0.7, 0.8]}


def write_run(root: Path) -> Path:
    """`root/runs/small` and its recipes `root/recipes`; returns the run's folder."""
    run, recipes = root / "runs" / "small", root / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "pipeline.yaml").write_text("name: small\ndescription: A run of tests\n")
    (recipes / "01_base.yaml").write_text("stage: tiny_base\n")
    (recipes / "brevity.py").write_text("def brevity_reward(completions, **kwargs):\n    ...\n")
    (recipes / "exam.jsonl").write_text('{"question": "private"}\n')
    make_tiny_model(run / "base" / "model", seed=0)
    make_tiny_model(run / "zero" / "model", seed=1)
    for number in range(2):
        write_parquet(run / "zero" / "rollouts" / f"step-{number:07d}.parquet", number)
    write_parquet(run / "picked" / "dataset" / "train-00000-of-00001.parquet", 5)
    (run / "picked" / "dataset" / "README.md").write_text("---\ntags:\n- own\n---\n\nmade here\n")
    (run / "zero" / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 0.5}) + "\n")
    (run / "zero" / "log.txt").write_text(f"working in {run}\n")
    write_run_file(run, RunFile("small", "recipes", STAGES, recipes))
    finish(run, "base", "tiny_base", scores={"after": BEFORE})
    finish(run, "zero", "grpo", start=("base", "model"), scores={"before": BEFORE, "after": AFTER})
    finish(run, "picked", "rejection_sampling", start=("zero", "model"),
           details={"kept": 4, "samples": 8, "rejected": {"wrong": 4}})  # fmt: skip
    return run


def write_parquet(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    prompt = [[{"role": "user", "content": f"{seed}+{i}=?"}] for i in range(4)]
    pq.write_table(
        pa.table({"prompt": prompt, "solution": [str(seed + i) for i in range(4)]}), path
    )


def finish(
    run: Path, name: str, stage: str, start: tuple[str, str] | None = None, **fields: Any
) -> None:
    """Write a stage's record for the artifacts that lie in its folder."""
    place, hashes = run / name, FileHashes()
    artifacts = {
        folder.name: {
            "hash": hashes.path(folder),
            "kind": artifact_kind(folder.name),
            "sizes": hashes.sizes(folder),
        }
        for folder in sorted(place.iterdir())
        if folder.is_dir()
    }
    inputs: tuple[Input, ...] = ()
    if start is not None:
        given = hashes.path(run / start[0] / start[1])
        key = "model_name_or_path"
        inputs = (Input(key, f"@{start[0]}", "weights", given, *start, f"stage-{start[0]}"),)
    record = StageRecord(
        name,
        stage,
        "finished",
        inputs=inputs,
        recipe={"stage": stage, "reasoning_format": "zero_bare"},
        artifacts=artifacts,
        fingerprint={"stage": f"stage-{name}", "scores": ""},
        **fields,
    )
    write_record(place, record)


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of a folder's files by path; without locks, logs and what belongs to the Hub."""
    left_out = (".lock", "log.txt", "hub.json", "run.json", "report.html")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out and ".pull" not in path.parts
    }
