"""A cheap name for the weights that a policy has at a moment: equal weights, equal name.

Of each trainable tensor the bit patterns are added up, on its device and without a copy, and the
sums are hashed. An optimizer step changes nearly every tensor, so two steps of a run never share a
name in practice; it is no protection against somebody who wants them to. Frozen weights are left
out: which base an adapter belongs to, the run's ledger says.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from accelerate.utils import gather_object

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_hash(model: torch.nn.Module) -> str:
    """Sixteen hexadecimal digits for the trainable weights of a model.

    Called by every process; where their weights differ, as shards do, the name is of all of them.
    Its cost is one reading of the trainable weights.

    Args:
        model: the policy, in any wrapper.
    """
    names, sums = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names.append(name.replace("_fsdp_wrapped_module.", "").removeprefix("module."))
            sums.append(_bit_sum(parameter))
    # One wait for the device instead of one a tensor.
    totals = torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []
    own = _digest(repr(sorted(zip(names, totals, strict=True))))
    parts = sorted(set(gather_object([own])))
    return parts[0] if len(parts) == 1 else _digest("".join(parts))


def _bit_sum(parameter: Any) -> torch.Tensor:
    """Sum of a tensor's bit patterns, read as whole numbers of 64 bits that wrap around."""
    # What of a sharded tensor is in this process: DeepSpeed's ZeRO-3, then FSDP2.
    data = getattr(parameter, "ds_tensor", parameter).detach()
    if hasattr(data, "to_local"):
        data = data.to_local()
    bits = data.contiguous().view(_BITS[data.element_size()])
    total: torch.Tensor = bits.sum(dtype=torch.int64)
    return total


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
