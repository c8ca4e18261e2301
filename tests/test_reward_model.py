"""The preference model learns its pairs and is a plain sequence classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows, stage_context
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from trl_r1.stages import cold_start, reward_model
from trl_r1.stages.reward_model import PreferenceConfig, PreferenceTrainer, split_pairs
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_policy, load_scorer

LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4}


def run(out: Path, model: Path, pairs: Path, model_settings: dict[str, Any]) -> Any:
    context = stage_context(
        out,
        reward_model,
        model,
        [{"dataset_name": str(pairs)}],
        model_settings,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=1e-2,
        num_train_epochs=3,
        held_out_share=0.25,
        save_strategy="no",
    )
    return reward_model.run(context)


@pytest.mark.parametrize(
    "settings",
    [{}, LORA, {**LORA, "load_in_4bit": True}],
    ids=["full", "LoRA", "QLoRA"],
)
def test_it_prefers_the_better_answer_of_held_out_pairs(
    tmp_path: Path, tiny_model_dir: Path, pairs_file: Path, settings: dict[str, Any]
) -> None:
    result = run(tmp_path, tiny_model_dir, pairs_file, settings)
    assert result.details["accuracy"] == 1.0
    assert result.details["margin"] > 0
    assert result.details["held_out_pairs"] + result.details["pairs"] == 16
    margins = _margins(tmp_path / "reward_model")
    assert (margins > 0).all()


def _margins(folder: Path) -> torch.Tensor:
    """Scores of the better minus the worse answers, by plain transformers."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_labels == 1
    scores = []
    for row in make_rows():
        worse = [{"role": "assistant", "content": "no"}]
        pair = [
            tokenizer.apply_chat_template(row["prompt"] + answer, tokenize=False)
            for answer in (row["completion"], worse)
        ]
        inputs = tokenizer(pair, return_tensors="pt", padding=True, padding_side="right")
        with torch.no_grad():
            logits = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).logits
        scores.append(logits[0, 0] - logits[1, 0])
    return torch.stack(scores)


def test_it_starts_from_an_sft_model_with_an_adapter_of_its_own_only_when_merged(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, pairs_file: Path
) -> None:
    context = stage_context(
        tmp_path / "sft",
        cold_start,
        tiny_model_dir,
        [{"dataset_name": str(rows_file)}],
        {**LORA, "adapter_output": "adapter"},
        max_steps=1,
        gradient_accumulation_steps=1,
        save_strategy="no",
    )
    cold_start.run(context)
    with pytest.raises(ValueError, match="has to start from a plain model"):
        run(tmp_path / "lora", tmp_path / "sft/model", pairs_file, LORA)
    scorer, _ = load_scorer(str(tmp_path / "sft/model"), ModelArguments(), seed=0)
    merged, _ = load_policy(str(tmp_path / "sft/model"), ModelArguments(), trainable=False)
    assert all(
        torch.equal(weight, merged.model.state_dict()[name])
        for name, weight in scorer.model.state_dict().items()
    )
    run(tmp_path / "full", tmp_path / "sft/model", pairs_file, {})
    assert (_margins(tmp_path / "full/reward_model") > 0).all()


def test_the_trainer_works_without_the_runner(
    tmp_path: Path, tiny_model_dir: Path, pairs_file: Path
) -> None:
    pairs = Dataset.from_parquet(str(pairs_file))
    args = PreferenceConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        save_strategy="no",
    )
    trainer = PreferenceTrainer(str(tiny_model_dir), args=args, train_dataset=pairs)
    trainer.train()
    assert trainer.state.global_step == 1
    assert trainer.held_out_figures() == {}


def test_no_prompt_is_on_both_sides_of_the_split(pairs_file: Path) -> None:
    pairs = Dataset.from_parquet(str(pairs_file))
    doubled = Dataset.from_list([*pairs, *pairs])
    train, held_out = split_pairs(doubled, 0.25)
    assert held_out is not None
    assert len(train) + len(held_out) == 32
    assert not {str(p) for p in train["prompt"]} & {str(p) for p in held_out["prompt"]}


def test_pairs_without_a_column_are_an_error(pairs_file: Path) -> None:
    pairs = Dataset.from_parquet(str(pairs_file)).remove_columns("rejected")
    with pytest.raises(ValueError, match="missing: rejected"):
        split_pairs(pairs, 0.1)


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    args = PreferenceConfig(output_dir=str(tmp_path))
    assert args.learning_rate == 6e-6
    assert args.num_train_epochs == 1
    assert args.max_length == 8192
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 256
