"""A killed training stage goes on and ends with the bits of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Killed, stage_context
from safetensors.torch import load_file

from trl_r1.stages import RewardSpec, cold_start, grpo, reward_model

# TRL counts tokens from the start of the process, so a resumed run counts fewer.
_CHANGING = ("time", "runtime", "per_second", "num_tokens")


def _weights(folder: Path) -> dict[str, Any]:
    name = "model.safetensors"
    return load_file(folder / (name if (folder / name).exists() else "adapter_model.safetensors"))


def _same_weights(a: Path, b: Path) -> bool:
    left, right = _weights(a), _weights(b)
    return left.keys() == right.keys() and all((left[k] == right[k]).all() for k in left)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if not any(word in k for word in _CHANGING)}
        for line in lines
        if "train_runtime" not in line
    ]


def _sft(tmp_path: Path, name: str, model: Path, rows: Path, **settings: Any) -> Any:
    defaults = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-2,
        "save_steps": 2,
    }
    return stage_context(
        tmp_path / name, cold_start, model, [{"dataset_name": str(rows)}], **defaults | settings
    )


@pytest.mark.parametrize("stop_at", [1, 3, 4, 7])
def test_a_killed_cold_start_ends_with_the_same_weights(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, stop_at: int
) -> None:
    cold_start.run(_sft(tmp_path, "whole", tiny_model_dir, rows_file))
    with pytest.raises(Killed):
        cold_start.run(_sft(tmp_path, "cut", tiny_model_dir, rows_file, stop_at=stop_at))
    result = cold_start.run(_sft(tmp_path, "cut", tiny_model_dir, rows_file))
    assert result.details["steps"] == 8
    assert _same_weights(tmp_path / "whole/model", tmp_path / "cut/model")
    assert not _same_weights(tmp_path / "whole/model", tiny_model_dir)
    assert _metrics(tmp_path / "whole") == _metrics(tmp_path / "cut")


def _grpo(tmp_path: Path, name: str, model: Path, rows: Path, reward: str, **settings: Any) -> Any:
    defaults = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "save_steps": 2,
        "beta": 0.1,
    }
    datasets = [{"dataset_name": str(rows)}]
    rewards = (RewardSpec(reward),)
    return stage_context(
        tmp_path / name, grpo, model, datasets, rewards=rewards, **defaults | settings
    )


SETTINGS = {
    "full weights": {},
    "several micro-batches": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    # A generation is used for three updates: the checkpoints due at 2 and 4 move to 3 and 6.
    "mid-generation": {"mini_batches_per_rollout": 3},
    "several iterations": {"num_iterations": 2},
    "LoRA": {"model_settings": {"use_peft": True, "lora_r": 4}},
    "QLoRA": {"model_settings": {"use_peft": True, "load_in_4bit": True}},
}


@pytest.mark.parametrize("case", list(SETTINGS))
def test_a_killed_grpo_run_ends_with_the_same_weights(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str, case: str
) -> None:
    common = (tiny_model_dir, rows_file, even_reward)
    grpo.run(_grpo(tmp_path, "whole", *common, **SETTINGS[case]))
    for stop_at in (3, 5):  # killed twice
        with pytest.raises(Killed):
            grpo.run(_grpo(tmp_path, "cut", *common, stop_at=stop_at, **SETTINGS[case]))
    grpo.run(_grpo(tmp_path, "cut", *common, **SETTINGS[case]))
    assert _same_weights(tmp_path / "whole/model", tmp_path / "cut/model")
    assert not _same_weights(tmp_path / "whole/model", tiny_model_dir)
    assert _metrics(tmp_path / "whole") == _metrics(tmp_path / "cut")
    assert any(line["kl"] > 0 for line in _metrics(tmp_path / "whole"))
    whole, cut = (_rollouts(tmp_path / name / "rollouts") for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize("quantised", [False, True])
def test_a_carried_adapter_keeps_its_reference_over_a_kill(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str, quantised: bool
) -> None:
    settings = {
        "use_peft": True,
        "lora_r": 4,
        "load_in_4bit": quantised,
        "adapter_output": "adapter",
    }
    cold_start.run(
        _sft(tmp_path, "sft", tiny_model_dir, rows_file, model_settings=settings, max_steps=4)
    )
    common = (tmp_path / "sft/model", rows_file, even_reward)
    grpo.run(_grpo(tmp_path, "whole", *common, model_settings=settings))
    with pytest.raises(Killed):
        grpo.run(_grpo(tmp_path, "cut", *common, model_settings=settings, stop_at=5))
    grpo.run(_grpo(tmp_path, "cut", *common, model_settings=settings))
    assert _same_weights(tmp_path / "whole/model", tmp_path / "cut/model")
    assert _metrics(tmp_path / "whole") == _metrics(tmp_path / "cut")
    # The frozen copy that served as the reference is no part of the result.
    assert not [path for path in (tmp_path / "cut/model").iterdir() if path.is_dir()]


def _rollouts(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]


def test_grpo_killed_between_its_two_artifacts_keeps_the_rollouts(
    tmp_path: Path,
    tiny_model_dir: Path,
    rows_file: Path,
    even_reward: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trl_r1.training import loop

    def killed(*args: Any, **kwargs: Any) -> None:
        raise Killed

    context = _grpo(tmp_path, "cut", tiny_model_dir, rows_file, even_reward, max_steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_model_artifact", killed)
        with pytest.raises(Killed):
            grpo.run(context)
    kept = _rollouts(tmp_path / "cut/rollouts")
    result = grpo.run(context)
    assert (tmp_path / "cut/model").is_dir()
    assert _rollouts(tmp_path / "cut/rollouts") == kept
    assert len(kept) == 2 * 8
    assert result.details["steps"] == 2
    assert result.details["train_loss"] is not None


def test_a_finished_stage_returns_its_details_without_training(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    first = cold_start.run(_sft(tmp_path, "done", tiny_model_dir, rows_file, max_steps=1))
    again = cold_start.run(_sft(tmp_path, "done", tiny_model_dir, rows_file, stop_at=0))
    assert again.details == first.details


def test_a_killed_preference_model_ends_with_the_same_weights(
    tmp_path: Path, tiny_model_dir: Path, pairs_file: Path
) -> None:
    def context(name: str, stop_at: int | None = None) -> Any:
        return stage_context(
            tmp_path / name,
            reward_model,
            tiny_model_dir,
            [{"dataset_name": str(pairs_file)}],
            stop_at=stop_at,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=1,
            learning_rate=1e-3,
            save_steps=1,
        )

    reward_model.run(context("whole"))
    with pytest.raises(Killed):
        reward_model.run(context("cut", stop_at=3))
    reward_model.run(context("cut"))
    assert _same_weights(tmp_path / "whole/reward_model", tmp_path / "cut/reward_model")
