"""Simple instructions whose answers a rule can check: the general ability of a small pretrained
model.

`Say hello to Ada.` wants a greeting with that name, `Repeat the word river.` that word, `Write the
word river in capital letters.` RIVER, and no more than a short sentence. In a format whose prompts
end with `<think>` the completions think for a moment first, as the paper has it for part of the
general data (section 2.3.3).

Train and test share no word and no name. Left out on purpose: anything that only a model could
judge.
"""

from __future__ import annotations

import hashlib
import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trl_r1.rewards.think_format import ANSWER_OPEN, THINK_CLOSE, completion_text
from trl_r1.tasks import DatasetSource, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import Message, ReasoningFormat

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jill", "Karl", "Lena",
    "Max", "Nora", "Otto", "Pia", "Quin", "Rosa", "Sam", "Tess", "Uma", "Vera", "Walt", "Zoe",
)  # fmt: skip
WORDS = (
    "river", "table", "cloud", "garden", "window", "bread", "stone", "forest", "paper", "lemon",
    "bridge", "candle", "mirror", "basket", "ladder", "button", "market", "winter", "summer",
    "island", "pocket", "planet", "silver", "yellow", "kitten", "rabbit", "tiger", "piano",
    "violin", "castle", "engine", "harbor", "honey", "letter", "meadow", "needle", "orange",
    "pepper", "ribbon", "salmon",
)  # fmt: skip
_MAX_WORDS = 12
_MOST_WORDS_OF_A_WORD = 4

# One name or word in four is held out.
_NUM_BUCKETS, _TEST_BUCKET = 4, 0


class Instruction(NamedTuple):
    """An instruction, the thought it takes, a good answer, and what an answer has to have."""

    prompt: str
    thought: str
    reply: str
    solution: str


def split_of(word: str) -> str:
    """`train` or `test`, by a hash of the word or name."""
    bucket = hashlib.sha256(word.encode()).digest()[0] % _NUM_BUCKETS
    return "test" if bucket == _TEST_BUCKET else "train"


def instructions(split: str) -> list[Instruction]:
    """All instructions of a split, in a fixed order.

    Raises:
        ValueError: for a split that is neither `train` nor `test`.
    """
    if split not in ("train", "test"):
        raise ValueError(f"general_chat: unknown split {split!r}; use train or test")
    found = []
    for name in NAMES:
        if split_of(name) == split:
            thought = f"I am asked to greet {name}."
            reply = f"Hello {name}! How are you?"
            for prompt in (f"Say hello to {name}.", f"Greet {name}."):
                found.append(Instruction(prompt, thought, reply, f"hello {name}"))
    for word in WORDS:
        if split_of(word) == split:
            thought = f"I am asked for the word {word}."
            found.append(Instruction(f"Repeat the word {word}.", thought, f"{word}", word))
            capitals = f"Write the word {word} in capital letters."
            found.append(Instruction(capitals, thought, word.upper(), word.upper()))
    return found


def chosen_instructions(
    source: DatasetSource, rng: random.Random, may_repeat: bool = False
) -> list[Instruction]:
    """`source.num_rows` instructions of its split, or all, in random order.

    Raises:
        ValueError: where the split has fewer, unless they may repeat.
    """
    pool = instructions(source.split)
    count = len(pool) if source.num_rows is None else source.num_rows
    if count > len(pool) and not may_repeat:
        raise ValueError(
            f"general_chat: {count} rows asked for, the {source.split} split has {len(pool)}"
        )
    rng.shuffle(pool)
    return [pool[i % len(pool)] for i in range(count)]


def answer_message(instruction: Instruction, reply: str, fmt: ReasoningFormat) -> list[Message]:
    """The assistant's turn with that reply, after a thought where prompts end with `<think>`."""
    text = fmt.render(instruction.thought, reply) if fmt.is_prefilled else reply
    return [{"role": "assistant", "content": text}]


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` different instructions of the split, each with a good `completion`."""
    from datasets import Dataset

    chosen = chosen_instructions(source, random.Random(source.seed))
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": row.prompt}] for row in chosen],
            "completion": [answer_message(row, row.reply, fmt) for row in chosen],
            "solution": [row.solution for row in chosen],
            "task": ["general_chat"] * len(chosen),
            "language": ["en"] * len(chosen),
        }
    )


def instruction_reward(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float]:
    """1.0 for an answer that does what was asked and no more than that; else 0.0.

    Args:
        completions: B completions, plain text or lists of messages; thinking does not count.
        solution: B rules: a word that the answer has to be about alone, or `hello NAME` for a
            greeting.
    """
    return [
        float(_follows(completion_text(completion), rule))
        for completion, rule in zip(completions, solution, strict=True)
    ]


def _follows(text: str, rule: str) -> bool:
    tail = text.rpartition(THINK_CLOSE)[2].rpartition(ANSWER_OPEN)[2]
    words = re.findall(r"\w+", tail.partition("</")[0])
    greets, _, name = rule.rpartition(" ")
    if not greets:
        return rule in words and len(words) <= _MOST_WORDS_OF_A_WORD
    is_greeting = any(word.lower() in ("hello", "hi", "hey", "greetings") for word in words)
    return is_greeting and name in words and len(words) <= _MAX_WORDS


TASK = Task(
    name="general_chat",
    kind="general",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "completion", "solution", "task", "language"),
    grader="trl_r1.tasks.general_chat:instruction_reward",
)
