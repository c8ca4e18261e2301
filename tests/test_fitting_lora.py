"""LoRA's keys are PEFT's, and QLoRA's gradients are those of the dequantised weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer
from trl import get_peft_config

from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_policy, missing_gradient_is_an_error

TEXT = "<|user|>4+5=?<|assistant|><think>9</think>"


def test_keys_of_a_recipe_reach_peft_and_dropout_is_off() -> None:
    args = ModelArguments(
        use_peft=True,
        lora_r=8,
        lora_alpha=32,
        lora_target_modules=["q_proj", "v_proj"],
        use_rslora=True,
        use_dora=True,
    )
    config: Any = get_peft_config(args)
    assert (config.r, config.lora_alpha) == (8, 32)
    assert set(config.target_modules) == {"q_proj", "v_proj"}
    assert config.use_rslora
    assert config.use_dora
    assert config.lora_dropout == 0.0, "dropout stays active while RL generates and scores"
    assert get_peft_config(ModelArguments()) is None


def adapted(model: Any) -> Any:
    """The model with an adapter whose weights are the same each time, and not zero."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def gradients(model: Any, ids: torch.Tensor) -> torch.Tensor:
    model.train()
    model.zero_grad()
    with missing_gradient_is_an_error():
        model(input_ids=ids, labels=ids).loss.backward()
    return torch.cat([p.grad.flatten() for n, p in model.named_parameters() if "lora" in n])


@pytest.mark.parametrize("between", ["nothing", "evaluation", "generation"])
def test_qlora_gradients_equal_those_of_a_dense_twin(tiny_model_dir: Path, between: str) -> None:
    args = ModelArguments(use_peft=True, load_in_4bit=True)
    loaded, _ = load_policy(str(tiny_model_dir), args, trainable=True)
    other, _ = load_policy(str(tiny_model_dir), args, trainable=True)
    quantised, dense = adapted(loaded), adapted(other.dequantize(torch.float32))
    ids = AutoTokenizer.from_pretrained(tiny_model_dir)(TEXT, return_tensors="pt").input_ids
    gradients(quantised, ids)  # a step before, as in a run
    quantised.eval()
    with torch.no_grad():
        if between == "evaluation":
            quantised(input_ids=ids)
        elif between == "generation":
            quantised.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    ours, theirs = gradients(quantised, ids), gradients(dense, ids)
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()
