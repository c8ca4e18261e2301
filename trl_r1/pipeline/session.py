"""One use of the command: check a folder, or check, plan and run it.

What a person reads goes through here; `run.py` does the work.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from trl_r1.pipeline.check import Report, check_pipeline
from trl_r1.pipeline.display import duration, make_display
from trl_r1.pipeline.execution import Launch, find_launch
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.ledger import StageFolder
from trl_r1.pipeline.lock import RunLock
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.plan import make_plan, plan_lines, select
from trl_r1.pipeline.quiet import QuietLog
from trl_r1.pipeline.recipe import Pipeline, read_pipeline
from trl_r1.pipeline.run import Runner
from trl_r1.pipeline.table import print_table, write_run_file

INTERRUPTED = 130


def check_folder(
    folder: Path,
    shown: str,
    settings: Sequence[str] = (),
    seed: int | None = None,
    accelerate_config: str | None = None,
) -> int:
    """`trl-r1 check`: print every mistake, a line each; returns the exit status."""
    report, pipeline, _ = _checked(folder, shown, settings, seed, accelerate_config)
    if not report.mistakes:
        stages = ", ".join(stage.name for stage in pipeline.stages)
        _say(f"ok: {pipeline.name}, {len(pipeline.stages)} stages: {stages}")
    return 1 if report.mistakes else 0


def _checked(
    folder: Path,
    shown: str,
    settings: Sequence[str],
    seed: int | None,
    accelerate_config: str | None,
) -> tuple[Report, Pipeline, Launch | None]:
    launch = find_launch(accelerate_config) if accelerate_config else None
    pipeline, mistakes = read_pipeline(folder, settings, seed, shown.rstrip("/"))
    report = check_pipeline(pipeline, launch.processes if launch else 1)
    report = Report((*mistakes, *report.mistakes), report.notes)
    for note in report.notes:
        _say(f"note: {note}")
    for mistake in report.mistakes:
        _say(str(mistake))
    if report.mistakes:
        count = len(report.mistakes)
        _say(f"{count} mistake{'s' if count > 1 else ''}; nothing was run")
    return report, pipeline, launch


def run_pipeline(
    folder: Path,
    shown: str,
    settings: Sequence[str] = (),
    seed: int | None = None,
    first: str | None = None,
    last: str | None = None,
    only: str | None = None,
    output_dir: Path | None = None,
    accelerate_config: str | None = None,
) -> int:
    """`trl-r1 run`: check, print the plan, run it, print the table; returns the exit status.

    Args:
        folder: of the recipes.
        shown: the folder as the user named it.
        settings: values of `--set`.
        seed: over the pipeline's.
        first, last, only: names that select stages.
        output_dir: folder of the run; `runs/<pipeline>` by default.
        accelerate_config: file or name.

    Raises:
        PipelineError: whatever keeps the run from starting or going on, in one line.
    """
    report, pipeline, launch = _checked(folder, shown, settings, seed, accelerate_config)
    if report.mistakes:
        return 1
    selected = select(pipeline, first, last, only)
    run_dir = (output_dir or Path("runs") / pipeline.name).absolute()
    named = output_dir or Path("runs") / pipeline.name
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PipelineError(f"can't make {named}: {error.strerror}; use --output_dir") from error
    started = time.monotonic()
    with RunLock(run_dir / ".lock"):
        for stage in pipeline.stages:
            StageFolder(run_dir, stage.name).settle()
        hashes = FileHashes()
        plan = make_plan(pipeline, run_dir, selected, hashes)
        for line in plan_lines(plan, named):
            _say(line)
        write_run_file(run_dir, pipeline.name, shown, [stage.name for stage in pipeline.stages])
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with QuietLog(run_dir / "log.txt") as log:
                display = make_display(log.screen)
                try:
                    Runner(pipeline, run_dir, display, log, hashes, launch).run(plan)
                finally:
                    display.close()
        except KeyboardInterrupt:
            # A second Ctrl-C would only interrupt the goodbye.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _say("\nStopped. The same command goes on from the last checkpoint.")
            return INTERRUPTED
    _say("")
    print_table(run_dir, sys.stdout)
    _say(f"\n{named}: done in {duration(time.monotonic() - started)}")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
