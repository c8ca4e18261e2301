"""Calling TRL rewards on samples outside a trainer, with the arguments TRL would pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from trl_r1.sampling import Sample

Reward = Callable[..., Any]
Row = Mapping[str, Any]


def told_of_prefill(reward: Reward, is_prefilled: bool) -> Reward:
    """The reward, told that completions start inside the reasoning, where it has that argument."""
    if not is_prefilled or "prefilled" not in inspect.signature(reward).parameters:
        return reward
    return wraps(reward)(partial(reward, prefilled=True))


def call_reward(
    reward: Reward, rows: Sequence[Row], samples: Sequence[Sample]
) -> list[float | None]:
    """A reward's verdict on B samples, each with the row it answers.

    Args:
        reward: TRL reward; it gets `prompts`, conversational `completions`, `completion_ids` and
            the rows' columns.
        rows: B rows, a `prompt` and other columns each; a row repeated for each of its samples.
        samples: B samples.

    Raises:
        ValueError: where it does not return a value a completion, or asks for tokens that a server
            did not give.
    """
    name = getattr(reward, "__name__", repr(reward))
    if any(sample.token_ids is None for sample in samples) and _asks_for_tokens(reward):
        raise ValueError(
            f"reward {name} counts tokens, and the server gives none; name the model's tokenizer, "
            "or leave the reward out"
        )
    columns = {key: None for row in rows for key in row if key != "prompt"}
    scores = list(
        reward(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": sample.text}] for sample in samples],
            completion_ids=[sample.token_ids for sample in samples],
            **{name: [row.get(name) for row in rows] for name in columns},
        )
    )
    if len(scores) != len(samples):
        raise ValueError(
            f"reward {name} returned {len(scores)} values for {len(samples)} completions; "
            "it has to return one each"
        )
    return [None if score is None else float(score) for score in scores]


def needed_columns(reward: Reward, args: Iterable[str] = ()) -> tuple[str, ...]:
    """Columns that a reward can't do without: its parameters with neither a default nor a value in
    `args`, but for what every reward gets."""
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):  # a builtin may have none
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = {"prompts", "completions", "completion_ids", *args}
    return tuple(
        p.name
        for p in parameters
        if p.kind in kinds and p.default is p.empty and p.name not in given
    )


def _asks_for_tokens(reward: Reward) -> bool:
    return "completion_ids" in inspect.signature(reward).parameters
