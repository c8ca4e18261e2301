"""`trl-r1 rehearse`: sound recipes pass, late faults do not, nothing of the user's changes."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import yaml
from rehearsal_faults import FAULTS, write_models, write_recipe

from trl_r1.cli import main
from trl_r1.fitting.real_scale import bytes_of_stage, concerns
from trl_r1.fitting.tiny_models import stand_in_tokenizer, tiny_config
from trl_r1.pipeline.reading import read_pipeline

RECIPES = Path(__file__).parents[1] / "recipes"
SHIPPED = sorted(path.parent.name for path in RECIPES.glob("*/pipeline.yaml"))


def rehearsed(
    folder: Path, capfd: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, str]]:
    """The status, and what was said of each stage."""
    status = main(["rehearse", str(folder), *options])
    lines = capfd.readouterr().out.splitlines()
    said: dict[str, str] = {}
    for line in lines:
        name, _, rest = line.partition(" ")
        said[name] = f"{said.get(name, '')}{rest.strip()}\n"
    return status, said


def test_every_late_fault_is_found_and_named_by_its_stage(
    tmp_path: Path, tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(FAULTS) >= 25
    folder = tmp_path / "recipe"
    write_recipe(folder, tiny_model_dir, FAULTS)
    write_models(folder)
    assert main(["check", str(folder)]) == 0, capfd.readouterr().out
    capfd.readouterr()
    status, said = rehearsed(folder, capfd)
    assert status == 1
    wrong = {
        name: said.get(name)
        for name, fault in FAULTS.items()
        if not re.search(rf"(BROKE|WOULD BREAK) .*({fault.message})", said.get(name, ""))
    }
    assert not wrong


@pytest.fixture
def at_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demos_recipe_passes_and_leaves_nothing_behind(
    at_tmp: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (at_tmp / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(at_tmp / "scratch"))
    status, said = rehearsed(RECIPES / "tiny-cpu", capfd)
    assert status == 0, said
    assert [name for name, text in said.items() if text.startswith("ok")] == [
        "evaluation", "base", "zero", "cold_start_data", "cold_start", "reasoning_rl",
        "reasoning_data", "mixed_sft", "preference", "general_rl", "distill", "student_rl",
    ]  # fmt: skip
    assert [path.name for path in at_tmp.iterdir()] == ["scratch"]
    left = [path.name for path in (at_tmp / "scratch").iterdir()]
    assert not [name for name in left if name.startswith("trl-r1-rehearsal")]


def test_what_depends_on_a_broken_stage_is_left_out_and_the_rest_goes_on(
    at_tmp: Path, tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = at_tmp / "recipe"
    write_recipe(folder, tiny_model_dir, {"broken": FAULTS["reward_of_words"]})
    after = {"stage": "cold_start", "model_name_or_path": "@broken", "allow_rl_weights": True,
             "datasets": [{"dataset_name": "rows.jsonl"}]}  # fmt: skip
    alone = {"stage": "cold_start", "datasets": [{"dataset_name": "rows.jsonl"}]}
    (folder / "10_after.yaml").write_text(yaml.safe_dump(after))
    (folder / "11_alone.yaml").write_text(yaml.safe_dump(alone))
    status, said = rehearsed(folder, capfd)
    assert status == 1
    assert said["broken"].startswith("BROKE")
    assert said["after"].startswith("not rehearsed  it needs @broken".replace("  ", " "))
    assert said["alone"].startswith("ok")
    assert not (at_tmp / "runs").exists()


def test_a_mistake_that_check_sees_ends_it_before_any_stage(
    tmp_path: Path, tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recipe"
    write_recipe(folder, tiny_model_dir, {"one": FAULTS["target_of_lora"]})
    status, said = rehearsed(folder, capfd, "--set", "one.learning_rat=1.0e-4")
    assert status == 1
    assert "one" not in said


def test_a_full_disk_and_a_place_that_is_no_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = read_pipeline(RECIPES / "qwen2.5-7b-24gb")
    zero = pipeline.stage("zero")
    model, _ = bytes_of_stage(pipeline, zero)
    assert model == pytest.approx(2 * 7.6e9, rel=0.02)  # bfloat16
    usage = namedtuple("usage", "total used free")
    for free, expected in ((10e9, [True]), (30e9, [False]), (500e9, [])):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, int(free)))
        found = [c for c in concerns(pipeline, tmp_path) if "disk" in c.text]
        assert [concern.breaks for concern in found] == expected, free
    (tmp_path / "file").write_text("")
    assert "can't write to" in next(concerns(pipeline, tmp_path / "file" / "run")).text


def test_a_tiny_model_keeps_what_settings_depend_on() -> None:
    from transformers import AutoConfig

    tokenizer = stand_in_tokenizer("Qwen/Qwen3-8B")
    real = AutoConfig.for_model("qwen3", num_hidden_layers=36, num_attention_heads=32,
                                num_key_value_heads=8, vocab_size=151936)  # fmt: skip
    tiny = tiny_config(real, tokenizer)
    assert (tiny.model_type, tiny.num_hidden_layers, tiny.vocab_size) == ("qwen3", 2, 151936)
    assert tiny.num_key_value_heads < tiny.num_attention_heads
    assert tiny_config(real, tokenizer, has_own_tokenizer=False).vocab_size < 1000
    gemma = AutoConfig.for_model("gemma3_text", num_hidden_layers=26)
    assert set(tiny_config(gemma, tokenizer).layer_types) == set(gemma.layer_types)


def test_families_differ_in_their_stand_in_vocabularies() -> None:
    names = (
        "Qwen/Qwen2.5-7B",
        "meta-llama/Llama-3.2-1B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    )
    vocabularies = [frozenset(stand_in_tokenizer(name).get_vocab()) for name in names]
    assert len(set(vocabularies)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_passes(
    name: str, at_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = RECIPES.parent / "models"
    if name.startswith("smollm2") and not models.is_dir():
        pytest.skip("scripts/get_smollm2 has not made models/")
    if models.is_dir():
        (at_tmp / "models").symlink_to(models)
    status, said = rehearsed(RECIPES / name, capfd)
    assert status == 0, said
