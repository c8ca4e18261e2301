"""The whole DeepSeek-R1 recipe on top of Hugging Face TRL.

Public names are loaded on first use, so that `import trl_r1` and the command line cost
milliseconds.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "ColdStartConfig": "trl_r1.stages.cold_start",
    "ColdStartTrainer": "trl_r1.stages.cold_start",
    "MixedSFTConfig": "trl_r1.stages.mixed_sft",
    "MixedSFTTrainer": "trl_r1.stages.mixed_sft",
    "PreferenceConfig": "trl_r1.stages.reward_model",
    "PreferenceTrainer": "trl_r1.stages.reward_model",
    "R1DistillationConfig": "trl_r1.stages.distillation",
    "R1DistillationTrainer": "trl_r1.stages.distillation",
    "R1GRPOConfig": "trl_r1.stages.grpo",
    "R1GRPOTrainer": "trl_r1.stages.grpo",
    "ReasoningFormat": "trl_r1.reasoning_format",
    "RejectionSampler": "trl_r1.stages.rejection_sampling",
    "RejectionSamplingConfig": "trl_r1.stages.rejection_sampling",
    "RewardPool": "trl_r1.verification.pool",
    "pooled": "trl_r1.verification.pooled_reward",
}

__all__ = [*sorted(_EXPORTS), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'trl_r1' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
