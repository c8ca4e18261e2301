"""Completions of a set of prompts, and what is done to them shard by shard.

`Sampler` is the interface; `TransformersSampler` draws with plain transformers. Engines and servers
fit behind the same method. Left out on purpose: rewards (a stage's business) and any scheduling of
its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Sample:
    """One completion.

    Attributes:
        text: decoded completion without special tokens.
        token_ids: the tokens as generated, the end token included where there was one.
        is_truncated: the limit was reached before an end token.
    """

    text: str
    token_ids: list[int]
    is_truncated: bool


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


def derive_seed(seed: int, *parts: int | str) -> int:
    """A 63-bit seed for a part of the work, so that parts can be redone or skipped."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
