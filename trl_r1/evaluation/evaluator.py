"""Draws samples of problems and scores them, shard by shard.

An answer is judged by its task's grader; what can't be graded counts as wrong. Left out: which
problems, which model, and what becomes of the scores (`trl_r1.stages.evaluation`, `job`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trl_r1.evaluation.problems import (
    answer_of,
    grader_of,
    kind_of_answers,
    language_of,
    problem_hash,
)
from trl_r1.evaluation.same_answers import votes_of
from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.rewards.think_format import THINK_CLOSE
from trl_r1.sampling import RemoteSampler, Sample, Sampler, derive_seed
from trl_r1.sampling.drawing import Drawn, drawn_ahead
from trl_r1.sampling.grading import Reward, call_reward
from trl_r1.sampling.processes import Processes, ShardQueue
from trl_r1.sampling.sample_rows import sample_row
from trl_r1.sampling.shards import ShardFolder
from trl_r1.stages import RewardSpec
from trl_r1.training.arguments import EvaluationSettings, GradingArguments

# Problems a shard: the most that a kill costs. Fixed, since the seeds and so the scores go by it.
SHARD_SIZE = 512
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


class Evaluator:
    """Draws samples of problems and scores them.

    Args:
        sampler: where completions come from.
        settings: problems and sampling.
        fmt: response format of reasoning prompts.
        shard_size: problems a shard; `SHARD_SIZE` by default.
    """

    def __init__(
        self,
        sampler: Sampler,
        settings: EvaluationSettings,
        fmt: ReasoningFormat,
        shard_size: int | None = None,
    ) -> None:
        self.sampler = sampler
        self.shard_size = shard_size or SHARD_SIZE
        self.settings = settings
        self.fmt = fmt
        self.preference = _preference_reward(settings.preference_model)
        self._graders: dict[str, Reward] = {}

    def score_shard(
        self, problems: Sequence[Mapping[str, Any]], index: int
    ) -> list[dict[str, Any]]:
        """Samples of the problems of shard `index`, scored: a row each."""
        return self.score(problems, index, self.draw(problems, index))

    def draw(self, problems: Sequence[Mapping[str, Any]], index: int) -> Drawn:
        """The samples of shard `index`."""
        settings = self.settings
        return self.sampler.sample(
            [row["prompt"] for row in self._shard(problems, index)],
            num_samples=settings.num_samples,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
            seed=self.seed_of(index),
        )

    def seed_of(self, index: int) -> int:
        """What the samples of a shard start from."""
        return derive_seed(self.settings.seed, index)

    def score(
        self, problems: Sequence[Mapping[str, Any]], index: int, drawn: Drawn
    ) -> list[dict[str, Any]]:
        """The samples of shard `index` with their scores: a row each."""
        shard, start = self._shard(problems, index), index * self.shard_size
        pairs = [
            (start + offset, row, number, sample)
            for offset, (row, group) in enumerate(zip(shard, drawn, strict=True))
            for number, sample in enumerate(group)
        ]
        rows, samples = [pair[1] for pair in pairs], [pair[3] for pair in pairs]
        scores = self._grade(rows, samples)
        preferences = self._prefer(rows, samples)
        hashes = [problem_hash(row) for row in shard]
        told = [
            {
                **sample_row(row, problem, number, sample),
                "problem_hash": hashes[problem - start],
                "is_general": row["is_general"],
                "score": scores[i],
                "is_well_formed": self.fmt.parse(sample.text).is_well_formed,
                "preference": preferences[i],
                **self._as_told(sample, row),
            }
            for i, (problem, row, number, sample) in enumerate(pairs)
        ]
        kinds = [None if row["is_general"] else kind_of_answers(row.get("task")) for row in rows]
        return [
            {**row, "vote": vote} for row, vote in zip(told, votes_of(told, kinds), strict=True)
        ]

    def _shard(
        self, problems: Sequence[Mapping[str, Any]], index: int
    ) -> Sequence[Mapping[str, Any]]:
        start = index * self.shard_size
        return problems[start : start + self.shard_size]

    def _as_told(self, sample: Sample, row: Mapping[str, Any]) -> dict[str, Any]:
        if row["is_general"]:
            return {"answer": None, "language_share": None}
        is_prefilled = self.fmt.is_prefilled
        read = self._as_read(sample, row).text
        return {
            "answer": answer_of(read, row, is_prefilled),
            "language_share": language_of(sample.text, row, is_prefilled),
        }

    def _grade(
        self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample]
    ) -> list[float | None]:
        """Each sample's score by the grader of its row's task; one call a grader."""
        graders = [grader_of(row.get("task")) for row in rows]
        scores: list[float | None] = [None] * len(rows)
        for reference in dict.fromkeys(graders):
            chosen = [i for i, name in enumerate(graders) if name == reference]
            graded = [self._as_read(samples[i], rows[i]) for i in chosen]
            values = call_reward(
                self._grader(reference), [_columns(rows[i]) for i in chosen], graded
            )
            for i, value in zip(chosen, values, strict=True):
                scores[i] = value
        return scores

    def _grader(self, reference: str) -> Reward:
        if reference not in self._graders:
            from trl_r1.verification.stage_rewards import build_stage_reward

            spec = RewardSpec(reference)
            self._graders[reference] = build_stage_reward(spec, GradingArguments(), self.fmt)
        return self._graders[reference]

    def _as_read(self, sample: Sample, row: Mapping[str, Any]) -> Sample:
        if self.settings.extraction == "strict" or row["is_general"]:
            return sample
        return replace(sample, text=last_number(sample.text))

    def _prefer(
        self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample]
    ) -> list[float | None]:
        scores: list[float | None] = [None] * len(rows)
        chosen = [i for i, row in enumerate(rows) if row["is_general"]]
        if self.preference is None or not chosen:
            return scores
        values = call_reward(
            self.preference, [_columns(rows[i]) for i in chosen], [samples[i] for i in chosen]
        )
        for i, value in zip(chosen, values, strict=True):
            scores[i] = value
        return scores


def score_missing(
    evaluator: Evaluator,
    problems: Sequence[Mapping[str, Any]],
    shards: ShardFolder,
    processes: Processes,
    on_progress: Callable[[int, int, Mapping[str, float]], None],
) -> None:
    """Draw, score and write the shards that are missing of this process's share.

    Args:
        evaluator: with an open sampler.
        problems: all of them.
        shards: where samples go.
        processes: this process among others.
        on_progress: called with (shards made, shards, figures) after each.
    """
    sampler = evaluator.sampler
    remote = sampler if isinstance(sampler, RemoteSampler) else None
    if remote is not None:
        # An answer that was paid for is not asked for again.
        remote.keep_answers_in(shards.partial)
    queue = ShardQueue(shards, processes)
    with drawn_ahead(queue, lambda index: evaluator.draw(problems, index), remote) as drawn:
        for index, samples in drawn:
            rows = evaluator.score(problems, index, samples)
            shards.write(index, rows)
            if remote is not None:
                remote.forget_answers(evaluator.seed_of(index))
            on_progress(shards.num_made(), shards.num_shards, {})


def last_number(text: str) -> str:
    """The last number of a response, boxed, for grading without the format; "" for none."""
    numbers = _NUMBER.findall(text.rpartition(THINK_CLOSE)[2]) or _NUMBER.findall(text)
    return f"\\boxed{{{numbers[-1]}}}" if numbers else ""


def num_shards(problems: Sequence[Any], shard_size: int | None = None) -> int:
    """Shards that the problems make."""
    return -(-len(problems) // (shard_size or SHARD_SIZE))


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("completion", "is_general")}


def _preference_reward(model_path: str | None) -> Reward | None:
    if model_path is None:
        return None
    from trl_r1.rewards.preference_model import PreferenceModelReward

    reward: Reward = PreferenceModelReward(model_path)
    return reward
