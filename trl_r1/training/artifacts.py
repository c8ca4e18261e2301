"""Storing a stage's result: a plain model folder, the adapter beside it, or the adapter alone.

Every folder is written under a temporary name and renamed when it is complete, the weights as
safetensors. Trainer gathers sharded weights; merging is then done from files, by the main process
alone. Left out: cards and uploads.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from peft import PeftModel
from transformers import PreTrainedTokenizerBase, Trainer

from trl_r1.training.arguments import ModelArguments
from trl_r1.training.dequantised import load_as_trained
from trl_r1.training.models import base_model_path, is_adapter_folder, set_end_token
from trl_r1.trust.secrets import clean

# What Trainer and TRL leave beside the weights: a pickle of the arguments and a draft of a card.
_LEFTOVERS = ("training_args.bin", "README.md")


def partial_folder(folder: Path) -> Path:
    """Where `folder` is put together before it gets its name."""
    return folder.with_name(f".{folder.name}.partial")


def promote(partial: Path, folder: Path) -> None:
    """Flush a complete folder to disk and give it its name."""
    for file in partial.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    partial.replace(folder)


def write_text(path: Path, text: str) -> None:
    """Write a small file in one piece."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


def write_details(output_dir: Path, details: Mapping[str, Any]) -> None:
    """Keep a stage's figures for the case that it is killed before the runner has them."""
    write_text(
        output_dir / "details.json", json.dumps(clean(details), indent=2, sort_keys=True) + "\n"
    )


def read_details(output_dir: Path) -> dict[str, Any] | None:
    """The figures that `write_details` kept; None where there are none."""
    path = output_dir / "details.json"
    if not path.is_file():
        return None
    details: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return details


def save_model_artifact(
    trainer: Trainer,
    output_dir: Path,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    *,
    name: str = "model",
) -> None:
    """Store the trained model of `trainer` as `output_dir / name`. Called by every process.

    Full weights become a plain model folder. LoRA with `adapter_output: merged` becomes a plain
    model with the adapter merged in, and `adapter/` beside it; with `adapter` the folder `name`
    holds the adapter alone. Adapters on 4- or 8-bit weights are merged into the dequantised
    weights, those the adapter was trained on, so the result is the trained model.

    Args:
        name: `model`, or `reward_model` for a sequence classifier.
    """
    staging = partial_folder(output_dir / "weights")
    is_main = trainer.accelerator.is_main_process
    if is_main and staging.exists():
        shutil.rmtree(staging)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(staging))  # every process: sharded weights are gathered here
    if is_main:
        model = trainer.accelerator.unwrap_model(trainer.model)
        _tidy(staging)
        tokenizer.save_pretrained(staging)
        target = output_dir / name
        if not is_peft_model(model) or model_args.adapter_output == "adapter":
            promote(staging, target)
        else:
            promote(staging, output_dir / "adapter")
            _merge(output_dir / "adapter", partial_folder(target), tokenizer, model_args, model)
            promote(partial_folder(target), target)
    trainer.accelerator.wait_for_everyone()


def _tidy(folder: Path) -> None:
    for name in _LEFTOVERS:
        (folder / name).unlink(missing_ok=True)
    for sub in folder.iterdir():
        # A carried adapter's frozen copy, GRPO's reference, is no part of the result.
        if sub.is_dir() and is_adapter_folder(sub):
            shutil.rmtree(sub)


def _merge(
    adapter: Path,
    target: Path,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    trained: Any,
) -> None:
    """Write base plus adapter, as one plain model, to `target`."""
    shutil.rmtree(target, ignore_errors=True)
    base = load_as_trained(base_model_path(str(adapter)), model_args, _auto_class(trained))
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    if hasattr(merged, "generation_config") and merged.generation_config is not None:
        set_end_token(merged, tokenizer)
    merged.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    merged.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _auto_class(trained: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    is_scorer = "SequenceClassification" in type(trained.get_base_model()).__name__
    return AutoModelForSequenceClassification if is_scorer else AutoModelForCausalLM


def finished_details(output_dir: Path, artifacts: tuple[str, ...]) -> dict[str, Any] | None:
    """A finished stage's figures; None where an artifact is missing and the stage has to run."""
    if all((output_dir / artifact).is_dir() for artifact in artifacts):
        return read_details(output_dir) or {}
    return None
