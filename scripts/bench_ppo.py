#!/usr/bin/env python
"""What a value model costs: the update of PPO against that of GRPO, on the same completions.

    python scripts/bench_ppo.py
    python scripts/bench_ppo.py --model HuggingFaceTB/SmolLM2-135M --device cuda --completions 64

GRPO is said to be cheaper than PPO since it has no value model. This measures it. One prompt batch
and its completions (lengths lognormal, median 100, sigma 0.8, cap 512) are given to every side:

- `PPO`: policy, reference and a critic of the policy's size (`AutoModelForTokenClassification`, one
  label), advantages by GAE, clipped value loss; a plain loop with the padding that TRL has.
- `GRPO`: the same loop and code without the critic, so that their difference is the value path.
- `TRL`: TRL's `GRPOTrainer`, and `R1`: `R1GRPOTrainer`, both through their `rollout_func`.

A step is everything from the completions to the new weights; generation, the same for all, is left
out. On a CPU, seconds are the processor's: what the clock shows on a quiet machine with one thread.
Each side runs in a process of its own, so that its peak memory (weights, gradients, optimizer and
activations) is its own; the sides take turns, and a ratio is taken within a round.
PPO is given what makes it cheap: the KL penalty in the loss as in GRPO, not in the reward, no pass
for old log-probabilities, one epoch. GAE has gamma 1 and lambda 1 by default.
Left out: how well either learns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
    logging,
)
from trl import GRPOTrainer

from trl_r1.objective import Objective, advantages
from trl_r1.reasoning_format import get_format
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.tiny_base import TinyBaseArguments, new_model, train_tokenizer, write_corpus

GROUP = 8
PROMPT_LENGTH = 24
VALUE_CLIP = 0.2


@dataclass(frozen=True)
class Settings:
    """What all sides have in common."""

    model: str
    device: str = "cpu"
    completions: int = 32
    micro_batch: int = 8
    max_length: int = 512
    beta: float = 0.001
    gae_lambda: float = 1.0
    learning_rate: float = 1e-6
    steps: int = 1


@dataclass(frozen=True)
class Rollouts:
    """B completions with their rewards; groups one after the other."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    rewards: Tensor


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", help="folder or Hub id; by default a random one of four layers")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--completions", type=int, default=32, help="of a step; groups of 8")
    options.add_argument("--micro-batch", type=int, default=8, help="rows of a backward pass")
    options.add_argument("--beta", type=float, default=0.001, help="KL penalty; 0: no reference")
    options.add_argument("--gae-lambda", type=float, default=1.0)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=2, help="measured steps of a side and round")
    given = vars(options.parse_args())
    rounds, model = given.pop("rounds"), given.pop("model")
    with tempfile.TemporaryDirectory() as folder:
        if model is None:  # in a process of its own: nothing may run here before the forks
            model = str(Path(folder) / "model")
            in_own_process(make_model, Path(model))
        settings = Settings(model=model, **given)
        results = [
            {side: in_own_process(measure, side, settings) for side in SIDES} for _ in range(rounds)
        ]
    report(results, settings)
    return 0


def in_own_process(function: Callable[..., Any], *args: Any) -> Any:
    """Run `function(*args)` in a fork of this process and return what it returns."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        sender.send(function(*args))

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__}{args[:1]} failed; its error is above") from None
    finally:
        process.join()


def make_model(folder: Path, num_layers: int = 4, hidden_size: int = 256) -> None:
    """A random Qwen2 with a tokenizer, saved."""
    sizes = TinyBaseArguments(num_documents=400)
    sizes.num_layers = num_layers
    fmt = get_format(sizes.reasoning_format)
    tokenizer = train_tokenizer(write_corpus(sizes, fmt, 0), sizes.vocab_size, fmt)
    new_model(tokenizer, hidden_size, sizes, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_rollouts(settings: Settings, vocab_size: int, end_id: int) -> Rollouts:
    """Completions of random tokens; a right answer has 1, and every group has both kinds."""
    generator = torch.Generator().manual_seed(0)
    rows = settings.completions
    normal = torch.randn(rows, generator=generator)
    lengths = (100 * (0.8 * normal).exp()).long().clamp(2, settings.max_length)

    def tokens(count: int) -> list[int]:
        return [int(i) for i in torch.randint(5, vocab_size, (count,), generator=generator)]

    prompts = [tokens(PROMPT_LENGTH) for _ in range(rows // GROUP)]
    rewards_B = torch.arange(rows) % GROUP < torch.arange(rows) // GROUP % (GROUP - 1) + 1
    return Rollouts(
        prompt_ids=[prompts[i // GROUP] for i in range(rows)],
        completion_ids=[[*tokens(int(length) - 1), end_id] for length in lengths],
        rewards=rewards_B.float(),
    )


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16) over right-padded rows.

    Args:
        rewards_BT: what each token earned.
        values_BT: the critic's value before each token.
        mask_BT: 1 for tokens; after the last one the value is 0.

    Returns:
        Advantages and returns, the critic's targets; both 0 at padding.
    """
    values_BT = values_BT * mask_BT
    after_BT = torch.cat([values_BT[:, 1:], torch.zeros_like(values_BT[:, :1])], dim=1)
    surprise_BT = (rewards_BT + gamma * after_BT - values_BT) * mask_BT
    running_B = torch.zeros_like(values_BT[:, 0])
    columns = []
    for surprise_B in reversed(surprise_BT.unbind(1)):
        running_B = surprise_B + gamma * gae_lambda * running_B
        columns.append(running_B)
    advantages_BT = torch.stack(columns[::-1], dim=1) * mask_BT
    return advantages_BT, advantages_BT + values_BT


def value_loss(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """PPO's clipped squared error, a mean over tokens."""
    clipped_BT = old_BT + (values_BT - old_BT).clamp(-VALUE_CLIP, VALUE_CLIP)
    errors_BT = torch.max((values_BT - returns_BT) ** 2, (clipped_BT - returns_BT) ** 2)
    return 0.5 * (errors_BT * mask_BT).sum() / mask_BT.sum()


class PlainLoop:
    """A step of PPO, or of GRPO where there is no critic, in plain torch and transformers."""

    def __init__(self, settings: Settings, rollouts: Rollouts, *, has_critic: bool) -> None:
        self.settings, self.rollouts = settings, rollouts
        self.objective = Objective(beta=settings.beta)
        self.policy = self._load(AutoModelForCausalLM).train()
        self.reference = self._load(AutoModelForCausalLM).eval() if settings.beta else None
        self.critic = None
        self.optimizers = [self._adam(self.policy)]
        if has_critic:
            self.critic = self._load(AutoModelForTokenClassification, num_labels=1).train()
            self.optimizers.append(self._adam(self.critic))

    def _load(self, architecture: Any, **kwargs: Any) -> Any:
        model = architecture.from_pretrained(self.settings.model, dtype=torch.float32, **kwargs)
        return model.to(self.settings.device)

    def _adam(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.learning_rate)

    def step(self) -> None:
        ids, mask, prompt_length = self._batch()
        mask_BT = mask[:, prompt_length:]
        rows = list(self._micro_batches(len(ids)))
        ref_BT, advantages_BT, values_BT, returns_BT = None, None, None, None
        rewards_B = self.rollouts.rewards.to(ids.device)
        with torch.no_grad():
            if self.reference is not None:
                ref_BT = torch.cat([self._logps(self.reference, ids[i], mask[i]) for i in rows])
            if self.critic is None:
                advantages_BT = advantages(rewards_B, GROUP).unsqueeze(1)
            else:
                values_BT = torch.cat([self._values(ids[i], mask[i]) for i in rows])
                advantages_BT, returns_BT = self._by_gae(rewards_B, values_BT, mask_BT)
        for i in rows:
            loss = self.objective.loss(
                self._logps(self.policy, ids[i], mask[i]),
                advantages_BT[i],
                mask_BT[i],
                ref_logps_BT=None if ref_BT is None else ref_BT[i],
            )
            (loss / len(rows)).backward()
            if self.critic is not None:
                new_BT = self._values(ids[i], mask[i])
                loss = value_loss(new_BT, values_BT[i], returns_BT[i], mask_BT[i])
                (loss / len(rows)).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def _by_gae(
        self, rewards_B: Tensor, values_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The reward at the last token; advantages whitened over the batch, as PPO has them."""
        last_B = mask_BT.sum(1).long() - 1
        rewards_BT = torch.zeros_like(values_BT).scatter(1, last_B[:, None], rewards_B[:, None])
        gained_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, 1.0, self.settings.gae_lambda)
        gained = gained_BT[mask_BT.bool()]
        return (gained_BT - gained.mean()) / (gained.std() + 1e-8) * mask_BT, returns_BT

    def _batch(self) -> tuple[Tensor, Tensor, int]:
        """Ids and mask of prompts and completions, padded to the longest as TRL does."""
        rows = self.rollouts.completion_ids
        longest = max(map(len, rows))
        pairs = zip(self.rollouts.prompt_ids, rows, strict=True)
        ids = [prompt + row + [0] * (longest - len(row)) for prompt, row in pairs]
        mask = [[1.0] * (PROMPT_LENGTH + len(row)) + [0.0] * (longest - len(row)) for row in rows]
        device = self.settings.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device), PROMPT_LENGTH

    def _micro_batches(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.settings.micro_batch):
            yield slice(start, start + self.settings.micro_batch)

    def _logps(self, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        keep = ids.shape[1] - PROMPT_LENGTH
        logits = model(ids, attention_mask=mask, logits_to_keep=keep + 1).logits[:, :-1]
        logps = logits.log_softmax(-1)
        return logps.gather(-1, ids[:, PROMPT_LENGTH:, None]).squeeze(-1)

    def _values(self, ids: Tensor, mask: Tensor) -> Tensor:
        assert self.critic is not None
        values = self.critic(ids, attention_mask=mask).logits.squeeze(-1)
        return values[:, PROMPT_LENGTH - 1 : -1]


class StepClock(TrainerCallback):
    """Seconds of each step of a trainer."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = now(self.device)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(now(self.device) - self.start)


def now(device: str) -> float:
    """Seconds: of the clock on a GPU, of the processor on a CPU, where others may be at work."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def plain_steps(settings: Settings, rollouts: Rollouts, *, has_critic: bool) -> list[float]:
    loop = PlainLoop(settings, rollouts, has_critic=has_critic)
    seconds = []
    for _ in range(settings.steps + 1):
        start = now(settings.device)
        loop.step()
        seconds.append(now(settings.device) - start)
    return seconds


def trainer_steps(settings: Settings, rollouts: Rollouts, trainer_class: Any) -> list[float]:
    def given(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": rollouts.prompt_ids,
            "completion_ids": rollouts.completion_ids,
            "logprobs": None,
        }

    def reward(completions: list[Any], **kwargs: Any) -> list[float]:
        return [float(value) for value in rollouts.rewards]

    clock = StepClock(settings.device)
    num_prompts = settings.completions // GROUP * (settings.steps + 1)
    with tempfile.TemporaryDirectory() as folder:
        args = R1GRPOConfig(
            output_dir=folder,
            use_cpu=settings.device == "cpu",
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            gradient_checkpointing=False,
            per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=settings.completions // settings.micro_batch,
            num_generations=GROUP,
            max_completion_length=settings.max_length,
            beta=settings.beta,
            learning_rate=settings.learning_rate,
            max_steps=settings.steps + 1,
            model_init_kwargs={"dtype": "float32"},
        )
        trainer = trainer_class(
            settings.model,
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": ["?"] * num_prompts}),
            rollout_func=given,
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.seconds


SIDES: dict[str, Callable[[Settings, Rollouts], list[float]]] = {
    "PPO": lambda settings, rollouts: plain_steps(settings, rollouts, has_critic=True),
    "GRPO": lambda settings, rollouts: plain_steps(settings, rollouts, has_critic=False),
    "TRL": lambda settings, rollouts: trainer_steps(settings, rollouts, GRPOTrainer),
    "R1": lambda settings, rollouts: trainer_steps(settings, rollouts, R1GRPOTrainer),
}


def measure(side: str, settings: Settings) -> tuple[float, float]:
    """Seconds of a step and peak memory in MiB, of this process; the first step warms up."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    before = resident_mib()
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    known = AutoConfig.from_pretrained(settings.model).get_text_config().vocab_size
    rollouts = make_rollouts(settings, min(known, len(tokenizer)), int(tokenizer.eos_token_id))
    seconds = SIDES[side](settings, rollouts)[1:]
    if settings.device == "cuda":
        return min(seconds), torch.cuda.max_memory_allocated() / 2**20
    return min(seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def report(results: list[dict[str, tuple[float, float]]], settings: Settings) -> None:
    print(
        f"{settings.completions} completions a step, micro-batches of {settings.micro_batch}, beta "
        f"{settings.beta:g}, {settings.device}, {len(results)} rounds; ratios: median (range)"
    )
    print(f"{'':6}{'s a step':>10}{'MiB':>8}   {'PPO takes ... times its time':32}and its memory")
    for side in SIDES:
        seconds, memory = zip(*(result[side] for result in results), strict=True)
        times, sizes = (
            [result["PPO"][part] / result[side][part] for result in results] for part in (0, 1)
        )
        row = f"{statistics.median(seconds):10.2f}{statistics.median(memory):8.0f}"
        print(f"{side:6}{row}   {spread(times):32}{spread(sizes)}")


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
