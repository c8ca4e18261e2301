"""`trl-r1 plan`, `rehearse`, `merge`: their options and what they print. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trl_r1.sampling.command import add_trust_options, trust_arguments

_PLAN_HELP = """\
Prints what each phase of each stage takes on a card, and the nearest settings that fit.

Measured: TRL's own trainers make one micro-batch of the longest rows a recipe allows, an optimizer
step, the scoring passes and the last decoding step, on tensors that have shapes but no data; every
byte of a tensor is counted, per phase. Estimated, and marked with ~: the card's context (0.7 GiB),
fragmentation (6% of the tensors), vLLM's share (vllm_gpu_memory_utilization of the card), the rows
of a rollout, preference models, and states of optimizers that are not torch's own. Attention is
torch's (sdpa), whatever the recipe says. No weight is loaded or downloaded; without the Hub, sizes
of well-known models come from a table.
"""


_REHEARSE_HELP = """\
Runs every stage of a recipe for two steps in a folder of its own: same stages, rewards, LoRA,
quantisation, packing, formats and kinds of model, with a tiny random model, a handful of rows and a
few tokens. Also looks at what only shows at the real sizes: the folder and the disk that the run
writes to, contexts, uploads. Where the Hub is away, tokenizers and rows are made up, and it says
so. A recipe is checked first, as by `trl-r1 check`.
"""


def add_commands(
    commands: Any,
    add_recipe_options: Callable[[argparse.ArgumentParser], None],
    find_folder: Callable[[str], Path],
) -> None:
    """Add the parsers of the commands.

    Args:
        commands: what `add_subparsers` gave.
        add_recipe_options: adds FOLDER, `--set` and what else every recipe command has.
        find_folder: the folder that a user names.
    """
    plan = commands.add_parser(
        "plan",
        help="say what fits a card, stage by stage, before anything is run",
        description=_PLAN_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe_options(plan)
    plan.add_argument("--vram", type=float, metavar="GIB", help="memory of the card; this one's")
    plan.add_argument(
        "--prompt_tokens",
        type=int,
        default=512,
        metavar="N",
        help="tokens of the longest prompt, which no recipe limits; 512 by default",
    )
    plan.add_argument(
        "--stage", action="append", default=[], metavar="NAME", help="only this stage"
    )
    plan.add_argument("--cpu", action="store_true", help="tensors on this CPU, not on a card")
    plan.add_argument("--no_remedies", action="store_true", help="don't look for what would fit")
    plan.set_defaults(run=_plan, find_folder=find_folder)
    _add_rehearse(commands, add_recipe_options, find_folder)
    merge = commands.add_parser("merge", help="merge an adapter into the model it was trained on")
    merge.add_argument("adapter", type=Path, metavar="ADAPTER", help="folder of the adapter")
    merge.add_argument("output", type=Path, metavar="OUTPUT", help="folder that does not exist yet")
    merge.add_argument("--base", metavar="MODEL", help="over the base that the adapter names")
    merge.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="of the weights")
    bits = merge.add_mutually_exclusive_group()
    bits.add_argument("--load_in_4bit", action="store_true", help="it was trained on 4-bit weights")
    bits.add_argument("--load_in_8bit", action="store_true", help="it was trained on 8-bit weights")
    merge.add_argument(
        "--check",
        type=int,
        default=8,
        metavar="N",
        help="prompts on which merged and unmerged model are compared; 8 by default, 0 for none",
    )
    add_trust_options(merge)
    merge.set_defaults(run=_merge)


def _add_rehearse(
    commands: Any,
    add_recipe_options: Callable[[argparse.ArgumentParser], None],
    find_folder: Callable[[str], Path],
) -> None:
    rehearse = commands.add_parser(
        "rehearse",
        help="run every stage for two steps with a tiny model, to see what would break",
        description=_REHEARSE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe_options(rehearse)
    rehearse.add_argument(
        "--output_dir", type=Path, metavar="DIR", help="folder of the run to come"
    )
    rehearse.set_defaults(run=_rehearse, find_folder=find_folder)


def _rehearse(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.quiet import QuietLog

    folder = options.find_folder(options.folder)
    with QuietLog() as log:
        from trl_r1.pipeline.session import Request, checked

        request = Request(
            folder,
            options.folder,
            options.settings,
            options.seed,
            options.accelerate_config,
            options.num_processes,
        )
        report, pipeline, _ = checked(request, log.screen)
        if report.mistakes:
            return 1
        from trl_r1.fitting.rehearsal import rehearse

        run_dir = (options.output_dir or Path("runs") / pipeline.name).absolute()

        def say(text: str) -> None:
            log.screen.write(f"{text}\n")
            log.screen.flush()

        return 0 if rehearse(pipeline, run_dir, log, say) else 1


def _plan(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.mistakes import PipelineError

    vram = options.vram if options.vram is not None else _memory_here(options.cpu)
    if not 0 < vram < float("inf"):
        raise PipelineError(f"--vram {vram}: give the GiB of the card, as 12")
    if options.prompt_tokens < 1:
        raise PipelineError(f"--prompt_tokens {options.prompt_tokens}: give 1 or more")
    folder = options.find_folder(options.folder)
    from trl_r1.fitting.vram import PlanRequest, plan_pipeline

    request = PlanRequest(
        folder,
        options.folder,
        vram,
        options.settings,
        options.prompt_tokens,
        options.stage,
        on_card=not options.cpu,
        remedies=not options.no_remedies,
    )
    return 0 if plan_pipeline(request, _say) else 1


def _memory_here(is_cpu: bool) -> float:
    """GiB of the card of this machine, or of the machine itself."""
    import torch

    from trl_r1.pipeline.mistakes import PipelineError

    if is_cpu:
        import os

        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if not torch.cuda.is_available():
        raise PipelineError("there is no card here; say how many GiB yours has, as --vram 12")
    return float(torch.cuda.get_device_properties(0).total_memory / 2**30)


def _merge(options: argparse.Namespace) -> int:
    from trl_r1.fitting.merging import check_prompts, merge_adapter, training_of
    from trl_r1.pipeline.mistakes import PipelineError
    from trl_r1.training.arguments import ModelArguments

    given = {
        key: value
        for key in ("dtype", "load_in_4bit", "load_in_8bit")
        if (value := getattr(options, key))
    }
    known = training_of(options.adapter)
    if given.get("load_in_4bit") or given.get("load_in_8bit"):
        known = {k: v for k, v in known.items() if not k.startswith("load_in")}
    model_args = ModelArguments(**{**known, **given, **trust_arguments(options)})
    try:
        report = merge_adapter(
            options.adapter,
            options.output,
            model_args,
            base=options.base,
            prompts=check_prompts(options.check),
        )
    except ValueError as error:
        raise PipelineError(str(error)) from error
    rounded = f", rounded to {report.quantised} and back" if report.quantised else ""
    _say(f"{report.output}: {options.adapter} merged into {report.base}{rounded}")
    if report.difference is not None:
        _say(
            f"largest difference of a probability between base plus adapter and the merged model, "
            f"on {report.prompts} prompts: {report.difference:.1e}"
        )
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
