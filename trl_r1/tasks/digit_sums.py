"""Sums of four digits, the reasoning task of the offline demo: `4+7+5+8=?`.

Small enough for a model of a quarter of a million parameters, and still a task where thinking
pays: in its head such a model is right one time in a few, by running totals nearly always. The
totals are written as two digits, so that every step looks back the same distance.

Train and test are disjoint by construction: a hash of the *sorted* digits decides, so that no
reordering of a test problem is ever trained on. Left out on purpose: other operators and lengths;
`reasoning_gym` has those.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import TYPE_CHECKING

from trl_r1.tasks import DatasetSource, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

Terms = tuple[int, int, int, int]

# One sum in eight is held out.
_NUM_BUCKETS, _TEST_BUCKET = 8, 0


def split_of(terms: Terms) -> str:
    """`train` or `test`, the same for every order of the digits."""
    key = "+".join(str(term) for term in sorted(terms))
    bucket = hashlib.sha256(key.encode()).digest()[0] % _NUM_BUCKETS
    return "test" if bucket == _TEST_BUCKET else "train"


def problems(split: str) -> list[Terms]:
    """All problems of a split, in a fixed order.

    Raises:
        ValueError: for a split that is neither `train` nor `test`.
    """
    if split not in ("train", "test"):
        raise ValueError(f"digit_sums: unknown split {split!r}; use train or test")
    return [
        (a, b, c, d)
        for a, b, c, d in itertools.product(range(1, 10), repeat=4)
        if split_of((a, b, c, d)) == split
    ]


def question(terms: Terms) -> str:
    """The problem as text."""
    return "+".join(str(term) for term in terms) + "=?"


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` different problems of the split, drawn by `source.seed`.

    Raises:
        ValueError: where the split has fewer problems than asked for.
    """
    from datasets import Dataset

    pool = problems(source.split)
    count = len(pool) if source.num_rows is None else source.num_rows
    if count > len(pool):
        raise ValueError(
            f"digit_sums: num_rows is {count}, the {source.split} split has {len(pool)} problems"
        )
    chosen = random.Random(source.seed).sample(pool, count)
    return Dataset.from_dict(
        {
            "prompt": [fmt.prompt(question(terms)) for terms in chosen],
            "solution": [str(sum(terms)) for terms in chosen],
            "task": ["digit_sums"] * count,
            "language": ["en"] * count,
        }
    )


TASK = Task(
    name="digit_sums",
    kind="reasoning",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "solution", "task", "language"),
)
