"""Preference model: a scalar score for general answers, learnt from pairs of a better and a worse.

The paper (supplement, reward model for helpfulness): 66k pairs, batch 256, learning rate 6e-6, one
epoch, 8,192 tokens. Left out: writing the pairs and judging them, and the pointwise safety model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from trl import RewardConfig, RewardTrainer

from trl_r1.reasoning_format import get_format
from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.training.adapter_resume import AdapterResume
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.artifacts import finished_details
from trl_r1.training.data import load_mixture
from trl_r1.training.hardware import set_precision_default
from trl_r1.training.loop import train_and_save
from trl_r1.training.models import load_scorer, load_tokenizer

_COLUMNS = ("prompt", "chosen", "rejected")


@dataclass
class PreferenceConfig(RewardConfig):
    """TRL's `RewardConfig` with the paper's settings for the preference model."""

    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the pairs."})
    learning_rate: float = field(default=6e-6, metadata={"help": "Highest learning rate."})
    max_length: int | None = field(
        default=8192, metadata={"help": "Longest pair in tokens; longer ones are dropped."}
    )
    per_device_train_batch_size: int = field(default=4, metadata={"help": "Pairs a micro-batch."})
    gradient_accumulation_steps: int = field(
        default=64, metadata={"help": "Micro-batches an optimizer step."}
    )
    held_out_share: float = field(
        default=0.1, metadata={"help": "Share of pairs kept for the accuracy; 0 for none."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})

    def __post_init__(self) -> None:
        set_precision_default(self)
        super().__post_init__()  # type: ignore[no-untyped-call]


class PreferenceTrainer(AdapterResume, RewardTrainer):
    """TRL's `RewardTrainer`, for rows of `prompt`, `chosen` and `rejected`."""

    _tag_names = ["trl", "reward-trainer", "trl-r1", "reward-model"]  # noqa: RUF012 - TRL declares it so

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # TRL turns all trained weights on a quantised base to bfloat16. Without mixed precision
        # (on a CPU) the head has to be of the type of the states it is given.
        model: Any = self.model
        dtype = model.get_input_embeddings().weight.dtype
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.data = parameter.data.to(dtype)

    def held_out_figures(self) -> dict[str, Any]:
        """Share of held-out pairs in which the better answer scores higher, and by how much.

        Returns:
            `pairs`, `accuracy` (0..1) and `margin` (mean of chosen minus rejected score); empty
            without held-out pairs.
        """
        held_out: Any = self.eval_dataset
        if held_out is None:
            return {}
        metrics = self.evaluate()
        return {
            "held_out_pairs": len(held_out),
            "accuracy": metrics["eval_accuracy"],
            "margin": metrics["eval_margin"],
        }


SPEC = StageSpec(
    configs=(DatasetArguments, ModelArguments, PreferenceConfig),
    produces=("reward_model",),
)


def run(context: StageContext) -> StageResult:
    """Train a preference model on the stage's pairs and store it as `reward_model/`."""
    details = finished_details(context.output_dir, ("reward_model",))
    if details is not None:
        return StageResult(details=details)
    args, model_args = context.config(PreferenceConfig), context.config(ModelArguments)
    path = str(model_args.model_name_or_path)
    fmt = get_format(model_args.reasoning_format)
    tokenizer = load_tokenizer(path, model_args, fmt)
    pairs = load_mixture(context.config(DatasetArguments).sources(), fmt, args.seed)
    train, held_out = split_pairs(pairs, args.held_out_share)
    model, peft_config = load_scorer(path, model_args, args.seed)
    trainer = PreferenceTrainer(
        model,
        args=args,
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,
        peft_config=peft_config,
    )

    def figures() -> dict[str, Any]:
        return {"pairs": len(train), **trainer.held_out_figures()}

    return StageResult(
        details=train_and_save(
            trainer, context, tokenizer, model_args, artifact="reward_model", figures=figures
        )
    )


def split_pairs(pairs: Dataset, held_out_share: float) -> tuple[Dataset, Dataset | None]:
    """Pairs to train on and pairs held out, by prompt: no prompt is on both sides.

    Args:
        pairs: shuffled, with the columns `prompt`, `chosen` and `rejected`.
        held_out_share: 0..1; 0 for none.

    Raises:
        ValueError: a column is missing, or nothing is left to train on.
    """
    missing = [name for name in _COLUMNS if name not in pairs.column_names]
    if missing:
        raise ValueError(
            f"datasets: preference pairs need the columns {', '.join(_COLUMNS)}; "
            f"missing: {', '.join(missing)}"
        )
    pairs = pairs.select_columns(list(_COLUMNS))
    if held_out_share <= 0:
        return pairs, None
    prompts = [str(prompt) for prompt in pairs["prompt"]]
    unique = list(dict.fromkeys(prompts))
    chosen = set(unique[: max(1, round(held_out_share * len(unique)))])
    train = pairs.select([i for i, prompt in enumerate(prompts) if prompt not in chosen])
    held_out = pairs.select([i for i, prompt in enumerate(prompts) if prompt in chosen])
    if not len(train):
        raise ValueError(
            f"held_out_share {held_out_share} leaves no pairs to train on; lower it, or give more"
        )
    return train, held_out
