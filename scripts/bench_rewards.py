#!/usr/bin/env python
"""Speed of grading: ours against TRL's, the pool with one worker and two, and on hostile rows.

    python scripts/bench_rewards.py [--data ../shared/data] [--rows 400]

All in one run on the same rows, so that what counts is the ratios: other work on the machine slows
both sides. Each side is timed in alternating rounds; the best round of each counts. Needs a data
folder with `labelled/gsm8k_model_solutions.jsonl`, `labelled/hostile_cases.jsonl` and
`math500/test.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trl.rewards import accuracy_reward

from trl_r1.rewards import math_answer
from trl_r1.verification.pool import RewardPool
from trl_r1.verification.pooled_reward import pooled

ROUNDS = 3
LIMIT = 1.0  # seconds of a call on hostile rows
KILLED = ("timed out", "out of memory", "crashed")
FILE_OF_WORK = '''
def work(completions, **kwargs):
    """A millisecond or so of plain Python for each row."""
    return [float(sum(n * n for n in range(20_000)) % 7) for _ in completions]


def nothing(completions, **kwargs):
    return [1.0 for _ in completions]
'''


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    options.add_argument("--rows", type=int, default=400, help="rows of each set")
    settings = options.parse_args()
    logging.disable(logging.WARNING)
    against_trl("GSM8K text", *gsm8k(settings.data, settings.rows))
    against_trl("MATH-500", *math500(settings.data, settings.rows))
    second_worker()
    fixed_cost()
    hostile(settings.data)
    return 0


def gsm8k(data: Path, num_rows: int) -> tuple[list[str], list[str]]:
    """Solutions as models write them; the last line's answer boxed, since TRL reads only boxes."""
    rows = read(data / "labelled" / "gsm8k_model_solutions.jsonl")
    rows = [row for row in rows if "A: " in row["pred"]][:: max(1, len(rows) // num_rows)]
    texts = []
    for row in rows[:num_rows]:
        head, _, answer = row["pred"].rpartition("A: ")
        texts.append(rf"{head}The answer is \boxed{{{answer.strip()}}}.")
    return texts, [row["gold"] for row in rows[:num_rows]]


def math500(data: Path, num_rows: int) -> tuple[list[str], list[str]]:
    """The set's own solutions, which end in a box."""
    rows = read(data / "math500" / "test.jsonl")[:num_rows]
    return [row["solution"] for row in rows], [row["answer"] for row in rows]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def best(*sides: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """Seconds of each side's best round, the sides taking turns."""
    seconds = [float("inf")] * len(sides)
    for _ in range(rounds):
        for number, side in enumerate(sides):
            began_at = time.perf_counter()
            side()
            seconds[number] = min(seconds[number], time.perf_counter() - began_at)
    return seconds


def against_trl(name: str, texts: list[str], golds: list[str]) -> None:
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    boxed = [rf"\boxed{{{gold}}}" for gold in golds]

    def ours() -> list[Any]:
        for function in vars(math_answer).values():  # nothing is remembered from round to round
            if hasattr(function, "cache_clear"):
                function.cache_clear()
        return math_answer.math_answer_reward(messages, solution=golds)

    theirs_s, ours_s = best(lambda: accuracy_reward(messages, solution=boxed), ours)
    num = len(texts)
    say(
        f"{name}: {num} rows in one process: TRL {num / theirs_s:,.0f}/s, "
        f"ours {num / ours_s:,.0f}/s, ratio {theirs_s / ours_s:.1f}"
    )


def second_worker() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench_work.py"
        file.write_text(FILE_OF_WORK)
        rows = ["x"] * 256
        prompts = [str(number // 8) for number in range(256)]
        with RewardPool(num_workers=1) as one, RewardPool(num_workers=2) as two:
            single = pooled(f"{file}:work", pool=one)
            double = pooled(f"{file}:work", pool=two)
            single(rows), double(rows)
            one_s, two_s = best(
                lambda: single(rows, prompts=prompts),
                lambda: double(rows, prompts=prompts),
                rounds=2 * ROUNDS,
            )
    say(
        f"second worker: 256 rows of {one_s / 256 * 1e3:.1f} ms: {one_s:.2f} s with one, "
        f"{two_s:.2f} s with two, ratio {one_s / two_s:.2f}"
    )


def fixed_cost() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench_work.py"
        file.write_text(FILE_OF_WORK)
        with RewardPool(num_workers=2) as pool:
            reward = pooled(f"{file}:nothing", pool=pool)
            for num_rows in (1, 64):
                rows = ["x"] * num_rows
                reward(rows)
                times = []
                for _ in range(100):
                    began_at = time.perf_counter()
                    reward(rows)
                    times.append(time.perf_counter() - began_at)
                times.sort()
                say(
                    f"a pool call of {num_rows} empty rows: median {times[50] * 1e3:.2f} ms, "
                    f"99th of 100 {times[98] * 1e3:.2f} ms"
                )


def hostile(data: Path) -> None:
    """Each hostile row beside neighbours, by our reward and by one that has no limits at all."""
    rows = read(data / "labelled" / "hostile_cases.jsonl")
    with tempfile.TemporaryDirectory() as folder, RewardPool(num_workers=2) as pool:
        file = Path(folder) / "naive.py"
        file.write_text(
            "from math_verify import parse, verify\n"
            "import logging; logging.disable()\n"
            "def naive(completions, solution, **kwargs):\n"
            "    return [float(verify(parse(s, parsing_timeout=None), "
            "parse(c, parsing_timeout=None), timeout_seconds=None)) "
            "for c, s in zip(completions, solution)]\n"
        )
        for name in ("math_answer", f"{file}:naive"):
            reward = pooled(name, timeout=LIMIT, memory_mb=512, on_error="none", pool=pool)
            with ThreadPoolExecutor(1) as thread:
                one_by_one(name.rpartition(":")[2], "the main thread", reward, rows)
                thread.submit(
                    one_by_one, name.rpartition(":")[2], "a thread", reward, rows
                ).result()
            all_at_once(name.rpartition(":")[2], reward, rows)


def one_by_one(name: str, place: str, reward: Any, rows: list[dict[str, Any]]) -> None:
    """A call for each hostile row, beside seven neighbours."""
    neighbours = [rf"so \boxed{{{number}}}" for number in range(7)]
    golds = ["3"] * 7
    expected = reward(neighbours, solution=golds)
    worst, num_killed, num_changed = 0.0, 0, 0
    for row in rows:
        began_at = time.perf_counter()
        pending = reward.submit([row["pred"], *neighbours], solution=[row["gold"], *golds])
        got = pending.result()
        worst = max(worst, time.perf_counter() - began_at)
        num_killed += pending.verdicts[0] in KILLED
        num_changed += got[1:] != expected
    say(
        f"hostile rows by {name}, called in {place}: {len(rows)} rows, limit {LIMIT:g} s: slowest "
        f"call {worst:.2f} s, {num_killed} killed, {num_changed} with changed neighbours"
    )


def all_at_once(name: str, reward: Any, rows: list[dict[str, Any]]) -> None:
    """All hostile rows in one batch, each with a neighbour: a limit each, shared by the workers."""
    neighbours = [rf"so \boxed{{{number}}}" for number in range(len(rows))]
    expected = reward(neighbours, solution=["3"] * len(rows))
    texts, golds = [], []
    for row, neighbour in zip(rows, neighbours, strict=True):
        texts += [row["pred"], neighbour]
        golds += [row["gold"], "3"]
    began_at = time.perf_counter()
    pending = reward.submit(texts, solution=golds)
    got = pending.result()
    seconds = time.perf_counter() - began_at
    num_killed = sum(verdict in KILLED for verdict in pending.verdicts)
    say(
        f"hostile rows by {name}, all in one batch of {len(texts)}: {seconds:.1f} s, {num_killed} "
        f"killed, {sum(a != b for a, b in zip(got[1::2], expected, strict=True))} changed "
        "neighbours"
    )


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
