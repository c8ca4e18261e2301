"""A pipeline whose stages hand on adapters: trained, scored, continued, merged at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM

from trl_r1.cli import main

LORA = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["all-linear"]}
FORMAT = {"reasoning_format": "zero_bare"}
FEW = {"max_steps": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}


def test_a_pipeline_goes_on_with_adapters_and_ends_with_a_plain_model(
    tmp_path: Path,
    tiny_model_dir: Path,
    rows_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "chain"
    folder.mkdir()
    data = {"datasets": [{"dataset_name": str(rows_file)}]}
    rl = {"stage": "grpo", "rewards": [{"use": "think_format"}], "num_generations": 4,
          "max_completion_length": 4, **LORA, **FEW, **data}  # fmt: skip
    files = {
        "pipeline": {
            "defaults": {
                "model_name_or_path": str(tiny_model_dir),
                "reasoning_format": "zero_bare",
            },
            "evaluation": {
                "datasets": [{"task": "digit_sums", "split": "test", "num_rows": 2}],
                "max_new_tokens": 2,
            },
        },
        "01_sft": {"stage": "cold_start", "adapter_output": "adapter", **LORA, **FEW, **data},
        "02_rl": {**rl, "model_name_or_path": "@sft", "adapter_output": "adapter"},
        "03_last": {**rl, "model_name_or_path": "@rl"},
    }
    for name, values in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    assert main(["run", str(folder)]) == 0, capfd.readouterr().out
    runs = tmp_path / "runs" / "chain"
    for stage in ("sft", "rl"):
        config = json.loads((runs / stage / "model" / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(tiny_model_dir)
        assert "after" in json.loads((runs / stage / "stage.json").read_text())["scores"]
    assert not (runs / "last" / "model" / "adapter_config.json").exists()
    AutoModelForCausalLM.from_pretrained(runs / "last" / "model")
