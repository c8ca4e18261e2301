"""The command `trl-r1`. Nothing heavy is imported before a subcommand needs it."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trl_r1.data.command import add_data_command
from trl_r1.evaluation.command import add_eval_command
from trl_r1.fitting.command import add_commands as add_fitting_commands
from trl_r1.hub.command import add_hub_commands
from trl_r1.pipeline.quiet import QuietLog
from trl_r1.report.command import add_report_command
from trl_r1.sampling.command import add_sample_command
from trl_r1.trust.masked_streams import masked_output
from trl_r1.verification.command import add_rewards_command

if TYPE_CHECKING:
    from trl_r1.pipeline.session import Request

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Args:
        arguments: of the command line; those of the process by default.
    """
    _mend_streams()
    with masked_output():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    from trl_r1.pipeline.mistakes import PipelineError, os_message

    try:
        status: int = options.run(options)
    except PipelineError as error:
        from trl_r1.report.reading import visible

        _say(f"trl-r1: {visible(error)}")
        return 1
    except KeyboardInterrupt:
        _say("trl-r1: stopped.")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has gone; the interpreter must not complain about it at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        _say(f"trl-r1: {os_message(error)}")
        return 1
    except Exception:  # noqa: BLE001 - a bug; Python would print the same, but past the mask
        traceback.print_exc()
        return 1
    return status


def _mend_streams() -> None:
    """Give a process without standard streams empty ones, and let any locale print any text."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one; otherwise the next file opened would get it.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # An arrow or a letter that the terminal's encoding lacks becomes a question mark.
            stream.reconfigure(errors="replace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trl-r1",
        description="The whole DeepSeek-R1 recipe, from a base model to a distilled student.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run", help="run a pipeline's stages in order, or go on where a run was cut short"
    )
    _add_recipe_options(run)
    run.add_argument("--from", dest="first", metavar="NAME", help="first stage to run")
    run.add_argument("--until", dest="last", metavar="NAME", help="last stage to run")
    run.add_argument("--only", metavar="NAME", help="the one stage to run")
    run.add_argument(
        "--output_dir", metavar="DIR", help="folder of the run; runs/<pipeline> by default"
    )
    run.set_defaults(run=_run)
    check = commands.add_parser("check", help="show every mistake of a pipeline, loading no model")
    _add_recipe_options(check)
    check.add_argument(
        "--untrusted",
        action="store_true",
        help="a stranger's recipes: show the code that they name (rewards, tasks, models) and run "
        "none of it; nothing is asked of the network",
    )
    check.add_argument(
        "--lines",
        type=int,
        default=200,
        metavar="N",
        help="with --untrusted: lines of source to show, a file; 0: all (default: 200)",
    )
    check.set_defaults(run=_check)
    copy = commands.add_parser("copy", help="copy a pipeline's recipes, to edit them")
    copy.add_argument(
        "folder", metavar="FOLDER", help="a folder, or the name of a pipeline that is shipped"
    )
    copy.add_argument("target", metavar="TARGET", help="a folder that does not exist yet")
    copy.set_defaults(run=_copy)
    table = commands.add_parser("table", help="print the stage table of a run")
    table.add_argument("run_dir", metavar="RUN", help="folder of the run, as runs/tiny-cpu")
    table.set_defaults(run=_table)
    add_rewards_command(commands)
    add_data_command(commands)
    add_sample_command(commands)
    add_eval_command(commands)
    add_fitting_commands(commands, _add_recipe_options, _recipe_folder)
    add_report_command(commands)
    add_hub_commands(commands)
    # Started by the runner under `accelerate launch`; not for people.
    worker = commands.add_parser("run-stage")
    worker.set_defaults(run=_run_stage)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _add_recipe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="a folder of recipes, or the name of a shipped pipeline"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME.key=value",
        help="over the recipes; NAME is a stage, a stage type, defaults, evaluation or pipeline",
    )
    parser.add_argument("--seed", type=int, help="over the seed of pipeline.yaml")
    parser.add_argument(
        "--accelerate_config",
        metavar="CONFIG",
        help="an accelerate config file, or a preset: ddp, fsdp2, zero2, zero3",
    )
    parser.add_argument(
        "--num_processes", type=_count, metavar="N", help="over the config's; one a card"
    )
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="put before the command that starts a stage's processes, as scripts/launch_slurm says",
    )


def _run(options: argparse.Namespace) -> int:
    folder = _recipe_folder(options.folder)
    _prepare(folder)
    _say("Checking the recipes ...")
    with QuietLog() as log:
        from trl_r1.pipeline.session import run_pipeline

        return run_pipeline(
            _request(options, folder),
            log,
            first=options.first,
            last=options.last,
            only=options.only,
            # bash leaves the ~ of --output_dir=~/x alone.
            output_dir=Path(options.output_dir).expanduser() if options.output_dir else None,
        )


def _check(options: argparse.Namespace) -> int:
    folder = _recipe_folder(options.folder)
    if options.untrusted:
        # Read by libraries when they are imported, which happens below.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    _prepare(folder)
    with QuietLog() as log:
        from trl_r1.pipeline.session import check_folder, check_untrusted

        if options.untrusted:
            return check_untrusted(_request(options, folder), log, max(options.lines, 0))
        return check_folder(_request(options, folder), log)


def _request(options: argparse.Namespace, folder: Path) -> Request:
    from trl_r1.pipeline.session import Request

    return Request(
        folder,
        options.folder,
        options.settings,
        options.seed,
        options.accelerate_config,
        options.num_processes,
        options.launcher,
    )


def _copy(options: argparse.Namespace) -> int:
    import shlex

    from trl_r1.pipeline.copying import copy_pipeline

    target = Path(options.target)
    copy_pipeline(_recipe_folder(options.folder), options.folder, target)
    _say(f"{target} is yours to edit; `trl-r1 run {shlex.quote(str(target))}` runs it.")
    return 0


def _table(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.table import print_table

    print_table(Path(options.run_dir), sys.stdout)
    return 0


def _run_stage(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.execution import run_worker
    from trl_r1.pipeline.mistakes import PipelineError

    try:
        run_worker()
    except (PipelineError, OSError):
        raise
    except Exception as error:
        # The runner shows the line that says `trl-r1:` of what a process prints.
        traceback.print_exc()
        raise PipelineError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    return 0


def _recipe_folder(name: str) -> Path:
    """The folder a user names: a path, or a shipped pipeline (`tiny-cpu`, `recipes/tiny-cpu`)."""
    from importlib.resources import files

    path = Path(name)
    if path.exists():
        return path
    shipped = Path(str(files("trl_r1.recipes")))
    pipelines = sorted(p.parent.name for p in shipped.glob("*/pipeline.yaml"))
    wanted = name.removeprefix("recipes/").strip("/")
    if wanted in pipelines:
        return shipped / wanted
    from trl_r1.pipeline.mistakes import PipelineError, suggestion

    hint = suggestion(wanted, pipelines) or f"; shipped are {', '.join(pipelines)}"
    raise PipelineError(f"{name}: no such folder{hint}")


def _prepare(folder: Path) -> None:
    """Tell OpenMP a pipeline's `threads` before torch is imported; later would be too late."""
    from trl_r1.pipeline.yaml_files import PIPELINE_FILE, read_mapping

    values, _ = read_mapping(folder / PIPELINE_FILE, "")
    threads = values.get("threads")
    if isinstance(threads, int) and "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        # Waiting threads that spin take the core from those that work.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
