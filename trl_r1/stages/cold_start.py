"""Cold start: SFT of the base model on a few thousand readable, correct responses.

The paper (section 2.3.1) starts from the *base* model, on data that R1-Zero wrote: what flows from
Zero to R1 is data, never weights. Left out: making that data, which is `rejection_sampling`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.sft import ReasoningSFTConfig, ReasoningSFTTrainer
from trl_r1.training.sft_stage import run_sft


@dataclass
class ColdStartConfig(ReasoningSFTConfig):
    """TRL's `SFTConfig` with the paper's settings for the cold start."""


class ColdStartTrainer(ReasoningSFTTrainer):
    """TRL's `SFTTrainer` for the cold start: loss on completions only, targets checked."""

    _tag_names = ["trl", "sft", "trl-r1", "cold-start"]  # noqa: RUF012 - TRL declares it so


SPEC = StageSpec(
    configs=(DatasetArguments, ModelArguments, ColdStartConfig),
    produces=("model",),
    updates_policy_with="sft",
    needs_untrained_start=True,
)


def run(context: StageContext) -> StageResult:
    """Train the base model on the cold-start rows and store it as `model/`."""
    return run_sft(context, ColdStartTrainer, ColdStartConfig)
