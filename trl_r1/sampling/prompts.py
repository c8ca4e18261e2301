"""Prompts as text and as tokens, the same for every engine; what a prompt and a temperature are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trl_r1.sampling import NO_ROOM, Sample


def encode_prompt(tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids of a prompt: messages through the chat template, text as it stands."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def render_prompt(tokenizer: Any, prompt: Any) -> str:
    """The text that a server tokenizes to `encode_prompt`, where it takes no tokens.

    Such a server adds the tokenizer's own first token, so one that the template wrote is left out.
    """
    if isinstance(prompt, str):
        return prompt
    text = str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False))
    first = tokenizer("")["input_ids"][:1]
    return text.removeprefix(tokenizer.decode(first)) if first else text


def without_room(num_samples: int) -> list[Sample]:
    """What stands for the samples of a prompt that fills the model's context: one such row of many
    must not end a job."""
    return [Sample("", [], True, NO_ROOM) for _ in range(num_samples)]


def check_room(samples: Iterable[Iterable[Sample]]) -> None:
    """Refuse samples that were not drawn, where each counts.

    Raises:
        ValueError: a prompt fills the model's context.
    """
    if any(sample.finish_reason == NO_ROOM for group in samples for sample in group):
        raise ValueError(
            "a prompt fills the model's context; drop such rows, or use a model (or a server) with "
            "a longer one"
        )


def check_prompt(prompt: Any, number: int) -> None:
    """Refuse what is neither a text nor messages.

    Args:
        prompt: of a row.
        number: of that row, from 0.

    Raises:
        ValueError: with the number.
    """
    if isinstance(prompt, str) and prompt.strip():
        return
    is_list = isinstance(prompt, (list, tuple)) and len(prompt) > 0
    if is_list and all(_is_message(message) for message in prompt):
        return
    what = "empty" if prompt is None or prompt in ("", []) else f"{str(prompt)[:60]!r}"
    raise ValueError(
        f"row {number}: its prompt is {what}; it has to be a text, or a list of messages with "
        "`role` and `content`, both texts"
    )


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )


def check_temperature(temperature: float, top_p: float) -> None:
    """Refuse what no engine can sample with.

    Raises:
        ValueError: a temperature under 0, or a nucleus outside of 0 to 1.
    """
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; use 0 for greedy, or more, such as 1.0")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it is over 0 and at most 1, which is none")
