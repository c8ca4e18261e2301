"""Models and tokenizers without weights, for measuring: right in shapes and types, empty inside.

Everything is made inside a `FakeTensorMode`, from a config alone. Quantisation is bitsandbytes' own
and LoRA is TRL's trainer's, both run on fake tensors. On a card some operations go another way than
on the CPU that the fake tensors pretend to be on; `kernels_of_a_card` stands in for those that
matter.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights
from transformers.quantizers.auto import AutoHfQuantizer
from trl import get_quantization_config
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

from trl_r1.training.arguments import ModelArguments


def fake_model(
    config: PretrainedConfig, model_args: ModelArguments, dtype: str, *, is_scorer: bool = False
) -> Any:
    """A model as `training.models` loads it, of fake tensors.

    Args:
        config: the architecture.
        model_args: quantisation keys.
        dtype: type of the weights, as `resolve_dtype` gives it.
        is_scorer: a sequence classifier with one label, for a reward model.
    """
    config = copy.deepcopy(config)
    config.use_cache = True
    if config.get_text_config().pad_token_id is None:
        config.get_text_config().pad_token_id = 0
    architecture: Any = AutoModelForCausalLM
    if is_scorer:
        architecture, config.num_labels = AutoModelForSequenceClassification, 1
    named: Any = config.dtype or torch.float32
    weight_dtype: torch.dtype = named if dtype == "auto" else getattr(torch, dtype)
    with no_init_weights():
        model = architecture.from_config(config, dtype=weight_dtype, attn_implementation="sdpa")
    model.tie_weights()
    resolved = copy.copy(model_args)
    resolved.dtype = dtype
    quantization = get_quantization_config(resolved)
    if quantization is not None:
        if is_scorer:
            quantization.llm_int8_skip_modules = ["score"]
        _quantise(model, quantization, weight_dtype)
    return model


def _quantise(model: Any, quantization: Any, dtype: torch.dtype) -> None:
    """Put bitsandbytes' layers into a model, as transformers does, with fake weights."""
    from bitsandbytes.functional import quantize_4bit
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt

    quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
    with _plain_quantised_parameters():
        quantizer.preprocess_model(model=model, dtype=dtype, device_map={"": "cpu"})
    for module in model.modules():
        if not isinstance(module, (Linear4bit, Linear8bitLt)):
            continue
        shape = (module.out_features, module.in_features)
        old: Any = module.weight
        if module.bias is not None:
            module.bias = torch.nn.Parameter(torch.empty(shape[0], dtype=dtype), False)
        if isinstance(module, Linear4bit):
            packed, state = quantize_4bit(
                torch.empty(shape, dtype=dtype),
                compress_statistics=old.compress_statistics,
                quant_type=old.quant_type,
                quant_storage=old.quant_storage,
            )
            module.weight = _parameter(packed, {**vars(old), "quant_state": state})
            module.quant_state = state
            module.support_avx512bf16_for_cpu = False
        else:
            codes = torch.empty(shape, dtype=torch.int8)
            scales = {"CB": codes, "SCB": torch.empty(shape[0], dtype=torch.float32)}
            module.weight = _parameter(codes, {**vars(old), **scales})
    model.hf_quantizer = quantizer
    quantizer.postprocess_model(model)


def _parameter(data: torch.Tensor, attributes: Mapping[str, Any]) -> torch.nn.Parameter:
    """A frozen parameter with bitsandbytes' attributes."""
    parameter = torch.nn.Parameter(data, requires_grad=False)
    for name, value in attributes.items():
        if name not in vars(parameter):
            setattr(parameter, name, value)
    return parameter


@contextmanager
def _plain_quantised_parameters() -> Iterator[None]:
    """Let bitsandbytes' layers be made of fake tensors, which its subclasses of Tensor refuse."""
    from bitsandbytes.nn import modules

    def make(data: torch.Tensor, requires_grad: bool = False, **attributes: Any) -> Any:
        return _parameter(data, attributes)

    stand_ins = {"Params4bit": make, "Int8Params": make}
    with _replaced({(modules, name): stand_in for name, stand_in in stand_ins.items()}):
        yield


def stand_in_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer for trainers that ask for one; no text ever goes through it."""
    words = {"<pad>": 0, "<eos>": 1, "a": 2}
    words_alone = Tokenizer(WordLevel(words, unk_token="a"))
    words_alone.pre_tokenizer = WhitespaceSplit()
    made: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = made(
        tokenizer_object=words_alone,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="a",
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return tokenizer


@contextmanager
def movable_fakes() -> Iterator[None]:
    """Let `Module.to` work on fake parameters, which torch can't swap once something refers to
    them."""

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is None or hasattr(parameter, "quant_state"):
                continue
            with torch.no_grad():
                moved = fn(parameter)
            if moved is not parameter:
                self._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    with _replaced({(torch.nn.Module, "_apply"): apply}):
        yield


class _NoKernel:
    """A Triton kernel that works in place, and so takes no memory."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


@contextmanager
def kernels_of_a_card() -> Iterator[None]:
    """Let TRL's output layer take its way on a card: Triton kernels, no copies in float32."""

    def add_product(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        acc.zero_()  # `addmm(..., out=acc)` of a card makes nothing new

    stand_ins: dict[tuple[Any, str], Any] = {
        (chunked_logprob, "_use_triton"): lambda device: True,
        (trl_utils, "_use_triton"): lambda device: True,
        (chunked_logprob, "_forward_kernel"): _NoKernel(),
        (chunked_logprob, "_backward_kernel"): _NoKernel(),
        (chunked_logprob, "triton"): SimpleNamespace(cdiv=lambda a, b: -(-a // b)),
        (chunked_logprob, "_addmm_fp32"): add_product,
    }
    with _replaced(stand_ins):
        yield


@contextmanager
def _replaced(stand_ins: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Attributes of modules replaced for a while."""
    missing = object()
    before = {place: getattr(*place, missing) for place in stand_ins}
    try:
        for (module, name), stand_in in stand_ins.items():
            setattr(module, name, stand_in)
        yield
    finally:
        for (module, name), value in before.items():
            if value is missing:
                delattr(module, name)
            else:
                setattr(module, name, value)
