"""Twenty kills at random moments of a run, each followed by another run, lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from trl_r1.pipeline.ledger import records

STAGES = {
    "01_base": "stage: toy_base\n",
    "02_zero": 'stage: toy_rl\nmodel_name_or_path: "@base"\n'
    "datasets: [{task: digit_sums, num_rows: 8}]\n",
    "03_data": 'stage: toy_sampling\nmodel_name_or_path: "@zero"\n'
    "datasets: [{task: digit_sums, num_rows: 8}]\n",
    "04_cold_start": 'stage: toy_sft\nmodel_name_or_path: "@base"\n'
    'datasets: [{dataset_name: "@data"}]\n',
}
KILLS = 20


def test_twenty_kills_lose_nothing_and_run_no_finished_stage_again(tmp_path: Path) -> None:
    recipes, run_dir, journal = tmp_path / "recipes", tmp_path / "run", tmp_path / "journal"
    recipes.mkdir()
    (recipes / "pipeline.yaml").write_text(
        f"name: toy\ndefaults: {{num_steps: 5, step_seconds: 0.1, journal: {journal}}}\n"
    )
    for name, text in STAGES.items():
        (recipes / f"{name}.yaml").write_text(text)
    driver = Path(__file__).with_name("kill_driver.py")
    command = [driver, recipes, run_dir, journal, KILLS, 0]
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"killed": KILLS, "status": 0, "rerun": [], "lost": []}
    ledger = records(run_dir)
    assert {name: r.status for name, r in ledger.items()} == dict.fromkeys(
        ("base", "zero", "data", "cold_start"), "finished"
    )
    for name, record in ledger.items():
        for artifact in record.artifacts:
            assert (run_dir / name / artifact / "value").exists(), f"{name}/{artifact}"
    artifacts = {
        "base/model": 5.0,
        "zero/model": 15.0,
        "data/dataset": 20.0,
        "cold_start/model": 10.0,
    }
    for path, value in artifacts.items():
        assert float((run_dir / path / "value").read_text()) == value
    # A step is noted after its checkpoint: a kill between may lose the note, never repeat it.
    steps = Counter(line for line in journal.read_text().splitlines() if line.startswith("step"))
    recipes_of = {"base": 1, "zero": 2, "data": 2, "cold_start": 2}
    for line, count in steps.items():
        assert count <= recipes_of[line.split()[1]], f"{line} was taken {count} times"
    left = [path.name for path in run_dir.iterdir() if path.name.startswith(".")]
    assert left == [".lock"]
