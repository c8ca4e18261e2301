"""Settings of GRPO as the paper has them, on top of TRL's `GRPOConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trl import GRPOConfig

from trl_r1.stages.grpo.dynamic_sampling import check_dynamic_sampling
from trl_r1.stages.grpo.online_metrics import check_language
from trl_r1.stages.grpo.reference import check_reference_settings
from trl_r1.stages.grpo.schedules import GenerationSchedules
from trl_r1.stages.grpo.watching import read_monitors
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

# Least value, and what None stands for where it may be None.
_WHOLE_NUMBERS: Mapping[str, tuple[int, str]] = {
    "mini_batches_per_rollout": (1, ""),
    "max_tokens_per_micro_batch": (1, "for as many as TRL's micro-batches have"),
    "reference_replacement_steps": (1, "to keep the start model as the reference"),
    "dynamic_sampling_max_rounds": (0, ""),
    "max_rollbacks": (0, ""),
}
_NUMBERS: Sequence[tuple[str, str, Callable[[float], bool]]] = (
    ("zero_advantage_tolerance", "0 or more", lambda value: 0 <= value < math.inf),
    ("rollback_lr_factor", "over 0 and at most 1", lambda value: 0 < value <= 1),
)


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
    vllm_weight_sync: Literal["auto", "adapter", "merged"] = field(
        default="auto",
        metadata={
            "help": "With vLLM and LoRA: `adapter` sends vLLM the adapter alone and never writes "
            "to its base; `merged` is TRL's way, all weights with the adapter merged in; `auto` "
            "sends adapters that vLLM can load by request."
        },
    )
    mini_batches_per_rollout: int = field(
        default=1,
        metadata={
            "help": "Optimizer steps made with one batch of completions (before num_iterations). "
            "Sets steps_per_generation, which counts micro-steps, where neither it nor "
            "generation_batch_size is given."
        },
    )
    max_tokens_per_micro_batch: int | None = field(
        default=None,
        metadata={
            "help": "Limit of rows x longest row, prompt included, of a micro-batch. None for what "
            "TRL's take: per_device_train_batch_size rows, padded to the longest of all."
        },
    )
    zero_advantage_tolerance: float = field(
        default=0.0,
        metadata={
            "help": "With beta 0, rows whose advantage is at most this are left out of the update. "
            "0 leaves out what has no gradient. Where all rewards of a group are, say, 1.2, "
            "rounding makes its advantages 0.001 instead of 0: 0.01 leaves those out too."
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
    dynamic_sampling_max_rounds: int = field(
        default=0,
        metadata={
            "help": "How often further prompts are drawn for a batch, at most, to replace groups "
            "whose rewards are all equal (DAPO); 0 for never. Groups left over stay."
        },
    )
    dynamic_sampling_reward: str | None = field(
        default=None,
        metadata={"help": "Name of the reward that has to differ in a group; None for the sum."},
    )
    temperature_schedule: list[dict[str, Any]] = field(
        default_factory=list,
        metadata={
            "help": "Temperatures from later optimizer steps on, as `[{from_step: 1200, value: "
            "0.7}]`; `temperature` holds before. Takes effect with the next completions."
        },
    )
    max_completion_length_schedule: list[dict[str, Any]] = field(
        default_factory=list,
        metadata={
            "help": "Length limits from later optimizer steps on, in tokens; the paper's R1-Zero "
            "has `[{from_step: 8200, value: 65536}]` after 32,768."
        },
    )
    metrics_language: str | None = field(
        default=None,
        metadata={
            "help": "Language of `language_share` in the log where rows have no `language` column; "
            "None to measure it only where they have."
        },
    )
    monitors: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "What an alarm does, by monitor (or `all`): `warn`, `stop`, `rollback` (to the "
            "last good checkpoint, with a lower learning rate) or `off`; or a mapping of `action` "
            "and limits. The monitors are in `stages/grpo/monitors.py`."
        },
    )
    max_rollbacks: int = field(
        default=2, metadata={"help": "How often a stage goes back before an alarm stops it."}
    )
    rollback_lr_factor: float = field(
        default=0.5, metadata={"help": "Factor of the learning rate each time it goes back."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Optimizer steps a log."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})

    def __post_init__(self) -> None:
        set_precision_default(self)
        _check_numbers(self)
        if self.steps_per_generation is None and self.generation_batch_size is None:
            self.steps_per_generation = (
                self.gradient_accumulation_steps * self.mini_batches_per_rollout
            )
        # Mistakes in what follows show now, not once a model is loaded.
        GenerationSchedules.from_args(self)
        read_monitors(self.monitors)
        check_language(self.metrics_language)
        super().__post_init__()  # type: ignore[no-untyped-call]
        check_reference_settings(self)
        check_dynamic_sampling(self)


def _check_numbers(args: R1GRPOConfig) -> None:
    """Raise ValueError for a number of ours that makes no sense."""
    for name, (least, none_means) in _WHOLE_NUMBERS.items():
        value = getattr(args, name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole and value >= least) and not (value is None and none_means):
            or_none = f", or None {none_means}" if none_means else ""
            raise ValueError(
                f"{name} is {value!r}; it must be a whole number, {least} or more{or_none}"
            )
    for name, limits, allows in _NUMBERS:
        value = getattr(args, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not allows(value):
            raise ValueError(f"{name} is {value!r}; it must be a number, {limits}")
