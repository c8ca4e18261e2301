"""`trl-r1 plan` measures what real steps take, and what it proposes fits."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen2Config

from trl_r1.cli import main
from trl_r1.fitting.architectures import find_architecture, known_config
from trl_r1.fitting.loads import num_parameters
from trl_r1.fitting.memory_meter import LOGITS, WEIGHTS, MemoryMeter
from trl_r1.fitting.phases import Load, measure
from trl_r1.training.arguments import ModelArguments

ROOT = Path(__file__).parents[1]
CARDS = {
    "qwen2.5-0.5b-8gb": 8,
    "qwen2.5-1.5b-12gb": 12,
    "qwen2.5-3b-16gb": 16,
    "qwen2.5-7b-24gb": 24,
    "r1-distill-qwen-1.5b-24gb": 24,
}


def bench_plan() -> Any:
    """The benchmark, which runs real trainers beside the plan."""
    spec = importlib.util.spec_from_file_location("bench_plan", ROOT / "scripts/bench_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_plan"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "method", "checkpointing"),
    [("sft", "LoRA", False), ("grpo", "full", False), ("reward_model", "QLoRA", True)],
)
def test_a_plan_is_within_a_tenth_of_what_real_steps_take(
    tmp_path: Path, kind: str, method: str, checkpointing: bool
) -> None:
    bench = bench_plan()
    setting = bench.Setting("tiny", kind, method, checkpointing, 4, 16, 16)
    planned, measured = bench.compare(setting, bench.make_tiny(tmp_path / "tiny"), tmp_path)
    assert abs(planned / measured - 1) < 0.1


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("Qwen/Qwen3-0.6B-Base", 596_049_920),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
    ],
)
def test_known_models_have_as_many_parameters_as_published(name: str, parameters: int) -> None:
    config = known_config(name)
    assert config is not None
    assert num_parameters(config) == parameters


def test_a_folder_with_nothing_but_a_config_is_enough(tmp_path: Path) -> None:
    Qwen2Config(hidden_size=64, num_hidden_layers=3).save_pretrained(tmp_path)
    architecture = find_architecture(str(tmp_path))
    assert architecture.source == "folder"
    assert architecture.config.num_hidden_layers == 3


def test_the_meter_counts_what_lives_and_forgets_what_is_gone() -> None:
    meter = MemoryMeter(frozenset({1000}))
    with FakeTensorMode():
        weight = torch.empty(10, 1000)
        meter.hold(weight, WEIGHTS)
        with meter.phase():
            hidden = torch.ones(5, 10)  # 200 bytes
            logits = hidden @ weight  # 20,000 bytes
            assert meter.peak == 40_000 + 200 + 20_000
            assert meter.peak_parts[LOGITS] == 20_000
            del logits
            view = hidden.T  # a view is no memory
            assert view.shape == (10, 5)
            torch.ones(5, 1000)
        assert meter.peak == 40_000 + 200 + 20_000
        with meter.phase():
            assert bool((hidden > 0).all()), "no data: the answer is that of rows without padding"
            assert hidden[hidden > 0].shape == (50,)


def test_4_bit_weights_are_half_a_byte_and_their_scales() -> None:
    config = Qwen2Config(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    load = Load(
        "generation",
        config,
        ModelArguments(load_in_4bit=True),
        "bfloat16",
        prompt=4,
        completion=4,
        generated_rows=1,
    )
    linear = 2 * (4 * 256 * 256 + 3 * 256 * 512)
    plain = 1000 * 256 + 2 * (3 * 256 + 2 * 256) + 256  # embeddings, biases, norms
    weights = measure(load)[0].parts[WEIGHTS]
    exact = linear / 2 + 4 * linear / 64 + 2 * plain
    assert exact <= weights < exact + 40_000, "code tables, rotary buffers, rounding to 512 bytes"


def write_recipes(folder: Path, model: Path) -> Path:
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(
        f"name: small\ndefaults: {{model_name_or_path: {model}, reasoning_format: zero_bare}}\n"
    )
    (folder / "01_start.yaml").write_text(
        "stage: cold_start\ndatasets: [{task: digit_sums, num_rows: 8}]\nmax_length: 512\n"
        "per_device_train_batch_size: 8\ngradient_accumulation_steps: 1\n"
        "gradient_checkpointing: false\n"
    )
    return folder


def test_the_settings_that_a_plan_proposes_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = bench_plan()
    recipes = write_recipes(tmp_path / "small", bench.make_tiny(tmp_path / "tiny"))
    assert main(["plan", str(recipes), "--vram", "8"]) == 0
    said = capsys.readouterr().out
    assert "fits: every stage, on 8 GiB" in said
    total = float(re.findall(r"> update +([\d.]+)", said)[0])
    vram = str(round(total - 0.02, 2))
    assert main(["plan", str(recipes), "--vram", vram]) == 1
    said = capsys.readouterr().out
    assert "does not fit: start" in said
    options = shlex.split(said.splitlines()[-1])
    assert options[0] == "--set"
    assert "gradient_checkpointing=true" in options[1] or len(options) > 2
    assert main(["plan", str(recipes), "--vram", vram, *options]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CARDS))
def test_the_recipes_for_cards_fit_their_cards(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", str(ROOT / "recipes" / name), "--vram", str(CARDS[name]), "--no_remedies"]
    status = main(arguments)
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("vram", ["0", "-1", "nan", "inf"])
def test_a_card_of_no_size_is_refused(capsys: pytest.CaptureFixture[str], vram: str) -> None:
    assert main(["plan", "tiny-cpu", "--vram", vram]) == 1
    assert "give the GiB of the card, as 12" in capsys.readouterr().out
