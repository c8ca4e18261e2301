#!/usr/bin/env python
"""Time and memory of cleaning and mixing: filter, dedup, decontaminate, mix, at growing sizes.

    python scripts/bench_data.py [--rows 10000 100000 1000000] [--num_proc 2] [--work DIR]

Each size runs in a process of its own, whose highest resident memory (and that of its children) is
measured; file pages that it maps count. Rows are made up: word problems and answers of about 120
words, of which 5% repeat an earlier one, 5% differ from one in two words, and 0.1% hold a planted
evaluation problem. What is found is compared with what was planted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NUM_WORDS = 20_000
_NUM_EVALUATION = 1_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--num_proc", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder for the data; a temporary one by default")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.num_proc, options.work)))
        return 0
    print(f"{'rows':>9} {'step':<18} {'seconds':>8} {'CPU s':>8} {'us/row':>7} {'left':>9}")
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            command = [sys.executable, __file__, "--child", str(rows), "--work", folder]
            command += ["--num_proc", str(options.num_proc)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        show(rows, json.loads(done.stdout.splitlines()[-1]))
    return 0


def show(rows: int, result: dict[str, Any]) -> None:
    for name, seconds, processor, left in result["steps"]:
        per_row = 1e6 * processor / rows
        print(f"{rows:>9} {name:<18} {seconds:>8.1f} {processor:>8.1f} {per_row:>7.0f} {left:>9}")
    print(f"{rows:>9} memory: {result['memory_gb']:.2f} GB at most; {result['checks']}", flush=True)


def make_rows(count: int, problems: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Rows with what they are: fresh, the same as an earlier one, near one, or planted."""
    rng = random.Random(0)
    words = [f"{rng.choice('bcdfgklmnprst')}{rng.choice('aeiou')}{i:x}" for i in range(_NUM_WORDS)]
    recent: list[tuple[str, str]] = []
    for index in range(count):
        kind = rng.choices(("fresh", "same", "near", "planted"), (89.9, 5, 5, 0.1))[0]
        kind = kind if len(recent) > 100 else "fresh"
        if kind in ("same", "near"):
            problem, response = rng.choice(recent)
            if kind == "near":
                changed = response.split()
                changed[rng.randrange(60)] = changed[rng.randrange(60)] = f"x{index:x}"
                response = " ".join(changed)
        else:
            problem = " ".join(rng.choices(words, k=40))
            response = " ".join(rng.choices(words, k=80))
        if kind == "planted":
            problem = f"{problem} {rng.choice(problems).upper().replace(' ', '  ')}"
        if kind == "fresh":
            # A window, so that making the rows takes no memory of its own.
            recent = [*recent[-999:], (problem, response)] if index % 10 == 0 else recent
        rate = (index * 7919 % 11) / 10
        yield {
            "prompt": [{"role": "user", "content": problem}],
            "completion": [{"role": "assistant", "content": f"<think>{response}</think>Done."}],
            "task": "made_up",
            "planted": kind,
            "rate": rate,
        }


def measure(count: int, num_proc: int, work: Path) -> dict[str, Any]:
    import datasets
    import pyarrow.parquet as pq

    from trl_r1.data.card import DataLog
    from trl_r1.data.decontamination import decontaminate
    from trl_r1.data.duplicates import drop_exact_duplicates, drop_near_duplicates
    from trl_r1.data.lengths import filter_by_length, measure_lengths
    from trl_r1.data.mixing import MixtureSource, mix
    from trl_r1.data.output import OutputFolder

    datasets.disable_progress_bars()
    rng = random.Random(1)
    problems = [
        " ".join(f"q{rng.randrange(5000)}" for _ in range(30)) for _ in range(_NUM_EVALUATION)
    ]
    # A list would be taken for shards, each a run of the generator.
    rows = datasets.Dataset.from_generator(
        make_rows,
        gen_kwargs={"count": count, "problems": tuple(problems)},
        cache_dir=str(work / "cache"),
    )
    planted = dict(zip(*_counted(rows["planted"]), strict=True))
    output, log, steps = OutputFolder(work / "out", {}), DataLog(), []

    def step(name: str, run: Any) -> Any:
        wall, processor = time.monotonic(), _processor_seconds()
        made = run()
        left = made.rows if hasattr(made, "hits") else made
        spent = _processor_seconds() - processor
        steps.append((name, time.monotonic() - wall, spent, len(left) if left is not None else 0))
        return made

    def filtered() -> Any:
        lengths = measure_lengths(rows, None, (), output.workspace("lengths"), num_proc)
        return filter_by_length(rows, lengths, 10, 10_000, log)

    kept = step("filter", filtered)
    kept = step("exact duplicates", lambda: drop_exact_duplicates(kept, (), log))
    num_exact = count - len(kept)
    work_near = output.workspace("near")
    before = len(kept)
    kept = step(
        "near-duplicates",
        lambda: drop_near_duplicates(kept, 0.8, (), 3, log, work_near, num_proc),
    )
    num_near = before - len(kept)
    clean = step(
        "decontamination",
        lambda: decontaminate(
            kept, {"made_up": problems}, log=log, workspace=output.workspace("d"), num_proc=num_proc
        ),
    )
    half = len(clean.rows) // 2
    parts = [
        MixtureSource("first", clean.rows.select(range(half)), share=0.75),
        MixtureSource("rest", clean.rows.select(range(half, len(clean.rows))), share=0.25),
    ]
    mixed = step("mix", lambda: mix(parts, 0, log=log, workspace=output.workspace("mix")))
    step("write", lambda: output.finish(mixed, "made up", log))
    written = sum(pq.read_metadata(path).num_rows for path in (work / "out").glob("*.parquet"))
    own, children = (
        resource.getrusage(who).ru_maxrss / 1e6
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    checks = (
        f"planted same {planted.get('same', 0)}, near {planted.get('near', 0)}, evaluation "
        f"{planted.get('planted', 0)}; dropped {num_exact}, {num_near}, {clean.num_dropped}; "
        f"{written} rows written"
    )
    shutil.rmtree(work / "out")
    return {"steps": steps, "memory_gb": own + num_proc * children, "checks": checks}


def _counted(values: Any) -> tuple[list[str], list[int]]:
    from collections import Counter

    counts = Counter(values)
    return list(counts), list(counts.values())


def _processor_seconds() -> float:
    usage = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


if __name__ == "__main__":
    sys.exit(main())
