"""Rollouts: complete, readable, safe to append to, and data for a later stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows, stage_context
from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM

from trl_r1.stages import RewardSpec, cold_start, grpo
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.grpo.rollouts import RolloutStore, remove_rollouts_from
from trl_r1.stages.grpo.weights_hash import weights_hash
from trl_r1.verification.pooled_reward import pooled

FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 6,
    "learning_rate": 1e-2,
}


def read(folder: Path, cache: Path) -> Dataset:
    return load_dataset(str(folder), split="train", cache_dir=str(cache))


def store(folder: Path, *, conversational: bool = True, names: tuple[str, ...] = ("a",)) -> Any:
    row = make_rows()[0]
    prompt = row["prompt"] if conversational else "1+1=?"
    dataset = Dataset.from_list([{"prompt": prompt, "solution": "2", "step": 9}])
    return RolloutStore(folder, list(names), dataset.features), dataset[0]


@pytest.mark.parametrize("conversational", [True, False])
def test_a_row_comes_back_as_it_was_written(tmp_path: Path, conversational: bool) -> None:
    rollouts, row = store(tmp_path / "r", conversational=conversational, names=("a", "b"))
    said = [{"role": "assistant", "content": "<think>"}] if conversational else "<think>"
    rollouts.write(
        3, 1, [row, row], [said, None], [[7, 4], [7]], {4}, [[1.0, None], [0.0, 0.5]],
        [1.0, None], [0.5, -0.5], [["ok", "left out"], ["timed out", "ok"]], "abc",
    )  # fmt: skip
    first, second = read(tmp_path / "r", tmp_path / "c")
    assert first["prompt"] == row["prompt"]
    assert first["completion"] == said
    empty = [{"role": "assistant", "content": ""}] if conversational else ""
    assert second["completion"] == empty
    assert (first["token_ids"], first["length"], first["is_truncated"]) == ([7, 4], 2, False)
    assert second["is_truncated"] is True
    assert (first["reward_a"], first["reward_b"]) == (1.0, None)
    assert (first["verdict_a"], first["verdict_b"]) == ("ok", "left out")
    assert (second["verdict_a"], second["reward"], second["advantage"]) == ("timed out", None, -0.5)
    assert (first["weights"], first["step"], first["data_step"]) == ("abc", 3, 9)


def test_a_second_generation_of_a_step_is_kept_beside_the_first(tmp_path: Path) -> None:
    rollouts, row = store(tmp_path / "r")
    for _ in range(2):
        rollouts.write(3, 0, [row], [None], [[7]], {4}, [[1.0]], [1.0], [0.0])
    rollouts.write(4, 0, [row], [None], [[7]], {4}, [[1.0]], [1.0], [0.0])
    assert len(read(tmp_path / "r", tmp_path / "c")) == 3
    remove_rollouts_from(tmp_path / "r", 3)
    rollouts.forget_from(3)
    path = rollouts.write(3, 0, [row], [None], [[7]], {4}, [[1.0]], [1.0], [0.0])
    assert [path.name] == [p.name for p in (tmp_path / "r").iterdir()]


def test_a_write_that_fails_leaves_nothing_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl_r1.stages.grpo import rollouts as module

    rollouts, row = store(tmp_path / "r")
    rollouts.write(0, 0, [row], [None], [[7]], {4}, [[1.0]], [1.0], [0.0])

    def full_disk(table: Any, file: Any, **_: Any) -> None:
        file.write(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.pq, "write_table", full_disk)
    with pytest.raises(OSError, match="No space"):
        rollouts.write(1, 0, [row], [None], [[7]], {4}, [[1.0]], [1.0], [0.0])
    assert len(read(tmp_path / "r", tmp_path / "c")) == 1
    remove_rollouts_from(tmp_path / "r", 1)
    assert len(list((tmp_path / "r").iterdir())) == 1, "the half file is gone too"


def test_the_weights_have_a_name_that_changes_with_every_bit(tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    again = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    first = weights_hash(model)
    assert first == weights_hash(again)
    assert len(first) == 16
    weight = model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        before = weight[0, 0].item()
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert weights_hash(model) != first
    with torch.no_grad():
        weight[0, 0] = before
    assert weights_hash(model) == first
    assert weights_hash(model.to(torch.bfloat16)) != first


def test_frozen_weights_have_no_part_in_the_name(tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    model.model.embed_tokens.weight.requires_grad_(False)
    first = weights_hash(model)
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(1.0)
    assert weights_hash(model) == first


LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4}


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "LoRA"])
def test_rollouts_of_one_policy_share_its_name_and_an_update_changes_it(
    tmp_path: Path,
    tiny_model_dir: Path,
    rows_file: Path,
    even_reward: str,
    settings: dict[str, Any],
) -> None:
    context = stage_context(
        tmp_path, grpo, tiny_model_dir, [{"dataset_name": str(rows_file)}], settings,
        (RewardSpec(even_reward), RewardSpec("math_answer", tasks=("other",)),
         RewardSpec("think_format", from_step=1)),
        **{**FAST, "max_steps": 3},
    )  # fmt: skip
    grpo.run(context)
    rows = read(tmp_path / "rollouts", tmp_path / "c")
    names = {step: {r["weights"] for r in rows if r["step"] == step} for step in range(3)}
    assert all(len(found) == 1 for found in names.values())
    assert len(set.union(*names.values())) == 3
    for row in rows:
        assert row["verdict_even_reward"] == "ok"
        assert (row["verdict_math_answer_reward"], row["reward_math_answer_reward"]) == (
            "left out",
            None,
        )
        wanted = "left out" if row["step"] == 0 else "ok"
        assert row["verdict_think_format_reward"] == wanted


def test_the_pools_verdicts_are_kept(tmp_path: Path, tiny_model_dir: Path) -> None:
    reward = tmp_path / "moody.py"
    reward.write_text(
        "import time\n"
        "def moody_reward(completions, solution, **kwargs):\n"
        "    if solution[0] == 'hang':\n"
        "        time.sleep(60)\n"
        "    return [None if s == 'odd' else 1.0 for s in solution]\n"
    )
    prompts = [
        {"prompt": f"{i}+1=", "solution": s} for i, s in enumerate(("hang", "odd", "2", "3"))
    ]
    trainer = R1GRPOTrainer(
        str(tiny_model_dir),
        reward_funcs=[pooled(f"{reward}:moody_reward", timeout=0.5)],
        args=R1GRPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            shuffle_dataset=False,
            **{**FAST, "num_generations": 2},
        ),
        train_dataset=Dataset.from_list(prompts),
        rollouts_dir=tmp_path / "r",
    )
    trainer.train()
    rows = read(tmp_path / "r", tmp_path / "c")
    verdicts = {row["solution"]: row["verdict_moody_reward"] for row in rows}
    assert verdicts == {"hang": "timed out", "odd": "not gradable", "2": "ok", "3": "ok"}
    log = next(log for log in trainer.state.log_history if "reward" in log)
    assert log["rewards/moody_reward/not_gradable"] == pytest.approx(0.25)
    assert log["rewards/moody_reward/timed_out"] == pytest.approx(0.25)


def test_a_later_stage_trains_on_rollouts(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    data = [{"dataset_name": str(rows_file)}]
    zero = stage_context(
        tmp_path / "zero", grpo, tiny_model_dir, data, {}, (RewardSpec(even_reward),),
        **{**FAST, "max_steps": 2, "temperature": 0.2},
    )  # fmt: skip
    grpo.run(zero)
    rollouts = tmp_path / "zero/rollouts"
    # As prompts of further RL, and as targets of SFT. What is cut off has no end token to learn.
    again = stage_context(
        tmp_path / "again", grpo, tiny_model_dir, [{"dataset_name": str(rollouts)}], {},
        (RewardSpec(even_reward),), **{**FAST, "max_steps": 1},
    )  # fmt: skip
    grpo.run(again)
    columns = set(read(tmp_path / "again/rollouts", tmp_path / "c2").column_names)
    assert {"data_completion", "data_token_ids", "data_reward", "solution"} <= columns
    sft = stage_context(
        tmp_path / "sft", cold_start, tiny_model_dir, [{"dataset_name": str(rollouts)}],
        per_device_train_batch_size=4, gradient_accumulation_steps=1, max_steps=1,
        save_strategy="no",
    )  # fmt: skip
    cold_start.run(sft)
    assert (tmp_path / "sft/model/model.safetensors").is_file()
