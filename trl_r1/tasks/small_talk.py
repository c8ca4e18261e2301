"""Greetings, the general ability of the offline demo.

`greet Ada Cole` wants a greeting with that name. The rule (`name_reward`) only asks for the right
name; a curt `hi Ada Cole.` passes as well as a friendly one. What makes a greeting better than
another right one is left to the preference model (`small_talk_preferences`).

Train and test are disjoint by construction: a full name is in the test split where the places of
its two parts in the lists add up to a multiple of four. So every part is met in training as often
as any other, and a test pair of them never is.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from trl_r1.rewards.think_format import THINK_CLOSE, completion_text
from trl_r1.tasks import DatasetSource, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

FIRST_NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jill", "Karl", "Lena",
    "Max", "Nora", "Otto", "Pia",
)  # fmt: skip
LAST_NAMES = (
    "Adler", "Brook", "Cole", "Drake", "Ellis", "Frost", "Grant", "Hale", "Irwin", "Jones",
    "Klein", "Lamb", "Moss", "North", "Owen", "Price",
)  # fmt: skip
ASKS = ("say hello to {name}", "greet {name}", "welcome {name}")
CURT = ("hi {name}.", "oh, {name}.")
FRIENDLY = ("hello {name}, how nice to see you!", "good morning {name}, how are you?")

# One name in four is held out.
_TEST_STRIDE = 4


def split_of(name: str) -> str:
    """`train` or `test`, by the places of the first and the last name in their lists."""
    first, last = name.split()
    place = FIRST_NAMES.index(first) + LAST_NAMES.index(last)
    return "test" if place % _TEST_STRIDE == 0 else "train"


def names(split: str) -> list[str]:
    """All full names of a split, in a fixed order.

    Raises:
        ValueError: for a split that is neither `train` nor `test`.
    """
    if split not in ("train", "test"):
        raise ValueError(f"small_talk: unknown split {split!r}; use train or test")
    everyone = (f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES)
    return [name for name in everyone if split_of(name) == split]


def prompts(split: str, num_rows: int | None, rng: random.Random) -> list[tuple[str, str]]:
    """`num_rows` different (prompt text, name) pairs of a split, or all of them in a random order.

    Raises:
        ValueError: where the split has fewer prompts than asked for.
    """
    pool = [(ask.format(name=name), name) for name in names(split) for ask in ASKS]
    count = len(pool) if num_rows is None else num_rows
    if count > len(pool):
        raise ValueError(f"small_talk: {count} rows asked for, the {split} split has {len(pool)}")
    return rng.sample(pool, count)


def greeting(name: str, friendly_share: float, rng: random.Random) -> str:
    """A greeting with that name, a friendly one with a probability of `friendly_share`."""
    forms = FRIENDLY if rng.random() < friendly_share else CURT
    return rng.choice(forms).format(name=name)


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` prompts of the split, each with a greeting as its `completion`, for SFT.

    `args: {friendly_share: 0.3}` is the share of friendly ones among the greetings.
    """
    from datasets import Dataset

    rng = random.Random(source.seed)
    friendly_share = float(source.args.get("friendly_share", 0.3))
    chosen = prompts(source.split, source.num_rows, rng)
    replies = [greeting(name, friendly_share, rng) for _, name in chosen]
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": text}] for text, _ in chosen],
            "completion": [[{"role": "assistant", "content": reply}] for reply in replies],
            "solution": [name for _, name in chosen],
            "task": ["small_talk"] * len(chosen),
        }
    )


def name_reward(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float]:
    """1.0 for an answer that names exactly the person of `solution`, once; else 0.0.

    Args:
        completions: B completions, plain text or lists of messages; thinking does not count.
        solution: B full names.
    """
    return [
        float(_named(completion_text(completion).rpartition(THINK_CLOSE)[2]) == name.split())
        for completion, name in zip(completions, solution, strict=True)
    ]


def _named(text: str) -> list[str]:
    known = {*FIRST_NAMES, *LAST_NAMES}
    return [word for word in text.translate(_PUNCTUATION).split() if word in known]


_PUNCTUATION = str.maketrans(",.!?", "    ")

TASK = Task(
    name="small_talk",
    kind="general",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "completion", "solution", "task"),
    grader="trl_r1.tasks.small_talk:name_reward",
    arguments=("friendly_share",),
)
