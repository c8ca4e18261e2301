"""Evaluation: how often a model is right on held-out problems, and what its answers look like.

`evaluate_model` gives the scores that the runner stores before and after each stage; the
`evaluation` stage also keeps every sample, shard by shard, so that a long evaluation goes on after
a kill. Pass@1 is the mean over the samples of all problems (paper, appendix on evaluation), each
judged by its task's grader; an answer that can't be graded counts as wrong. Left out on purpose:
pass@k, majority votes and intervals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.rewards.think_format import THINK_CLOSE
from trl_r1.sampling import Sample, Sampler, derive_seed
from trl_r1.sampling.engines import closing_sampler, open_sampler
from trl_r1.sampling.grading import Reward, call_reward
from trl_r1.sampling.processes import current_processes
from trl_r1.sampling.prompts import check_room
from trl_r1.sampling.sample_rows import sample_row, sample_schema
from trl_r1.sampling.shards import ShardFolder, fingerprint, read_shards
from trl_r1.stages import RewardSpec, StageContext, StageResult, StageSpec
from trl_r1.tasks import DatasetSource, find_task, load_rows
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
) -> dict[str, float]:
    """Score a model on held-out problems.

    Args:
        model_path: folder or id of a model or an adapter.
        settings: problems and sampling.
        fmt: response format of reasoning prompts.
        model_args: how to load the model.

    Returns:
        `pass@1`, `format` (share of well-formed responses) and `mean_length` (tokens, the end token
        included) on `settings.datasets`; `general` on `settings.general`; `preference`, the
        preference model's mean score of the general answers. Only those that the settings have data
        for.

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
    return summarise(rows, len(problems), settings.num_samples)


class Evaluator:
    """Draws samples of problems and scores them.

    Args:
        sampler: where completions come from.
        settings: problems and sampling.
        fmt: response format of reasoning prompts.
    """

    def __init__(
        self, sampler: Sampler, settings: EvaluationSettings, fmt: ReasoningFormat
    ) -> None:
        self.sampler = sampler
        self.settings = settings
        self.fmt = fmt
        self.preference = _preference_reward(settings.preference_model)
        self._graders: dict[str, Reward] = {}

    def score_shard(
        self, problems: Sequence[Mapping[str, Any]], index: int
    ) -> list[dict[str, Any]]:
        """Samples of the problems of shard `index`, scored: a row each."""
        settings = self.settings
        start = index * SHARD_SIZE
        shard = problems[start : start + SHARD_SIZE]
        drawn = self.sampler.sample(
            [row["prompt"] for row in shard],
            num_samples=settings.num_samples,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
            seed=derive_seed(settings.seed, index),
        )
        check_room(drawn)
        pairs = [
            (start + offset, row, number, sample)
            for offset, (row, group) in enumerate(zip(shard, drawn, strict=True))
            for number, sample in enumerate(group)
        ]
        rows, samples = [pair[1] for pair in pairs], [pair[3] for pair in pairs]
        scores = self._grade(rows, samples)
        preferences = self._prefer(rows, samples)
        return [
            {
                **sample_row(row, problem, number, sample),
                "is_general": row["is_general"],
                "score": scores[i],
                "is_well_formed": self.fmt.parse(sample.text).is_well_formed,
                "preference": preferences[i],
            }
            for i, (problem, row, number, sample) in enumerate(pairs)
        ]

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
    """The stage: scores, and all samples as parquet."""
    settings = context.config(EvaluationSettings)
    model_args = context.config(ModelArguments)
    fmt = get_format(model_args.reasoning_format)
    problems = load_problems(settings, fmt)
    record = {"settings": asdict(settings), "rows": fingerprint(problems)}
    shards = ShardFolder(
        context.output_dir / "samples",
        num_shards(problems),
        sample_schema(problems[0]["prompt"], _COLUMNS),
        record,
    )
    processes = current_processes()
    if missing := processes.share(shards.missing()):
        path = str(model_args.model_name_or_path)
        with closing_sampler(_load_sampler(path, settings, fmt, model_args)) as sampler:
            evaluator = Evaluator(sampler, settings, fmt)
            for index in missing:
                shards.write(index, evaluator.score_shard(problems, index))
                context.on_progress(index + 1, shards.num_shards, {})
    processes.wait()
    if processes.is_main:
        shards.finish()
    processes.wait()
    rows = (row for _, part in read_shards(shards.folder, _SCORED) for row in part)
    scores = summarise(rows, len(problems), settings.num_samples)
    details = {"problems": len(problems), "samples": len(problems) * settings.num_samples}
    return StageResult(details=details, scores=scores)


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


def summarise(
    rows: Iterable[Mapping[str, Any]], num_problems: int, num_samples: int
) -> dict[str, float]:
    """Scores from scored samples; see `evaluate_model`.

    Raises:
        RuntimeError: where there are not `num_samples` samples for each of the problems.
    """
    reasoning: list[Mapping[str, Any]] = []
    general: list[Mapping[str, Any]] = []
    for row in rows:
        (general if row["is_general"] else reasoning).append(row)
    if len(reasoning) + len(general) != num_problems * num_samples:
        raise RuntimeError(
            f"{len(reasoning) + len(general)} samples were drawn for {num_problems} problems; "
            f"expected {num_samples} each"
        )
    scores: dict[str, float] = {}
    if reasoning:
        scores["pass@1"] = _mean(row["score"] == 1.0 for row in reasoning)
        scores["format"] = _mean(row["is_well_formed"] for row in reasoning)
        scores["mean_length"] = _mean(row["num_tokens"] for row in reasoning)
    if general:
        scores["general"] = _mean(row["score"] == 1.0 for row in general)
    preferences = [row["preference"] for row in general if row["preference"] is not None]
    if preferences:
        scores["preference"] = _mean(preferences)
    return scores


def last_number(text: str) -> str:
    """The last number of a response, boxed, for grading without the format; "" for none."""
    numbers = _NUMBER.findall(text.rpartition(THINK_CLOSE)[2]) or _NUMBER.findall(text)
    return f"\\boxed{{{numbers[-1]}}}" if numbers else ""


def grader_of(task: str | None) -> str:
    """Reference of the grader of a task's rows; `math_answer` for rows of no known task."""
    known = find_task(task)
    return known.grader if known else "math_answer"


def num_shards(problems: Sequence[Any]) -> int:
    """Shards that the problems make."""
    return -(-len(problems) // SHARD_SIZE)


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("completion", "is_general")}


def _mean(values: Iterable[float]) -> float:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers)


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


# What `summarise` reads.
_SCORED = ("is_general", "score", "is_well_formed", "num_tokens", "preference")
_COLUMNS = [
    ("is_general", pa.bool_()),
    ("score", pa.float64()),
    ("is_well_formed", pa.bool_()),
    ("preference", pa.float64()),
]
