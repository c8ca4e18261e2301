"""An evaluation that is killed at any step, or again and again, ends as an undisturbed one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from evaluation_kill_driver import NUM_PROBLEMS, NUM_SAMPLES

NUM_SHARDS = NUM_PROBLEMS // 2


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("kills") / "all"
    driver = Path(__file__).with_name("evaluation_kill_driver.py")
    command = [sys.executable, str(driver), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def left_in(folder: Path) -> dict[str, Any]:
    """What an evaluation leaves, but for when it was made."""
    record = json.loads((folder / "evaluation.json").read_text())
    comparison = json.loads((folder / "comparison.json").read_text())
    return {
        "record": {k: v for k, v in record.items() if k not in ("made_at", "seconds")},
        "comparison": {k: v for k, v in comparison.items() if k != "second"},
        "samples": pq.read_table(folder / "samples").to_pylist(),
        "problems": pq.read_table(folder / "problems.parquet").to_pylist(),
        "files": sorted(p.name for p in folder.rglob("*") if not p.name.endswith(".tmp")),
    }


def drawn(folder: Path, name: str) -> Counter[str]:
    return Counter((folder / "calls" / name).read_text().split())


def test_a_kill_at_any_step_leaves_what_ends_the_same_and_costs_a_shard(
    driven: tuple[Path, dict[str, int]],
) -> None:
    folder, seen = driven
    calm = left_in(folder / "calm")
    assert len(calm["samples"]) == NUM_PROBLEMS * NUM_SAMPLES
    assert len(drawn(folder, "calm")) == drawn(folder, "calm").total() == NUM_SHARDS
    steps = range(seen["num_steps"])
    assert len(steps) > 5 * NUM_SHARDS
    for step in steps:
        name = f"step-{step:03}"
        assert left_in(folder / name) == calm, name
        assert set(drawn(folder, name)) == set(drawn(folder, "calm"))
        assert drawn(folder, name).total() <= NUM_SHARDS + 1, "more than the shard in flight"


def test_kills_at_random_moments_lose_and_repeat_nothing_but_the_shard_in_flight(
    driven: tuple[Path, dict[str, int]],
) -> None:
    folder, seen = driven
    assert seen["num_killed"] >= 5
    assert left_in(folder / "random") == left_in(folder / "calm")
    assert set(drawn(folder, "random")) == set(drawn(folder, "calm"))
    assert drawn(folder, "random").total() <= NUM_SHARDS + seen["num_killed"]
