"""Started by a test: kills runs of toy stages at random moments, and checks the ledger after each.

A process of its own that imports everything once and forks a child a run, since importing takes far
longer than the run. Prints a JSON line with what it saw.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import toy_stages

from trl_r1.cli import main
from trl_r1.pipeline.ledger import records
from trl_r1.pipeline.session import run_pipeline  # noqa: F401 - imported before the first fork


def start(recipes: Path, run_dir: Path, options: list[str]) -> int:
    """Fork a child that runs the command; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    status = 1
    try:
        status = main(["run", str(recipes), "--output_dir", str(run_dir), *options])
    finally:
        os._exit(status)


def finished(run_dir: Path) -> dict[str, str]:
    """Finished stages and their fingerprints."""
    return {
        name: record.fingerprint["stage"]
        for name, record in records(run_dir).items()
        if record.status == "finished"
    }


def begun(journal: Path) -> list[str]:
    """Stages whose `run` was called, in order."""
    lines = journal.read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("begin")]


def drive(
    recipes: Path, run_dir: Path, journal: Path, kills: int, rng: random.Random
) -> dict[str, object]:
    """Kill `kills` runs, change the recipe half-way, then let one run end."""
    journal.touch()
    run_dir.mkdir()
    rerun: list[str] = []
    lost: list[str] = []
    killed, status = 0, 0
    options: list[str] = []
    settled: set[str] = set()  # finished by a run with the present options
    for attempt in range(kills + 1):
        if attempt == kills // 2:
            # From here on stages are rerun beside their finished results.
            options, settled = ["--set", "zero.gain=2.0"], set()
        calls, before = len(begun(journal)), finished(run_dir)
        pid = start(recipes, run_dir, options)
        if attempt < kills:
            time.sleep(rng.uniform(0.05, 0.6))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        now = finished(run_dir)
        rerun += [name for name in begun(journal)[calls:] if name in settled]
        # Between two renames of a promotion a result has another name; the next run puts it back.
        kept = {p.name.split(".")[1] for p in run_dir.glob(".*.next")}
        lost += [name for name in before if name not in now and name not in kept]
        settled |= {name for name, mark in now.items() if before.get(name) != mark}
    status = os.waitstatus_to_exitcode(status)
    return {"killed": killed, "status": status, "rerun": rerun, "lost": lost}


if __name__ == "__main__":
    toy_stages.register()
    recipes, run_dir, journal = map(Path, sys.argv[1:4])
    result = drive(recipes, run_dir, journal, int(sys.argv[4]), random.Random(int(sys.argv[5])))
    sys.stdout.write(json.dumps(result) + "\n")
