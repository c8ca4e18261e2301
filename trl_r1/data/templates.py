"""Whether a chat template keeps what conversations are to teach.

Templates of distilled R1 models cut everything up to `</think>` out of an assistant's turn, so SFT
with them would teach answers without thinking and say nothing. The check is the one that the SFT
stages make of their tokenised rows (`training/sft.py`), here before there is a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trl_r1.training.data import split_messages
from trl_r1.training.sft import check_targets

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_MAX_CHECKED = 1000


def check_template(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> int:
    """Check that a tokenizer's chat template keeps each target whole, and its end.

    Args:
        rows: with `messages`, or `prompt` and `completion`; an even sample of a large set is
            looked at.
        tokenizer: of the model to train.

    Returns:
        How many rows were checked.

    Raises:
        TargetError: with the first row that would be taught otherwise, and the way out.
    """
    from datasets import Dataset

    count = min(len(rows), _MAX_CHECKED)
    places = np.linspace(0, len(rows) - 1, count).astype(int)
    chosen = split_messages(rows.select(np.unique(places)))
    tokenised = [_tokenised(row, tokenizer) for row in chosen]
    if tokenised:
        check_targets(Dataset.from_list(tokenised), tokenizer)
    return len(tokenised)


def _tokenised(row: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A row as TRL tokenises it for a loss on the completion only."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids = [*tokenizer(prompt + completion)["input_ids"], tokenizer.eos_token_id]
    else:
        prompt_ids = _template_ids(tokenizer, prompt, add_generation_prompt=True)
        ids = _template_ids(tokenizer, [*prompt, *completion])
    labels = [-100] * len(prompt_ids) + ids[len(prompt_ids) :]
    return {"completion": completion, "input_ids": ids, "labels": labels[: len(ids)]}


def _template_ids(tokenizer: Any, messages: Any, **options: bool) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=False, **options
    )
    return ids
