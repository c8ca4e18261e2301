"""R1GRPOTrainer is a drop-in for TRL's: the paper's settings, the right reference, rollouts."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows, stage_context
from datasets import Dataset, load_dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Trainer
from trl import GRPOConfig, GRPOTrainer, RewardTrainer, SFTTrainer

from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.stages import RewardSpec, cold_start, grpo
from trl_r1.stages.grpo import PRESETS, R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.grpo.exactness import IMAGE_INPUTS
from trl_r1.stages.grpo.rollouts import RolloutStore, remove_rollouts_from
from trl_r1.training.models import load_policy

FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 6,
}


def even_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


def prompts(*, conversational: bool) -> Dataset:
    rows = [{k: row[k] for k in ("prompt", "solution", "task")} for row in make_rows()]
    if not conversational:
        rows = [{**row, "prompt": row["prompt"][0]["content"]} for row in rows]
    return Dataset.from_list(rows)


@pytest.mark.parametrize("conversational", [True, False])
@pytest.mark.parametrize("trainer_class", [GRPOTrainer, R1GRPOTrainer])
def test_a_reward_trains_in_vanilla_trl_and_here(
    tiny_model_dir: Path, tmp_path: Path, trainer_class: type, conversational: bool
) -> None:
    args = GRPOConfig(output_dir=str(tmp_path), bf16=False, max_steps=2, logging_steps=1, **FAST)
    trainer = trainer_class(
        str(tiny_model_dir),
        reward_funcs=[math_answer_reward],
        args=args,
        train_dataset=prompts(conversational=conversational),
    )
    trainer.train()
    assert trainer.state.global_step == 2
    logged = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logged) == 2
    assert all(log["rewards/math_answer_reward/mean"] is not None for log in logged)


def test_it_makes_the_update_that_trl_makes(tiny_model_dir: Path, tmp_path: Path) -> None:
    weights = []
    for trainer_class, extra in (
        (GRPOTrainer, {}),
        (R1GRPOTrainer, {"rollouts_dir": tmp_path / "rollouts"}),
    ):
        args = R1GRPOConfig(
            output_dir=str(tmp_path), max_steps=3, optim="sgd", learning_rate=0.5, **FAST
        )
        trainer = trainer_class(
            str(tiny_model_dir),
            reward_funcs=[even_reward],
            args=args,
            train_dataset=prompts(conversational=True),
            **extra,
        )
        trainer.train()
        weights.append(trainer.model.state_dict())
    start = AutoModelForCausalLM.from_pretrained(tiny_model_dir).state_dict()
    theirs, ours = (
        torch.cat([(w[name] - start[name]).flatten() for name in start]) for w in weights
    )
    assert theirs.norm() > 0
    assert (theirs - ours).norm() < 1e-4 * theirs.norm()


def test_presets_are_the_papers() -> None:
    for name, preset in PRESETS.items():
        assert preset["loss_type"] == "grpo", name
        assert preset["beta"] == 0.001
        assert preset["use_bias_correction_kl"] is False
        assert preset["scale_rewards"] == "group"
        assert preset["learning_rate"] == 3e-6
        assert preset["lr_scheduler_type"] == "constant"
        assert preset["num_generations"] == 16
        assert preset["max_completion_length"] == 32768
        assert preset["num_iterations"] == 1
        assert preset["vllm_importance_sampling_mode"] == "token_truncate"
    assert [PRESETS[name]["epsilon"] for name in PRESETS] == [0.2, 10.0, 10.0]
    assert [PRESETS[name]["temperature"] for name in PRESETS] == [1.0, 1.0, 0.7]
    assert PRESETS["zero"]["max_steps"] == 10400
    assert PRESETS["general"]["max_steps"] == 1700
    assert "max_steps" not in PRESETS["reasoning"]


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_makes_a_rollout_of_8192_outputs_in_16_steps_of_32_questions(
    name: str, tmp_path: Path
) -> None:
    args = R1GRPOConfig(output_dir=str(tmp_path), **PRESETS[name])
    outputs_a_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert outputs_a_step == 512
    assert outputs_a_step // args.num_generations == 32
    assert args.generation_batch_size == 8192
    assert args.steps_per_generation == 16 * args.gradient_accumulation_steps


def test_the_defaults_are_the_papers_objective(tmp_path: Path) -> None:
    args = R1GRPOConfig(output_dir=str(tmp_path))
    for key in ("loss_type", "beta", "use_bias_correction_kl", "learning_rate", "scale_rewards"):
        assert getattr(args, key) == PRESETS["zero"][key]
    assert args.steps_per_generation == args.gradient_accumulation_steps  # as in TRL


def test_an_explicit_generation_size_wins(tmp_path: Path) -> None:
    args = R1GRPOConfig(
        output_dir=str(tmp_path),
        mini_batches_per_rollout=4,
        generation_batch_size=16,
        per_device_train_batch_size=8,
    )
    assert args.steps_per_generation == 2
    with pytest.raises(ValueError, match="mini_batches_per_rollout is 0"):
        R1GRPOConfig(output_dir=str(tmp_path), mini_batches_per_rollout=0)


# What is extended, and the signatures it has to have in TRL for that.
OVERRIDDEN = {
    (
        GRPOTrainer,
        "_calculate_rewards",
    ): "(self, inputs, prompts, completions, completion_ids_list)",
    (GRPOTrainer, "_generate_and_score_completions"): "(self, inputs)",
    (GRPOTrainer, "_generate"): "(self, prompts)",
    (GRPOTrainer, "_compute_loss"): "(self, model, inputs)",
    (GRPOTrainer, "_get_per_token_logps_and_entropies"): "(self, model, input_ids, "
    "attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss, "
    + ", ".join(IMAGE_INPUTS)
    + ")",
    (GRPOTrainer, "_get_train_sampler"): "(self, dataset)",
    (GRPOTrainer, "log"): "(self, logs, start_time)",
    (SFTTrainer, "_prepare_dataset"): "(self, dataset, processing_class, args, packing, "
    "formatting_func, dataset_name)",
    (Trainer, "_load_from_checkpoint"): "(self, resume_from_checkpoint, model)",
    (RewardTrainer, "evaluate"): "(self, eval_dataset, ignore_keys, metric_key_prefix)",
}


@pytest.mark.parametrize(("owner", "name"), list(OVERRIDDEN))
def test_what_we_extend_has_the_signature_we_extend(owner: type, name: str) -> None:
    parameters = inspect.signature(getattr(owner, name)).parameters
    assert f"({', '.join(parameters)})" == OVERRIDDEN[owner, name]


def test_trl_has_the_private_attributes_we_read(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = R1GRPOTrainer(
        str(tiny_model_dir),
        reward_funcs=[even_reward],
        args=R1GRPOConfig(output_dir=str(tmp_path), **FAST),
        train_dataset=prompts(conversational=True),
    )
    for name in (
        "_step",
        "_metrics",
        "_tokenizer",
        "eos_token_ids",
        "reward_weights",
        "reward_func_names",
    ):
        assert hasattr(trainer, name), name
    with pytest.raises(ValueError, match="accuracy_reward 'no' is no reward"):
        R1GRPOTrainer(
            str(tiny_model_dir),
            reward_funcs=[even_reward],
            args=R1GRPOConfig(output_dir=str(tmp_path), accuracy_reward="no", **FAST),
            train_dataset=prompts(conversational=True),
        )


def stage(
    out: Path, model: Path, rows: Path, reward: str, model_settings: dict[str, Any], **kw: Any
) -> Path:
    settings = {**FAST, "learning_rate": 1e-2, "beta": 0.1, "max_steps": 2}
    rewards = (RewardSpec("math_answer"), RewardSpec(reward, weight=0.5, name="evenness"))
    context = stage_context(
        out, grpo, model, [{"dataset_name": str(rows)}], model_settings, rewards, **settings | kw
    )
    grpo.run(context)
    return out


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "kl" in line]


LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4}


@pytest.mark.parametrize("chained", ["merged", "adapter"])
@pytest.mark.parametrize(
    "settings", [{}, LORA, {**LORA, "load_in_4bit": True}], ids=["full", "LoRA", "QLoRA"]
)
def test_the_reference_is_the_model_the_stage_starts_from(
    tmp_path: Path,
    tiny_model_dir: Path,
    rows_file: Path,
    even_reward: str,
    settings: dict[str, Any],
    chained: str,
) -> None:
    if not settings and chained == "adapter":
        pytest.skip("full weights have no adapter to carry")
    # A first stage that moves the model far from the base, so that the two can be told apart.
    context = stage_context(
        tmp_path / "sft",
        cold_start,
        tiny_model_dir,
        [{"dataset_name": str(rows_file)}],
        {**settings, "adapter_output": chained},
        gradient_accumulation_steps=1,
        per_device_train_batch_size=4,
        learning_rate=3e-2,
        save_strategy="no",
    )
    cold_start.run(context)
    start = tmp_path / "sft/model"
    out = stage(tmp_path / "rl", start, rows_file, even_reward, settings)
    kl = [line["kl"] for line in metrics(out)]
    assert abs(kl[0]) < 1e-5, "before the first update policy and reference are one"
    assert kl[1] > abs(kl[0]) + 1e-6, "afterwards they are not"
    assert (out / "model/model.safetensors").is_file()


def test_full_weights_load_their_reference_from_the_start_model(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    from trl_r1.training.arguments import ModelArguments

    model, _ = load_policy(str(tiny_model_dir), ModelArguments(), trainable=True)
    args = R1GRPOConfig(output_dir=str(tmp_path), **FAST)
    from transformers import AutoTokenizer

    trainer = R1GRPOTrainer(
        model,
        reward_funcs=[even_reward],
        args=args,
        train_dataset=prompts(conversational=True),
        processing_class=AutoTokenizer.from_pretrained(tiny_model_dir),
    )
    stored = load_file(tiny_model_dir / "model.safetensors")
    reference = trainer.ref_model.state_dict()
    assert all(torch.equal(reference[name], weight) for name, weight in stored.items())


def test_every_rollout_is_kept_with_its_rewards(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    out = stage(tmp_path, tiny_model_dir, rows_file, even_reward, {}, max_steps=3)
    rollouts = load_dataset(str(out / "rollouts"), split="train", cache_dir=str(tmp_path / "c"))
    assert len(rollouts) == 3 * 8
    assert sorted(set(rollouts["step"])) == [0, 1, 2]
    for row in rollouts:
        assert row["length"] == len(row["token_ids"]) <= 6
        assert row["is_truncated"] == (row["token_ids"][-1] not in (0, 4))  # pad, end
        assert row["reward_evenness"] == pytest.approx(
            sum(i % 2 == 0 for i in row["token_ids"]) / row["length"]
        )
        wanted = row["reward_math_answer_reward"] + 0.5 * row["reward_evenness"]
        assert row["reward"] == pytest.approx(wanted)
        assert {"prompt", "solution", "task", "completion", "data_completion"} <= row.keys()
    for start in range(0, 24, 4):  # a group has one prompt, and advantages that cancel out
        group = rollouts.select(range(start, start + 4))
        assert len({str(prompt) for prompt in group["prompt"]}) == 1
        assert sum(group["advantage"]) == pytest.approx(0, abs=1e-4)
        best = max(group, key=lambda row: row["reward"])
        assert best["advantage"] == max(group["advantage"])
    lines = metrics(out)
    assert [line["accuracy"] for line in lines] == [
        line["rewards/math_answer_reward/mean"] for line in lines
    ]


def test_a_reward_without_a_say_is_none_in_the_rollouts(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    rewards = (RewardSpec("math_answer"), RewardSpec(even_reward, from_step=1))
    context = stage_context(
        tmp_path,
        grpo,
        tiny_model_dir,
        [{"dataset_name": str(rows_file)}],
        {},
        rewards,
        **{**FAST, "max_steps": 2},
    )
    grpo.run(context)
    rollouts = load_dataset(
        str(tmp_path / "rollouts"), split="train", cache_dir=str(tmp_path / "c")
    )
    for row in rollouts:
        assert (row["reward_even_reward"] is None) == (row["step"] == 0)


def test_rollouts_beyond_a_checkpoint_are_removed(tmp_path: Path) -> None:
    dataset = prompts(conversational=True)
    store = RolloutStore(tmp_path, ["a", "a"], dataset.features)
    for step in (0, 1, 2):
        store.write(step, 0, [dataset[0]], ["x"], [[7, 4]], {4}, [[1.0, None]], [1.0], [0.5])
    (tmp_path / ".step-0000003-0000-rank-000.parquet.partial").write_text("half")
    remove_rollouts_from(tmp_path, 2)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name[:12] for name in left] == ["step-0000000", "step-0000001"]
    row = load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "c"))[0]
    assert (row["reward_a"], row["reward_a_2"], row["is_truncated"]) == (1.0, None, False)


def test_recipes_that_trl_would_reject_late_are_found_early() -> None:
    recipe = {
        "datasets": [{"task": "digit_sums", "from_step": 5}],
        "sync_ref_model": True,
        "use_peft": True,
        "lora_target_modules": ["q_proj", "lm_head"],
    }
    assert [key for key, _ in grpo.SPEC.check(recipe)] == [
        "datasets",
        "sync_ref_model",
        "lora_target_modules",
    ]
    assert grpo.SPEC.check({"datasets": [{"task": "digit_sums"}]}) == []
