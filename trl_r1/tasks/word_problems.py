"""One-step word problems with numbers under ten, which a model of a hundred million parameters gets
right at times.

Train and test share neither a template nor a pair of numbers: `{3, 8}` is met in training or in the
test, in either order and whatever is asked of it, so what is learnt of the test is arithmetic and
reading, not answers. Left out on purpose: several steps and large numbers; `gsm8k` has those.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trl_r1.tasks import DatasetSource, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

NAMES = (
    "Tom", "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack",
    "Kate", "Leo", "Mia", "Nick", "Olga",
)  # fmt: skip
THINGS = (
    "apples", "books", "marbles", "stickers", "pencils", "cards", "shells", "coins", "stamps",
    "balloons", "cookies", "buttons",
)  # fmt: skip

# By operation: `+` and `*` take any pair, `-` the larger number first. {n} and {m} are names, {t} a
# thing.
TRAIN_TEMPLATES: dict[str, tuple[str, ...]] = {
    "+": (
        "{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?",
        "{n} has {a} {t} and {m} has {b} {t}. How many {t} do they have together?",
        "There are {a} {t} on the table and {b} {t} on the shelf. How many {t} are there in all?",
        "{n} found {a} {t} on Monday and {b} {t} on Tuesday. How many {t} did {n} find?",
        "{n} bought {a} {t}. Then {m} gave {n} {b} {t}. How many {t} does {n} have?",
        "A box holds {a} red {t} and {b} blue {t}. How many {t} does the box hold?",
        "{n} made {a} {t} before lunch and {b} {t} after lunch. How many {t} did {n} make?",
        "{n} put {a} {t} into a bag that already held {b} {t}. How many {t} are in the bag now?",
        "{m} lent {n} {a} {t}, and {n} owned {b} {t} before. How many {t} does {n} hold now?",
        "In the morning {n} counted {a} {t}, in the evening {b} {t} more. How many were counted?",
        "{n} collected {a} {t}. {m} collected {b} more than {n}. How many {t} did {m} collect?",
        "One basket has {a} {t}, another basket has {b} {t}. What is the total number of {t}?",
    ),
    "-": (
        "{n} had {a} {t} and gave {b} of them to {m}. How many {t} does {n} have left?",
        "There were {a} {t} in a box. {n} took out {b}. How many {t} are still in the box?",
        "{n} has {a} {t}. {m} has {b} fewer. How many {t} does {m} have?",
        "{n} had {a} {t} but lost {b} on the way home. How many {t} are left?",
        "{n} needs {a} {t} and has {b} already. How many more {t} does {n} need?",
        "Of {a} {t}, {b} are broken. How many {t} are not broken?",
        "{n} sold {b} of the {a} {t} in the shop. How many {t} remain?",
        "{n} has {a} {t} and {m} has {b} {t}. How many more {t} does {n} have than {m}?",
        "A jar had {a} {t}. After {n} used {b} of them, how many {t} were in the jar?",
        "{n} picked {a} {t} and ate {b} of them. How many {t} were left?",
        "{n} printed {a} {t} and threw {b} away. How many {t} did {n} keep?",
        "{a} {t} lay on the floor. {n} picked up {b}. How many {t} still lie there?",
    ),
    "*": (
        "{n} has {a} bags with {b} {t} in each bag. How many {t} does {n} have?",
        "There are {a} shelves with {b} {t} on every shelf. How many {t} are there?",
        "{n} buys {b} {t} a day for {a} days. How many {t} does {n} buy?",
        "Each of {a} children brings {b} {t}. How many {t} do they bring in all?",
        "{n} fills {a} rows with {b} {t} in a row. How many {t} are there?",
        "One pack has {b} {t}. {n} buys {a} packs. How many {t} is that?",
    ),
}
TEST_TEMPLATES: dict[str, tuple[str, ...]] = {
    "+": (
        "{a} {t} are in {n}'s left pocket and {b} in the right one. How many is that altogether?",
        "{n} owned {a} {t}, and for a birthday {b} new ones came along. How many {t} is that now?",
        "First {m} brought {a} {t}, later {n} brought {b}. How many {t} were brought in total?",
        "A drawer with {a} {t} gets {b} additional {t}. How many {t} are in the drawer afterwards?",
    ),
    "-": (
        "{n} started the day with {a} {t}, and {b} were stolen. How many {t} has {n} still got?",
        "From a pile of {a} {t}, {m} removes {b}. How many {t} stay in the pile?",
        "{n} wants to own {a} {t} but owns only {b}. How many {t} are missing?",
        "{m} borrowed {b} of {n}'s {a} {t}. How many {t} could {n} keep?",
        "A shop had {a} {t}; customers bought {b}. How many {t} can still be bought?",
    ),
    "*": (
        "{n} draws {b} {t} on each of {a} pages. How many {t} are drawn?",
        "{a} friends own {b} {t} apiece. How many {t} do the friends own between them?",
    ),
}
_TEMPLATES = {"train": TRAIN_TEMPLATES, "test": TEST_TEMPLATES}

# Of the pairs of numbers, one in four is held out; products stay under this.
_NUM_BUCKETS, _TEST_BUCKET = 4, 0
_MAX_PRODUCT = 30


@dataclass(frozen=True)
class Problem:
    """A problem before names are drawn: its operation, template and two numbers."""

    operation: str
    template: str
    a: int
    b: int

    @property
    def solution(self) -> int:
        """The answer."""
        results = {"+": self.a + self.b, "-": self.a - self.b, "*": self.a * self.b}
        return results[self.operation]


def split_of(a: int, b: int) -> str:
    """`train` or `test`, the same for either order."""
    key = f"{min(a, b)},{max(a, b)}"
    bucket = hashlib.sha256(key.encode()).digest()[0] % _NUM_BUCKETS
    return "test" if bucket == _TEST_BUCKET else "train"


def problems(split: str) -> Iterator[Problem]:
    """Every combination of template and numbers of a split, in a fixed order.

    Raises:
        ValueError: for a split that is neither `train` nor `test`.
    """
    if split not in _TEMPLATES:
        raise ValueError(f"word_problems: unknown split {split!r}; use train or test")
    pairs = [(a, b) for a in range(2, 10) for b in range(2, 10) if split_of(a, b) == split]
    for operation, templates in _TEMPLATES[split].items():
        for a, b in pairs:
            if operation == "-" and a <= b:
                continue
            if operation == "*" and a * b > _MAX_PRODUCT:
                continue
            for template in templates:
                yield Problem(operation, template, a, b)


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` different problems of the split, drawn by `source.seed`.

    No combination of template and numbers comes again, with other names, before all have come.

    Raises:
        ValueError: where `num_rows` is missing.
    """
    from datasets import Dataset

    if source.num_rows is None:
        raise ValueError("word_problems: num_rows is missing; say how many problems to make")
    draw = random.Random(source.seed)
    questions: dict[str, str] = {}
    while len(questions) < source.num_rows:
        pool = list(problems(source.split))
        draw.shuffle(pool)
        for problem in pool:
            n, m = draw.sample(NAMES, 2)
            text = problem.template.format(
                n=n, m=m, t=draw.choice(THINGS), a=problem.a, b=problem.b
            )
            questions.setdefault(text, str(problem.solution))
    chosen = list(questions.items())[: source.num_rows]
    return Dataset.from_dict(
        {
            "prompt": [fmt.prompt(question) for question, _ in chosen],
            "solution": [solution for _, solution in chosen],
            "task": ["word_problems"] * len(chosen),
            "language": ["en"] * len(chosen),
        }
    )


TASK = Task(
    name="word_problems",
    kind="reasoning",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "solution", "task", "language"),
)
