"""One use of the command: check a folder, or check, plan and run it.

What a person reads goes through here; `run.py` does the work.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from trl_r1.pipeline.check import Report, check_pipeline
from trl_r1.pipeline.display import duration, make_display
from trl_r1.pipeline.execution import Launch, find_launch
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.hub_inputs import hub_references
from trl_r1.pipeline.ledger import StageFolder
from trl_r1.pipeline.lock import RunLock
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.overrides import read_overrides
from trl_r1.pipeline.plan import make_plan, plan_lines, select
from trl_r1.pipeline.quiet import QuietLog
from trl_r1.pipeline.reading import read_pipeline
from trl_r1.pipeline.recipe import Pipeline
from trl_r1.pipeline.run import Runner
from trl_r1.pipeline.run_file import RunFile, write_run_file
from trl_r1.pipeline.table import print_table
from trl_r1.trust.masked_streams import scrub
from trl_r1.trust.secrets import is_secret, mask
from trl_r1.trust.visible_text import visible

INTERRUPTED = 130


@dataclass(frozen=True)
class Request:
    """What `check` and `run` have in common.

    Attributes:
        folder: of the recipes.
        shown: the folder as the user named it.
        settings: values of `--set`.
        seed: over the pipeline's.
        accelerate_config: a file or a name; None for one process.
        num_processes: over the config's.
        launcher: command to put before `accelerate launch`.
    """

    folder: Path
    shown: str
    settings: Sequence[str] = ()
    seed: int | None = None
    accelerate_config: str | None = None
    num_processes: int | None = None
    launcher: str | None = None


def check_untrusted(request: Request, log: QuietLog, max_lines: int) -> int:
    """`trl-r1 check --untrusted`: show the code that the recipes would run, then check the rest.

    Nothing that the folder holds or names is run or imported, and the Hub is not asked.

    Args:
        request: what to check.
        log: where libraries' output goes.
        max_lines: of source to show, a file; 0 for all.
    """
    from trl_r1.trust.listing import listing
    from trl_r1.trust.secrets import only_own_masked
    from trl_r1.trust.withholding import withheld

    with withheld():
        overrides, _ = read_overrides(request.settings)
        with only_own_masked():
            for line in listing(request.folder, request.shown.rstrip("/"), overrides, max_lines):
                _say(log.screen, line)
        return check_folder(request, log)


def check_folder(request: Request, log: QuietLog) -> int:
    """`trl-r1 check`: print every mistake, a line each; returns the exit status."""
    report, pipeline, _ = checked(request, log.screen)
    if not report.mistakes:
        stages = ", ".join(stage.name for stage in pipeline.stages)
        _say(log.screen, f"ok: {pipeline.name}, {len(pipeline.stages)} stages: {stages}")
    return 1 if report.mistakes else 0


def checked(request: Request, screen: TextIO) -> tuple[Report, Pipeline, Launch | None]:
    """Read and check a folder, and say what is wrong with it."""
    launch = None
    if request.accelerate_config:
        launch = find_launch(request.accelerate_config, request.num_processes, request.launcher)
    elif request.num_processes or request.launcher:
        raise PipelineError("--num_processes and --launcher go with --accelerate_config, as ddp")
    pipeline, mistakes = read_pipeline(
        request.folder, request.settings, request.seed, request.shown.rstrip("/")
    )
    report = check_pipeline(pipeline, launch.processes if launch else 1)
    # By file, so that a person mends one after the other.
    found = sorted((*mistakes, *report.mistakes), key=lambda mistake: mistake.where)
    report = Report(tuple(dict.fromkeys(found)), report.notes)
    for note in report.notes:
        _say(screen, f"note: {note}")
    for mistake in report.mistakes:
        _say(screen, str(mistake))
    if report.mistakes:
        count = len(report.mistakes)
        _say(screen, f"{count} mistake{'s' if count > 1 else ''}; nothing was run")
    return report, pipeline, launch


def run_pipeline(
    request: Request,
    log: QuietLog,
    first: str | None = None,
    last: str | None = None,
    only: str | None = None,
    output_dir: Path | None = None,
) -> int:
    """`trl-r1 run`: check, print the plan, run it, print the table; returns the exit status.

    Args:
        request: what to run.
        log: where libraries' output goes.
        first, last, only: names that select stages.
        output_dir: folder of the run; `runs/<pipeline>` by default.

    Raises:
        PipelineError: whatever keeps the run from starting or going on, in one line.
    """
    started = time.monotonic()
    report, pipeline, launch = checked(request, log.screen)
    if report.mistakes:
        return 1
    selected = select(pipeline, first, last, only)
    for reference in hub_references(pipeline, selected):
        _say(log.screen, f"{reference.text}: fetched, at {reference.fetch()}")
    named = output_dir or Path("runs") / pipeline.name
    run_dir = named.absolute()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        _make_run_dir(run_dir, log)
        with RunLock(run_dir / ".lock"):
            _run_locked(request, pipeline, run_dir, selected, log, launch)
    except KeyboardInterrupt:
        _say(log.screen, "\nStopped. The same command goes on from the last checkpoint.")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    _say(log.screen, "")
    print_table(run_dir, log.screen)
    _say(log.screen, f"\n{named}: done in {duration(time.monotonic() - started)}")
    return 0


def _make_run_dir(run_dir: Path, log: QuietLog) -> None:
    for left in run_dir.glob("*/log.txt"):  # by a run that was killed before it could
        scrub(left)
    try:
        log.switch(run_dir / "log.txt")
    except OSError as error:
        raise PipelineError(
            f"can't write to {run_dir}: {error.strerror}; use --output_dir for another folder"
        ) from error


def _run_locked(
    request: Request,
    pipeline: Pipeline,
    run_dir: Path,
    selected: Sequence[str],
    log: QuietLog,
    launch: Launch | None,
) -> None:
    for stage in pipeline.stages:
        StageFolder(run_dir, stage.name).settle()
    hashes = FileHashes()
    plan = make_plan(pipeline, run_dir, selected, hashes)
    for line in plan_lines(plan, run_dir):
        _say(log.screen, line)
    names = [stage.name for stage in pipeline.stages]
    write_run_file(
        run_dir,
        RunFile(
            pipeline.name,
            request.shown,
            tuple(names),
            request.folder.absolute(),
            tuple(mask(text) for text in request.settings if not is_secret(_key_of(text))),
            request.seed,
        ),
    )
    display = make_display(log.screen)
    try:
        Runner(pipeline, run_dir, display, log, hashes, launch).run(plan)
    finally:
        display.close()


def _key_of(setting: str) -> str:
    """The last part of the key of `stage.key=value`."""
    return setting.partition("=")[0].rpartition(".")[2].strip()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(screen: TextIO, text: str) -> None:
    # What a recipe says is printed, too, and a stranger's could move the cursor.
    screen.write(f"{visible(text)}\n")
    screen.flush()
