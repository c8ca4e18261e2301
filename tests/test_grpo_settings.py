"""Settings of RL that make no sense give one clear line, in Python and in a check, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_rows
from datasets import Dataset
from test_broken_recipes import ZERO, write_recipes

from trl_r1.cli import main
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer

NAN = float("nan")
# A setting, its value, and what is said of it.
WRONG: list[tuple[str, Any, str]] = [
    ("mini_batches_per_rollout", 0, "must be a whole number, 1 or more"),
    ("mini_batches_per_rollout", -3, "must be a whole number, 1 or more"),
    ("max_tokens_per_micro_batch", 0, "1 or more, or None for as many as TRL's"),
    ("max_tokens_per_micro_batch", -5, "1 or more, or None"),
    ("reference_replacement_steps", 0, "1 or more, or None to keep the start model"),
    ("dynamic_sampling_max_rounds", -1, "must be a whole number, 0 or more"),
    ("max_rollbacks", -1, "must be a whole number, 0 or more"),
    ("zero_advantage_tolerance", -0.1, "must be a number, 0 or more"),
    ("zero_advantage_tolerance", NAN, "a number"),
    ("zero_advantage_tolerance", float("inf"), "must be a number, 0 or more"),
    ("rollback_lr_factor", 0.0, "must be a number, over 0 and at most 1"),
    ("rollback_lr_factor", 1.5, "must be a number, over 0 and at most 1"),
    ("rollback_lr_factor", NAN, "a number"),
    ("metrics_language", "klingon", "unknown language 'klingon'; known: "),
    ("monitors", {"kl_runway": "stop"}, "unknown monitor 'kl_runway'; did you mean 'kl_runaway'?"),
    ("monitors", {"all": "explode"}, "all should be one of warn, stop, rollback, off"),
    ("monitors", {"truncation": {"above": NAN}}, "above should be a number from 0, not nan"),
    ("monitors", {"truncation": {"abve": 1}}, "no limit 'abve'; did you mean 'above'?"),
    ("monitors", {"truncation": {"logs": 0}}, "logs should be a whole number from 2"),
    ("temperature_schedule", [{"from_step": 5}], "should look like {from_step: 100"),
    ("temperature_schedule", [{"from_step": 1, "value": -1.0}], "value should be over 0"),
    ("temperature_schedule", [{"from_step": -1, "value": 1.0}], "a whole number from 0, not -1"),
    (
        "temperature_schedule",
        [{"from_step": 9, "value": 1.0}, {"from_step": 4, "value": 0.5}],
        "from_step 4 is not after 9; put the entries in order",
    ),
    ("max_completion_length_schedule", [{"from_step": 1, "value": 2.5}], "a whole number from 1"),
    ("sync_ref_model", True, "both change the reference; take one out"),
]
# What a recipe's reader already refuses by its type.
WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("max_tokens_per_micro_batch", "many", "must be a whole number"),
    ("max_tokens_per_micro_batch", True, "must be a whole number"),
    ("max_rollbacks", None, "must be a whole number"),
    ("zero_advantage_tolerance", "small", "must be a number"),
    ("rollback_lr_factor", "half", "must be a number"),
    ("monitors", "warn", "monitors should be a mapping like {all: warn}, not 'warn'"),
    ("monitors", None, "monitors should be a mapping"),
    ("temperature_schedule", 3, "temperature_schedule should be a list like [{from_step: 100"),
    ("temperature_schedule", "cosine", "temperature_schedule should be a list"),
]
EXTRA: dict[str, dict[str, Any]] = {"sync_ref_model": {"reference_replacement_steps": 3}}


@pytest.mark.parametrize(("key", "value", "line"), [*WRONG, *WRONG_TYPES])
def test_a_wrong_setting_is_refused_in_python(
    key: str, value: Any, line: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        R1GRPOConfig(output_dir=str(tmp_path), **{key: value}, **EXTRA.get(key, {}))
    assert line in str(caught.value)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)


NAMES: list[tuple[str, Any, str]] = [
    ("accuracy_reward", "math_anser", "'math_anser' is no reward of the stage; did you mean"),
    ("dynamic_sampling_reward", "speed", "'speed' is no reward of the stage; there are: "),
]


@pytest.mark.parametrize(("key", "value", "line"), [*WRONG, *WRONG_TYPES, *NAMES])
def test_a_wrong_setting_is_one_line_of_a_check(
    key: str,
    value: Any,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = yaml.safe_dump({key: value, **EXTRA.get(key, {})})
    folder = tmp_path / "recipes" / "x"
    write_recipes(folder, {ZERO: ("learning_rate: 1.0e-4", f"learning_rate: 1.0e-4\n{text}")})
    code = main(["check", "recipes/x"])
    out, err = capsys.readouterr()
    if value is None:  # nothing written is the default
        assert code in (0, 1)
        return
    lines = out.splitlines()
    assert code == 1
    assert "Traceback" not in out + err
    assert lines[-1] == "1 mistake; nothing was run", out
    assert len(lines) == 2
    assert key in lines[0]
    if (key, value, line) not in WRONG_TYPES:
        assert line in lines[0]


def test_a_reward_that_is_not_there_is_refused_before_a_model_loads(tmp_path: Path) -> None:
    def right(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    for key in ("accuracy_reward", "dynamic_sampling_reward"):
        wrong: dict[str, Any] = {key: "wrong"}
        with pytest.raises(ValueError, match=f"{key} 'wrong' is no reward; there are: right"):
            R1GRPOTrainer(
                "no/such-model",
                reward_funcs=right,
                args=R1GRPOConfig(output_dir=str(tmp_path), bf16=False, **wrong),
                train_dataset=Dataset.from_list(make_rows()),
            )
