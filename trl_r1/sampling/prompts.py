"""Prompts as text and as tokens, the same for every engine."""

from __future__ import annotations

from typing import Any


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
