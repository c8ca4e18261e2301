"""Which savings leave TRL's update as it is, by a trainer's settings and model.

Each function gives the reasons against a saving, in words for the log; an empty list means that
it is exact. Left out: settings that TRL refuses itself.
"""

from __future__ import annotations

from typing import Any

from trl_r1.stages.grpo.micro_batches import NORMALIZERS

# Attention that depends only on how far tokens are apart, so that padding before a row is nothing.
_RELATIVE_LAYERS = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


def reasons_to_keep_padding(trainer: Any) -> list[str]:
    """Why a row's log-probabilities may depend on how far it is padded."""
    config = trainer.model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return [f"positions of {config.model_type} that are not rotary"]
    reasons = []
    if trainer.top_entropy_quantile < 1:
        reasons.append("top_entropy_quantile (rounding decides which tokens are over a threshold)")
    kinds = _rope_types(rope) & _LENGTH_DEPENDENT_ROPE
    if kinds:
        reasons.append(f"rotary positions that depend on the length ({', '.join(sorted(kinds))})")
    layers = set(getattr(config, "layer_types", None) or ()) - _RELATIVE_LAYERS
    if layers:
        reasons.append(f"layers of the type {', '.join(sorted(layers))}")
    return reasons


def _rope_types(rope: dict[str, Any]) -> set[str]:
    """Types of rotary positions, where each kind of layer has its own also."""
    parameters = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return {str(values["rope_type"]) for values in parameters if "rope_type" in values}


def reasons_to_keep_micro_steps(trainer: Any) -> list[str]:
    """Why the loss of a row may depend on the other rows of its micro-batch."""
    args, accelerator = trainer.args, trainer.accelerator
    checks = {
        "the entropy bonus (a mean over the micro-batch)": trainer._entropy_bonus_enabled,
        "the router's auxiliary loss (a mean over the micro-batch)": trainer.aux_loss_enabled,
        f"loss_type {trainer.loss_type!r}, which is unknown here": (
            trainer.loss_type not in NORMALIZERS
        ),
        "images, which come in tensors of their own": trainer._is_vlm,
        "DeepSpeed or FSDP, which count passes": (
            trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or accelerator.is_fsdp2
        ),
        f"optim {args.optim}, which steps in each backward pass": "lomo" in str(args.optim),
        "8-bit weights, whose outliers are those of a batch": getattr(
            trainer.model, "is_loaded_in_8bit", False
        ),
    }
    return [reason for reason, applies in checks.items() if applies]


def reasons_to_keep_rows(trainer: Any) -> list[str]:
    """Why a row of zero advantage may still have a gradient, or count in a metric."""
    checks = {
        "beta (every row has a KL term)": trainer.beta != 0.0,
        "loss_type 'vespo', whose log has a figure over all rows": trainer.loss_type == "vespo",
    }
    return [reason for reason, applies in checks.items() if applies]
