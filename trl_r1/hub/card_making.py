"""How an artifact was made, from its record: starting point, data, rewards, settings, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trl_r1.hub.card_text import as_yaml, block, code, fold, inline, table
from trl_r1.hub.subjects import start_of
from trl_r1.pipeline.ledger import StageRecord
from trl_r1.report.reading import time_text

# Keys of a recipe and details of a stage that say most, in reading order.
SHOWN_SETTINGS = (
    "preset",
    "max_steps",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "num_samples",
    "keep_per_prompt",
    "max_length",
    "max_completion_length",
    "max_new_tokens",
    "temperature",
    "top_p",
    "loss_type",
    "beta",
    "epsilon",
    "scale_rewards",
    "reference_replacement_steps",
    "use_peft",
    "lora_r",
    "lora_alpha",
    "load_in_4bit",
    "load_in_8bit",
    "reasoning_format",
    "chat_template",
    "on_policy",
    "teacher_model_name_or_path",
)
_COUNTS = {
    "rows_by_task": "rows by task",
    "prompts_by_task": "prompts by task",
    "alarms": "alarms",
}
_FIGURES = {
    "steps": "optimizer steps",
    "rows": "rows trained on",
    "dropped_too_long": "rows left out as too long",
    "prompts": "prompts",
    "ungradable": "prompts that can't be graded",
    "samples": "samples drawn",
    "kept": "samples kept",
    "pairs": "pairs trained on",
    "held_out_pairs": "pairs held out",
    "accuracy": "held-out pairs in which the better answer scores higher",
    "rollbacks": "rollbacks",
    "documents": "documents of the corpus",
    "model_parameters": "parameters of the model",
    "student_parameters": "parameters of the student",
    "problems": "problems",
}


def making_section(record: StageRecord) -> str:
    """Facts as a table, and the whole recipe folded away."""
    rows = [["stage", f"{code(record.name)} (`stage: {record.stage}`)"]]
    start = start_of(record)
    if start is not None:
        is_data = record.stage in ("rejection_sampling", "evaluation")
        rows.append(["model" if is_data else "starts from", code(start.source)])
    rows += [["data", source_words(source)] for source in _dicts(record.recipe.get("datasets"))]
    rows += [["reward", reward_words(reward)] for reward in _dicts(record.recipe.get("rewards"))]
    rows += [
        [words, inline(_number(record.details[key]))]
        for key, words in _FIGURES.items()
        if record.details.get(key) not in (None, {}, [])
    ]
    for key, words in _COUNTS.items():
        counts = record.details.get(key)
        if isinstance(counts, Mapping) and counts:
            told = [f"{inline(name)}: {inline(_number(count))}" for name, count in counts.items()]
            rows.append([words, ", ".join(told)])
    settings = [
        f"{code(key)} {inline(record.recipe[key], 80)}"
        for key in SHOWN_SETTINGS
        if record.recipe.get(key) not in (None, False)
    ]
    rows.append(["settings", ", ".join(settings) or "defaults"])
    rows.append(["seed", str(record.seed)])
    rows.append(["wall time", time_text(record) or "not known"])
    versions = [f"{inline(name)} {inline(version)}" for name, version in record.versions.items()]
    rows.append(["versions", ", ".join(versions)])
    recipe = block(as_yaml(dict(record.recipe)), "yaml")
    return f"{table(['', ''], rows)}\n\n{fold('The whole recipe of this stage', recipe)}"


def source_words(source: Mapping[str, Any]) -> str:
    """A source of rows in words."""
    name, task = source.get("dataset_name"), source.get("task")
    parts = [f"task {code(task)}"] if task and name else []
    keys = ("split", "num_rows", "seed", "share", "from_step", "min_pass_rate", "max_pass_rate")
    parts += [f"{key} {inline(source[key])}" for key in keys if source.get(key) is not None]
    return ", ".join([code(name or task or "data"), *parts])


def reward_words(reward: Mapping[str, Any]) -> str:
    """A reward in words."""
    parts = [code(reward.get("use")), f"weight {inline(reward.get('weight', 1.0))}"]
    keys = ("from_step", "until_step")
    parts += [f"{key} {inline(reward[key])}" for key in keys if reward.get(key) is not None]
    if tasks := reward.get("tasks"):
        parts.append(f"on {', '.join(map(code, tasks))}")
    args = reward.get("args")
    parts += [f"{inline(k)} {code(v)}" for k, v in args.items()] if isinstance(args, dict) else []
    return ", ".join(parts)


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    listed = value if isinstance(value, (list, tuple)) else ()
    return [item for item in listed if isinstance(item, Mapping)]


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
