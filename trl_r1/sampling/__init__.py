"""Completions of a set of prompts, and what is done to them shard by shard.

`Sampler` is the one interface; behind it draw plain transformers, vLLM in this process, and any
number of OpenAI-compatible servers (`engines.open_sampler` picks). Left out on purpose: rewards (a
stage's business) and any scheduling of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

# The finish reason of what was not sampled: its prompt fills the model's context.
NO_ROOM = "no_room"

TokenSource = Literal["engine", "retokenized", "unknown"]


@dataclass(frozen=True)
class Sample:
    """One completion.

    Attributes:
        text: decoded completion without special tokens.
        token_ids: the tokens, the end token included where there was one; None where a server
            gives none and there is no tokenizer to make them again.
        is_truncated: it stopped for another reason than an end token, mostly the limit.
        finish_reason: in the engine's words, `stop` or `length` as a rule; `no_room` for an empty
            one, whose prompt fills the model's context.
        seed: what the engine's random numbers started from.
        token_source: `engine` for the tokens as generated; `retokenized` where they were made from
            the text, which may split it otherwise than the model did; `unknown` for none.
        num_tokens: where `token_ids` is None, the server's own count.
    """

    text: str
    token_ids: list[int] | None
    is_truncated: bool
    finish_reason: str | None = None
    seed: int | None = None
    token_source: TokenSource = "engine"
    num_tokens: int | None = None

    @property
    def length(self) -> int:
        """Tokens of the completion."""
        return (self.num_tokens or 0) if self.token_ids is None else len(self.token_ids)


class Sampler(Protocol):
    """Anything that draws completions."""

    def sample(
        self,
        prompts: Sequence[Any],
        num_samples: int,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
        seed: int,
    ) -> list[list[Sample]]:
        """Draw `num_samples` completions of each prompt.

        Args:
            prompts: lists of messages, or plain strings.
            num_samples: completions a prompt.
            temperature: of sampling; 0 for greedy.
            top_p: nucleus; 1 for none.
            max_new_tokens: limit of a completion, in tokens.
            seed: equal arguments and seed give equal completions, whatever was drawn before.

        Returns:
            A list of `num_samples` samples for each prompt, in the order of `prompts`.
        """
        ...


@runtime_checkable
class RemoteSampler(Protocol):
    """A sampler whose completions are made elsewhere, and may cost money.

    Attributes:
        shards_ahead: shards worth sampling at a time, so that the far end is never idle.
    """

    shards_ahead: int

    def keep_answers_in(self, folder: Path | None) -> None:
        """Keep every answer in a file of `folder` as it comes, one file a `seed` of `sample`; an
        answer that is there is not asked for again."""
        ...

    def forget_answers(self, seed: int) -> None:
        """Remove that file: what it holds is stored elsewhere."""
        ...

    def close(self) -> None:
        """Give up what is under way."""
        ...


def derive_seed(seed: int, *parts: int | str) -> int:
    """A 63-bit seed for a part of the work, so that parts can be redone or skipped."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
