"""Settings of GRPO as the paper has them, on top of TRL's `GRPOConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from trl_r1.training.hardware import set_precision_default

# The paper: 32 questions of 16 outputs make a batch of 512; a rollout of 8,192 outputs is trained
# on in 16 such mini-batches, once. Micro-batches of 4, so 128 of them a step on one process.
_SIZES: dict[str, Any] = {
    "num_generations": 16,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 128,
    "mini_batches_per_rollout": 16,
    "num_iterations": 1,
    "max_completion_length": 32768,
}
_OBJECTIVE: dict[str, Any] = {
    "loss_type": "grpo",
    "beta": 0.001,
    "use_bias_correction_kl": False,
    "scale_rewards": "group",
    "learning_rate": 3e-6,
    "lr_scheduler_type": "constant",
    "vllm_importance_sampling_mode": "token_truncate",
    "reference_replacement_steps": 400,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "zero": {**_SIZES, **_OBJECTIVE, "epsilon": 0.2, "temperature": 1.0, "max_steps": 10400},
    "reasoning": {**_SIZES, **_OBJECTIVE, "epsilon": 10.0, "temperature": 1.0},
    "general": {**_SIZES, **_OBJECTIVE, "epsilon": 10.0, "temperature": 0.7, "max_steps": 1700},
}


@dataclass
class R1GRPOConfig(GRPOConfig):
    """TRL's `GRPOConfig` with the paper's objective; its sizes are in `PRESETS`.

    Loss averaged over the tokens of an output, then over outputs (`grpo`), advantages over the
    group's standard deviation, a plain k3 penalty of 0.001 against the start model (the paper's
    equations 1 to 3).
    """

    learning_rate: float = field(default=3e-6, metadata={"help": "Learning rate."})
    lr_scheduler_type: str = field(
        default="constant", metadata={"help": "Shape of the learning rate."}
    )
    loss_type: str = field(
        default="grpo", metadata={"help": "Mean over an output's tokens, then over outputs."}
    )
    beta: float = field(default=0.001, metadata={"help": "Weight of the KL penalty; 0 for none."})
    use_bias_correction_kl: bool = field(
        default=False, metadata={"help": "Weight the KL penalty by the ratio; the paper does not."}
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={"help": "Correction for vLLM; TRL's default masks long outputs as a whole."},
    )
    mini_batches_per_rollout: int = field(
        default=1,
        metadata={
            "help": "Optimizer steps made with one batch of completions (before num_iterations). "
            "Sets steps_per_generation, which counts micro-steps, where neither it nor "
            "generation_batch_size is given."
        },
    )
    accuracy_reward: str | None = field(
        default=None,
        metadata={
            "help": "Name of the reward whose mean is logged as `accuracy`; None for the first "
            "whose name has `math_answer`, else the first."
        },
    )
    reference_replacement_steps: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps after which the policy becomes the reference of the KL "
            "penalty, again and again (the paper: 400); None to keep the start model."
        },
    )
    logging_steps: float = field(default=1, metadata={"help": "Optimizer steps a log."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})

    def __post_init__(self) -> None:
        set_precision_default(self)
        if self.mini_batches_per_rollout < 1:
            raise ValueError(
                f"mini_batches_per_rollout is {self.mini_batches_per_rollout}; it must be 1 or more"
            )
        if self.steps_per_generation is None and self.generation_batch_size is None:
            self.steps_per_generation = (
                self.gradient_accumulation_steps * self.mini_batches_per_rollout
            )
        if self.reference_replacement_steps is not None and self.reference_replacement_steps < 1:
            raise ValueError(
                f"reference_replacement_steps is {self.reference_replacement_steps}; it must be 1 "
                "or more, or None to keep the start model as the reference"
            )
        super().__post_init__()  # type: ignore[no-untyped-call]
