"""Problems of reasoning-gym: over a hundred generators with a verifier each.

`args: {dataset: chain_sum, config: {max_terms: 2, max_digits: 1}}` names a generator and its
settings. Train and test never share a question: a hash of it decides, and each split has seeds of
its own. Left out on purpose: composites and curricula, which the rest of a recipe can't see into.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trl_r1.rewards.think_format import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, completion_text
from trl_r1.tasks import DatasetSource, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

# One question in eight is held out.
_NUM_BUCKETS, _TEST_BUCKET = 8, 0
# Questions drawn for each row wanted, before a generator counts as exhausted.
_MAX_DRAWS = 64
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


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


def gym_reward(
    completions: list[Any], entry: list[str | None], prefilled: bool = False, **kwargs: Any
) -> list[float | None]:
    """1.0 for an answer that the generator's own verifier accepts in full, else 0.0.

    Args:
        completions: B completions, plain text or lists of messages; thinking does not count.
        entry: B problems as this task's rows carry them; None elsewhere, which gives None.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` is all reasoning.
    """
    import reasoning_gym

    rewards: list[float | None] = []
    for completion, problem in zip(completions, entry, strict=True):
        if problem is None:
            rewards.append(None)
            continue
        parsed = json.loads(problem)
        score = reasoning_gym.get_score_answer_fn(parsed["metadata"]["source_dataset"])
        text = completion_text(completion)
        answer = None if prefilled and THINK_CLOSE not in text else final_answer(text)
        # Partial credit for a mere attempt is what a policy would learn to collect.
        rewards.append(float(answer is not None and score(answer, parsed) >= 1.0))
    return rewards


def final_answer(text: str) -> str | None:
    """What follows the thinking: the last `<answer>`, else the last box, else the text."""
    tail = text.rpartition(THINK_CLOSE)[2].strip()
    _, has_open, inner = tail.rpartition(ANSWER_OPEN)
    if has_open:
        return inner.partition(ANSWER_CLOSE)[0].strip() or None
    boxes = _BOXED.findall(tail)
    return boxes[-1].strip() if boxes else tail or None


TASK = Task(
    name="reasoning_gym",
    kind="reasoning",
    rows=rows,
    makes_rows=True,
    columns=("prompt", "solution", "task", "language", "entry"),
    grader="trl_r1.tasks.gym:gym_reward",
    arguments=("dataset", "config"),
)
