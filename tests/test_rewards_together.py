"""All rewards at once: in TRL's own trainer, in worker processes, and through their check."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trl_r1.verification.loading import builtin_rewards, load_reward
from trl_r1.verification.pooled_reward import pooled
from trl_r1.verification.references import function_reference
from trl_r1.verification.rewards_check import check_reward
from trl_r1.verification.sandbox import Sandbox, SandboxUnavailableError

ENTRY = json.dumps({"answer": "4", "metadata": {"source_dataset": "chain_sum"}})
ROW: dict[str, Any] = {
    "solution": "4",
    "options": ["3", "4", "5"],
    "tests": ["assert add(2, 2) == 4"],
    "language": "en",
    "entry": ENTRY,
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
    "task": "sums",
}
# Columns that are an argument for plain TRL, which passes columns only.
SETTINGS: dict[str, Any] = {"max_length": 8, "soft_length": 4}
CODE = "```python\ndef add(a, b): return a + b\n```"
# A response that each reward likes, and one that it does not.
LIKED: dict[str, tuple[str, str]] = {
    "choice": ("<think>hm</think> The answer is B.", "The answer is A."),
    "code_tests": (f"<think>hm</think>\n{CODE}", "<think>hm</think>\n```python\nx\n```"),
    "instruction": ("<think>a, b</think> c", "a, b"),
    "language_consistency": ("<think>we add</think> 4", "<think>wir und</think> 4"),
    "length_within_group": (r"\boxed{4}", r"\boxed{5}"),
    "math_answer": (r"<think>hm</think> \boxed{4}", r"<think>\boxed{4}</think>"),
    "reasoning_gym": ("<think>hm</think> <answer>4</answer>", "<answer>5</answer>"),
    "think_format": ("<think>hm</think> <answer>4</answer>", "4"),
}


def _skip_without_sandbox() -> None:
    try:
        Sandbox(1).close()
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")


def test_all_rewards_train_in_one_vanilla_trainer(tiny_model_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    _skip_without_sandbox()
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    scorer = tmp_path / "scorer"
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model_dir, num_labels=1)
    model.save_pretrained(scorer)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.save_pretrained(scorer)

    def with_settings(name: str, **settings: Any) -> Any:
        def reward(**kwargs: Any) -> Any:
            return load_reward(name)(**{**kwargs, **settings})

        reward.__name__ = f"{name}_reward"
        return reward

    given = {"overlong": SETTINGS, "preference_model": {"model": str(scorer), "device": "cpu"}}
    rewards = [
        with_settings(name, **given[name]) if name in given else load_reward(name)
        for name in builtin_rewards()
    ]
    messages = [[{"role": "user", "content": f"{n}+2=?"}] for n in (1, 2)]
    columns = {name: [value] * 2 for name, value in ROW.items()}
    trainer = GRPOTrainer(
        model=str(tiny_model_dir),
        processing_class=tokenizer,
        reward_funcs=rewards,
        train_dataset=Dataset.from_dict({"prompt": messages, **columns}),
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=8,
            max_steps=1,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
        ),
    )
    trainer.train()
    (log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    for name in builtin_rewards():
        assert math.isfinite(log[f"rewards/{name}_reward/mean"]), name
    assert log["rewards/overlong_reward/mean"] <= 0.0


@pytest.mark.parametrize("name", sorted(set(LIKED) - {"code_tests"}))
def test_every_reward_gives_the_same_in_a_worker_process(name: str) -> None:
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    columns: dict[str, Any] = {key: [value] * 2 for key, value in ROW.items()}
    completions = list(LIKED[name])
    columns |= {"completion_ids": [[1], [1, 2]], "prompts": ["2+2=?"] * 2}
    here = load_reward(name)(completions=completions, **columns)
    assert here[0] > here[1]
    assert pooled(name)(completions, **columns) == here
    assert pooled(function_reference(load_reward(name)))(completions, **columns) == here
    as_messages = [[{"role": "assistant", "content": text}] for text in completions]
    assert pooled(name)(as_messages, **columns) == here


def test_a_program_is_graded_in_the_trainers_process() -> None:
    _skip_without_sandbox()
    reward = load_reward("code_tests")
    assert reward(completions=list(LIKED["code_tests"]), tests=[ROW["tests"]] * 2) == [1.0, 0.0]
    with pytest.raises(ValueError, match="asks to stay in the trainer's process"):
        pooled("code_tests")


@pytest.mark.slow
@pytest.mark.parametrize("name", builtin_rewards())
def test_every_reward_passes_its_check(name: str) -> None:
    if name == "preference_model":
        pytest.skip("needs a model")
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    if name == "code_tests":
        _skip_without_sandbox()
    report = check_reward(name, args=SETTINGS if name == "overlong" else {})
    assert [finding for finding in report.findings if finding.level == "FAULT"] == []
    assert len(report.findings) > 30
