"""The pool in TRL's own GRPOTrainer, as anybody would use it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.pool import RewardPool
from trl_r1.verification.pooled_reward import pooled

FILE = Path(__file__).with_name("pool_rewards.py")
RECORDS = {"prompt": ["2+2=", "3+3=", "1+1=", "4+4="], "solution": ["4", "6", "2", ""]}


def _trainer(model_dir: Path, tmp_path: Path, rewards: list[object]) -> GRPOTrainer:
    return GRPOTrainer(
        model=str(model_dir),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
        reward_funcs=rewards,
        train_dataset=Dataset.from_dict(RECORDS),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_generations=2,
            max_completion_length=8,
            max_steps=2,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
        ),
    )


def test_pooled_rewards_train_in_vanilla_trl(tiny_model_dir: Path, tmp_path: Path) -> None:
    with RewardPool(num_workers=2) as pool:
        rewards = [
            pooled(
                "rewards/math_answer.py:math_answer_reward", pool=pool, base_dir=FILE.parents[1]
            ),
            pooled(f"{FILE}:num_seen_of_group", pool=pool),
            pooled(f"{FILE}:logs", pool=pool),
        ]
        trainer = _trainer(tiny_model_dir, tmp_path, rewards)
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "reward" in entry]
        # A reward that breaks while a run is under way stops it, with its name.
        trainer.reward_funcs[2] = pooled(f"{FILE}:returns", args={"value": [0.0, 0.0]}, pool=pool)
        with pytest.raises(RewardError, match=r"reward 'returns'.*returned 2 rewards for 1"):
            trainer.train()
    assert len(logs) == 2
    for entry in logs:
        assert 0.0 <= entry["rewards/math_answer_reward/mean"] <= 1.0
        assert entry["rewards/num_seen_of_group/mean"] == 2.0
        # One prompt of four has no gold answer.
        assert entry["rewards/math_answer_reward/not_gradable"] == pytest.approx(0.25)
        assert entry["rewards/math_answer_reward/timed_out"] == 0.0
        assert math.isfinite(entry["mean_length"])
