"""Recipes with faults that `trl-r1 check` can't see, for the tests of `trl-r1 rehearse`.

A folder of stages that do not depend on each other, each with one fault that would break a run
late; `FAULTS` has what the rehearsal has to say of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REWARDS = """
import importlib


def reads_a_column(completions, **kwargs):
    return [float(level) for level in kwargs["level"]]


def raises_on_rows(completions, solution, **kwargs):
    return [1.0 / (int(s) - int(s)) for s in solution]


def one_too_few(completions, **kwargs):
    return [0.0] * (len(completions) - 1)


def says_words(completions, **kwargs):
    return ["good"] * len(completions)


def gives_nan(completions, **kwargs):
    return [float("nan")] * len(completions)


def imports_late(completions, **kwargs):
    importlib.import_module("a_package_that_is_not_there")
    return [0.0] * len(completions)


def opens_a_file(completions, **kwargs):
    with open("words-that-are-not-there.txt") as file:
        words = file.read().split()
    return [float(len(words))] * len(completions)


def hangs(completions, **kwargs):
    while True:
        pass


def ends_its_process(completions, **kwargs):
    import os

    os._exit(3)


def takes_nothing(completions, **kwargs):
    return [0.0] * len(completions)


def gives_one_number(completions, **kwargs):
    return 1.0
"""


@dataclass(frozen=True)
class Fault:
    """A stage with a fault.

    Attributes:
        stage: its type.
        message: a part of what the rehearsal says, as a regular expression.
        values: its keys, over those of `_sound`.
    """

    stage: str
    message: str
    values: Mapping[str, Any]


def reward(name: str, **settings: Any) -> dict[str, Any]:
    return {"rewards": [{"use": f"my_rewards.py:{name}", **settings}]}


FAULTS: dict[str, Fault] = {
    "reward_without_its_column": Fault("grpo", "'level'", reward("reads_a_column")),
    "reward_that_divides_by_zero": Fault("grpo", "ZeroDivision", reward("raises_on_rows")),
    "reward_one_short": Fault("grpo", "returned", reward("one_too_few")),
    "reward_of_words": Fault("grpo", "good", reward("says_words")),
    "reward_of_nan": Fault("grpo", "nan", reward("gives_nan")),
    "reward_of_one_number": Fault("grpo", "returned", reward("gives_one_number")),
    "reward_that_imports_late": Fault("grpo", "not_there", reward("imports_late")),
    "reward_that_opens_a_file": Fault("grpo", "not-there", reward("opens_a_file")),
    "reward_that_begins_late": Fault("grpo", "Zero", reward("raises_on_rows", from_step=5000)),
    "reward_that_hangs": Fault(
        "grpo", "seconds|timed", {**reward("hangs", timeout=1.0), "on_reward_kill": "raise"}
    ),
    "reward_that_exits": Fault(
        "grpo", "exit|crash|died", {**reward("ends_its_process"), "on_reward_kill": "raise"}
    ),
    "target_of_lora": Fault(
        "grpo", "q_projection", {"use_peft": True, "lora_target_modules": ["q_projection"]}
    ),
    "attention": Fault("cold_start", "[Ff]lash", {"attn_implementation": "flash_attention_2"}),
    "attention_by_a_slip": Fault("grpo", "spda", {"attn_implementation": "spda"}),
    "kernels": Fault("cold_start", "[Ll]iger", {"use_liger_kernel": True}),
    "optimizer": Fault("cold_start", "[Gg]alore|optim", {"optim": "galore_adamw"}),
    "context": Fault("grpo", "context", {"max_completion_length": 4096}),
    "format_of_others": Fault("grpo", "<think>", {"reasoning_format": "r1_prefilled"}),
    "template_of_others": Fault("cold_start", "chatml", {"chat_template": "chatml"}),
    "vocabulary": Fault(
        "distillation",
        "vocabular|token",
        {
            "on_policy": "distillation",
            "teacher_model_name_or_path": "other_model",
            "on_policy_args": {"max_steps": 10},
        },
    ),
    "adapter_of_another": Fault("grpo", "that_was_deleted", {"model_name_or_path": "adapter"}),
    "tags_as_special_tokens": Fault("grpo", "special", {"model_name_or_path": "special_tags"}),
    "tokenizer_without_end": Fault("grpo", "no end token", {"model_name_or_path": "no_end"}),
    "scorer_of_two_labels": Fault(
        "grpo",
        "label|score",
        {"rewards": [{"use": "preference_model", "args": {"model": "two_labels"}}]},
    ),
    "rows_too_long": Fault("cold_start", "max_length|long", {"max_length": 8}),
    "nothing_kept": Fault(
        "rejection_sampling", "none of .* was kept", reward("takes_nothing")
    ),
}  # fmt: skip


def _sound(stage: str) -> dict[str, Any]:
    if stage in ("cold_start", "distillation"):
        return {
            "datasets": [{"dataset_name": "rows.jsonl"}],
            "max_steps": 500,
            "max_length": 256,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
        }
    if stage == "rejection_sampling":
        return {"datasets": [{"dataset_name": "rows.jsonl"}], "max_new_tokens": 64}
    return {
        "datasets": [{"dataset_name": "rows.jsonl"}],
        "rewards": [{"use": "think_format"}],
        "max_steps": 9000,
        "max_completion_length": 64,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
    }


def write_recipe(folder: Path, model: Path, names: Mapping[str, Fault]) -> None:
    """The folder with a stage for each fault, and its rows and rewards."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {
        "name": "faulty",
        "defaults": {"model_name_or_path": str(model), "reasoning_format": "zero_bare"},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(header))
    (folder / "my_rewards.py").write_text(REWARDS)
    for number, (name, fault) in enumerate(names.items()):
        document = {"stage": fault.stage, **_sound(fault.stage), **fault.values}
        (folder / f"{number:02d}_{name}.yaml").write_text(yaml.safe_dump(document))
    _write_rows(folder)


def _write_rows(folder: Path) -> None:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i}+1=?"}],
            "solution": str(i + 1),
            "task": "sums",
            "completion": [
                {
                    "role": "assistant",
                    "content": f"<think>{i} and 1</think><answer>{i + 1}</answer>",
                }
            ],
        }
        for i in range(12)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)


def write_models(folder: Path) -> None:
    """Models that go with the faults, beside the recipe."""
    from conftest import TAGS, make_tiny_model
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers import AutoModelForSequenceClassification as Scorer

    other = make_tiny_model(folder / "other_model")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["<more>", "<tokens>", "<of>", "<another>", "<kind>"])
    tokenizer.save_pretrained(other)
    model = AutoModelForCausalLM.from_pretrained(other)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(other)

    model = AutoModelForCausalLM.from_pretrained(other)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder / "adapter")
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(folder / "a_model_that_was_deleted")
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))

    special = make_tiny_model(folder / "special_tags")
    tokenizer = AutoTokenizer.from_pretrained(special)
    tokenizer.add_special_tokens({"extra_special_tokens": TAGS})
    tokenizer.save_pretrained(special)

    no_end = make_tiny_model(folder / "no_end")
    tokenizer = AutoTokenizer.from_pretrained(no_end)
    tokenizer.eos_token, tokenizer.pad_token = None, None
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(no_end)

    config = AutoConfig.from_pretrained(other, num_labels=2)
    Scorer.from_config(config).save_pretrained(folder / "two_labels")
    AutoTokenizer.from_pretrained(other).save_pretrained(folder / "two_labels")
