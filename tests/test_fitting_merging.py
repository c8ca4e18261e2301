"""A merged model is the one that was trained: base plus adapter, the base rounded where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tiny_model
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.cli import main
from trl_r1.fitting.merging import merge_adapter, outputs, training_of
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.dequantised import load_as_trained
from trl_r1.training.models import load_policy

QUANTISED = [{"load_in_4bit": True}, {"load_in_8bit": True}]
SMOLLM2 = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"
GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"
TEXTS = ["<|user|>4+5=?<|assistant|>", "<think>1+1=2</think>", "7+8=?"]


def make_adapter(model: Path, folder: Path, std: float = 0.1, **settings: Any) -> Path:
    """An adapter with weights that change the model's outputs."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **settings)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)
    adapted.save_pretrained(folder)
    return folder


def difference(one: Any, other: Any, folder: Path) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return max(
        float((outputs(one, tokenizer, text) - outputs(other, tokenizer, text)).abs().max())
        for text in TEXTS
    )


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"use_dora": True}], ids=str)
def test_a_merged_model_gives_the_probabilities_of_base_plus_adapter(
    tmp_path: Path, tiny_model_dir: Path, settings: dict[str, Any]
) -> None:
    adapter = make_adapter(tiny_model_dir, tmp_path / "adapter", **settings)
    report = merge_adapter(adapter, tmp_path / "merged", ModelArguments(), prompts=TEXTS)
    assert report.difference is not None
    assert report.difference < 1e-5
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    start = AutoModelForCausalLM.from_pretrained(tiny_model_dir).eval()
    assert difference(merged, start, tiny_model_dir) > 1e-3, "the adapter does something"


@pytest.mark.parametrize("settings", QUANTISED, ids=["4-bit", "8-bit"])
def test_a_base_is_rounded_to_what_an_adapter_was_trained_on(
    tiny_model_dir: Path, settings: dict[str, Any]
) -> None:
    args = ModelArguments(use_peft=True, **settings)
    loaded, _ = load_policy(str(tiny_model_dir), args, trainable=True)
    theirs = loaded.dequantize(torch.float32).state_dict()
    ours = load_as_trained(str(tiny_model_dir), args).state_dict()
    assert theirs.keys() == ours.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name].float(), rtol=1e-5, atol=1e-6)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_dir).state_dict()
    assert any((plain[name] - weight).abs().max() > 1e-5 for name, weight in ours.items())


def test_a_merge_on_4_bit_is_the_dequantised_base_plus_adapter(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    adapter = make_adapter(tiny_model_dir, tmp_path / "adapter")
    args = ModelArguments(load_in_4bit=True)
    merge_adapter(adapter, tmp_path / "merged", args)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    quantised, _ = load_policy(
        str(tiny_model_dir), ModelArguments(use_peft=True, load_in_4bit=True), trainable=True
    )
    dense = PeftModel.from_pretrained(quantised.dequantize(torch.float32), adapter).eval()
    plain = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir), adapter
    ).eval()
    exact = difference(merged, dense, tiny_model_dir)
    assert exact < 1e-4
    assert difference(merged, plain, tiny_model_dir) > 10 * exact


def test_the_command_takes_the_quantisation_from_the_stage_and_says_how_close_it_came(
    tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = make_adapter(tiny_model_dir, tmp_path / "stage" / "adapter")
    record = {"recipe": {"load_in_4bit": True, "use_peft": True, "lora_r": 4}}
    (tmp_path / "stage" / "stage.json").write_text(json.dumps(record))
    assert training_of(adapter) == {"load_in_4bit": True}
    assert main(["merge", str(adapter), str(tmp_path / "merged"), "--check", "2"]) == 0
    said = capsys.readouterr().out
    assert "rounded to 4-bit and back" in said
    assert "on 2 prompts: " in said
    assert float(said.split("on 2 prompts: ")[1]) < 1e-4
    assert main(["merge", str(adapter), str(tmp_path / "merged")]) == 1
    assert "exists already" in capsys.readouterr().out
    assert main(["merge", str(tiny_model_dir), str(tmp_path / "other")]) == 1
    assert "no adapter_config.json" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["bfloat16", "4-bit"])
def test_smollm2_keeps_its_probabilities_on_a_hundred_problems(tmp_path: Path, bits: str) -> None:
    if not SMOLLM2.is_dir() or not GSM8K.is_file():
        pytest.skip("needs SmolLM2 (scripts/get_smollm2) and shared/data/gsm8k")
    lines = GSM8K.read_text(encoding="utf-8").splitlines()[:100]
    prompts = [json.loads(line)["question"] for line in lines]
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype="bfloat16").save_pretrained(base)
    AutoTokenizer.from_pretrained(SMOLLM2).save_pretrained(base)
    adapter = make_adapter(base, tmp_path / "adapter", std=0.01)
    args = ModelArguments(dtype="float32", load_in_4bit=bits == "4-bit")
    report = merge_adapter(adapter, tmp_path / "merged", args, prompts=prompts)
    assert report.difference is not None
    assert report.difference < 1e-3


def _broken(case: str, adapter: Path, tmp_path: Path) -> list[str]:
    """Break an adapter; what else the command is told."""
    config = adapter / "adapter_config.json"
    if case == "config_cut_off":
        config.write_text(config.read_text()[:40])
    elif case == "no_weights":
        (adapter / "adapter_model.safetensors").unlink()
    elif case == "base_gone":
        document = json.loads(config.read_text())
        config.write_text(json.dumps({**document, "base_model_name_or_path": "/gone/base"}))
    elif case == "other_base":
        other = make_tiny_model(tmp_path / "other", hidden_size=16)
        return ["--base", str(other)]
    return []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("config_cut_off", "adapter_config.json can't be read"),
        ("no_weights", "has no weights: no adapter_model.safetensors"),
        ("base_gone", "stands on /gone/base, which is not there; name its base, --base"),
        ("other_base", "is no adapter of"),
    ],
)
def test_an_adapter_that_can_not_be_merged_is_told_and_leaves_nothing(
    tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str], case: str, words: str
) -> None:
    adapter = make_adapter(tiny_model_dir, tmp_path / "adapter")
    options = _broken(case, adapter, tmp_path)
    assert main(["merge", str(adapter), str(tmp_path / "merged"), *options]) == 1
    assert words in capsys.readouterr().out
    assert not (tmp_path / "merged").exists()
