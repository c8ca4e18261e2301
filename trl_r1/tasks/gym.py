"""Problems of reasoning-gym: over a hundred generators with a verifier each.

`args: {dataset: chain_sum, config: {max_terms: 2, max_digits: 1}}` names a generator and its
settings. Train and test never share a question: a hash of it decides, and each split has seeds of
its own. The reward `reasoning_gym` verifies answers. Left out on purpose: composites and curricula,
which the rest of a recipe can't see into.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trl_r1.tasks import DatasetSource, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

# One question in eight is held out.
_NUM_BUCKETS, _TEST_BUCKET = 8, 0
# Questions drawn for each row wanted, before a generator counts as exhausted.
_MAX_DRAWS = 64


def split_of(question: str) -> str:
    """`train` or `test`, by a hash of the question."""
    bucket = hashlib.sha256(question.encode()).digest()[0] % _NUM_BUCKETS
    return "test" if bucket == _TEST_BUCKET else "train"


def rows(source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
    """`source.num_rows` different problems of the split, drawn by `source.seed`.

    Raises:
        ValueError: where reasoning-gym is missing, `args` are wrong, or there are not enough
            problems.
    """
    from datasets import Dataset

    if source.split not in ("train", "test"):
        raise ValueError(f"reasoning_gym: unknown split {source.split!r}; use train or test")
    if source.num_rows is None:
        raise ValueError("reasoning_gym: num_rows is missing; say how many problems to make")
    entries: dict[str, dict[str, Any]] = {}
    for entry in _entries(source):
        if split_of(entry["question"]) == source.split:
            entries.setdefault(entry["question"], entry)
        if len(entries) == source.num_rows:
            break
    if len(entries) < source.num_rows:
        raise ValueError(
            f"reasoning_gym: {source.args['dataset']} gave {len(entries)} different "
            f"{source.split} problems, {source.num_rows} were asked for; lower num_rows or widen "
            "its config"
        )
    return Dataset.from_dict(
        {
            "prompt": [fmt.prompt(question) for question in entries],
            "solution": [str(entry["answer"]) for entry in entries.values()],
            "task": ["reasoning_gym"] * len(entries),
            "language": ["en"] * len(entries),
            "entry": [json.dumps(entry, default=str) for entry in entries.values()],
        }
    )


def _entries(source: DatasetSource) -> Iterator[dict[str, Any]]:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ValueError(
            "reasoning_gym: the package is missing; install it with: "
            'pip install "trl-r1[reasoning-gym]"'
        )
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    name = source.args.get("dataset")
    if name not in DATASETS:
        close = difflib.get_close_matches(str(name), DATASETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(DATASETS)}"
        raise ValueError(f"reasoning_gym: unknown args.dataset {name!r}{hint}")
    # Even seeds for train, odd ones for test.
    seed = 2 * source.seed + (source.split == "test")
    size = _MAX_DRAWS * (source.num_rows or 1)
    try:
        made = reasoning_gym.create_dataset(
            name, seed=seed, size=size, **source.args.get("config", {})
        )
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"reasoning_gym: args.config of {name}: {error}") from error
    return (made[index] for index in range(size))


TASK = Task(
    name="reasoning_gym",
    kind="reasoning",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "solution", "task", "language", "entry"),
    grader="reasoning_gym",
    arguments=("dataset", "config"),
)
