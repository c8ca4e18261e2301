"""A recipe scaled down for a rehearsal: two steps, a handful of rows, a few tokens.

What a setting does stays: LoRA, quantisation, packing, losses, schedules and rewards that begin
late begin at the second step. What only makes it long goes: steps, batches, samples, lengths. Left
out, with a note: what needs something else to run, such as servers, vLLM and trackers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trl_r1.pipeline.keys import keys_of
from trl_r1.pipeline.recipe import StageRecipe
from trl_r1.stages import RewardSpec

STEPS = 2
# Makes rewards differ within a group, so that there is something to learn from.
SPREAD_REWARD = "trl_r1.fitting.rehearsal_rewards:spread_reward"

_TRAINING = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "logging_steps": 1,
    "report_to": "none",
    "push_to_hub": False,
    "dataloader_num_workers": 0,
}
# A value above these comes down to it; one that is not set stays so.
_AT_MOST = {
    "num_generations": 2,
    "max_completion_length": 12,
    "max_new_tokens": 12,
    "num_samples": 2,
    "shard_size": 2,
    "dynamic_sampling_max_rounds": 1,
    "reference_replacement_steps": 1,
    "ref_model_sync_steps": 1,
    "num_documents": 200,
    "reward_workers": 1,
    "judge_votes": 1,
}
_LEFT_OUT = ("steps_per_generation", "generation_batch_size", "hub_model_id", "hub_strategy",
             "hub_token", "hub_revision", "num_rows")  # fmt: skip
_SCHEDULES = ("temperature_schedule", "max_completion_length_schedule")


def scaled_stage(recipe: StageRecipe) -> tuple[StageRecipe, list[str]]:
    """The stage to rehearse, and notes on what is left out of it.

    Args:
        recipe: as read; models and rows are replaced elsewhere.
    """
    keys = keys_of(*recipe.spec.configs)
    values = dict(recipe.values)
    if "max_steps" in keys:
        values.update({key: value for key, value in _TRAINING.items() if key in keys})
    for key, limit in _AT_MOST.items():
        if key in keys and (key in values or key in _ALWAYS):
            given = values.get(key)
            values[key] = min(given, limit) if isinstance(given, (int, float)) else limit
    for key in _LEFT_OUT:
        values.pop(key, None)
    if "batch_size" in keys:
        values["batch_size"] = 4
    _keep_what_it_does(values)
    notes = _without_others(values)
    rewards = tuple(_early_reward(reward) for reward in recipe.rewards)
    if recipe.spec.updates_policy_with == "rl":
        rewards = (*rewards, RewardSpec(SPREAD_REWARD, name="rehearsal_spread"))
    return replace(recipe, values=values, rewards=rewards), notes


def _keep_what_it_does(values: dict[str, Any]) -> None:
    """Settings that begin late or need several batches, brought into the two steps."""
    if int(values.get("mini_batches_per_rollout") or 1) > 1:
        values["gradient_accumulation_steps"] = values["mini_batches_per_rollout"] = 2
    for key in _SCHEDULES:
        if values.get(key):
            values[key] = [_early(entry, key) for entry in values[key]]
    if values.get("monitors"):
        values["monitors"] = {"all": "warn"}  # of two steps on random weights nothing can be said
    if "on_policy_args" in values:
        values["on_policy_args"] = _on_policy(values["on_policy_args"])


# Defaults that are too large for a rehearsal.
_ALWAYS = ("num_generations", "max_completion_length", "max_new_tokens", "num_samples",
           "shard_size", "reward_workers", "num_documents")  # fmt: skip


def _early(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    early = {**entry, "from_step": 1 if entry.get("from_step") else 0}
    if key == "max_completion_length_schedule":
        early["value"] = _AT_MOST["max_completion_length"] + 4
    return early


def _early_reward(reward: RewardSpec) -> RewardSpec:
    return replace(
        reward,
        from_step=min(reward.from_step, 1),
        until_step=None if reward.until_step is None else STEPS,
    )


def _without_others(values: dict[str, Any]) -> list[str]:
    """Take out what needs something else that runs; notes on it."""
    notes = []
    if values.pop("use_vllm", False):
        notes.append("vLLM is left out: transformers generates")
    if values.get("engine") in ("vllm", "server"):
        notes.append(f"engine: {values['engine']} is left out: transformers generates")
        for key in ("servers", "served_name", "vllm_options", "server_template"):
            values.pop(key, None)
        values["engine"] = "transformers"
    assistants = [key for key in values if key.startswith(("judge_", "rewrite_"))]
    if assistants:
        notes.append("the judge and the model that rewrites are not asked")
        for key in assistants:
            del values[key]
    if values.get("on_policy") == "server":
        notes.append("on_policy: server is left out: nothing asks the teacher's server")
        values["on_policy"] = "none"
        for key in ("on_policy_args", "teacher_server"):
            values.pop(key, None)
    return notes


def _on_policy(given: Mapping[str, Any]) -> dict[str, Any]:
    small = {
        "max_steps": 1,
        "max_completion_length": 8,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
    }
    left_out = ("use_vllm", "steps_per_generation", "generation_batch_size", "num_generations")
    return {**{k: v for k, v in given.items() if k not in left_out}, **small}
