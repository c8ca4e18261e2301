"""The weights that an adapter on a quantised base was trained on, in a type that can be merged.

Weights go through the device one layer at a time, to 4 or 8 bit and back, so that merging takes no
more of the card than a layer does: holding a quantised and a dequantised copy beside the trained
model would need far more memory than the training had. Left out: weights that are stored quantised.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from trl import get_quantization_config

from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_weights, resolve_dtype


def load_as_trained(
    path: str, model_args: ModelArguments, architecture: Any = AutoModelForCausalLM
) -> Any:
    """A base model as LoRA training saw it: plain, or quantised and dequantised again.

    Args:
        path: folder or Hub id of a plain model.
        model_args: dtype and quantisation keys of the training.
        architecture: transformers' auto class.

    Returns:
        The model on the CPU, in the type of the training.
    """
    resolved = copy.copy(model_args)
    resolved.dtype = resolve_dtype(model_args, trainable=True)
    plain = copy.copy(resolved)
    plain.load_in_4bit = plain.load_in_8bit = False
    model = load_weights(path, plain, trainable=True, architecture=architecture)
    quantization = get_quantization_config(resolved)
    if quantization is not None:
        _there_and_back(model, quantization, skipped=_NOT_QUANTISED)
    return model


# `load_scorer` keeps the head of a sequence classifier out of quantisation; an output layer is kept
# out by transformers itself.
_NOT_QUANTISED = ("score",)


def _there_and_back(model: Any, quantization: Any, skipped: tuple[str, ...]) -> None:
    """Round the weights of the layers that transformers would quantise as bitsandbytes does."""
    quantizer: Any = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
    names = quantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    device = PartialState().device
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or not should_convert_module(name, [*names, *skipped]):
            continue
        rounded = _rounded(module.weight.data, quantization, device)
        module.weight.data = rounded.to(module.weight.device, module.weight.dtype)


def _rounded(weight: torch.Tensor, quantization: Any, device: torch.device) -> torch.Tensor:
    """A weight as it comes back from 4 or 8 bit."""
    from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant
    from bitsandbytes.nn.modules import Int8Params, Params4bit

    if quantization.load_in_8bit:
        plain: Any = Int8Params(weight, requires_grad=False)
        codes = plain._quantize(device)
        back: torch.Tensor = int8_vectorwise_dequant(codes.data, codes.SCB)
        return back
    unpacked: Any = Params4bit(
        weight,
        requires_grad=False,
        compress_statistics=quantization.bnb_4bit_use_double_quant,
        quant_type=quantization.bnb_4bit_quant_type,
        quant_storage=quantization.bnb_4bit_quant_storage,
    )
    packed = unpacked._quantize(device)
    restored: torch.Tensor = dequantize_4bit(packed.data, packed.quant_state)
    return restored
