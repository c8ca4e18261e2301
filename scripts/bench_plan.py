"""Hold `trl-r1 plan`'s measurements on fake tensors against the tensor memory of real steps.

    python scripts/bench_plan.py [--model models/smollm2-135m-instruct] [--only tiny]

Each setting trains for two optimizer steps of two micro-batches with TRL's trainers on the CPU,
while torch's profiler notes every allocation of its CPU allocator: a way of counting that shares
nothing with the plan's. The peak is compared with the highest phase of `fitting.phases.measure`.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from datasets import Dataset, disable_progress_bars
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM
from trl import SFTTrainer

from trl_r1.fitting.fake_models import stand_in_tokenizer
from trl_r1.fitting.phases import Load, measure
from trl_r1.stages.cold_start import ColdStartConfig
from trl_r1.stages.grpo.config import R1GRPOConfig
from trl_r1.stages.grpo.trainer import R1GRPOTrainer
from trl_r1.stages.reward_model import PreferenceConfig, PreferenceTrainer
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_policy, load_scorer

FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {
    "use_peft": True,
    "lora_r": 8,
    "lora_target_modules": ["all-linear"],
}
QLORA: dict[str, Any] = {**LORA, "load_in_4bit": True}
METHODS = {"full": FULL, "LoRA": LORA, "QLoRA": QLORA}


@dataclass(frozen=True)
class Setting:
    """One run: model, stage, way of training, checkpointing, rows and lengths in tokens."""

    model: str
    kind: str
    method: str
    checkpointing: bool
    rows: int
    prompt: int
    completion: int

    def __str__(self) -> str:
        checkpointing = "ckpt" if self.checkpointing else "-"
        return (
            f"{self.model:8} {self.kind:13} {self.method:6} {checkpointing:5} "
            f"{self.rows:3} x {self.prompt}+{self.completion}"
        )


SETTINGS = (
    Setting("tiny", "sft", "full", False, 8, 64, 64),
    Setting("tiny", "sft", "LoRA", False, 8, 64, 192),
    Setting("tiny", "sft", "QLoRA", True, 8, 64, 192),
    Setting("tiny", "grpo", "full", False, 8, 16, 32),
    Setting("tiny", "grpo", "LoRA", False, 8, 32, 96),
    Setting("tiny", "grpo", "QLoRA", True, 8, 32, 96),
    Setting("tiny", "reward_model", "full", True, 4, 64, 64),
    Setting("tiny", "reward_model", "LoRA", False, 4, 64, 192),
    Setting("tiny", "reward_model", "QLoRA", False, 4, 64, 64),
    Setting("SmolLM2", "sft", "full", False, 2, 64, 64),
    Setting("SmolLM2", "sft", "full", True, 2, 64, 192),
    Setting("SmolLM2", "sft", "LoRA", False, 2, 64, 64),
    Setting("SmolLM2", "sft", "LoRA", True, 4, 64, 192),
    Setting("SmolLM2", "sft", "QLoRA", False, 2, 64, 64),
    Setting("SmolLM2", "sft", "QLoRA", True, 2, 64, 192),
    Setting("SmolLM2", "grpo", "LoRA", True, 4, 32, 16),
    Setting("SmolLM2", "grpo", "full", False, 4, 32, 16),
    Setting("SmolLM2", "reward_model", "LoRA", False, 1, 64, 64),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--only", default="", help="part of a setting's line")
    options = parser.parse_args()
    disable_progress_bars()
    torch.manual_seed(0)
    worst, count = 0.0, 0
    print("model    stage         method ckpt  rows x tokens   planned  measured (MiB)   error")
    with tempfile.TemporaryDirectory() as folder:
        models = {"tiny": make_tiny(Path(folder) / "tiny"), "SmolLM2": options.model}
        for setting in SETTINGS:
            if options.only not in str(setting):
                continue
            start = time.monotonic()
            planned, measured = compare(setting, models[setting.model], Path(folder))
            error = planned / measured - 1
            worst, count = max(worst, abs(error)), count + 1
            print(
                f"{setting!s:48} {planned / 2**20:8.1f} {measured / 2**20:9.1f} {error:+14.1%}"
                f"  ({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    print(f"{count} settings, largest error {worst:.1%}")


def make_tiny(folder: Path) -> Path:
    """A model of half a million parameters with random weights."""
    config = Qwen2Config(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def compare(setting: Setting, model: Path, folder: Path) -> tuple[int, int]:
    """Planned and measured bytes."""
    model_args = ModelArguments(model_name_or_path=str(model), **METHODS[setting.method])
    args = arguments(setting, folder)
    is_full = setting.method == "full"
    load = Load(
        setting.kind,
        AutoConfig.from_pretrained(model),
        model_args,
        "float32",
        args=args,
        rows=setting.rows,
        prompt=setting.prompt,
        completion=setting.completion,
        generated_rows=2 * setting.rows if setting.kind == "grpo" else 0,
        has_reference=setting.kind == "grpo",
        has_reference_weights=setting.kind == "grpo" and is_full,
        on_card=False,
    )
    planned = max(phase.peak for phase in measure(load))
    return planned, real_peak(trainer_of(setting, model, model_args, arguments(setting, folder)))


def arguments(setting: Setting, folder: Path) -> Any:
    common: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": setting.rows,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": setting.checkpointing,
        "max_steps": 2,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if setting.kind == "grpo":
        return R1GRPOConfig(
            num_generations=4,
            max_completion_length=setting.completion,
            generation_kwargs={"min_new_tokens": setting.completion},
            **common,
        )
    config = PreferenceConfig if setting.kind == "reward_model" else ColdStartConfig
    return config(max_length=setting.prompt + setting.completion, **common)


def trainer_of(setting: Setting, model: Path, model_args: ModelArguments, args: Any) -> Any:
    """A real trainer whose micro-batches have the setting's shape, the last row a bit shorter."""
    tokenizer = stand_in_tokenizer()
    width, count = setting.prompt + setting.completion, 4 * setting.rows
    lengths = [width - 3 * (i % 2) for i in range(count)]
    if setting.kind == "reward_model":
        scorer, peft_config = load_scorer(str(model), model_args, 0)
        rows = [{"chosen_ids": [2] * n, "rejected_ids": [2] * (n - 1)} for n in lengths]
        data = Dataset.from_list(rows)
        return PreferenceTrainer(
            scorer,
            args=args,
            train_dataset=data,
            processing_class=tokenizer,
            peft_config=peft_config,
        )
    policy, peft_config = load_policy(str(model), model_args, trainable=True)
    policy.config._name_or_path = str(model)
    if setting.kind == "sft":
        mask = [0] * setting.prompt
        data = Dataset.from_list(
            [
                {"input_ids": [2] * n, "completion_mask": mask + [1] * (n - setting.prompt)}
                for n in lengths
            ]
        )
        return SFTTrainer(
            policy,
            args=args,
            train_dataset=data,
            processing_class=tokenizer,
            peft_config=peft_config,
        )
    prompts = ["a " * (setting.prompt - 3 * (i % 2)) for i in range(count)]
    return R1GRPOTrainer(
        policy,
        reward_funcs=[random_reward],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [prompt.strip() for prompt in prompts]}),
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def random_reward(completions: list[str], **kwargs: Any) -> list[float]:
    return torch.rand(len(completions)).tolist()


def real_peak(trainer: Any) -> int:
    """The most bytes that tensors and kernels held while the trainer trained."""
    models = [model for model in (trainer.model, getattr(trainer, "ref_model", None)) if model]
    before = sum(storage_sizes(models).values())
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.train()
    return before + highest(profiler)


def storage_sizes(models: list[torch.nn.Module]) -> dict[int, int]:
    """Bytes of each storage that models hold."""
    sizes = {}
    for model in models:
        tensors = [*model.parameters(), *model.buffers()]
        for state in (getattr(tensor, "quant_state", None) for tensor in list(tensors)):
            tensors += [state.absmax, state.code] if state is not None else []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def highest(profiler: Any) -> int:
    """The highest sum of what the profiler saw allocated and freed."""
    events, nodes = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        if node.tag == torch._C._profiler._EventType.Allocation:
            fields = node.extra_fields
            events.append((node.start_time_ns, fields.ptr, fields.alloc_size))
    total, peak, held = 0, 0, {}
    for _, address, size in sorted(events, key=lambda event: event[0]):
        if size < 0:  # what was there before may be freed too, and counts for nothing
            total -= held.pop(address, 0)
            continue
        held[address] = size
        total += size
        peak = max(peak, total)
    return peak


if __name__ == "__main__":
    main()
