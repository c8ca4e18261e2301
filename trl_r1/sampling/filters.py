"""What a sample has to pass to become data, as keys of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from trl_r1.rewards.language_consistency import LANGUAGES
from trl_r1.sampling.selection import Policy


@dataclass
class SampleFilters:
    """What a sample has to pass; the defaults reject all that the paper rejects."""

    min_reward: float = field(
        default=1.0,
        metadata={"help": "What each of the stage's rewards of positive weight has to reach."},
    )
    keep_per_prompt: int | None = field(
        default=None, metadata={"help": "Accepted samples kept a prompt; None for all."}
    )
    policy: Policy = field(
        default="first",
        metadata={
            "help": "Which accepted samples are kept where there are more: `first`, `shortest`, "
            "`longest`, `random`, `diverse` (least alike) or `best_reward`."
        },
    )
    best_by: str | None = field(
        default=None,
        metadata={"help": "Reward that `best_reward` goes by; None for the sum of all."},
    )
    tidy: bool = field(
        default=True,
        metadata={"help": "Clean targets of unseen characters and superfluous white space."},
    )
    require_format: bool = field(
        default=True, metadata={"help": "Reject reasoning that is not well-formed."}
    )
    reject_repetition: bool = field(
        default=True, metadata={"help": "Reject samples that repeat themselves."}
    )
    repetition_ngram: int = field(
        default=10, metadata={"help": "Length in words of a run that counts as repeated."}
    )
    max_ngram_repeats: int = field(
        default=3, metadata={"help": "Times the same run of words may occur in a sample."}
    )
    max_paragraph_words: int | None = field(
        default=300, metadata={"help": "Longest stretch without a line break; None for any."}
    )
    reject_code: bool = field(
        default=True, metadata={"help": "Reject code blocks, except in rows that have `tests`."}
    )
    language: str | None = field(
        default="en",
        metadata={"help": "Language the reasoning has to keep to; None to accept a mixture."},
    )

    def __post_init__(self) -> None:
        policies = get_args(Policy)
        if self.policy not in policies:
            raise ValueError(f"unknown policy {self.policy!r}; known: {', '.join(policies)}")
        if self.keep_per_prompt is not None and self.keep_per_prompt < 1:
            raise ValueError(
                f"keep_per_prompt is {self.keep_per_prompt}; use 1 or more, or None for all"
            )
        for name in ("repetition_ngram", "max_ngram_repeats", "max_paragraph_words"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; it has to be at least 1")
        if self.language is not None and language_code(self.language) not in LANGUAGES:
            raise ValueError(f"unknown language {self.language!r}; known: {', '.join(LANGUAGES)}")
        if self.best_by is not None and self.policy != "best_reward":
            raise ValueError(f"best_by is for `policy: best_reward`; the policy is {self.policy}")


def language_code(language: str) -> str:
    """The language alone of a code with a region: `pt` of `pt_BR`."""
    return language.replace("_", "-").partition("-")[0].casefold()
