"""On-policy distillation with TRL's trainers: the student samples, the teacher says how likely each
next token is.

TRL does the work; this chooses the trainer, builds its config from a recipe and stores the result.
Left out: SFT on the teacher's own samples, which comes before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from trl_r1.pipeline.keys import check_keys, keys_of
from trl_r1.reasoning_format import get_format
from trl_r1.stages import StageContext, StageResult
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.data import load_mixture
from trl_r1.training.loop import train_and_save
from trl_r1.training.models import load_policy, load_tokenizer, load_weights, set_end_token

_PART = "on_policy"


def run_on_policy(context: StageContext, student: str, details: dict[str, Any]) -> StageResult:
    """Go on with the student that the first part has made, and store `model/`.

    Args:
        context: the stage's; `context.configs` has `OnPolicyArguments`.
        student: folder of the student so far.
        details: of the first part.

    Raises:
        ValueError: keys that TRL's config does not have, or a teacher of another vocabulary.
    """
    method = next(c for c in context.configs if hasattr(c, "on_policy_args"))
    model_args = context.config(ModelArguments)
    fmt = get_format(model_args.reasoning_format)
    tokenizer = load_tokenizer(student, model_args, fmt)
    args = on_policy_config(method, context)
    rows = load_mixture(context.config(DatasetArguments).sources(), fmt, args.seed)
    model, peft_config = load_policy(student, model_args, trainable=True)
    set_end_token(model, tokenizer)
    settings: dict[str, Any] = {
        "args": args,
        "train_dataset": _rows(rows, method.on_policy),
        "processing_class": tokenizer,
        "peft_config": peft_config,
    }
    if method.on_policy != "server":
        settings["teacher_model"] = load_weights(
            method.teacher_model_name_or_path, model_args, trainable=False
        )
    trainer = _classes(method.on_policy)[1](model, **settings)
    figures = {"sft": details, "on_policy": method.on_policy}
    made = train_and_save(
        trainer, context, tokenizer, model_args, figures=lambda: figures, part=_PART
    )
    return StageResult(details=made)


def on_policy_config(method: Any, context: StageContext) -> Any:
    """TRL's config of a method, from the recipe's `on_policy_args` and what the SFT has set.

    Raises:
        ValueError: for a key that it does not have.
    """
    config_class, given = check_arguments(method.on_policy, method.on_policy_args)
    sft = context.configs[-1]
    carried = ("seed", "use_cpu", "bf16", "fp16", "report_to", "logging_steps", "save_steps",
               "gradient_checkpointing", "disable_tqdm", "save_total_limit",
               "per_device_train_batch_size")  # fmt: skip
    values: dict[str, Any] = {name: getattr(sft, name) for name in carried}
    if method.on_policy == "gold":
        teacher = method.teacher_model_name_or_path
        values |= {"use_uld_loss": True, "teacher_tokenizer_name_or_path": teacher}
        values |= {"max_length": sft.max_length, "lmbda": 1.0}
    elif method.on_policy == "server":
        values["teacher_model_server_url"] = method.teacher_server
    values |= given
    return config_class(output_dir=str(context.checkpoints_dir / _PART), **values)


def check_arguments(method: str, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The config class of a method, and the values in the types of its keys.

    Raises:
        ValueError: for a key that it does not have, or a value of another type.
    """
    config_class = _classes(method)[0]
    values, mistakes = check_keys(given, keys_of(config_class), prefix="on_policy_args.")
    if mistakes:
        raise ValueError(f"{mistakes[0]} ({config_class.__name__})")
    return config_class, values


def _classes(method: str) -> tuple[Any, Any]:
    """The config and the trainer of a method."""
    if method == "gold":
        from trl.experimental.gold import GOLDConfig, GOLDTrainer

        return GOLDConfig, GOLDTrainer
    if method == "server":
        from trl.experimental.server_distillation import (
            ServerDistillationConfig,
            ServerDistillationTrainer,
        )

        return ServerDistillationConfig, ServerDistillationTrainer
    from trl import DistillationConfig, DistillationTrainer

    return DistillationConfig, DistillationTrainer


def _rows(rows: Dataset, method: str) -> Dataset:
    """The columns that a trainer takes: prompts alone, or whole conversations for GOLD, which also
    learns from the rows' own completions where its `lmbda` is below 1."""
    if method != "gold":
        return rows.select_columns(["prompt"])
    kept = rows.select_columns(["prompt", "completion"])
    return kept.map(
        lambda row: {"messages": [*row["prompt"], *row["completion"]]},
        remove_columns=["prompt", "completion"],
    )
