"""Models and tokenizers are loaded and stored so that every stage and plain transformers agree."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tiny_model, stage_context
from peft import PeftModel
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.reasoning_format import get_format
from trl_r1.stages import cold_start, distillation, mixed_sft
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import (
    load_policy,
    load_tokenizer,
    missing_gradient_is_an_error,
    resolve_dtype,
)

BARE = get_format("zero_bare")
LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4}
QLORA: dict[str, Any] = {**LORA, "load_in_4bit": True}


def train(
    out: Path, model: Path, rows: Path, module: Any = cold_start, **model_settings: Any
) -> Path:
    """Train a few steps at a high rate; the folder of the stage."""
    context = stage_context(
        out,
        module,
        model,
        [{"dataset_name": str(rows)}],
        model_settings,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=3e-2,
        save_strategy="no",
        max_steps=4,
    )
    module.run(context)
    return out


def logits(model: Any, tokenizer: Any) -> torch.Tensor:
    inputs = tokenizer("<|user|>4+5=?<|assistant|><think>", return_tensors="pt")
    with torch.no_grad():
        result: torch.Tensor = model.eval()(**inputs).logits
    return result


def plain(folder: Path) -> tuple[Any, Any]:
    """What a person who knows nothing of this package loads."""
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("module", [cold_start, mixed_sft, distillation])
@pytest.mark.parametrize("settings", [{}, LORA, QLORA], ids=["full", "LoRA", "QLoRA"])
def test_every_sft_stage_trains_and_stores_a_plain_model(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, module: Any, settings: dict[str, Any]
) -> None:
    out = train(tmp_path / "stage", tiny_model_dir, rows_file, module, **settings)
    model, tokenizer = plain(out / "model")
    start, _ = plain(tiny_model_dir)
    assert (logits(model, tokenizer) - logits(start, tokenizer)).abs().max() > 0.1
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert tokenizer.eos_token == "<|end|>"
    assert "<think>" in tokenizer.decode(tokenizer.encode("<think>"), skip_special_tokens=True)
    assert (out / "model/model.safetensors").is_file()
    assert (out / "adapter").is_dir() == bool(settings)
    assert not list(out.glob(".*")), "nothing half-written is left"
    assert not list(out.glob("*/training_args.bin"))


def test_eight_bit_weights_are_trained_and_merged_too(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    out = train(tmp_path, tiny_model_dir, rows_file, load_in_8bit=True, **LORA)
    merged, tokenizer = plain(out / "model")
    args = ModelArguments(load_in_8bit=True, **LORA)
    trained, _ = load_policy(str(out / "adapter"), args, trainable=False)
    start, _ = plain(tiny_model_dir)
    moved = (logits(trained, tokenizer) - logits(start, tokenizer)).abs().max()
    error = (logits(merged, tokenizer) - logits(trained, tokenizer)).abs().max()
    assert error < 0.05 * moved  # its products are rounded to 8 bit, those of the merged are not


def test_a_merged_model_is_the_base_with_its_adapter(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    out = train(tmp_path / "lora", tiny_model_dir, rows_file, **LORA)
    merged, tokenizer = plain(out / "model")
    base, _ = plain(tiny_model_dir)
    adapted = PeftModel.from_pretrained(base, out / "adapter")
    difference = logits(merged, tokenizer) - logits(adapted, tokenizer)
    assert difference.abs().max() < 1e-4
    config = json.loads((out / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model_dir)


def test_a_merged_qlora_model_is_the_model_that_was_trained(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    out = train(tmp_path / "qlora", tiny_model_dir, rows_file, **QLORA)
    merged, tokenizer = plain(out / "model")
    args = ModelArguments(**QLORA)
    trained, _ = load_policy(str(out / "adapter"), args, trainable=False)
    exact = (logits(merged, tokenizer) - logits(trained, tokenizer)).abs().max()
    full_base, _ = plain(tiny_model_dir)
    other = logits(PeftModel.from_pretrained(full_base, out / "adapter"), tokenizer)
    naive = (other - logits(trained, tokenizer)).abs().max()
    assert exact < 1e-3
    assert naive > 5 * exact, "the weights it was trained on are the dequantised ones"
    assert not hasattr(merged.config, "quantization_config")


def test_an_adapter_alone_is_carried_on_by_the_next_stage(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    first = train(tmp_path / "a", tiny_model_dir, rows_file, adapter_output="adapter", **LORA)
    assert (first / "model/adapter_config.json").is_file()
    assert not (first / "adapter").exists()
    carried, new = load_policy(str(first / "model"), ModelArguments(**LORA), trainable=True)
    assert isinstance(carried, PeftModel)
    assert new is None
    assert any(parameter.requires_grad for parameter in carried.parameters())
    second = train(tmp_path / "b", first / "model", rows_file, adapter_output="adapter", **LORA)
    config = json.loads((second / "model/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model_dir)
    tokenizer = load_tokenizer(str(second / "model"), ModelArguments(), BARE)
    for sampled in (first, second):  # for sampling, the adapter is merged
        model, _ = load_policy(str(sampled / "model"), ModelArguments(), trainable=False)
        assert not isinstance(model, PeftModel)
        assert torch.isfinite(logits(model, tokenizer)).all()


def test_a_carried_adapter_of_another_rank_is_an_error(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    first = train(tmp_path / "a", tiny_model_dir, rows_file, adapter_output="adapter", **LORA)
    with pytest.raises(ValueError, match=r"has rank 4, but lora_r is 16; set `lora_r: 4`"):
        load_policy(str(first / "model"), ModelArguments(use_peft=True), trainable=True)


def test_quantised_weights_without_lora_are_an_error(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="can't be trained themselves; set `use_peft: true`"):
        load_policy(str(tiny_model_dir), ModelArguments(load_in_4bit=True), trainable=True)


def test_weights_on_a_cpu_are_float32_unless_the_recipe_says_otherwise() -> None:
    assert resolve_dtype(ModelArguments(), trainable=True) == "float32"
    assert resolve_dtype(ModelArguments(use_peft=True), trainable=True) == "float32"
    assert resolve_dtype(ModelArguments(dtype="bfloat16"), trainable=True) == "bfloat16"


def test_qlora_gradients_match_a_dense_twin_after_an_evaluation(tiny_model_dir: Path) -> None:
    from peft import LoraConfig, get_peft_model

    args = ModelArguments(**QLORA)
    quantised, config = load_policy(str(tiny_model_dir), args, trainable=True)
    dense, _ = load_policy(str(tiny_model_dir), args, trainable=True)
    dense = dense.dequantize(torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    gradients = []
    for model in (quantised, dense):
        torch.manual_seed(0)
        lora = LoraConfig(**{k: getattr(config, k) for k in ("r", "lora_alpha", "task_type")})
        peft_model = get_peft_model(model, lora)
        for name, parameter in peft_model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        logits(peft_model, tokenizer)  # a forward without gradients, in eval mode
        peft_model.train()
        ids = tokenizer("<|user|>4+5=?<|assistant|>9", return_tensors="pt").input_ids
        with missing_gradient_is_an_error():
            peft_model(input_ids=ids, labels=ids).loss.backward()
        parts = [p.grad.flatten() for n, p in peft_model.named_parameters() if "lora" in n]
        gradients.append(torch.cat(parts))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.999


def test_the_warning_of_a_lost_gradient_is_an_error() -> None:
    text = "bitsandbytes::gemv_4bit: an autograd kernel was not registered to the Autograd key(s)"
    with pytest.raises(UserWarning, match="gemv_4bit"), missing_gradient_is_an_error():
        warnings.warn(text, stacklevel=1)


def test_the_templates_end_token_becomes_the_eos(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = "<|pad|>"  # a base model's EOS ends documents, not turns
    tokenizer.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|pad|>"
    for settings in ({}, {"chat_template": "compact"}):
        args = ModelArguments(**settings)
        assert load_tokenizer(str(folder), args, BARE).eos_token == "<|end|>"


def test_a_template_whose_end_token_is_unknown_is_an_error(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"ends a turn with '<\|im_end\|>', which is not in"):
        load_tokenizer(str(tiny_model_dir), ModelArguments(chat_template="chatml"), BARE)


def test_a_tokenizer_without_a_template_is_an_error(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template; set `chat_template: chatml`"):
        load_tokenizer(str(folder), ModelArguments(), BARE)


def test_think_as_a_special_token_is_an_error(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "special")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<think>", special=True)]}
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="strips <think> or </think> when it decodes"):
        load_tokenizer(str(folder), ModelArguments(), BARE)


def test_a_prefill_that_template_and_format_disagree_on_is_an_error(tiny_model_dir: Path) -> None:
    path, prefilled = str(tiny_model_dir), get_format("r1_prefilled")
    own = ModelArguments()
    with pytest.raises(ValueError, match="expects a generation prompt that ends with <think>"):
        load_tokenizer(path, own, prefilled)
    named = ModelArguments(chat_template="compact")
    tokenizer = load_tokenizer(path, named, prefilled)
    prompt = [{"role": "user", "content": "1"}]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<think>\n")
