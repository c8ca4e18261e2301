"""`R1GRPOTrainer` beside TRL's `GRPOTrainer`: the same update, and what a step of each costs.

    python scripts/bench_grpo.py                 # all tables, about a quarter of an hour
    python scripts/bench_grpo.py equal speed     # some of: equal, speed, memory, grading
    torchrun --nproc_per_node 2 scripts/bench_grpo.py equal     # two processes

Both trainers get the same random model, the same completions (made up, so that lengths can be
chosen and generation costs nothing) and the same rewards. `equal` compares the updates after two
optimizer steps, `speed` the time of a step without generation (processor time on a CPU, so that
others on the machine count less), `memory` the most that a step adds to what the process takes,
`grading` the time that a reward of 20 ms a row adds to a step with a reference pass. One thread by
default: OMP_NUM_THREADS sets it.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import torch.distributed as dist
import transformers
from grpo_cases import (
    LOSS_TYPES,
    SGD,
    SMALL,
    TINY,
    TRAINERS,
    Case,
    Model,
    Workload,
    compare,
    make_trainer,
)
from transformers import TrainerCallback

from trl_r1.stages.grpo import R1GRPOTrainer
from trl_r1.verification.pooled_reward import pooled


class StepTimes(TrainerCallback):
    """Seconds of each optimizer step.

    Args:
        clock: `time.perf_counter`, or `time.process_time` for a machine that others use too.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = self.clock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(self.clock() - self.began)


def equal_table(_: argparse.Namespace) -> None:
    show("relative difference of the update (float32)", "beta 0", "beta 0.04")
    for loss_type, lora, iterations in itertools.product(LOSS_TYPES, (False, True), (1, 2)):
        row = []
        for beta in (0.0, 0.04):
            settings = {**SGD, "loss_type": loss_type, "beta": beta, "num_iterations": iterations}
            row.append(compare(Case(settings, SMALL, TINY, lora=lora))[0])
        weights = "LoRA" if lora else "full"
        name = f"{loss_type}, {weights}, {iterations} iteration{'s' * (iterations > 1)}"
        show(name, *(f"{value:.1e}" for value in row))


def token_limit(trainer: Any, beta: float) -> float:
    """How much less work a step can be at most, counted in tokens: backward as two forwards."""
    totals = np.array([p + c for p, c in trainer.lengths[-1]])
    padded = len(totals) * sum(max(column) for column in zip(*trainer.lengths[-1], strict=True))
    advantages = np.array(list(trainer._logs["advantages"])[-len(totals) :])
    trained = totals.sum() if beta else totals[advantages != 0].sum()
    passes = 1 if beta else 0
    return float(padded * (3 + passes) / (3 * trained + passes * totals.sum()))


def speed_cases(options: argparse.Namespace) -> dict[str, Case]:
    model = Model(layers=options.layers, hidden=options.hidden)
    settings = {**SGD, "gradient_accumulation_steps": options.micro_steps, "max_steps": 3}
    uniform = Workload(sigma=0, cap=137, dead=False, prompt_words=(40, 41))
    return {
        "lognormal, half dead, beta 0": Case(settings, model=model),
        "lognormal, half dead, beta 0.04": Case({**settings, "beta": 0.04}, model=model),
        "uniform, none dead, beta 0": Case(settings, uniform, model),
        "uniform, none dead, beta 0.04": Case({**settings, "beta": 0.04}, uniform, model),
    }


def speed_table(options: argparse.Namespace) -> None:
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    show("seconds of a step", "TRL", "ours", "ratio", "limit", "useful")
    for name, case in speed_cases(options).items():
        best: dict[Any, Any] = {}
        for _, trainer_class in itertools.product(range(options.rounds), TRAINERS):
            trainer = make_trainer(trainer_class, case)
            times = StepTimes(clock)
            trainer.add_callback(times)
            trainer.train()
            # The least of the rounds for each step, which has the same completions in all.
            seconds = np.array(times.seconds[1:])
            best[trainer_class] = np.minimum(best.get(trainer_class, np.inf), seconds)
        theirs, ours = (best[trainer_class].mean() for trainer_class in TRAINERS)
        limit = token_limit(trainer, trainer.args.beta)
        useful = np.mean([log["update/useful_tokens"] for log in trainer.state.log_history[:-1]])
        figures = (theirs, ours, theirs / ours, limit, useful)
        show(name, *(f"{value:.2f}" for value in figures))


def peak_memory(trainer_class: Any, case: Case) -> float:
    """MiB that a step adds to what this process takes."""
    trainer = make_trainer(trainer_class, case)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        trainer.train()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from what is held now
    before = peak_of_process()
    trainer.train()
    return peak_of_process() - before


def peak_of_process() -> float:
    """The largest size of this process in MiB, as Linux has it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))


def memory_table(options: argparse.Namespace) -> None:
    show("MiB that training adds", "TRL", "ours")
    for name, case in speed_cases(options).items():
        case = replace(case, settings={**case.settings, "max_steps": 1})
        row = []
        for trainer_class in TRAINERS:  # a process each, since the largest size never falls
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row.append(pool.apply(peak_memory, (trainer_class, case)))
        show(name, *(f"{value:.0f}" for value in row))


SLOW_REWARD = """
import time


def slow_reward(completions, **kwargs):
    time.sleep(0.02 * len(completions))
    return [len(text) % 5 / 4 for text in completions]
"""


class Stopwatch:
    """Adds up the seconds in calls of the functions that it stands before."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def before(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        setattr(owner, name, timed)


def grading_table(options: argparse.Namespace) -> None:
    show("a reward of 20 ms a row, 64 rows, beta 0.04", "step", "grading", "of the rest")
    model = Model(layers=options.layers, hidden=options.hidden)
    settings = {**SGD, "beta": 0.04, "max_steps": 3, "gradient_accumulation_steps": 8}
    path = Path(tempfile.mkdtemp(prefix="bench_grpo_")) / "slow.py"
    path.write_text(SLOW_REWARD)
    plain: dict[str, Any] = {}
    exec(path.read_text(), plain)
    rewards = (plain["slow_reward"], pooled(f"{path}:slow_reward", num_workers=4))
    for trainer_class, reward in zip(TRAINERS, rewards, strict=True):
        trainer = make_trainer(trainer_class, Case(settings, model=model, rewards=reward))
        times, grading = StepTimes(), Stopwatch()
        grading.before(trainer, "_calculate_rewards")
        if trainer_class is R1GRPOTrainer:
            grading.before(reward, "submit")
        trainer.add_callback(times)
        trainer.train()
        step, added = (total / 3 for total in (sum(times.seconds), grading.seconds))
        show(trainer_class.__name__, f"{step:.2f}", f"{added:.2f}", f"{added / (step - added):.1%}")


def show(name: str, *columns: str) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"{name:44s}" + "".join(f"{column:>16s}" for column in columns), flush=True)


TABLES = {
    "equal": equal_table,
    "speed": speed_table,
    "memory": memory_table,
    "grading": grading_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"some of: {', '.join(TABLES)}")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--micro-steps", type=int, default=16, help="of 8 rows, for a step")
    parser.add_argument("--rounds", type=int, default=2, help="of which the fastest counts")
    options = parser.parse_args()
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"no such table: {', '.join(unknown)}; there are {', '.join(TABLES)}")
    transformers.utils.logging.disable_progress_bar()
    for name in options.tables or TABLES:
        TABLES[name](options)
        show("")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
