"""Which samples are fit to learn from, and why each other one is not.

One verdict a sample, a word that can be counted: `kept`, or the first of `REASONS` that applies.
The paper keeps what is correct and readable (sections 2.3.1 and 2.3.3: one language, no long
paragraphs, no code blocks). Where the rules can't grade, a model may be asked (`model_judge`).
Left out: drawing the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.sampling import NO_ROOM, Sample
from trl_r1.sampling.filters import SampleFilters
from trl_r1.sampling.grading import Reward, call_reward
from trl_r1.sampling.mentions import without_mentions
from trl_r1.sampling.readability import has_code_block, is_repetitive, longest_paragraph
from trl_r1.sampling.selection import rank_samples
from trl_r1.sampling.tidying import tidy
from trl_r1.tasks import find_task

# What asks a model: rows, their samples and a seed in, a score for each out.
AskModel = Callable[[Sequence[Mapping[str, Any]], Sequence[Sample], int], list[float | None]]

JUDGE = "judge"
KEPT = "kept"
REASONS = (
    NO_ROOM,
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


@dataclass(frozen=True)
class Check:
    """A reward in use.

    Attributes:
        name: of its column in `samples/`.
        function: the TRL reward.
        tasks: rows it has a say on, by their `task`; empty for all.
        is_required: False for one that is only recorded.
        record: plain data that its scores depend on.
        needs: columns that it can't do without.
    """

    name: str
    function: Reward
    tasks: tuple[str, ...] = ()
    is_required: bool = True
    record: Mapping[str, Any] | None = None
    needs: tuple[str, ...] = ()

    def decides(self, task: str | None) -> bool:
        """Whether rows of that task have to pass it."""
        return self.is_required and (not self.tasks or task in self.tasks)


@dataclass(frozen=True)
class Judgement:
    """What is thought of a sample.

    Attributes:
        verdict: `kept`, or the reason why not.
        scores: what the rewards said, by name of the check, and `judge`.
        target: the SFT target it would be.
        is_open: nothing is wrong with it but that the rewards can't grade it.
    """

    verdict: str
    scores: Mapping[str, float | None]
    target: str
    is_open: bool = False


class SampleJudge:
    """Judges the samples of prompts.

    Args:
        fmt: response format of reasoning rows.
        checks: the rewards.
        filters: the rest of what a sample has to pass.
        language_reward: TRL reward that is 1.0 for reasoning in one language; None for no such
            filter.
        seed: of the policy `random`, and of the judge's sampling.
        ask_model: a model that grades what is ungradable by the rewards, `ModelJudge` as a rule; it
            is not asked about samples that have another fault.

    Raises:
        ValueError: where `best_by` names no reward.
    """

    def __init__(
        self,
        fmt: ReasoningFormat,
        checks: Sequence[Check],
        filters: SampleFilters,
        language_reward: Reward | None = None,
        seed: int = 0,
        ask_model: AskModel | None = None,
    ) -> None:
        names = [check.name for check in checks]
        if filters.best_by is not None and filters.best_by not in names:
            raise ValueError(f"best_by is {filters.best_by!r}; the rewards are {names}")
        self.ask_model = ask_model
        self.fmt = fmt
        self.checks = list(checks)
        self.filters = filters
        self.language_reward = language_reward
        self.seed = seed

    def judge(
        self,
        rows: Sequence[Mapping[str, Any]],
        samples: Sequence[Sequence[Sample]],
        seed: int | None = None,
    ) -> list[list[Judgement]]:
        """Judge the samples of each row; rewards are called once for all of them.

        Args:
            rows: P rows with different prompts.
            samples: P lists of samples.
            seed: of the judge's sampling; this object's own by default.
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
        own_seed = self.seed if seed is None else seed
        judged = self._judged_by_model(flat_rows, flat, judged, own_seed)
        groups, start = [], 0
        for row, group in zip(rows, samples, strict=True):
            groups.append(self._select(row, judged[start : start + len(group)]))
            start += len(group)
        return groups

    def passes_again(
        self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample]
    ) -> list[bool]:
        """Whether samples that were kept would be kept with other texts.

        Args:
            rows: B rows.
            samples: B samples with their new texts; whatever counts tokens counts the old ones.
        """
        if not samples:
            return []
        scores = {check.name: call_reward(check.function, rows, samples) for check in self.checks}
        languages = self._language_scores(rows, samples)
        verdicts = [
            self._judge_one(
                row, sample, {name: values[i] for name, values in scores.items()}, languages[i]
            ).verdict
            for i, (row, sample) in enumerate(zip(rows, samples, strict=True))
        ]
        # The answer is the one that the model has judged already.
        return [v == KEPT or (v == "ungradable" and self.ask_model is not None) for v in verdicts]

    def _judge_one(
        self,
        row: Mapping[str, Any],
        sample: Sample,
        scores: Mapping[str, float | None],
        language: float | None,
    ) -> Judgement:
        target = self._target(row, sample)
        faults = self._faults(row, sample, target, language)
        task = row.get("task")
        decisive = [scores[check.name] for check in self.checks if check.decides(task)]
        must_be_judged = self.ask_model is not None and not decisive
        faults["ungradable"] = must_be_judged or any(score is None for score in decisive)
        faults["wrong"] = any(s is not None and s < self.filters.min_reward for s in decisive)
        found = [reason for reason in REASONS if faults.get(reason)]
        return Judgement(found[0] if found else KEPT, scores, target, found == ["ungradable"])

    def _judged_by_model(
        self,
        rows: Sequence[Mapping[str, Any]],
        samples: Sequence[Sample],
        judged: Sequence[Judgement],
        seed: int,
    ) -> list[Judgement]:
        """The judgements, with those open that a model can close."""
        if self.ask_model is None:
            return list(judged)
        closed = [replace(one, scores={**one.scores, JUDGE: None}) for one in judged]
        asked = [i for i, judgement in enumerate(judged) if judgement.is_open]
        if not asked:
            return closed
        values = self.ask_model([rows[i] for i in asked], [samples[i] for i in asked], seed)
        for i, value in zip(asked, values, strict=True):
            verdict = "ungradable" if value is None else KEPT if value == 1.0 else "wrong"
            scores = {**judged[i].scores, JUDGE: value}
            closed[i] = Judgement(verdict, scores, judged[i].target)
        return closed

    def _target(self, row: Mapping[str, Any], sample: Sample) -> str:
        clean = tidy if self.filters.tidy else str.strip
        if not is_reasoning(row.get("task")):
            return clean(sample.text)
        parts = self.fmt.parse(sample.text)
        if not parts.is_well_formed:
            return self.fmt.target(sample.text)
        # Rendered anew, so that the spacing around the tags is the format's own in every target.
        return self.fmt.render(clean(parts.reasoning or ""), parts.answer or "")

    def _faults(
        self, row: Mapping[str, Any], sample: Sample, target: str, language: float | None
    ) -> dict[str, bool]:
        """What is wrong with a sample, whether its answer is right or not."""
        parts = self.fmt.parse(sample.text) if is_reasoning(row.get("task")) else None
        # Reasoning that is not there is malformed; it is in no language.
        has_reasoning = parts is not None and bool((parts.reasoning or "").strip())
        return {
            NO_ROOM: sample.finish_reason == NO_ROOM,
            "truncated": sample.is_truncated,
            "malformed": self.filters.require_format
            and parts is not None
            and not parts.is_well_formed,
            **self._unreadable(row, target),
            "mixed_language": has_reasoning and language is not None and language < 1.0,
        }

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
        spoken = [
            replace(sample, text=without_mentions(sample.text, language)) if language else sample
            for sample, language in zip(samples, languages, strict=True)
        ]
        return call_reward(self.language_reward, told, spoken)

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
            ranked = rank_samples(
                self.filters.policy,
                [group[i].target for i in accepted],
                [group[i].scores for i in accepted],
                str(row["prompt"]),
                self.seed,
                self.filters.best_by,
            )
            for i in ranked[self.filters.keep_per_prompt :]:
                verdicts[accepted[i]] = "surplus"
        return [replace(one, verdict=v) for v, one in zip(verdicts, group, strict=True)]


def is_reasoning(task: str | None) -> bool:
    """Whether its rows answer in the reasoning format: all but known tasks of another kind."""
    found = find_task(task)
    return found is None or found.kind == "reasoning"
