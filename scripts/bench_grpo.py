"""`R1GRPOTrainer` beside TRL's `GRPOTrainer`: the same update, and what a step of each costs.

    python scripts/bench_grpo.py                 # all tables, about a quarter of an hour
    python scripts/bench_grpo.py equal speed     # some of: equal, speed, memory, grading
    torchrun --nproc_per_node 2 scripts/bench_grpo.py equal     # two processes

Both trainers get the same random model, the same completions (made up, so that lengths can be
chosen and generation costs nothing) and the same rewards. `equal` compares the updates after two
optimizer steps, `speed` the time of a step without generation (processor time on a CPU, so that
others on the machine count less), `memory` the most that a step adds to what the process takes,
`grading` what a reward of 20 ms a row adds to a step with a reference pass. One thread by default:
OMP_NUM_THREADS sets it.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from trl_r1.stages.grpo import R1GRPOTrainer
from trl_r1.verification.pooled_reward import pooled

PAD, END, FIRST_WORD = 0, 1, 3


@dataclass(frozen=True)
class Workload:
    """Made-up completions and rewards.

    Attributes:
        median, sigma, cap: of the lognormal lengths in tokens; sigma 0 for uniform lengths of cap.
        dead: whether every second group has equal rewards.
        prompt_words: shortest and longest prompt.
    """

    median: float = 100
    sigma: float = 0.8
    cap: int = 512
    dead: bool = True
    prompt_words: tuple[int, int] = (20, 60)
    num_words: int = 512

    def completions(self, num_rows: int, seed: list[int]) -> list[list[int]]:
        """Token ids of B completions; those of the cap are cut off, the others end."""
        rng = np.random.default_rng(seed)
        lengths = np.full(num_rows, self.cap)
        if self.sigma:
            drawn = rng.lognormal(np.log(self.median), self.sigma, num_rows)
            lengths = np.clip(drawn.astype(int), 1, self.cap)
        rows = []
        for length in lengths:
            ids = rng.integers(FIRST_WORD, self.num_words, length).tolist()
            rows.append([*ids[:-1], END] if self.sigma and length < self.cap else ids)
        return rows

    def prompts(self, num_rows: int) -> Dataset:
        rng = np.random.default_rng(1)
        rows = []
        for i in range(num_rows):
            words = rng.integers(FIRST_WORD, self.num_words, rng.integers(*self.prompt_words))
            text = " ".join(f"w{word}" for word in words)
            rows.append({"prompt": text, "dead": self.dead and i % 2 == 0})
        return Dataset.from_list(rows)


def made_up_reward(completion_ids: list[list[int]], dead: list[bool], **_: Any) -> list[float]:
    return [
        1.0 if is_dead else sum(ids) % 5 / 4
        for ids, is_dead in zip(completion_ids, dead, strict=True)
    ]


@dataclass(frozen=True)
class Model:
    """A random Qwen2."""

    layers: int = 4
    hidden: int = 256
    num_words: int = 512

    def make(self) -> Qwen2ForCausalLM:
        config = Qwen2Config(
            vocab_size=self.num_words,
            hidden_size=self.hidden,
            intermediate_size=4 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=max(2, self.hidden // 64),
            num_key_value_heads=max(2, self.hidden // 64),
            max_position_embeddings=2048,
            pad_token_id=PAD,
            eos_token_id=END,
            bos_token_id=None,
            architectures=["Qwen2ForCausalLM"],
        )
        set_seed(0)
        return Qwen2ForCausalLM(config)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        words = {"[PAD]": PAD, "[END]": END, "[UNK]": 2}
        words |= {f"w{i}": i for i in range(FIRST_WORD, self.num_words)}
        core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
        return PreTrainedTokenizerFast(
            tokenizer_object=core, pad_token="[PAD]", eos_token="[END]", unk_token="[UNK]"
        )


LORA = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


@dataclass(frozen=True)
class Case:
    """What to train and how; `settings` are fields of `GRPOConfig`."""

    settings: dict[str, Any] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    model: Model = field(default_factory=Model)
    lora: bool = False
    rewards: Any = made_up_reward
    vllm_noise: float = 0.0  # above 0: completions come with log-probabilities as vLLM gives them


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


def make_trainer(trainer_class: Any, case: Case, **others: Any) -> Any:
    """A trainer of either class whose completions are the case's."""
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "num_generations": 8,
        "max_steps": 2,
        "loss_type": "grpo",
        "beta": 0.0,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "shuffle_dataset": False,
        "max_completion_length": case.workload.cap,
        "logging_steps": 1,
        "gradient_checkpointing": False,
    } | case.settings
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench_grpo_"),
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    model = case.model.make()
    if args.beta and not case.lora:  # TRL loads the reference from where the model was loaded from
        folder = tempfile.mkdtemp(prefix="bench_grpo_model_")
        model.config.save_pretrained(folder)
        save_file(model.state_dict(), Path(folder) / "model.safetensors", {"format": "pt"})
        model = Qwen2ForCausalLM.from_pretrained(folder)
    trainer = trainer_class(
        model,
        reward_funcs=case.rewards,
        args=args,
        train_dataset=case.workload.prompts(args.generation_batch_size * 8),
        processing_class=case.model.tokenizer(),
        peft_config=copy.deepcopy(LORA) if case.lora else None,
        **others,
    )
    trainer.remove_callback(PrinterCallback)
    calls = itertools.count()
    trainer.lengths = []

    def generate(prompt_ids: list[list[int]], *_: Any) -> tuple[Any, Any]:
        seed = [next(calls), trainer.accelerator.process_index]
        ids = case.workload.completions(len(prompt_ids), seed)
        trainer.lengths.append([(len(p), len(c)) for p, c in zip(prompt_ids, ids, strict=True)])
        if not case.vllm_noise:
            return ids, None
        rng = np.random.default_rng(seed)
        return ids, [(rng.normal(-6.2, case.vllm_noise, len(row))).tolist() for row in ids]

    trainer._generate_single_turn = generate
    if case.vllm_noise:
        trainer.use_vllm = True
    return trainer


TRAINERS = (GRPOTrainer, R1GRPOTrainer)
SMALL = Workload(median=20, cap=64, prompt_words=(4, 12))
TINY = Model(layers=2, hidden=64)


def weights_of(trainer: Any) -> torch.Tensor:
    parameters = (p for p in trainer.model.parameters() if p.requires_grad)
    return torch.cat([p.detach().flatten().double().cpu() for p in parameters])


def compare(case: Case) -> tuple[float, list[Any]]:
    """Relative difference of the two trainers' updates, and the trainers after training."""
    updates, trainers = [], []
    for trainer_class in TRAINERS:
        trainer = make_trainer(trainer_class, case)
        before = weights_of(trainer)
        set_seed(5)
        trainer.train()
        updates.append(weights_of(trainer) - before)
        trainers.append(trainer)
    theirs, ours = updates
    return float((theirs - ours).norm() / theirs.norm()), trainers


# Plain SGD, so that the update is the gradient; clipping and Adam would hide its size.
SGD: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.0}
LOSS_TYPES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo")


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
    time.sleep({seconds} * len(completions))
    return [len(text) % 5 / 4 for text in completions]
"""


def grading_table(options: argparse.Namespace) -> None:
    show("seconds of a step, beta 0.04", "reward at once", "20 ms a row", "added", "of the step")
    model = Model(layers=options.layers, hidden=options.hidden)
    settings = {**SGD, "beta": 0.04, "max_steps": 3, "gradient_accumulation_steps": 8}
    for trainer_class in TRAINERS:
        step = []
        for seconds in (0.0, 0.02):
            path = Path(tempfile.mkdtemp(prefix="bench_grpo_")) / "slow.py"
            path.write_text(SLOW_REWARD.format(seconds=seconds))
            reward = pooled(f"{path}:slow_reward", num_workers=4)
            if trainer_class is GRPOTrainer:  # as plain TRL has it: in its own process
                plain: dict[str, Any] = {}
                exec(path.read_text(), plain)
                reward = plain["slow_reward"]
            trainer = make_trainer(trainer_class, Case(settings, model=model, rewards=reward))
            times = StepTimes()
            trainer.add_callback(times)
            trainer.train()
            step.append(min(times.seconds[1:]))
        added = step[1] - step[0]
        figures = [f"{value:.2f}" for value in (*step, added)]
        show(trainer_class.__name__, *figures, f"{added / step[0]:.0%}")


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
