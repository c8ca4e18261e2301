"""Packing without crossing examples: every example of a packed row has the logits it has alone.

TRL's best-fit packing puts whole examples behind one another and starts their positions anew;
attention that goes by the positions then keeps them apart: FlashAttention's variable-length
kernels, and in transformers the masks of SDPA, eager and flex attention, too. Not every model does
(one with its own attention, or a recurrent layer), so it is tried. Left out: the packing, TRL's.
"""

from __future__ import annotations

from typing import Any

import torch

# Logits of float32; lower precisions are compared by what they can tell apart.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_COARSE_TOLERANCE = 0.1
_LENGTH = 12


class PackingError(ValueError):
    """Packed examples would see each other."""


def check_packing(model: Any, vocab_size: int) -> None:
    """Check on two short examples that a model keeps packed ones apart.

    Args:
        model: a causal language model, with adapters or without.
        vocab_size: ids of the examples are below it.

    Raises:
        PackingError: the second example's logits depend on the first.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(vocab_size, (2, _LENGTH), generator=generator).to(device)
    positions = torch.arange(_LENGTH, device=device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            alone = model(
                input_ids=second[None], position_ids=positions[None], use_cache=False
            ).logits[0]
            packed = model(
                input_ids=torch.cat([first, second])[None],
                position_ids=torch.cat([positions, positions])[None],
                use_cache=False,
            ).logits[0, _LENGTH:]
    finally:
        model.train(was_training)
    tolerance = _TOLERANCE.get(alone.dtype, _COARSE_TOLERANCE)
    scale = max(float(alone.abs().max()), 1.0)
    difference = float((alone.float() - packed.float()).abs().max()) / scale
    if not difference <= tolerance:
        raise PackingError(
            f"packing: {type(model).__name__} lets packed examples see each other (logits differ "
            f"by {difference:.2g} of their size); set `packing: false`, or an "
            "`attn_implementation` that keeps them apart, as flash_attention_2"
        )
