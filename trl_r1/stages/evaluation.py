"""Evaluation: how often a model is right on held-out problems, and what its answers look like.

`evaluate_model` gives the scores that the runner stores before and after each stage; the
`evaluation` stage also keeps every sample, shard by shard, so that a long evaluation goes on after
a kill. Pass@1 is the mean over the samples of all problems (paper, appendix on evaluation), each
judged by its task's grader; an answer that can't be graded counts as wrong. Which scores there are
says `trl_r1.evaluation.scores`, what is stored `trl_r1.evaluation.record`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trl_r1.evaluation.problems import answer_of, grader_of, language_of, problem_hash
from trl_r1.evaluation.record import OWN_COLUMNS, VERSION, keep_some, template_of, write_record
from trl_r1.evaluation.scores import SCORED, summarise
from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.rewards.think_format import THINK_CLOSE
from trl_r1.sampling import RemoteSampler, Sample, Sampler, derive_seed
from trl_r1.sampling.drawing import Drawn, drawn_ahead
from trl_r1.sampling.engines import closing_sampler, open_sampler
from trl_r1.sampling.grading import Reward, call_reward
from trl_r1.sampling.processes import Processes, ShardQueue, current_processes
from trl_r1.sampling.sample_rows import sample_row, sample_schema
from trl_r1.sampling.shards import ShardFolder, fingerprint, read_shards
from trl_r1.stages import RewardSpec, StageContext, StageResult, StageSpec
from trl_r1.tasks import DatasetSource, load_rows
from trl_r1.training.arguments import EvaluationSettings, GradingArguments, ModelArguments

SPEC = StageSpec(configs=(ModelArguments, EvaluationSettings), produces=("samples",))

# Problems a shard: the most that a kill costs. Fixed, since the seeds and so the scores go by it.
SHARD_SIZE = 512
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def evaluate_model(
    model_path: str,
    settings: EvaluationSettings,
    fmt: ReasoningFormat,
    model_args: ModelArguments,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Score a model on held-out problems.

    Args:
        model_path: folder or id of a model or an adapter.
        settings: problems and sampling.
        fmt: response format of reasoning prompts.
        model_args: how to load the model.
        keep: file for a part of the samples, see `trl_r1.evaluation.record`.

    Returns:
        The scores of `trl_r1.evaluation.scores`, with intervals: `pass@1`, `format`, `mean_length`
        and others on `settings.datasets`, `general` and `preference` on `settings.general`. Only
        those that the settings have data for.

    Raises:
        ValueError: where the settings name no data, a task can't grade, or servers are to have the
            model.
    """
    if settings.engine == "server":
        raise ValueError(
            "evaluation: servers have one model, and a run scores many; use `engine: vllm` or "
            "`transformers`, or a stage of its own with `stage: evaluation`"
        )
    problems = load_problems(settings, fmt)
    rows: list[dict[str, Any]] = []
    with closing_sampler(_load_sampler(model_path, settings, fmt, model_args)) as sampler:
        evaluator = Evaluator(sampler, settings, fmt)
        for index in range(num_shards(problems)):
            rows.extend(evaluator.score_shard(problems, index))
    if keep is not None:
        keep_some(keep, rows)
    return summarise(rows, len(problems), settings.num_samples)


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
        return [
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


def run(context: StageContext) -> StageResult:
    """The stage: scores, all samples as parquet, and a record of the evaluation."""
    settings = context.config(EvaluationSettings)
    model_args = context.config(ModelArguments)
    fmt = get_format(model_args.reasoning_format)
    problems = load_problems(settings, fmt)
    record = {"settings": asdict(settings), "rows": fingerprint(problems), "version": VERSION}
    shards = ShardFolder(
        context.output_dir / "samples",
        num_shards(problems),
        sample_schema(problems[0]["prompt"], OWN_COLUMNS),
        record,
    )
    processes = current_processes()
    if processes.share(shards.missing()):
        path = str(model_args.model_name_or_path)
        with closing_sampler(_load_sampler(path, settings, fmt, model_args)) as sampler:
            evaluator = Evaluator(sampler, settings, fmt)
            score_missing(evaluator, problems, shards, processes, context.on_progress)
    processes.wait()
    if processes.is_main:
        shards.finish()
        facts = {
            "model": str(model_args.model_name_or_path),
            "settings": asdict(settings),
            "template": template_of(fmt, None),
        }
        samples = (row for _, part in read_shards(shards.folder, SCORED) for row in part)
        write_record(context.output_dir, samples, len(problems), settings.num_samples, facts)
    processes.wait()
    rows = (row for _, part in read_shards(shards.folder, SCORED) for row in part)
    scores = summarise(rows, len(problems), settings.num_samples)
    details = {"problems": len(problems), "samples": len(problems) * settings.num_samples}
    return StageResult(details=details, scores=scores)


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


def load_problems(settings: EvaluationSettings, fmt: ReasoningFormat) -> list[dict[str, Any]]:
    """The rows of `datasets` and `general`, told apart by `is_general`; the `test` split by
    default.

    Raises:
        ValueError: where there are none.
    """
    problems = [
        {**row, "is_general": is_general}
        for sources, is_general in ((settings.datasets, False), (settings.general, True))
        for source in sources
        for row in load_rows(DatasetSource(**{"split": "test", **source}), fmt)
    ]
    if not problems:
        raise ValueError(
            "nothing to evaluate on: give `evaluation` at least one entry of `datasets`"
        )
    return problems


def last_number(text: str) -> str:
    """The last number of a response, boxed, for grading without the format; "" for none."""
    numbers = _NUMBER.findall(text.rpartition(THINK_CLOSE)[2]) or _NUMBER.findall(text)
    return f"\\boxed{{{numbers[-1]}}}" if numbers else ""


def num_shards(problems: Sequence[Any], shard_size: int | None = None) -> int:
    """Shards that the problems make."""
    return -(-len(problems) // (shard_size or SHARD_SIZE))


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("completion", "is_general")}


def _load_sampler(
    model_path: str,
    settings: EvaluationSettings,
    fmt: ReasoningFormat,
    model_args: ModelArguments,
) -> Sampler:
    engine = settings.engine_arguments()
    return open_sampler(engine, model_path, model_args, fmt, settings.batch_size)


def _preference_reward(model_path: str | None) -> Reward | None:
    if model_path is None:
        return None
    from trl_r1.rewards.preference_model import PreferenceModelReward

    reward: Reward = PreferenceModelReward(model_path)
    return reward
