"""What an SFT stage does between its recipe and its artifact."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trl_r1.reasoning_format import get_format
from trl_r1.stages import StageContext, StageResult
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.artifacts import finished_details
from trl_r1.training.data import load_mixture
from trl_r1.training.loop import train_and_save
from trl_r1.training.models import load_policy, load_tokenizer, set_end_token
from trl_r1.training.sft import ReasoningSFTConfig, ReasoningSFTTrainer

_COLUMNS = ("prompt", "completion", "task")


def run_sft(
    context: StageContext,
    trainer_class: type[ReasoningSFTTrainer],
    config_class: type[ReasoningSFTConfig],
) -> StageResult:
    """Train on the stage's rows, or go on with it, and store `model/`.

    Raises:
        ValueError: rows without the columns `prompt` and `completion`, and what `load_tokenizer`,
            `load_policy` and `check_targets` raise.
    """
    details = finished_details(context.output_dir, ("model",))
    if details is not None:
        return StageResult(details=details)
    args, model_args = context.config(config_class), context.config(ModelArguments)
    path = str(model_args.model_name_or_path)
    fmt = get_format(model_args.reasoning_format)
    tokenizer = load_tokenizer(path, model_args, fmt)
    rows = load_mixture(context.config(DatasetArguments).sources(), fmt, args.seed)
    rows = rows.select_columns([name for name in _COLUMNS if name in rows.column_names])
    tasks = Counter(rows["task"]) if "task" in rows.column_names else {}
    model, peft_config = load_policy(path, model_args, trainable=True)
    set_end_token(model, tokenizer)
    trainer = trainer_class(
        model,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=peft_config,
    )

    def figures() -> dict[str, Any]:
        return {
            "rows": len(rows) - trainer.num_dropped_rows,
            "rows_by_task": {str(task): count for task, count in tasks.items()},
            "dropped_too_long": trainer.num_dropped_rows,
        }

    return StageResult(
        details=train_and_save(trainer, context, tokenizer, model_args, figures=figures)
    )
