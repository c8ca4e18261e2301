"""Tiny random models that stand for a recipe's in a rehearsal: same architecture, other sizes.

Everything that a setting can depend on by name or kind stays: the model class and its layers' names
(LoRA targets), grouped heads, tied embeddings, kinds of attention, experts. Widths and the number
of layers shrink. The tokenizer is the model's own where it can be had, and the vocabulary has its
size then; else one of the family's special tokens over plain bytes stands in. Left out: what real
weights say.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from trl_r1.fitting.architectures import UnknownArchitectureError, find_architecture
from trl_r1.training.models import base_model_path, is_adapter_folder

_HIDDEN, _HEADS, _LAYERS = 64, 4, 2
_BAR = "\uff5c"  # of DeepSeek's tokens
# Tokens of a family by what its names have in common: end of a document, ends and begins of a turn.
_FAMILY_TOKENS = (
    (r"deepseek-r1-distill", [f"<{_BAR}{name}{_BAR}>" for name in (
        "end\u2581of\u2581sentence", "begin\u2581of\u2581sentence", "User", "Assistant")]),
    (r"llama-3", ["<|end_of_text|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>",
                  "<|end_header_id|>"]),
    (r"gemma", ["<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]),
    (r"", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
)  # fmt: skip
_PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}PREFILL{% endif %}"
)
# Families whose template opens the reasoning itself.
_PREFILLED = r"deepseek-r1-distill"


@dataclass(frozen=True)
class TinyModel:
    """A folder with a tiny model.

    Attributes:
        folder: the model with its tokenizer, or an adapter with its own.
        notes: what stands in for what, in words; empty where only the weights do.
        has_own_tokenizer: the tokenizer is the model's own.
    """

    folder: Path
    notes: tuple[str, ...]
    has_own_tokenizer: bool


def make_tiny_model(name: str, folder: Path, is_scorer: bool = False) -> TinyModel:
    """A tiny stand-in of a model folder, adapter folder or Hub id.

    Args:
        name: the model.
        folder: to write to.
        is_scorer: a sequence classifier, for a preference model.
    """
    if is_adapter_folder(name):
        return _tiny_adapter(name, folder)
    notes = []
    config: PretrainedConfig
    try:
        config = find_architecture(name).config
    except UnknownArchitectureError:
        if Path(name).is_absolute() or name.startswith("."):
            raise ValueError(f"there is no such folder: {name}") from None
        config = Qwen2Config(vocab_size=1024, tie_word_embeddings=True)
        notes.append(f"{name}: its architecture can't be known here; a Qwen2 stands in")
    tokenizer, is_own = _tokenizer(name)
    if not is_own:
        notes.append(f"{name}: its tokenizer can't be had here; bytes stand in")
    tiny = tiny_config(config, tokenizer, is_own)
    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM
    if is_scorer:
        # A head of another shape is a fault that has to show.
        labels: Any = config.num_labels
        tiny.num_labels = labels if "Sequence" in str(config.architectures) else 1
        made = AutoModelForSequenceClassification
    made.from_config(tiny, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return TinyModel(folder, tuple(notes), is_own)


def tiny_config(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, has_own_tokenizer: bool = True
) -> PretrainedConfig:
    """A config of the same architecture with small sizes.

    Args:
        config: of the real model.
        tokenizer: that goes with the tiny one.
        has_own_tokenizer: whether it is the model's; the size of the vocabulary is kept then.
    """
    tiny = copy.deepcopy(config)
    text: Any = tiny.get_text_config()
    old_heads = int(getattr(text, "num_attention_heads", _HEADS))
    old_groups = int(getattr(text, "num_key_value_heads", None) or old_heads)
    sizes = {
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        # Grouped stays grouped: TRL and vLLM go another way for it.
        "num_key_value_heads": _HEADS if old_groups == old_heads else 2,
        "head_dim": _HIDDEN // _HEADS,
        "max_window_layers": _LAYERS,
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": _HIDDEN,
    }
    for key, value in sizes.items():
        if getattr(text, key, None) is not None:
            setattr(text, key, value)
    if getattr(text, "layer_types", None):
        # One layer of each kind of attention that the model has.
        kinds = list(dict.fromkeys(text.layer_types))
        text.layer_types = (kinds * _LAYERS)[:_LAYERS]
    if has_own_tokenizer:
        text.vocab_size = max(int(text.vocab_size), len(tokenizer))
    else:
        text.vocab_size = len(tokenizer) + 64  # padded, as most are
    special: Any = tokenizer
    text.eos_token_id = special.eos_token_id
    text.pad_token_id = special.pad_token_id
    text.bos_token_id = special.bos_token_id
    if hasattr(tiny, "quantization_config"):
        del tiny.quantization_config
    return tiny


def _tokenizer(name: str) -> tuple[PreTrainedTokenizerBase, bool]:
    """The tokenizer of a model, or a stand-in; whether it is its own."""
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False), True
    except (OSError, ValueError):
        if Path(name).is_dir():
            raise
        return stand_in_tokenizer(name), False


def stand_in_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer over bytes with the special tokens of a model's family.

    Args:
        name: Hub id of the model; the family is told from it, and decides the vocabulary, so that
            two families differ as their real ones do.
    """
    tokens = next(t for pattern, t in _FAMILY_TOKENS if re.search(pattern, name.lower()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *tokens])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(tokens)
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    made: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = made(
        tokenizer_object=core, eos_token=tokens[0], pad_token=tokens[0]
    )
    is_prefilled = re.search(_PREFILLED, name.lower()) is not None
    tokenizer.chat_template = _PLAIN_TEMPLATE.replace(
        "PREFILL", "{{ '<think>\\n' }}" if is_prefilled else ""
    )
    return tokenizer


def _tiny_adapter(name: str, folder: Path) -> TinyModel:
    """A tiny adapter of the same config on a tiny base."""
    from peft import LoraConfig, get_peft_model

    base = make_tiny_model(base_model_path(name), folder.with_name(f"{folder.name}-base"))
    given = json.loads((Path(name) / "adapter_config.json").read_text(encoding="utf-8"))
    kept = ("r", "lora_alpha", "target_modules", "modules_to_save", "use_rslora", "use_dora",
            "task_type")  # fmt: skip
    settings = {key: given[key] for key in kept if given.get(key)}
    model = AutoModelForCausalLM.from_pretrained(base.folder)
    get_peft_model(model, LoraConfig(**settings)).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(base.folder).save_pretrained(folder)
    return TinyModel(folder, base.notes, base.has_own_tokenizer)
