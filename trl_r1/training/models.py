"""Loading of policies and their tokenizers: full weights, LoRA, 4 and 8 bit, adapter folders.

Everything here is a thin layer over transformers, peft and TRL's `get_peft_config` and
`get_quantization_config`; it adds the checks without which a run goes wrong silently. Storing a
stage's result is in `artifacts.py`. Left out: device placement of training, which is Trainer's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftConfig, PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from trl import get_peft_config, get_quantization_config

from trl_r1.hub.references import fetch
from trl_r1.reasoning_format import ReasoningFormat, chat_template
from trl_r1.rewards.think_format import THINK_CLOSE, THINK_OPEN
from trl_r1.training.arguments import ModelArguments
from trl_r1.trust.model_files import check_model, told_of_trust

_PROBE = "probe"


def is_adapter_folder(path: str | Path) -> bool:
    """Whether `path` is a folder with a PEFT adapter and no weights of its own."""
    return (Path(path) / "adapter_config.json").is_file()


def base_model_path(path: str) -> str:
    """The model an adapter folder stands on; `path` itself for a plain model.

    Where an adapter's base is gone from the folder that it names, as when a run was moved, the one
    of the same stage and name in the adapter's own run counts. One on the Hub is fetched at the
    revision that the adapter names.
    """
    if not is_adapter_folder(path):
        return path
    config = PeftConfig.from_pretrained(path)
    named = str(config.base_model_name_or_path)
    if config.revision and not Path(named).exists():
        return str(fetch(f"@hub:{named}@{config.revision}", "model"))
    if Path(named).is_absolute() and not Path(named).exists():
        beside = Path(path).resolve().parent.parent.joinpath(*Path(named).parts[-2:])
        return str(beside) if beside.is_dir() else named
    return named


def load_tokenizer(
    path: str, model_args: ModelArguments, fmt: ReasoningFormat
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, with the recipe's chat template and the EOS that ends its turns.

    Args:
        path: model or adapter folder, or a Hub id.
        model_args: `chat_template` is a named template or None to keep the model's own.
        fmt: response format; says whether the generation prompt ends with `<think>`.

    Raises:
        ValueError: there is no template; the template's end token is no single token, or there is
            no end token; `<think>` is a special token, which decoding strips; the template and
            `fmt` disagree on the prefill.
    """
    has_own = any((Path(path) / name).is_file() for name in _TOKENIZER_FILES)
    source = path if has_own or not is_adapter_folder(path) else base_model_path(path)
    with told_of_trust(source):
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            revision=model_args.model_revision,
            trust_remote_code=model_args.trust_remote_code,
        )
    if model_args.chat_template is not None:
        tokenizer.chat_template, end_token = chat_template(model_args.chat_template, fmt)
        if end_token not in tokenizer.get_vocab():
            raise ValueError(
                f"{path}: chat_template {model_args.chat_template!r} ends a turn with "
                f"{end_token!r}, which is not in the tokenizer's vocabulary; choose another "
                "chat_template, leave it out to keep the model's own, or give one of your own in "
                "an SFT stage with `chat_template_path`"
            )
        tokenizer.eos_token = end_token
    elif tokenizer.chat_template is None:
        raise ValueError(f"{path}: the tokenizer has no chat template; set `chat_template: chatml`")
    elif (token := _end_of_turn(tokenizer)) is not None:
        # A base model's EOS often ends documents; its turns end with another token.
        tokenizer.eos_token = token
    if tokenizer.eos_token is None:
        raise ValueError(
            f"{path}: the tokenizer has no end token, so nothing would ever end; set "
            "`chat_template`, or save it with an eos_token"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    _check_think_tags(tokenizer, path)
    _check_prefill(tokenizer, fmt, path)
    return tokenizer


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The added token that follows the assistant's text in the chat template, if any."""
    turn = [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}]
    text = str(tokenizer.apply_chat_template(turn, tokenize=False))
    tail = tokenizer.encode(text.rpartition(_PROBE)[2].lstrip(), add_special_tokens=False)
    if not tail or tail[0] not in tokenizer.added_tokens_decoder:
        return None
    return str(tokenizer.convert_ids_to_tokens(tail[0]))


def _check_think_tags(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    text = f"{THINK_OPEN}{_PROBE}{THINK_CLOSE}"
    ids = tokenizer.encode(text, add_special_tokens=False)
    kept = str(tokenizer.decode(ids, skip_special_tokens=True))
    if THINK_OPEN not in kept or THINK_CLOSE not in kept:
        raise ValueError(
            f"{path}: its tokenizer strips {THINK_OPEN} or {THINK_CLOSE} when it decodes, because "
            "they are special tokens, so every format reward would be 0; add them with "
            "tokenizer.add_tokens(AddedToken(tag, special=False)) and save it"
        )


def _check_prefill(tokenizer: PreTrainedTokenizerBase, fmt: ReasoningFormat, path: str) -> None:
    turn = [{"role": "user", "content": _PROBE}]
    prompt = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    if prompt.rstrip().endswith(THINK_OPEN) == fmt.is_prefilled:
        return
    if fmt.is_prefilled:
        raise ValueError(
            f"{path}: reasoning_format {fmt.name!r} expects a generation prompt that ends with "
            f"{THINK_OPEN}, but the model's own chat template does not write it; set "
            "`chat_template`, or take a reasoning_format that is not prefilled"
        )
    raise ValueError(
        f"{path}: its chat template ends the generation prompt with {THINK_OPEN}, so completions "
        f"start inside the reasoning; set `reasoning_format: r1_prefilled` (now {fmt.name!r}), or "
        "another `chat_template`"
    )


def resolve_dtype(model_args: ModelArguments, *, trainable: bool) -> str:
    """The type to load weights in; see the help of `ModelArguments.dtype`."""
    if model_args.dtype is not None:
        return model_args.dtype
    if PartialState().device.type == "cpu":
        return "float32"
    is_trained_in_full = trainable and not (
        model_args.use_peft or model_args.load_in_4bit or model_args.load_in_8bit
    )
    return "float32" if is_trained_in_full else "bfloat16"


def load_policy(
    path: str, model_args: ModelArguments, *, trainable: bool
) -> tuple[PreTrainedModel | PeftModel, Any]:
    """A causal language model for training or for sampling.

    Args:
        path: model folder, adapter folder (base and adapter are loaded) or Hub id.
        model_args: dtype, attention, quantisation and LoRA keys.
        trainable: the model is going to be trained. An adapter folder then gives a `PeftModel`
            whose adapter is trained on; otherwise the adapter is merged where that is exact.

    Returns:
        The model, and the LoRA config that a TRL trainer is to apply to it: None for full weights,
        and for an adapter folder, whose adapter is there already.

    Raises:
        ValueError: quantised weights without LoRA; a carried adapter of another rank than
            `lora_r`.
    """
    carried = is_adapter_folder(path)
    is_quantised = model_args.load_in_4bit or model_args.load_in_8bit
    if trainable and is_quantised and not (model_args.use_peft or carried):
        raise ValueError(
            f"{path}: weights in 4 or 8 bit can't be trained themselves; set `use_peft: true`, or "
            "take out load_in_4bit and load_in_8bit"
        )
    if carried and trainable:
        _check_carried_adapter(path, model_args)
    check_model(path, model_args.allowed())
    model = load_weights(base_model_path(path), model_args, trainable=trainable)
    if carried:
        model = PeftModel.from_pretrained(model, path, is_trainable=trainable)
        if not trainable and not is_quantised:
            model = model.merge_and_unload()
    if not trainable:
        if not is_quantised:
            model = model.to(PartialState().device)
        return model.eval(), None
    return model, None if carried else get_peft_config(model_args)


def load_scorer(path: str, model_args: ModelArguments, seed: int) -> tuple[PreTrainedModel, Any]:
    """Any causal language model with a fresh scalar head, for a reward model.

    An adapter folder is merged first, since its adapter was trained for another head; it needs
    full training, as a new adapter's base would not be a stored model.

    Args:
        path: model folder, adapter folder or Hub id.
        model_args: dtype, attention, quantisation and LoRA keys.
        seed: of the head's random weights.

    Returns:
        The model and the LoRA config for TRL's trainer, None for full weights.

    Raises:
        ValueError: quantised weights without LoRA, or LoRA on top of an adapter folder.
    """
    is_quantised = model_args.load_in_4bit or model_args.load_in_8bit
    if is_quantised and not model_args.use_peft:
        raise ValueError(
            f"{path}: weights in 4 or 8 bit can't be trained themselves; set `use_peft: true`, or "
            "take out load_in_4bit and load_in_8bit"
        )
    if is_adapter_folder(path) and model_args.use_peft:
        raise ValueError(
            f"{path}: a reward model with LoRA has to start from a plain model; set "
            "`adapter_output: merged` in the stage that makes it"
        )
    set_seed(seed)
    scorer_args = copy.copy(model_args)
    scorer_args.lora_task_type = "SEQ_CLS"
    model = load_weights(base_model_path(path), scorer_args, trainable=True, architecture=_SCORER)
    if is_adapter_folder(path):
        merged, _ = load_policy(path, model_args, trainable=False)
        body = getattr(merged, merged.base_model_prefix).state_dict()
        getattr(model, model.base_model_prefix).load_state_dict(body)
    return model, get_peft_config(scorer_args)


_SCORER = AutoModelForSequenceClassification


def load_weights(
    path: str,
    model_args: ModelArguments,
    *,
    trainable: bool,
    architecture: Any = AutoModelForCausalLM,
) -> Any:
    """The bare weights of a plain model, quantised where `model_args` says so.

    Args:
        architecture: transformers' auto class; a sequence classifier gets one label.
    """
    resolved = copy.copy(model_args)
    resolved.dtype = resolve_dtype(model_args, trainable=trainable)
    kwargs: dict[str, Any] = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": resolved.dtype if resolved.dtype == "auto" else getattr(torch, resolved.dtype),
        "trust_remote_code": model_args.trust_remote_code,
        # False would pass over safetensors that are there.
        "use_safetensors": True if model_args.use_safetensors else None,
    }
    check_model(path, model_args.allowed())
    quantization = get_quantization_config(resolved)
    if quantization is not None:
        kwargs["quantization_config"] = quantization
        kwargs["device_map"] = {"": PartialState().device}
    if architecture is _SCORER:
        kwargs["num_labels"] = 1
        if quantization is not None:  # the new head has to stay trainable
            quantization.llm_int8_skip_modules = ["score"]
    with told_of_trust(path):
        model = architecture.from_pretrained(path, **kwargs)
    if quantization is not None:
        keep_gradients_on_cpu(model)
    return model


def _check_carried_adapter(path: str, model_args: ModelArguments) -> None:
    carried_r = PeftConfig.from_pretrained(path).r
    if model_args.use_peft and carried_r != model_args.lora_r:
        raise ValueError(
            f"{path}: the adapter that is carried on has rank {carried_r}, but lora_r is "
            f"{model_args.lora_r}; set `lora_r: {carried_r}`, or `adapter_output: merged` in the "
            "stage that made it to start a new adapter"
        )


def keep_gradients_on_cpu(model: torch.nn.Module) -> None:
    """Keep 4-bit layers off a bitsandbytes CPU kernel that has no gradient.

    On a CPU with AVX512-BF16 any forward without gradients in eval mode repacks the weights, and
    training after it silently gets LoRA gradients of nearly zero.
    """
    if PartialState().device.type != "cpu":
        return
    from bitsandbytes.nn.modules import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


@contextmanager
def missing_gradient_is_an_error() -> Iterator[None]:
    """Turn the only sign of that lost gradient, a warning, into an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*gemv_4bit.*autograd kernel.*")
        yield


def set_end_token(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let the tokenizer's EOS end generation, beside what ended it before."""
    config = model.generation_config
    known = config.eos_token_id
    others = [known] if isinstance(known, int) else list(known or [])
    end = tokenizer.eos_token_id
    config.eos_token_id = [end, *(token for token in others if token != end)]
    config.pad_token_id = tokenizer.pad_token_id
