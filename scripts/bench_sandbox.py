"""Programs per second: the sandbox beside a plain subprocess for each program, in one run.

    python scripts/bench_sandbox.py [--programs rows.jsonl] [--num 200] [--workers 2] [--rounds 5]

Each round runs the same programs both ways, one after the other, so that a busy machine slows both;
the ratio of each round is what to compare between machines. Rows have `code` and `tests` (or MBPP's
`test_list`); without a file, small programs made on the spot are used. What it leaves out: the time
to start the sandbox, which is printed apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trl_r1.verification.program_tests import programs_of
from trl_r1.verification.reading_tests import parse_tests
from trl_r1.verification.sandbox import Program, Sandbox


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--programs", type=Path, help="JSON lines with `code` and `tests`")
    parser.add_argument("--num", type=int, default=200, help="programs in a round")
    parser.add_argument("--workers", type=int, default=2, help="programs at a time")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    pairs = (read_rows(options.programs) if options.programs else made_rows())[: options.num]
    while len(pairs) < options.num:
        pairs += pairs[: options.num - len(pairs)]
    programs = [program for program, _ in pairs]
    start = time.perf_counter()
    used: list[float] = []
    with Sandbox(options.workers) as sandbox:
        failed = [r for r in sandbox.run(programs[: options.workers]) if r.status != "ok"]
        print(f"layers: {', '.join(sandbox.layers)}")
        print(f"start, with the first programs: {time.perf_counter() - start:.2f} s")
        print(
            f"programs: {len(programs)}, workers: {options.workers}, failed at first: {len(failed)}"
        )
        rates: list[tuple[float, float]] = []
        for number in range(options.rounds):
            isolated = rate(
                len(programs), lambda: used.extend(r.cpu_seconds for r in sandbox.run(programs))
            )
            scripts = [script for _, script in pairs]
            plain = rate(len(scripts), lambda s=scripts: run_plain(s, options.workers))
            rates.append((isolated, plain))
            print(
                f"round {number + 1}: sandbox {isolated:.0f}/s, plain subprocess {plain:.0f}/s, "
                f"ratio {isolated / plain:.1f}"
            )
    # Processor time says what wall time can't while others use the machine.
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    plain_ms = 1000 * (reaped.ru_utime + reaped.ru_stime) / (len(programs) * options.rounds)
    isolated_ms = 1000 * statistics.mean(used)
    print(f"processor time a program: sandbox {isolated_ms:.1f} ms, plain {plain_ms:.1f} ms")
    medians = [statistics.median(column) for column in zip(*rates, strict=True)]
    ratio = statistics.median(isolated / plain for isolated, plain in rates)
    print(f"median: sandbox {medians[0]:.0f}/s, plain {medians[1]:.0f}/s, ratio {ratio:.1f}")


def rate(count: int, work: Callable[[], object]) -> float:
    """Programs per second of one go."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def run_plain(scripts: Sequence[str], num_workers: int) -> None:
    """`python -I -S -` for each script, the fastest start there is, with no isolation at all."""

    def run(script: str) -> None:
        subprocess.run(
            [sys.executable, "-"], input=script.encode(), capture_output=True, timeout=60
        )

    with ThreadPoolExecutor(num_workers) as threads:
        list(threads.map(run, scripts))


def read_rows(path: Path) -> list[tuple[Program, str]]:
    """Programs of a file, each with the script that a plain subprocess is given."""
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sources = row.get("tests") or row.get("test_list")
        setup = row.get("test_setup_code") or ""
        script = "\n".join([row["code"], setup, *sources])
        programs = programs_of(row["code"], parse_tests(sources), setup)
        pairs += [(program, script) for program in programs[:1]]
    return pairs


def made_rows() -> list[tuple[Program, str]]:
    """Small programs with three tests each."""
    pairs = []
    for n in range(1, 101):
        code = f"import math\ndef f(xs):\n    return sorted(math.gcd(x, {n}) for x in xs)\n"
        calls = tuple(f"f([{a}, {a + 1}, {a * n}])" for a in (2, 5, 11))
        pairs.append((Program(code, calls=calls), code + "\n".join(calls)))
    return pairs


if __name__ == "__main__":
    main()
