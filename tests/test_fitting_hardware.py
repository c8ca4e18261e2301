"""Machines without bfloat16 in hardware get a clear word on what to set."""

from __future__ import annotations

from pathlib import Path

import pytest

from trl_r1.stages.cold_start import ColdStartConfig
from trl_r1.training import hardware


@pytest.mark.parametrize("capability", [(7, 0), (7, 5)], ids=["V100", "T4"])
def test_bfloat16_on_a_card_before_ampere_gets_a_word(capability: tuple[int, int]) -> None:
    word = hardware.precision_word(capability, is_cpu=False, bf16=True)
    assert word is not None
    assert f"{capability[0]}.{capability[1]}, before Ampere" in word
    assert "`fp16: true`, `bf16: false`, `dtype: float16`" in word
    quantised = hardware.precision_word(capability, is_cpu=False, bf16=False, quantised=True)
    assert quantised is not None
    assert "`load_in_4bit: false`" in quantised
    assert hardware.precision_word(capability, is_cpu=False, bf16=False) is None


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_newer_cards_get_none(capability: tuple[int, int]) -> None:
    for bf16 in (True, False):
        assert hardware.precision_word(capability, is_cpu=False, bf16=bf16, quantised=True) is None


def test_bfloat16_on_a_cpu_is_off_by_default_and_gets_a_word_where_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none"}
    assert ColdStartConfig(**settings).bf16 is False
    assert "slower than float32" not in caplog.text
    assert ColdStartConfig(**settings, bf16=True).bf16 is True
    assert "slower than float32" in caplog.text


def test_a_card_before_ampere_trains_in_float16_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Config:
        use_cpu, bf16, fp16 = False, None, False

    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr(hardware, "card_capability", lambda: (7, 5))
    config = Config()
    hardware.set_precision_default(config)
    assert (config.bf16, config.fp16) == (False, True)
    monkeypatch.setattr(hardware, "card_capability", lambda: (8, 6))
    config = Config()
    hardware.set_precision_default(config)
    assert (config.bf16, config.fp16) == (None, False)
