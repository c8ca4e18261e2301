"""Evaluation: how often a model is right on held-out problems, and what its answers look like.

`evaluate_model` gives the scores that the runner stores before and after each stage; the
`evaluation` stage also keeps every sample, shard by shard, so that a long evaluation goes on after
a kill. Pass@1 is the mean over the samples of all problems (paper, appendix on evaluation), each
judged by its task's grader; an answer that can't be graded counts as wrong. Which scores there are
says `trl_r1.evaluation.scores`, what is stored `trl_r1.evaluation.record`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from trl_r1.evaluation.evaluator import Evaluator, num_shards, score_missing
from trl_r1.evaluation.provenance import provenance
from trl_r1.evaluation.record import OWN_COLUMNS, VERSION, keep_some, write_record
from trl_r1.evaluation.scores import SCORED, summarise
from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.sampling import Sampler
from trl_r1.sampling.engines import closing_sampler, open_sampler
from trl_r1.sampling.processes import current_processes
from trl_r1.sampling.sample_rows import sample_schema
from trl_r1.sampling.shards import ShardFolder, fingerprint, read_shards
from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.tasks import DatasetSource, load_rows
from trl_r1.training.arguments import EvaluationSettings, ModelArguments

SPEC = StageSpec(configs=(ModelArguments, EvaluationSettings), produces=("samples",))


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
    path = str(model_args.model_name_or_path)
    if processes.share(shards.missing()):
        with closing_sampler(_load_sampler(path, settings, fmt, model_args)) as sampler:
            evaluator = Evaluator(sampler, settings, fmt)
            score_missing(evaluator, problems, shards, processes, context.on_progress)
    processes.wait()
    if processes.is_main:
        shards.finish()
        facts = {
            "model": path,
            "settings": {**asdict(settings), "model_revision": model_args.model_revision},
            **provenance(path, model_args, fmt, settings.engine_arguments()),
        }
        samples = (row for _, part in read_shards(shards.folder, SCORED) for row in part)
        write_record(context.output_dir, samples, len(problems), settings.num_samples, facts)
    processes.wait()
    rows = (row for _, part in read_shards(shards.folder, SCORED) for row in part)
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


def _load_sampler(
    model_path: str,
    settings: EvaluationSettings,
    fmt: ReasoningFormat,
    model_args: ModelArguments,
) -> Sampler:
    engine = settings.engine_arguments()
    return open_sampler(engine, model_path, model_args, fmt, settings.batch_size)
