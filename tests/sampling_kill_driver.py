"""Started by a test: kills a sampling job again and again, then lets it end.

With STEPS as the engine it kills at every step in the file system instead, each time another job.
A process of its own that imports everything (and loads the model) once and forks a child a life,
since importing takes far longer than the job. `python sampling_kill_driver.py ENGINE FOLDER SOURCE`
leaves `FOLDER/calm` (undisturbed) and `FOLDER/killed`, and prints a JSON line. SOURCE is a model
folder, or the address of a server.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trl_r1.reasoning_format import get_format
from trl_r1.sampling import Sample, Sampler, derive_seed
from trl_r1.stages.rejection_sampling import RejectionSampler, RejectionSamplingConfig

NUM_KILLS = 20
SHARD_SIZE = 2
NUM_SHARDS = 40
NUM_SAMPLES = 3
MOST_BEFORE_THE_END = NUM_SHARDS - 4


def rows() -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"number {i}?"}],
            "solution": str(i % 7),
            "task": "numbers",
        }
        for i in range(NUM_SHARDS * SHARD_SIZE)
    ]


class Seeded:
    """Samples that depend on prompt, index and seed alone; slow enough to be killed."""

    def sample(
        self, prompts: Sequence[Any], num_samples: int, *, seed: int, **_: Any
    ) -> list[list[Sample]]:
        time.sleep(0.005)
        numbers = [[derive_seed(seed, str(p), i) % 7 for i in range(num_samples)] for p in prompts]
        return [[Sample(f"I see {n}", [n], False) for n in group] for group in numbers]


class Thinking:
    """Each sample has an answer of its own, so that no question to a judge comes twice."""

    def sample(
        self, prompts: Sequence[Any], num_samples: int, *, seed: int, **_: Any
    ) -> list[list[Sample]]:
        return [
            [
                Sample(f"<think>\nI see.\n</think>\n{derive_seed(seed, str(p), i)}", [i], False)
                for i in range(num_samples)
            ]
            for p in prompts
        ]


def unsure(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """A rule that can grade nothing."""
    return [None] * len(completions)


class Counted:
    """A sampler that notes each call in a file before it samples."""

    def __init__(self, sampler: Sampler, journal: Path, wait: Callable[[], None]) -> None:
        self.sampler, self.journal, self.wait = sampler, journal, wait

    def sample(self, *args: Any, **kwargs: Any) -> list[list[Sample]]:
        self.wait()
        with self.journal.open("a") as file:
            file.write(f"{kwargs['seed']}\n")
        return self.sampler.sample(*args, **kwargs)


def prepare(engine: str, source: str) -> Any:
    """What is worth making once, before the first fork."""
    if engine == "seeded":
        return Seeded()
    if engine in ("server", "judge"):
        return source
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    if engine == "vllm":
        from trl_r1.sampling.vllm_sampler import VllmSampler

        options = {"dtype": "float32", "max_model_len": 512, "enforce_eager": True}
        return VllmSampler.from_pretrained(source, tokenizer, options)
    from trl_r1.sampling.continuous_sampler import ContinuousSampler
    from trl_r1.sampling.transformers_sampler import TransformersSampler

    kind = ContinuousSampler if engine == "continuous" else TransformersSampler
    return kind(AutoModelForCausalLM.from_pretrained(source), tokenizer, 6)


def job(engine: str, prepared: Any, folder: Path, is_doomed: bool) -> None:
    """One life of the job: it goes on where the last one was killed. One that is to be killed, but
    is not in time, since the machine is busy, waits for it before it could end."""

    def wait() -> None:
        while is_doomed and num_shards(folder) >= MOST_BEFORE_THE_END:
            time.sleep(1)

    judge = None
    if engine in ("server", "judge"):
        from trl_r1.sampling.model_judge import ModelJudge
        from trl_r1.sampling.server_address import ServerAddress
        from trl_r1.sampling.server_pool import PoolSettings
        from trl_r1.sampling.server_sampler import ServerSampler

        class Waiting(ServerSampler):
            def sample(self, *args: Any, **kwargs: Any) -> list[list[Sample]]:
                wait()
                return super().sample(*args, **kwargs)

        settings = PoolSettings(concurrency=2)
        sampler: Any = Waiting([ServerAddress.parse(prepared)], None, settings)
        if engine == "judge":
            judge, sampler = ModelJudge(sampler, get_format("r1")), Thinking()
    else:
        sampler = Counted(prepared, folder.with_suffix(".calls"), wait)
    config = RejectionSamplingConfig(
        num_samples=NUM_SAMPLES,
        max_new_tokens=8,
        shard_size=SHARD_SIZE,
        seed=3,
        language=None,
        require_format=False,
        reject_repetition=False,
        policy="random",
        keep_per_prompt=2,
    )
    fmt = get_format("r1" if judge else "zero_bare")
    checks = [unsure] if judge else []
    made = RejectionSampler(sampler, fmt, checks, config, ask_model=judge)
    made.draw(rows(), folder)
    with suppress(ValueError):  # a random model says nothing that is kept
        made.assemble(rows(), folder)


def live(engine: str, prepared: Any, folder: Path, is_doomed: bool = False) -> int:
    """Fork a child that does the job; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        job(engine, prepared, folder, is_doomed)
        status = 0
    finally:
        os._exit(status)


def num_shards(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))


def drive(engine: str, folder: Path, source: str) -> dict[str, Any]:
    draw = random.Random(0)
    prepared = prepare(engine, source)
    (folder / "killed").mkdir(parents=True)
    (folder / "calm").mkdir()
    num_killed = 0
    for _ in range(NUM_KILLS):
        # After none to two more shards, and then at any moment.
        made = num_shards(folder / "killed")
        wanted = min(made + draw.choice((0, 1, 1, 2)), MOST_BEFORE_THE_END)
        pid = live(engine, prepared, folder / "killed", is_doomed=True)
        while num_shards(folder / "killed") < wanted and os.waitpid(pid, os.WNOHANG)[0] == 0:
            time.sleep(0.002)
        time.sleep(draw.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        num_killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    made_before = num_shards(folder / "killed")
    statuses = []
    for name in ("killed", "calm"):
        statuses.append(os.waitpid(live(engine, prepared, folder / name), 0)[1])
    calls = folder / "killed.calls"
    num_calls = len(calls.read_text().split()) if calls.exists() else None
    return {
        "num_killed": num_killed,
        "made_before": made_before,
        "statuses": statuses,
        "num_calls": num_calls,
    }


_STEPS = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"})


def killed_at(step: int, folder: Path) -> bool:
    """Kill a job right before its `step`th use of the file system; whether it got there."""
    pid = os.fork()
    if pid:
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    left = step

    def hook(event: str, args: Any) -> None:
        nonlocal left
        if event in _STEPS and str(folder) in str(args[0]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    small_job(folder)
    os._exit(0)


def small_job(folder: Path) -> None:
    config = RejectionSamplingConfig(
        num_samples=2, shard_size=1, language=None, require_format=False, reject_repetition=False
    )
    RejectionSampler(Seeded(), get_format("zero_bare"), [], config).run(rows()[:3], folder)


def drive_steps(folder: Path) -> dict[str, Any]:
    """As many jobs as one has steps, `FOLDER/killed-N` each, and `FOLDER/calm`."""
    small_job(folder / "calm")
    step = 0
    while killed_at(step, folder / f"killed-{step}"):
        small_job(folder / f"killed-{step}")
        step += 1
    return {"num_steps": step}


if __name__ == "__main__":
    target = Path(sys.argv[2])
    seen = (
        drive_steps(target) if sys.argv[1] == "STEPS" else drive(sys.argv[1], target, sys.argv[3])
    )
    sys.stdout.write(json.dumps(seen) + "\n")
