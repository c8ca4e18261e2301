"""The demo as a whole: what the paper reports shows on every seed, and kills lose nothing.

Minutes a test: `bash scripts/check -m slow -k tiny_cpu`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from trl_r1.pipeline.ledger import data_ancestors, weight_ancestors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NUM_KILLS = 20


def command(run_dir: Path, *options: str) -> list[str]:
    recipes = str(ROOT / "recipes" / "tiny-cpu")
    return [sys.executable, "-m", "trl_r1", "run", recipes, "--output_dir", str(run_dir), *options]


def ledger(run_dir: Path) -> dict[str, dict[str, Any]]:
    return {
        path.parent.name: json.loads(path.read_text()) for path in run_dir.glob("[!.]*/stage.json")
    }


def after(run_dir: Path, stage: str, score: str) -> float:
    value: float = ledger(run_dir)[stage]["scores"]["after"][score]
    return value


def before(run_dir: Path, stage: str, score: str) -> float:
    value: float = ledger(run_dir)[stage]["scores"]["before"][score]
    return value


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_effect_of_the_paper_shows(tmp_path: Path, seed: int) -> None:
    run_dir = tmp_path / "run"
    subprocess.run(command(run_dir, "--seed", str(seed)), check=True, cwd=tmp_path)

    assert 0.2 <= before(run_dir, "zero", "pass@1") <= 0.5
    assert after(run_dir, "zero", "pass@1") >= before(run_dir, "zero", "pass@1") + 0.3
    assert after(run_dir, "zero", "mean_length") >= 1.25 * before(run_dir, "zero", "mean_length")

    assert after(run_dir, "cold_start", "format") >= 0.95
    assert after(run_dir, "reasoning_rl", "pass@1") >= 0.85
    assert after(run_dir, "reasoning_rl", "pass@1") > after(run_dir, "cold_start", "pass@1")

    assert after(run_dir, "mixed_sft", "pass@1") >= 0.85
    assert after(run_dir, "mixed_sft", "general") >= 0.95
    for score in ("pass@1", "general"):
        assert after(run_dir, "general_rl", score) >= after(run_dir, "mixed_sft", score) - 0.03
    assert after(run_dir, "general_rl", "preference") > before(run_dir, "general_rl", "preference")

    distilled, control = (after(run_dir, s, "pass@1") for s in ("distill", "student_rl"))
    assert distilled >= control + 0.05

    for stage in ("cold_start", "mixed_sft"):
        assert weight_ancestors(run_dir, stage) == {"base"}, "no weights of RL flow into R1"
    assert weight_ancestors(run_dir, "general_rl") == {"base", "mixed_sft"}
    assert "zero" in data_ancestors(run_dir, "cold_start")


def test_twenty_kills_end_in_what_an_undisturbed_run_makes(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    subprocess.run(command(undisturbed), check=True, cwd=tmp_path)
    rng = random.Random(0)
    finished: dict[str, float] = {}
    for _ in range(NUM_KILLS):
        if not kill_at_random(command(killed), tmp_path / "output.txt", rng):
            break
        now = ledger(killed)
        for name, seconds in finished.items():
            assert now[name]["status"] == "finished"
            assert now[name]["seconds"] == seconds, f"{name} ran again after it was finished"
        finished = {n: r["seconds"] for n, r in now.items() if r["status"] == "finished"}
    subprocess.run(command(killed), check=True, cwd=tmp_path)

    records, expected = ledger(killed), ledger(undisturbed)
    assert {r["status"] for r in records.values()} == {"finished"}
    assert {name: r["artifacts"] for name, r in records.items()} == {
        name: r["artifacts"] for name, r in expected.items()
    }, "resumed to the same bits"
    for name, record in records.items():
        check_artifacts(killed / name, record)


def kill_at_random(arguments: list[str], output: Path, rng: random.Random) -> bool:
    """Start a run and kill it (-9) some time after its first stage began; False if it ended."""
    with output.open("w") as file:
        process = subprocess.Popen(
            arguments, cwd=output.parent, stdout=file, stderr=file, start_new_session=True
        )
    # Not while it imports and checks: nothing can be lost then.
    while process.poll() is None and "[1/" not in output.read_text():
        time.sleep(0.1)
    time.sleep(rng.uniform(0.1, 30))
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def check_artifacts(folder: Path, record: dict[str, Any]) -> None:
    """Each loads with the plain library, and sampling lost and doubled nothing."""
    assert record["artifacts"]
    for artifact in record["artifacts"]:
        path = folder / artifact
        if artifact in ("model", "student"):
            AutoModelForCausalLM.from_pretrained(path)
            AutoTokenizer.from_pretrained(path)
        elif artifact == "reward_model":
            AutoModelForSequenceClassification.from_pretrained(path)
        else:
            assert len(load_dataset(str(path), split="train")) > 0
    if "samples" in record["artifacts"]:
        rows = pq.read_table(folder / "samples").select(["prompt_index", "sample_index"])
        pairs = set(zip(*(rows[c].to_pylist() for c in rows.column_names), strict=True))
        assert len(pairs) == rows.num_rows == record["details"]["samples"]
