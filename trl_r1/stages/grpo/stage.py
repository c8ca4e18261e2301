"""The GRPO stage: from a recipe to `model/` and `rollouts/`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerState

from trl_r1.reasoning_format import get_format
from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.stages.grpo.alarms import (
    Alarm,
    AlarmError,
    LearningRateOfSettings,
    RollbackNeeded,
    alarm_counts,
    go_back,
    last_good_checkpoint,
    num_rollbacks,
)
from trl_r1.stages.grpo.config import PRESETS, R1GRPOConfig
from trl_r1.stages.grpo.dynamic_sampling import phase_starts
from trl_r1.stages.grpo.trainer import R1GRPOTrainer
from trl_r1.training.arguments import DatasetArguments, GradingArguments, ModelArguments
from trl_r1.training.artifacts import finished_details, partial_folder, promote
from trl_r1.training.checkpoints import checkpoint_step, last_complete_checkpoint
from trl_r1.training.data import RolloutPlan, schedule_prompts
from trl_r1.training.loop import train_and_save
from trl_r1.training.models import load_policy, load_tokenizer, set_end_token
from trl_r1.verification.stage_rewards import build_stage_reward
from trl_r1.verification.ungradable import warn_of_ungradable_rows

_ARTIFACTS = ("model", "rollouts")


def check(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Mistakes in a resolved recipe that TRL would show only once the model is loaded.

    Args:
        recipe: keys of the stage with their values, defaults included.
    """
    faults = []
    if not any(source.get("from_step", 0) <= 0 for source in recipe.get("datasets") or [{}]):
        faults.append(("datasets", "no source begins at step 0; set `from_step: 0` on one"))
    if recipe.get("sync_ref_model") and recipe.get("use_peft"):
        faults.append(("sync_ref_model", "TRL can't replace the reference under LoRA"))
    if "lm_head" in (recipe.get("lora_target_modules") or []):
        faults.append(("lora_target_modules", "TRL's GRPO can't train an adapter on lm_head"))
    return [*faults, *_sync_faults(recipe)]


def _sync_faults(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What vLLM can't be sent; see `adapter_sync`."""
    wanted, is_lora = recipe.get("vllm_weight_sync", "auto"), bool(recipe.get("use_peft"))
    if not recipe.get("use_vllm"):
        return []
    if wanted == "adapter" and not is_lora:
        return [("vllm_weight_sync", "vllm_weight_sync: adapter needs LoRA (use_peft: true)")]
    is_quantised = recipe.get("load_in_4bit") or recipe.get("load_in_8bit")
    if is_quantised and wanted == "merged":
        text = "merging into quantised weights rounds them at each sync; take auto"
        return [("vllm_weight_sync", f"vllm_weight_sync: {text}")]
    barred = [key for key in ("use_dora", "lora_modules_to_save") if recipe.get(key)]
    if barred and is_lora and (is_quantised or wanted == "adapter"):
        return [(barred[0], f"{barred[0]}: vLLM can't load such an adapter; leave it out")]
    return []


SPEC = StageSpec(
    configs=(DatasetArguments, ModelArguments, GradingArguments, R1GRPOConfig),
    produces=_ARTIFACTS,
    uses_rewards=True,
    needs_rewards=True,
    updates_policy_with="rl",
    presets=PRESETS,
    check=check,
)


def run(context: StageContext) -> StageResult:
    """Train the policy with the stage's rewards; store `model/` and `rollouts/`.

    The reference of the KL penalty is the model the stage starts from, also after a resume: TRL
    loads it from the start model's path, or switches a new adapter off, or copies a carried one.
    With `reference_replacement_steps` the policy takes its place again and again.

    Raises:
        AlarmError: a monitor that is set to `stop` has ended it, or one set to `rollback` more
            often than `max_rollbacks`.
    """
    details = finished_details(context.output_dir, _ARTIFACTS)
    while details is None:
        try:
            details = _attempt(context)
        except RollbackNeeded as error:
            _go_back(context, error.alarm)
        except AlarmError as error:
            raise AlarmError(_way_on(context, error.alarm), error.alarm) from None
    return StageResult(details=details)


def _attempt(context: StageContext) -> dict[str, Any]:
    """Train from the last checkpoint to the end; the stage's details."""
    args, model_args = copy.copy(context.config(R1GRPOConfig)), context.config(ModelArguments)
    grading = context.config(GradingArguments)
    path = str(model_args.model_name_or_path)
    fmt = get_format(model_args.reasoning_format)
    tokenizer = load_tokenizer(path, model_args, fmt)
    sources, plan = context.config(DatasetArguments).sources(), RolloutPlan.from_args(args)
    prompts, args.max_steps = schedule_prompts(
        sources,
        fmt,
        args.seed,
        plan,
        args.max_steps,
        args.num_train_epochs,
    )
    args.shuffle_dataset = False  # the schedule is the order
    args.reward_weights = [spec.weight for spec in context.rewards]
    alarms = _alarms_file(context)
    args.learning_rate *= args.rollback_lr_factor ** num_rollbacks(alarms)
    model, peft_config = load_policy(path, model_args, trainable=True)
    set_end_token(model, tokenizer)
    rollouts = context.output_dir / "rollouts"
    with PartialState().main_process_first():
        if rollouts.exists() and not partial_folder(rollouts).exists():
            # Killed between the two artifacts: what is trained again belongs to these rollouts.
            rollouts.replace(partial_folder(rollouts))
    rewards = [build_stage_reward(spec, grading, fmt) for spec in context.rewards]
    ungradable = warn_of_ungradable_rows(rewards, prompts)
    trainer = R1GRPOTrainer(
        model,
        reward_funcs=rewards,
        args=args,
        train_dataset=prompts,
        processing_class=tokenizer,
        peft_config=peft_config,
        rollouts_dir=partial_folder(rollouts),
        monitors_file=alarms,
        phase_starts=phase_starts((source.from_step for source in sources), plan),
    )
    if num_rollbacks(alarms):
        trainer.add_callback(LearningRateOfSettings())
    _look_back(context, trainer)

    def figures() -> dict[str, Any]:
        trainer.accelerator.wait_for_everyone()  # every process has written its rollouts
        if trainer.accelerator.is_main_process and partial_folder(rollouts).exists():
            promote(partial_folder(rollouts), rollouts)
        used = prompts["task"] if "task" in prompts.column_names else []
        counts = {"prompts_by_task": dict(Counter(map(str, used))), "alarms": alarm_counts(alarms)}
        counted = {"prompts": len(prompts), "ungradable": len({fault.row for fault in ungradable})}
        return {**counted, **counts, "rollbacks": num_rollbacks(alarms)}

    return train_and_save(trainer, context, tokenizer, model_args, figures=figures)


def _look_back(context: StageContext, trainer: R1GRPOTrainer) -> None:
    """Go on from no checkpoint at which an alarm has ended the last attempt.

    Raises:
        AlarmError: the recipe still has it that this alarm ends the training.
    """
    folder = context.checkpoints_dir
    checkpoint = last_complete_checkpoint(folder, trainer.accelerator.num_processes)
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.watch.look_back(state, trainer.args)
        trainer.watch.raise_if_ended(folder)


def _alarms_file(context: StageContext) -> Path:
    return context.output_dir / "monitors.jsonl"


def _go_back(context: StageContext, alarm: Alarm) -> None:
    """Make the next attempt start before the trouble, with a lower learning rate.

    Raises:
        AlarmError: it went back `max_rollbacks` times already.
    """
    args, file, state = context.config(R1GRPOConfig), _alarms_file(context), PartialState()
    done = num_rollbacks(file)
    state.wait_for_everyone()  # each has counted before one writes
    if done >= args.max_rollbacks:
        raise AlarmError(
            f"{alarm}. It went back {done} times already (max_rollbacks: {args.max_rollbacks})",
            alarm,
        ) from None
    if state.is_main_process:
        rate = args.learning_rate * args.rollback_lr_factor ** (done + 1)
        go_back(context.checkpoints_dir, file, alarm, rate)
    state.wait_for_everyone()


def _way_on(context: StageContext, alarm: Alarm) -> str:
    """What happened, and the two commands to go on with."""
    good = last_good_checkpoint(context.checkpoints_dir, alarm)
    where = f"step {checkpoint_step(good)}" if good else "the start"
    key = f"{context.name}.monitors.{alarm.monitor}"
    return (
        f"{alarm}. Stopped; with changed settings it begins anew, with --set {key}=rollback it "
        f"goes back to {where} with a lower learning rate, with --set {key}=warn it goes on"
    )
