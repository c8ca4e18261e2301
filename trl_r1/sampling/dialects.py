"""What OpenAI-compatible servers differ in: how to switch off a model's own sampling defaults, and
how to get at the tokens.

Servers fill what a request leaves out from the model's generation config, where many models carry a
top-k or a repetition penalty; each kind has other names for these. Left out: anything about
connections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

Dialect = Literal["vllm", "sglang", "llamacpp", "transformers", "openai"]

# Kinds whose `/v1/completions` takes token ids as a prompt.
TAKES_TOKEN_IDS: tuple[Dialect, ...] = ("vllm", "sglang", "llamacpp")
# The seed of `transformers serve` is the process's: requests at the same time disturb each other.
ONE_AT_A_TIME: tuple[Dialect, ...] = ("transformers",)

_NEUTRAL: Mapping[Dialect, Mapping[str, Any]] = {
    "vllm": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "llamacpp": {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "cache_prompt": True},
    "openai": {},
}


def dialect_of(entry: Mapping[str, Any]) -> Dialect:
    """The kind of a server, by its model's entry in `/v1/models`; `openai` where that says
    nothing."""
    owner = str(entry.get("owned_by", "")).casefold()
    if owner in ("vllm", "sglang", "llamacpp"):
        return owner  # type: ignore[return-value]
    # `transformers serve` names the model's owner, and says whether each model is loaded.
    return "transformers" if isinstance(entry.get("status"), dict) else "openai"


def sampling_fields(
    dialect: Dialect, temperature: float, top_p: float, max_tokens: int | None, seed: int
) -> dict[str, Any]:
    """Fields of a request that say how to sample, everything that shapes the distribution out loud.

    Args:
        dialect: kind of the server.
        temperature: 0 for greedy.
        top_p: nucleus; 1 for none.
        max_tokens: limit of the completion; None for the server's.
        seed: below 2**31, which every server takes.
    """
    fields: dict[str, Any] = {"seed": seed, "stream": False}
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if dialect == "transformers":
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        config = {
            **(sampling if temperature > 0 else {"do_sample": False}),
            "repetition_penalty": 1.0,
            "max_new_tokens": max_tokens,
        }
        return {**fields, "generation_config": json.dumps(config)}
    # A nucleus means nothing to greedy sampling, and some servers refuse the pair.
    nucleus = {"top_p": top_p} if temperature > 0 else {}
    return {**fields, "temperature": temperature, **nucleus, **_NEUTRAL[dialect]}


def answer_text(choice: Mapping[str, Any]) -> str:
    """The text of a choice of either endpoint, with reasoning that a server took out put back.

    Raises:
        KeyError: where there is none.
    """
    if "message" not in choice:
        return choice["text"] or ""
    message = choice["message"]
    content = message.get("content") or ""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return f"<think>\n{reasoning}\n</think>\n{content}" if reasoning else content
