"""Mixed SFT: the base model once more, on reasoning and general data together.

The paper (section 2.3.3) goes back to the *base* model and trains on about 600k reasoning rows that
rejection sampling kept and 200k general ones; `share` of a source sets the mixture. Left out:
making either part.
"""

from __future__ import annotations

from dataclasses import dataclass

from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.sft import ReasoningSFTConfig, ReasoningSFTTrainer
from trl_r1.training.sft_stage import run_sft


@dataclass
class MixedSFTConfig(ReasoningSFTConfig):
    """TRL's `SFTConfig` with the paper's settings for the mixed SFT."""


class MixedSFTTrainer(ReasoningSFTTrainer):
    """TRL's `SFTTrainer` for mixed data: loss on completions only, targets checked."""

    _tag_names = ["trl", "sft", "trl-r1", "mixed-sft"]  # noqa: RUF012 - TRL declares it so


SPEC = StageSpec(
    configs=(DatasetArguments, ModelArguments, MixedSFTConfig),
    produces=("model",),
    updates_policy_with="sft",
    needs_untrained_start=True,
)


def run(context: StageContext) -> StageResult:
    """Train the base model on the mixture and store it as `model/`."""
    return run_sft(context, MixedSFTTrainer, MixedSFTConfig)
