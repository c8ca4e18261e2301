"""`trl-r1 sample`: completions of a model or of servers, graded and kept, shard by shard.

The stage `rejection_sampling` from the command line: all samples with their verdicts in
`DIR/samples`, the accepted ones in `DIR/dataset`, the figures in `DIR/summary.json`. Running the
same command again goes on where it was cut short; several at a time share the job. Left out: a
pipeline around it, which is `trl-r1 run`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.sampling.server_address import KEY_VARIABLE

if TYPE_CHECKING:
    from trl_r1.sampling.job import Job


def add_sample_command(commands: Any) -> None:
    """Add the command to the parser of `trl-r1`."""
    parser = commands.add_parser(
        "sample",
        help="draw samples of a model or of servers, grade them, keep the good ones",
        description="Draw samples of a model (a folder, an adapter or a Hub id) or of servers "
        "(http://host:port/v1, as many as there are), grade them, and keep the good ones. The same "
        "command again goes on where it was cut short; several at a time share the job.",
    )
    parser.add_argument("model", nargs="+", metavar="MODEL_OR_URL", help="a model, or servers")
    _add_problems(parser.add_argument_group("problems"))
    _add_sampling(parser.add_argument_group("sampling"))
    _add_judging(parser.add_argument_group("judging"))
    add_engine_options(parser.add_argument_group("engine"))
    _add_job(parser.add_argument_group("job"))
    parser.set_defaults(run=_sample)


def _add_problems(group: Any) -> None:
    group.add_argument("--task", metavar="NAME", help="a task, or a YAML file that declares one")
    group.add_argument(
        "--data", metavar="DATA", help="a file, folder or Hub id: the task's source, or rows"
    )
    group.add_argument("--split", default="train", help="of the problems; train")
    group.add_argument("--num_rows", type=positive, metavar="N", help="problems taken; all")
    group.add_argument("--format", default="r1", metavar="NAME", help="reasoning_format; r1")


def _add_sampling(group: Any) -> None:
    group.add_argument("--n", type=positive, default=8, metavar="N", help="samples a prompt; 8")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="1.0; 0: greedy")
    group.add_argument("--top_p", type=float, default=1.0, metavar="P", help="1.0")
    group.add_argument("--max_new_tokens", type=positive, default=4096, metavar="N", help="4096")
    group.add_argument("--seed", type=int, default=0, help="0")


def _add_judging(group: Any) -> None:
    group.add_argument(
        "--rewards", nargs="*", metavar="REF", help="as in a recipe; the task's grader by default"
    )
    group.add_argument(
        "--judge", nargs="+", default=[], metavar="URL", help="servers of a judge, for the rest"
    )
    group.add_argument("--judge_name", metavar="NAME", help="of the judge on its servers")
    group.add_argument("--keep", type=positive, metavar="K", help="accepted samples a prompt; all")
    group.add_argument("--policy", default="first", help="which are kept where there are more")
    group.add_argument("--language", default="en", help="of the reasoning, or none; en")


def add_engine_options(group: Any) -> None:
    """Add the options that say what generates."""
    group.add_argument(
        "--engine", choices=["transformers", "vllm"], default="transformers", help="of a model"
    )
    group.add_argument("--batch_size", type=positive, default=32, metavar="N", help="32")
    group.add_argument(
        "--continuous_batching",
        action="store_true",
        help="of transformers: no completion waits for longer ones",
    )
    group.add_argument("--dtype", help="of a model's weights, as bfloat16")
    group.add_argument("--chat_template", metavar="NAME", help="chatml or compact; the model's own")
    add_trust_options(group)
    group.add_argument("--vllm_options", default="{}", metavar="YAML", help="arguments of vllm.LLM")
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="of servers: prompts are rendered with its template; else with the servers' own",
    )
    group.add_argument("--served_name", metavar="NAME", help="of the model on the servers")
    group.add_argument(
        "--concurrency", type=positive, metavar="N", help="requests at a time, a server; 16"
    )
    group.add_argument(
        "--key_variable",
        default=KEY_VARIABLE,
        metavar="NAME",
        help=f"environment variable with the servers' API key; {KEY_VARIABLE}",
    )


def add_trust_options(group: Any) -> None:
    """Add the options that say what of a model may run."""
    group.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run code that the model brings; read it first",
    )
    group.add_argument(
        "--use_safetensors",
        choices=["true", "false"],
        default="true",
        help="false: pickles are taken for weights, too, which can run code; true",
    )


def trust_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Those options as keys of `ModelArguments`."""
    return {
        "trust_remote_code": options.trust_remote_code,
        "use_safetensors": options.use_safetensors == "true",
    }


def _add_job(group: Any) -> None:
    group.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to fill")
    group.add_argument("--shard_size", type=positive, default=16, metavar="N", help="prompts; 16")
    group.add_argument(
        "--shard", metavar="I/N", help="make this part of the shards; any that are free by default"
    )


def positive(text: str) -> int:
    """The type of an option that is 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _sample(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.quiet import QuietLog

    with QuietLog() as log:
        log.screen.write("Reading the problems ...\n")
        from trl_r1.sampling.job import job_of
        from trl_r1.sampling.server import ServerError
        from trl_r1.verification.bound_reward import RewardError

        try:
            job = job_of(options)
            log.switch(options.output / "log.txt")
            return _work(job, log.screen)
        except (ValueError, ImportError, ServerError, RewardError) as error:
            raise PipelineError(str(error)) from error


def _work(job: Job, screen: Any) -> int:
    from trl_r1.sampling.job_figures import Progress, summary_lines

    out = screen or sys.stdout
    out.write(f"{job.headline()}\n")
    figures = job.run(Progress(out))
    if figures is None:
        out.write("This part is done; other parts are not. The last to end puts all together.\n")
        return 0
    out.write("\n".join(summary_lines(figures, job.output)) + "\n")
    return 0
