"""SFT on reasoning: what cold start, mixed SFT and distillation have in common.

`ReasoningSFTTrainer` is TRL's `SFTTrainer` with the loss on the completion only, and with checks of
the tokenised rows before training: the whole completion is trained on, reasoning included, and so
is the token that ends it. Rows that are too long are dropped and counted, never cut, since a cut
row teaches a model to think and never to answer. Left out: packing of rows into one sequence is
TRL's, images and tool calls are not looked at.
"""

from __future__ import annotations

import copy
import logging
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from trl_r1.rewards.think_format import THINK_CLOSE, THINK_OPEN, completion_text
from trl_r1.training.adapter_resume import AdapterResume
from trl_r1.training.hardware import set_precision_default

_logger = logging.getLogger(__name__)

# Rows whose targets are decoded and compared: all of a small set, an even sample of a large one.
_MAX_CHECKED_ROWS = 2000
_IGNORED = -100


class TargetError(ValueError):
    """The tokenised rows would teach something else than the completions say."""


@dataclass
class ReasoningSFTConfig(SFTConfig):
    """TRL's `SFTConfig` with the paper's settings for SFT.

    Cold start and mixed SFT: 2 to 3 epochs, cosine from 5e-5 to 5e-6, 32,768 tokens, batch 128. The
    batch is that of one process: divide gradient_accumulation_steps by the number of processes.
    """

    num_train_epochs: float = field(default=2.0, metadata={"help": "Passes over the rows."})
    learning_rate: float = field(default=5e-5, metadata={"help": "Highest learning rate."})
    lr_scheduler_type: str = field(
        default="cosine_with_min_lr", metadata={"help": "Shape of the learning rate."}
    )
    lr_scheduler_kwargs: dict[str, Any] | str | None = field(
        default_factory=lambda: {"min_lr_rate": 0.1},
        metadata={"help": "Of the scheduler; `min_lr_rate` is the last rate over the highest."},
    )
    max_length: int | None = field(
        default=32768, metadata={"help": "Longest row in tokens; longer ones are dropped."}
    )
    max_dropped_share: float = field(
        default=0.1,
        metadata={"help": "Share of rows longer than max_length above which the stage stops."},
    )
    per_device_train_batch_size: int = field(default=1, metadata={"help": "Rows a micro-batch."})
    gradient_accumulation_steps: int = field(
        default=128, metadata={"help": "Micro-batches an optimizer step."}
    )
    completion_only_loss: bool | None = field(
        default=True, metadata={"help": "Train on completions, never on prompts."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})

    def __post_init__(self) -> None:
        set_precision_default(self)
        super().__post_init__()  # type: ignore[no-untyped-call]


class ReasoningSFTTrainer(AdapterResume, SFTTrainer):
    """TRL's `SFTTrainer` for rows of `prompt` and `completion`, with the targets checked.

    Arguments are TRL's. After construction `num_dropped_rows` is the number of training rows that
    were longer than `max_length`.

    Raises:
        TargetError: at construction, where the rows would not teach what their completions say.
    """

    num_dropped_rows: int = 0

    def _prepare_dataset(
        self,
        dataset: Any,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
        dataset_name: str,
    ) -> Any:
        if not isinstance(dataset, Dataset) or not {"prompt", "completion"} <= set(
            dataset.column_names
        ):
            raise TargetError(
                f"the {dataset_name} rows need the columns 'prompt' and 'completion'; they have: "
                f"{', '.join(getattr(dataset, 'column_names', None) or ['?'])}"
            )
        # Truncation is switched off: what is too long is dropped below.
        uncut = copy.copy(args)
        uncut.max_length = None
        prepared = super()._prepare_dataset(
            dataset, processing_class, uncut, False, formatting_func, dataset_name
        )
        check_targets(prepared, self._tokenizer)
        prepared = self._drop_long_rows(prepared, args, dataset_name)
        if packing:
            prepared = super()._prepare_dataset(
                prepared, processing_class, args, True, None, dataset_name
            )
        return prepared

    def _drop_long_rows(self, rows: Dataset, args: Any, dataset_name: str) -> Dataset:
        if args.max_length is None:
            return rows
        limit = args.max_length
        fitting = rows.filter(lambda ids: len(ids) <= limit, input_columns=["input_ids"])
        num_dropped = len(rows) - len(fitting)
        if num_dropped:
            share = num_dropped / len(rows)
            message = (
                f"{num_dropped} of {len(rows)} {dataset_name} rows ({share:.1%}) are longer than "
                f"max_length {limit} tokens"
            )
            if share > getattr(args, "max_dropped_share", 1.0) or not len(fitting):
                raise TargetError(
                    f"{message}; raise max_length, or max_dropped_share to train without them"
                )
            _logger.warning("%s and are left out", message)
        if dataset_name == "train":
            self.num_dropped_rows = num_dropped
        return fitting


def check_targets(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that tokenised rows train on their whole completion and on its end.

    Args:
        rows: with `completion`, `input_ids` and `labels` (-100 where there is no loss).
        tokenizer: that made them; its EOS has to end a completion.

    Raises:
        TargetError: nothing is trained on, the chat template drops the reasoning or another part
            of the completion, or the end token is missing from the targets.
    """
    step = max(1, len(rows) // _MAX_CHECKED_ROWS)
    for index in range(0, len(rows), step):
        row = rows[index]
        ids = [token for token in row["labels"] if token != _IGNORED]
        fault = _target_fault(completion_text(row["completion"]), row["input_ids"], ids, tokenizer)
        if fault is None and not _ends_with_eos(ids, tokenizer):
            last = tokenizer.decode(ids[-1:])
            fault = (
                f"the targets end with {last!r} and not with the EOS {tokenizer.eos_token!r}, so "
                "the model would never learn to stop; set `chat_template`, or `eos_token` to the "
                "token that ends an assistant turn"
            )
        if fault is not None:
            raise TargetError(f"row {index}: {fault}")


_WAY_OUT = "set `chat_template: chatml`, or `chat_template_path` to a .jinja file that keeps it"


def _target_fault(
    completion: str, input_ids: list[int], target_ids: list[int], tokenizer: Any
) -> str | None:
    """What is wrong with the text of a row's targets; None where it is the whole completion."""
    if not target_ids:
        return (
            "no token is trained on; the chat template or the masks hide the whole completion; "
            + _WAY_OUT
        )
    wanted, whole = _squeezed(completion), _squeezed(tokenizer.decode(input_ids))
    if wanted not in whole:
        reasoning = completion.partition(THINK_CLOSE)[0] if THINK_CLOSE in completion else ""
        if _squeezed(reasoning) not in whole:
            return (
                "the chat template drops the reasoning from the target (the R1-Distill templates "
                f"do, everything up to {THINK_CLOSE}); {_WAY_OUT}"
            )
        return f"the chat template changes the completion; {_WAY_OUT}"
    targets = _squeezed(tokenizer.decode(target_ids))
    # The generation prompt may have written the opener already: then it is context, not target.
    without_opener = wanted.removeprefix(THINK_OPEN)
    if wanted in targets or (without_opener and targets.startswith(without_opener)):
        return None
    return (
        "only a part of the completion is trained on: the tokenised prompt is no prefix of the "
        f"tokenised row, or a mask covers the rest; {_WAY_OUT}"
    )


def _ends_with_eos(ids: list[int], tokenizer: Any) -> bool:
    """Whether the last token that is not white space is the EOS."""
    for token in reversed(ids):
        if token == tokenizer.eos_token_id:
            return True
        if tokenizer.decode([token]).strip():
            return False
    return False


def _squeezed(text: str) -> str:
    """Text without white space, which templates and tokenizers may change around the parts."""
    return "".join(unicodedata.normalize("NFKC", text).split())
