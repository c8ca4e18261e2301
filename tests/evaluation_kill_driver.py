"""Started by a test: kills evaluations at every step in the file system and at random moments.

A process of its own that imports everything once and forks a child a life, since importing takes
far longer than the job. `python evaluation_kill_driver.py FOLDER` leaves `FOLDER/calm`
(undisturbed), `FOLDER/step-N` (killed right before the Nth step, then run to its end) and
`FOLDER/random` (killed again and again), and `FOLDER/calls/NAME` with a line for each shard
drawn; it prints a JSON line. Grading runs in the job's own process, so that kills fall into it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_r1.evaluation import same_answers
from trl_r1.evaluation.compare import compare
from trl_r1.evaluation.evaluator import Evaluator
from trl_r1.evaluation.job import EvaluationJob
from trl_r1.reasoning_format import get_format
from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.sampling import Sample, derive_seed
from trl_r1.sampling.engines import EngineArguments
from trl_r1.sampling.processes import Processes
from trl_r1.training.arguments import EvaluationSettings, ModelArguments

NUM_PROBLEMS = 8
NUM_SAMPLES = 3
NUM_KILLS = 20
_STEPS = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"})


class Seeded:
    """Samples that depend on prompt, index and seed alone; notes each call, a shard each."""

    def __init__(self, journal: Path, seconds: float) -> None:
        self.journal, self.seconds = journal, seconds

    def sample(
        self, prompts: Sequence[Any], num_samples: int, *, seed: int, **_: Any
    ) -> list[list[Sample]]:
        with self.journal.open("a") as file:
            file.write(f"{seed}\n")
        time.sleep(self.seconds)
        numbers = [[derive_seed(seed, str(p), i) % 4 for i in range(num_samples)] for p in prompts]
        return [
            [Sample(f"<think>?</think><answer>{n}</answer>", [n], False) for n in group]
            for group in numbers
        ]


class Job(EvaluationJob):
    """A job whose samples are `Seeded`."""

    seconds = 0.0

    def _open(self) -> Any:
        return Seeded(self.output.parent / "calls" / self.output.name, self.seconds)


def problems() -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"number {i}?"}],
            "solution": str(i % 4),
            "task": "numbers",
            "is_general": False,
        }
        for i in range(NUM_PROBLEMS)
    ]


def life(folder: Path, seconds: float = 0.0) -> None:
    """Evaluate, then compare with the undisturbed evaluation."""
    Job.seconds = seconds

    def grade(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return math_answer_reward(*args, **kwargs)

    Evaluator._grader = lambda self, reference: grade  # type: ignore[method-assign]
    same_answers.pooled_match = _match
    settings = EvaluationSettings(num_samples=NUM_SAMPLES, seed=5, max_new_tokens=8)
    Job(
        source="seeded",
        model=None,
        engine=EngineArguments(engine="server", servers=["http://127.0.0.1:9/v1"]),
        model_args=ModelArguments(),
        fmt=get_format("zero_bare"),
        problems=problems(),
        settings=settings,
        ks=(),
        shard_size=2,
        output=folder,
        left_out=0,
        faults=(),
        processes=Processes(),
    ).run(lambda *_: None)
    compare(folder.parent / "calm", folder).write(folder / "comparison.json")


def _match(pairs: Any) -> Any:
    return [float(one == other) for one, other in pairs]


def forked(folder: Path, seconds: float = 0.0, kill_at: int | None = None) -> int:
    """Fork a child that lives; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    left = kill_at

    def hook(event: str, args: Any) -> None:
        nonlocal left
        if left is not None and event in _STEPS and str(folder) in str(args[0]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at is not None:
        sys.addaudithook(hook)
    status = 1
    try:
        folder.mkdir(exist_ok=True)
        life(folder, seconds)
        status = 0
    finally:
        os._exit(status)


def was_killed(pid: int) -> bool:
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a life ended with an error"
    return os.WIFSIGNALED(status)


def drive(folder: Path) -> dict[str, int]:
    (folder / "calls").mkdir(parents=True)
    (folder / "calm").mkdir()
    life(folder / "calm")  # here, so that what it imports is there for all lives
    step = 0
    while was_killed(forked(folder / f"step-{step:03}", kill_at=step)):
        assert not was_killed(forked(folder / f"step-{step:03}"))
        step += 1
    draw = random.Random(1)
    num_killed = 0
    for _ in range(NUM_KILLS):
        pid = forked(folder / "random", seconds=0.02)
        time.sleep(draw.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        num_killed += was_killed(pid)
    assert not was_killed(forked(folder / "random"))
    return {"num_steps": step, "num_killed": num_killed}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(drive(Path(sys.argv[1]))) + "\n")
