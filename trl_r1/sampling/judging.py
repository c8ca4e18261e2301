"""Which samples are fit to learn from, and why each other one is not.

One verdict a sample, a word that can be counted: `kept`, or the first of `REASONS` that applies.
The paper keeps what is correct and readable (sections 2.3.1 and 2.3.3: one language, no long
paragraphs, no code blocks). Rules only. Left out on purpose: generative judges.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.sampling import Sample, derive_seed
from trl_r1.sampling.grading import Reward, call_reward
from trl_r1.sampling.readability import has_code_block, is_repetitive, longest_paragraph
from trl_r1.tasks import find_task

Policy = Literal["first", "shortest", "longest", "random"]

KEPT = "kept"
REASONS = (
    "truncated",
    "malformed",
    "ungradable",
    "wrong",
    "repetitive",
    "long_paragraph",
    "code_block",
    "mixed_language",
    "duplicate",
    "surplus",
)


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
        default="first", metadata={"help": "Which accepted samples are kept where there are more."}
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


@dataclass(frozen=True)
class Check:
    """A reward in use.

    Attributes:
        name: of its column in `samples/`.
        function: the TRL reward.
        tasks: rows it has a say on, by their `task`; empty for all.
        is_required: False for one that is only recorded.
    """

    name: str
    function: Reward
    tasks: tuple[str, ...] = ()
    is_required: bool = True

    def decides(self, task: str | None) -> bool:
        """Whether rows of that task have to pass it."""
        return self.is_required and (not self.tasks or task in self.tasks)


@dataclass(frozen=True)
class Judgement:
    """A verdict, what the rewards said (by name of the check), and the SFT target it would be."""

    verdict: str
    scores: Mapping[str, float | None]
    target: str


class SampleJudge:
    """Judges the samples of prompts.

    Args:
        fmt: response format of reasoning rows.
        checks: the rewards.
        filters: the rest of what a sample has to pass.
        language_reward: TRL reward that is 1.0 for reasoning in one language; None for no such
            filter.
        seed: of the policy `random`.
    """

    def __init__(
        self,
        fmt: ReasoningFormat,
        checks: Sequence[Check],
        filters: SampleFilters,
        language_reward: Reward | None = None,
        seed: int = 0,
    ) -> None:
        self.fmt = fmt
        self.checks = list(checks)
        self.filters = filters
        self.language_reward = language_reward
        self.seed = seed

    def judge(
        self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sequence[Sample]]
    ) -> list[list[Judgement]]:
        """Judge the samples of each row; rewards are called once for all of them.

        Args:
            rows: P rows with different prompts.
            samples: P lists of samples.
        """
        flat_rows = [row for row, group in zip(rows, samples, strict=True) for _ in group]
        flat = [sample for group in samples for sample in group]
        scores = {check.name: call_reward(check.function, flat_rows, flat) for check in self.checks}
        languages = self._language_scores(flat_rows, flat)
        judged = [
            self._judge_one(
                row, sample, {name: values[i] for name, values in scores.items()}, languages[i]
            )
            for i, (row, sample) in enumerate(zip(flat_rows, flat, strict=True))
        ]
        groups, start = [], 0
        for row, group in zip(rows, samples, strict=True):
            groups.append(self._select(row, judged[start : start + len(group)]))
            start += len(group)
        return groups

    def _judge_one(
        self,
        row: Mapping[str, Any],
        sample: Sample,
        scores: Mapping[str, float | None],
        language: float | None,
    ) -> Judgement:
        task = row.get("task")
        parts = self.fmt.parse(sample.text) if is_reasoning(task) else None
        is_tidy = parts is not None and parts.is_well_formed
        target = sample.text.strip() if parts is None else self.fmt.target(sample.text)
        if parts is not None and is_tidy:
            # Rendered anew, so that the spacing around the tags is the format's own in every
            # target.
            target = self.fmt.render(parts.reasoning or "", parts.answer or "")
        decisive = [scores[check.name] for check in self.checks if check.decides(task)]
        faults = {
            "truncated": sample.is_truncated,
            "malformed": self.filters.require_format and parts is not None and not is_tidy,
            "ungradable": any(score is None for score in decisive),
            "wrong": any(s is not None and s < self.filters.min_reward for s in decisive),
            **self._unreadable(row, target),
            "mixed_language": parts is not None and language is not None and language < 1.0,
        }
        verdict = next((reason for reason in REASONS if faults.get(reason)), KEPT)
        return Judgement(verdict, scores, target)

    def _unreadable(self, row: Mapping[str, Any], text: str) -> dict[str, bool]:
        filters = self.filters
        limit = filters.max_paragraph_words
        return {
            "repetitive": filters.reject_repetition
            and is_repetitive(text, filters.repetition_ngram, filters.max_ngram_repeats),
            "long_paragraph": limit is not None and longest_paragraph(text) > limit,
            "code_block": filters.reject_code and not row.get("tests") and has_code_block(text),
        }

    def _language_scores(
        self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample]
    ) -> list[float | None]:
        if self.language_reward is None or self.filters.language is None:
            return [None] * len(samples)
        # General rows need not think, and so have nothing to be judged by.
        languages = [
            (row.get("language") or self.filters.language)
            if is_reasoning(row.get("task"))
            else None
            for row in rows
        ]
        told = [
            {**row, "language": language} for row, language in zip(rows, languages, strict=True)
        ]
        return call_reward(self.language_reward, told, samples)

    def _select(self, row: Mapping[str, Any], group: Sequence[Judgement]) -> list[Judgement]:
        """Mark what is said twice, and what is more than is wanted of a prompt."""
        verdicts = [judgement.verdict for judgement in group]
        seen: set[str] = set()
        for i, judgement in enumerate(group):
            if verdicts[i] != KEPT:
                continue
            if judgement.target in seen:
                verdicts[i] = "duplicate"
            seen.add(judgement.target)
        accepted = [i for i, verdict in enumerate(verdicts) if verdict == KEPT]
        if self.filters.keep_per_prompt is not None:
            ranked = self._ranked(row, group, accepted)
            for i in ranked[self.filters.keep_per_prompt :]:
                verdicts[i] = "surplus"
        return [
            Judgement(verdict, judgement.scores, judgement.target)
            for verdict, judgement in zip(verdicts, group, strict=True)
        ]

    def _ranked(
        self, row: Mapping[str, Any], group: Sequence[Judgement], accepted: list[int]
    ) -> list[int]:
        policy = self.filters.policy
        if policy == "random":
            draw = random.Random(derive_seed(self.seed, str(row["prompt"])))
            return draw.sample(accepted, len(accepted))
        if policy == "first":
            return accepted
        sign = 1 if policy == "shortest" else -1
        return sorted(accepted, key=lambda i: sign * len(group[i].target))


def is_reasoning(task: str | None) -> bool:
    """Whether its rows answer in the reasoning format: all but known tasks of another kind."""
    known = find_task(task)
    return known is None or known.kind == "reasoning"
