"""Defaults that depend on the machine, for configs that extend TRL's."""

from __future__ import annotations

from typing import Any

import torch


def set_precision_default(config: Any) -> None:
    """Leave bfloat16 mixed precision off on a CPU, unless the recipe asks for it.

    TRL turns it on wherever nothing is said; on a CPU it is about 1.6 times slower than float32.
    Call it before TRL's `__post_init__`.
    """
    if config.bf16 is None and (config.use_cpu or not torch.accelerator.is_available()):
        config.bf16 = False
