"""Made-up completions for trainers: TRL's and ours on the same model, rewards and lengths.

What `bench_grpo.py` measures with and the tests compare with. Generation costs nothing here, and
completions depend on the number of the batch alone.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from trl_r1.stages.grpo import R1GRPOTrainer

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
