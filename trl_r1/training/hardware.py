"""Defaults that depend on the machine, for configs that extend TRL's, and a word on them."""

from __future__ import annotations

import logging
from typing import Any

import torch

_logger = logging.getLogger(__name__)

# NVIDIA's first generation with bfloat16 in hardware (A100, RTX 30). Before: V100 7.0, RTX 20 and
# T4 7.5.
_AMPERE = (8, 0)


def set_precision_default(config: Any) -> None:
    """Choose mixed precision where the recipe says nothing; TRL's choice is bfloat16 everywhere.

    On a CPU none, as bfloat16 is about 1.6 times slower there than float32. On cards before Ampere,
    which only emulate bfloat16, float16 with loss scaling. Where the recipe asks for bfloat16 on
    such a machine it is taken at its word, and told what it costs. Call it before TRL's
    `__post_init__`.
    """
    capability = None
    if not config.use_cpu and torch.accelerator.is_available():
        capability = card_capability()
    elif config.bf16 is None:
        config.bf16 = False
    if config.bf16 is None and capability is not None and capability < _AMPERE:
        config.bf16 = False
        config.fp16 = True
    word = precision_word(capability, is_cpu=capability is None, bf16=bool(config.bf16))
    if word:
        _logger.warning(word)


def card_capability() -> tuple[int, int]:
    """CUDA's compute capability of the first card; that of Ampere for other makes."""
    if not torch.cuda.is_available():
        return _AMPERE
    major, minor = torch.cuda.get_device_capability(0)
    return major, minor


def precision_word(
    capability: tuple[int, int] | None, *, is_cpu: bool, bf16: bool, quantised: bool = False
) -> str | None:
    """What to know about types on a machine, and what to set; None where nothing is amiss.

    Args:
        capability: CUDA's compute capability; None without a card.
        is_cpu: training is on the CPU.
        bf16: mixed precision in bfloat16 is asked for.
        quantised: LoRA on 4- or 8-bit weights.
    """
    if is_cpu:
        if not bf16:
            return None
        return (
            "bf16 on a CPU is slower than float32 (1.6 times, measured); set `bf16: false` and "
            "leave `dtype` out, unless memory is short"
        )
    if capability is None or capability >= _AMPERE:
        return None
    card = f"This card (compute capability {capability[0]}.{capability[1]}, before Ampere)"
    if bf16:
        return f"{card} only emulates bfloat16; set `fp16: true`, `bf16: false`, `dtype: float16`"
    if quantised:
        return (
            f"{card} only emulates bfloat16, and TRL casts adapters on 4- and 8-bit weights to it "
            "whatever is asked for; where the model fits, set `load_in_4bit: false` and "
            "`dtype: float16`"
        )
    return None
