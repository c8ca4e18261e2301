"""Preference pairs over simple instructions, for the reward model of a small pretrained model.

Half the pairs prefer the right word or name to a wrong one in the same words, half a short answer
to one that goes on and on. The prompts are `general_chat`'s, split the same way.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trl_r1.tasks import DatasetSource, Task
from trl_r1.tasks.general_chat import (
    NAMES,
    WORDS,
    Instruction,
    answer_message,
    chosen_instructions,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

_RAMBLING = (
    "Well, {reply} And there is so much more to say about this that I hardly know where to begin.",
    "{reply} But let me first tell you a long story about something that happened to me last year.",
)


def worse_reply(instruction: Instruction, rng: random.Random) -> str:
    """A worse answer than the instruction's own."""
    if rng.random() < 0.5:
        return rng.choice(_RAMBLING).format(reply=instruction.reply)
    wanted = instruction.solution.rpartition(" ")[2]
    pool = NAMES if wanted in NAMES else WORDS
    other = rng.choice([word for word in pool if word != wanted.lower() and word != wanted])
    return instruction.reply.replace(wanted, other.upper() if wanted.isupper() else other)


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` pairs; instructions come again, in other pairs, once all were used."""
    from datasets import Dataset

    rng = random.Random(source.seed)
    chosen = chosen_instructions(source, rng, may_repeat=True)
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": row.prompt}] for row in chosen],
            "chosen": [answer_message(row, row.reply, fmt) for row in chosen],
            "rejected": [answer_message(row, worse_reply(row, rng), fmt) for row in chosen],
        }
    )


TASK = Task(
    name="general_chat_preferences",
    kind="preference",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "chosen", "rejected"),
)
