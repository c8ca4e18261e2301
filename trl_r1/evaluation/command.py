"""`trl-r1 eval`: how often a model is right, by the paper's protocol, and how two models compare.

Temperature 0.6, top-p 0.95, several samples a problem, no examples in the prompt. The same command
again goes on where it was cut short. Left out: scoring the stages of a pipeline, which is
`evaluation:` in its `pipeline.yaml`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.sampling.command import add_engine_options, positive


def add_eval_command(commands: Any) -> None:
    """Add the command to the parser of `trl-r1`."""
    parser = commands.add_parser(
        "eval",
        help="score a model on held-out problems, or compare two evaluations",
        description="Score a model (a folder, an adapter or a Hub id) or servers (http://host:port"
        "/v1) on held-out problems as the paper does. The same command again goes on where it was "
        "cut short; several at a time, on one machine or more, share it. --compare shows the "
        "difference of two such evaluations on the same problems.",
    )
    parser.add_argument("model", nargs="*", metavar="MODEL_OR_URL", help="a model, or servers")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="folders of two evaluations"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="evaluations/MODEL-TASK")
    parser.add_argument(
        "--shard", metavar="I/N", help="make this part of the shards; any that are free by default"
    )
    _add_problems(parser.add_argument_group("problems"))
    _add_protocol(parser.add_argument_group("protocol"))
    add_engine_options(parser.add_argument_group("engine"))
    parser.set_defaults(run=_eval)


def _add_problems(group: Any) -> None:
    group.add_argument(
        "--task", nargs="+", default=[], metavar="NAME", help="tasks, or YAML files of some"
    )
    group.add_argument(
        "--data", metavar="DATA", help="a file, folder or Hub id: the task's source, or rows"
    )
    group.add_argument("--split", default="test", help="of the problems; test")
    group.add_argument("--num_rows", type=positive, metavar="N", help="problems of a task; all")
    group.add_argument(
        "--args", default="{}", metavar="YAML", help="of a task, as {dataset: chain_sum}"
    )


def _add_protocol(group: Any) -> None:
    group.add_argument(
        "--n", type=positive, metavar="N", help="samples a problem; the paper's for the task, or 4"
    )
    group.add_argument("--k", type=positive, nargs="+", metavar="K", help="of pass@k; 2, 4, 8 ...")
    group.add_argument("--temperature", type=float, default=0.6, metavar="T", help="0.6; 0: greedy")
    group.add_argument("--top_p", type=float, default=0.95, metavar="P", help="0.95")
    group.add_argument("--max_new_tokens", type=positive, default=32768, metavar="N", help="32768")
    group.add_argument("--format", default="r1", metavar="NAME", help="reasoning_format; r1")
    group.add_argument(
        "--extraction",
        choices=["strict", "lenient"],
        default="strict",
        help="lenient: the last number counts, whatever the format",
    )
    group.add_argument("--seed", type=int, default=0, help="0")
    group.add_argument("--shard_size", type=positive, default=32, metavar="N", help="problems; 32")


def _eval(options: argparse.Namespace) -> int:
    if options.compare:
        return _compare(options)
    from trl_r1.pipeline.quiet import QuietLog

    with QuietLog() as log:
        log.screen.write("Reading the problems ...\n")
        from trl_r1.evaluation.job import job_of
        from trl_r1.evaluation.tables import print_scores
        from trl_r1.sampling.server import ServerError
        from trl_r1.verification.bound_reward import RewardError

        out = log.screen or sys.stdout
        try:
            job = job_of(options)
            log.switch(job.output / "log.txt")
            out.write("".join(f"{line}\n" for line in job.headline()))
            document = job.run(lambda made, total, _: _progress(out, made, total))
        except (ValueError, ImportError, ServerError, RewardError) as error:
            raise PipelineError(str(error)) from error
        if document is None:
            out.write(
                "This part is done; other parts are not. The last to end puts all together.\n"
            )
            return 0
        print_scores(document, out)
        out.write(f"Everything is in {job.output}: evaluation.json, problems.parquet, samples/.\n")
    return 0


def _progress(out: Any, made: int, total: int) -> None:
    if out.isatty():
        out.write(f"\r\x1b[Kshard {made} of {total}" + ("\n" if made == total else ""))
    else:
        out.write(f"shard {made} of {total}\n")
    out.flush()


def _compare(options: argparse.Namespace) -> int:
    if options.model or options.task:
        raise PipelineError("--compare takes two folders of evaluations, no MODEL and no --task")
    from trl_r1.evaluation.compare import compare
    from trl_r1.evaluation.tables import print_comparison

    result = compare(*options.compare)
    print_comparison(result, sys.stdout)
    if options.output:
        result.write(options.output)
    return 0
