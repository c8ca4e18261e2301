"""In what range the numbers of a recipe have to lie, by key.

Only what no one can mean: a batch of -16, a share of 3, a learning rate that is no number. TRL and
transformers accept most of these and go wrong hours later, or train nothing. What may be argued
about (a large learning rate) is left to the user.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_LARGEST_SEED = 2**32 - 1  # of NumPy


@dataclass(frozen=True)
class _Range:
    """Numbers from `low` to `high`; `low` itself only where it is not `over`."""

    low: float = -math.inf
    high: float = math.inf
    over: bool = False
    also: tuple[int, ...] = ()
    may_be_infinite: bool = False

    def __contains__(self, number: float) -> bool:
        if number in self.also:
            return True
        if math.isinf(number) and not self.may_be_infinite:
            return False
        return self.low < number <= self.high if self.over else self.low <= number <= self.high

    def in_words(self) -> str:
        if math.isinf(self.low):
            return "a finite number"
        low = f"over {self.low:g}" if self.over else f"at least {self.low:g}"
        text = low if math.isinf(self.high) else f"{low} and at most {self.high:.10g}"
        return " or ".join((text, *(f"{number}" for number in self.also)))


_COUNT = _Range(1)
_NOT_NEGATIVE = _Range(0)
_POSITIVE = _Range(0, over=True)
_SHARE = _Range(0, 1)
_SEED = _Range(0, _LARGEST_SEED)

_RANGES: dict[str, _Range] = {
    **dict.fromkeys(
        (
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "gradient_accumulation_steps",
            "generation_batch_size",
            "steps_per_generation",
            "num_iterations",
            "max_completion_length",
            "max_length",
            "max_new_tokens",
            "batch_size",
            "num_samples",
            "keep_per_prompt",
            "shard_size",
            "lora_r",
            "lora_alpha",
            "save_total_limit",
            "ref_model_sync_steps",
            "dataset_num_proc",
            "hidden_size",
            "student_hidden_size",
            "num_layers",
            "num_heads",
            "vocab_size",
            "num_documents",
            "threads",
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            "num_train_epochs",
            "student_num_train_epochs",
            "logging_steps",
            "save_steps",
            "eval_steps",
            "repetition_penalty",
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(
        (
            "learning_rate",
            "student_learning_rate",
            "weight_decay",
            "adam_epsilon",
            "warmup_steps",
            "beta",
            "epsilon",
            "epsilon_high",
            "temperature",
            "dataloader_num_workers",
            "from_step",
        ),
        _NOT_NEGATIVE,
    ),
    **dict.fromkeys(
        (
            "lora_dropout",
            "adam_beta1",
            "adam_beta2",
            "label_smoothing_factor",
            "min_p",
            "held_out_share",
            "small_talk_share",
            "foreign_share",
            "friendly_share",
            "think_share",
            "untagged_share",
            "slip_rate",
            "blurt_accuracy",
            "max_dropped_share",
            "min_pass_rate",
            "max_pass_rate",
            "ref_model_mixup_alpha",
        ),
        _SHARE,
    ),
    **dict.fromkeys(("seed", "data_seed"), _SEED),
    # 0 is transformers' way of not clipping, infinity PyTorch's.
    "max_grad_norm": _Range(0, may_be_infinite=True),
    "max_steps": _Range(1, also=(-1,)),
    "top_p": _Range(0, 1, over=True),
    "vllm_gpu_memory_utilization": _Range(0, 1, over=True),
    "weight": _Range(),
}


def range_fault(key: str, value: Any) -> str | None:
    """What is wrong with the number of a key, as `should be at least 1, not 0`; None if nothing.

    Args:
        key: the key, without what leads to it.
        value: its value, of the key's type.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and math.isnan(value):
        return "should be a number, not nan"
    allowed = _RANGES.get(key)
    if allowed is None or value in allowed:
        return None
    return f"should be {allowed.in_words()}, not {value}"
