"""Distillation: SFT of a smaller student on the responses of the big model.

The paper (section 2.4) trains students on the same 800k rows as the mixed SFT, with SFT only: batch
64, cosine to a tenth, a learning rate by student, which are the presets here. Left out: distilling
from logits (TRL has trainers for that) and RL on the student, which is the stage `grpo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.sft import ReasoningSFTConfig, ReasoningSFTTrainer
from trl_r1.training.sft_stage import run_sft

# Highest learning rate by student (paper, appendix on hyper-parameters of distillation).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "qwen-1.5b": {"learning_rate": 1e-4},
    "qwen-7b": {"learning_rate": 8e-5},
    "qwen-14b": {"learning_rate": 7e-5},
    "qwen-32b": {"learning_rate": 6e-5},
    "llama-8b": {"learning_rate": 5e-5},
    "llama-70b": {"learning_rate": 2e-5},
}


@dataclass
class R1DistillationConfig(ReasoningSFTConfig):
    """TRL's `SFTConfig` with the paper's settings for students; see `PRESETS` for their rates."""

    gradient_accumulation_steps: int = field(
        default=64, metadata={"help": "Micro-batches an optimizer step."}
    )


class R1DistillationTrainer(ReasoningSFTTrainer):
    """TRL's `SFTTrainer` for a student: loss on completions only, targets checked."""

    _tag_names = ["trl", "sft", "trl-r1", "distillation"]  # noqa: RUF012 - TRL declares it so


SPEC = StageSpec(
    configs=(DatasetArguments, ModelArguments, R1DistillationConfig),
    produces=("model",),
    updates_policy_with="sft",
    presets=PRESETS,
)


def run(context: StageContext) -> StageResult:
    """Train the student on the teacher's rows and store it as `model/`."""
    return run_sft(context, R1DistillationTrainer, R1DistillationConfig)
