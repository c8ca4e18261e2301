"""`trl-r1 merge`: an adapter folder into the plain model that was trained, checked by its outputs.

An adapter on quantised weights belongs to those weights, rounding included, so it is merged into
the base as it comes back from 4 or 8 bit (`training.dequantised`). What a stage's folder says of
its training (`stage.json`) is used where the command does not say it. Left out: merging several
adapters with weights of their own, which PEFT's `add_weighted_adapter` does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from trl_r1.training.arguments import ModelArguments
from trl_r1.training.artifacts import partial_folder, promote
from trl_r1.training.dequantised import load_as_trained
from trl_r1.training.models import base_model_path, is_adapter_folder, set_end_token
from trl_r1.trust.model_files import check_model, told_of_trust

_TRAINED_AS = (
    "dtype",
    "load_in_4bit",
    "load_in_8bit",
    "bnb_4bit_quant_type",
    "use_bnb_nested_quant",
)
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        output: the folder of the merged model.
        base: the model that the adapter stands on.
        quantised: `4-bit`, `8-bit` or empty: what the base was rounded to.
        difference: the largest difference of a probability between base plus adapter and the merged
            model as it was stored, over all tokens of the prompts; None where there were none.
        prompts: how many prompts were compared.
    """

    output: Path
    base: str
    quantised: str
    difference: float | None
    prompts: int


def training_of(adapter: Path) -> dict[str, Any]:
    """The keys of the recipe that say how the weights under an adapter were loaded.

    From `stage.json` of the folder that the adapter folder is in; empty where there is none.
    """
    record = adapter.parent / "stage.json"
    if not record.is_file():
        return {}
    recipe = json.loads(record.read_text(encoding="utf-8")).get("recipe") or {}
    return {key: recipe[key] for key in _TRAINED_AS if recipe.get(key) is not None}


def merge_adapter(
    adapter: Path,
    output: Path,
    model_args: ModelArguments,
    *,
    base: str | None = None,
    prompts: Sequence[str] = (),
) -> MergeReport:
    """Merge an adapter into its base, and store a plain model.

    Args:
        adapter: a folder with a PEFT adapter.
        output: a folder that does not exist yet; written in one piece.
        model_args: type and quantisation of the weights that the adapter was trained on.
        base: model to merge into; the one that the adapter names by default.
        prompts: texts on which merged and unmerged model are compared.

    Raises:
        ValueError: `adapter` is none, is not whole or stands on another base, or `output` is there
            already.
    """
    if not is_adapter_folder(adapter):
        raise ValueError(f"{adapter} is no adapter folder: it has no adapter_config.json")
    if output.exists():
        raise ValueError(f"{output} exists already; name a folder that does not")
    config = _adapter_config(adapter)
    base = base or base_model_path(str(adapter))
    if Path(base).is_absolute() and not Path(base).is_dir():
        raise ValueError(f"{adapter} stands on {base}, which is not there; name its base, --base")
    is_scorer = str(getattr(config.task_type, "value", config.task_type)) == "SEQ_CLS"
    architecture: Any = AutoModelForSequenceClassification if is_scorer else AutoModelForCausalLM
    check_model(str(adapter), model_args.allowed())
    source = _tokenizer_source(adapter, base)
    with told_of_trust(source):
        tokenizer = AutoTokenizer.from_pretrained(
            source, trust_remote_code=model_args.trust_remote_code
        )
    weights = load_as_trained(base, model_args, architecture)
    try:
        model = PeftModel.from_pretrained(weights, str(adapter)).eval()
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"{adapter} is no adapter of {base}: {first}") from error
    before = [outputs(model, tokenizer, prompt) for prompt in prompts]
    merged = model.merge_and_unload(safe_merge=True)
    _store(merged, tokenizer, output)
    difference = None
    if prompts:
        dtype = next(merged.parameters()).dtype
        del model, merged
        stored = architecture.from_pretrained(
            output, dtype=dtype, trust_remote_code=model_args.trust_remote_code
        ).eval()
        after = (outputs(stored, tokenizer, prompt) for prompt in prompts)
        pairs = zip(before, after, strict=True)
        difference = max(float((one - other).abs().max()) for one, other in pairs)
    quantised = "4-bit" if model_args.load_in_4bit else "8-bit" if model_args.load_in_8bit else ""
    return MergeReport(output, base, quantised, difference, len(prompts))


def _adapter_config(adapter: Path) -> PeftConfig:
    """The config of an adapter folder that is whole.

    Raises:
        ValueError: what is missing of it.
    """
    try:
        config: PeftConfig = PeftConfig.from_pretrained(str(adapter))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"{adapter}/adapter_config.json can't be read: {text}") from error
    if not any((adapter / name).is_file() for name in _ADAPTER_WEIGHTS):
        raise ValueError(f"{adapter} has no weights: no {' or '.join(_ADAPTER_WEIGHTS)} in it")
    return config


def outputs(model: Any, tokenizer: PreTrainedTokenizerBase, prompt: str) -> torch.Tensor:
    """Probabilities of the next token at every position of a text; of a reward model, its score."""
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits.float()
    result: torch.Tensor = logits.softmax(-1) if logits.dim() == 3 else logits.sigmoid()
    return result


def _tokenizer_source(adapter: Path, base: str) -> str:
    has_own = any((adapter / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    return str(adapter) if has_own else base


def _store(merged: Any, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    partial = partial_folder(output)
    if getattr(merged, "generation_config", None) is not None:
        set_end_token(merged, tokenizer)
    merged.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    merged.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    promote(partial, output)


def check_prompts(count: int) -> list[str]:
    """Texts to compare models on: word problems that need no download."""
    from trl_r1.reasoning_format import get_format
    from trl_r1.tasks import DatasetSource, load_rows

    if count < 1:
        return []
    rows = load_rows(DatasetSource(task="word_problems", num_rows=count), get_format("zero_bare"))
    return [row["prompt"][-1]["content"] for row in rows]
