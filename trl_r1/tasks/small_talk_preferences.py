"""Preference pairs over greetings, for the demo's reward model.

Two kinds, half each: a friendly greeting over a curt one, both with the right name; and a right
name over a wrong one, in the same words. The second kind keeps RL from buying friendliness with
mistakes. The prompts are `small_talk`'s, split the same way.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trl_r1.tasks import DatasetSource, Task
from trl_r1.tasks.small_talk import CURT, FIRST_NAMES, FRIENDLY, LAST_NAMES, prompts

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat


def wrong_name(name: str, rng: random.Random) -> str:
    """A full name that differs in the first or in the last name."""
    first, last = name.split()
    if rng.random() < 0.5:
        return f"{rng.choice([other for other in FIRST_NAMES if other != first])} {last}"
    return f"{first} {rng.choice([other for other in LAST_NAMES if other != last])}"


def pair(name: str, rng: random.Random) -> tuple[str, str]:
    """A (chosen, rejected) pair of greetings for that name."""
    if rng.random() < 0.5:
        return rng.choice(FRIENDLY).format(name=name), rng.choice(CURT).format(name=name)
    form = rng.choice((*FRIENDLY, *CURT))
    return form.format(name=name), form.format(name=wrong_name(name, rng))


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` pairs; a prompt comes again, with another pair, once all were used."""
    from datasets import Dataset

    rng = random.Random(source.seed)
    pool = prompts(source.split, None, rng)
    count = len(pool) if source.num_rows is None else source.num_rows
    chosen = [pool[index % len(pool)] for index in range(count)]
    pairs = [pair(name, rng) for _, name in chosen]
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": text}] for text, _ in chosen],
            "chosen": [[{"role": "assistant", "content": better}] for better, _ in pairs],
            "rejected": [[{"role": "assistant", "content": worse}] for _, worse in pairs],
        }
    )


TASK = Task(
    name="small_talk_preferences",
    kind="preference",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "chosen", "rejected"),
)
