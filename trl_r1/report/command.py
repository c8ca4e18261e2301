"""`trl-r1 report`: its options and what it prints. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_HELP = """\
Writes one HTML file that needs no network: the stage table, accuracy and length over steps,
rewards, KL, entropy, clipping, dead groups, what rejection sampling kept and why not, the lineage,
alarms of the monitors, and samples with every verdict explained. Several runs are drawn over one
another. A run that is unfinished, still running or damaged gives a report that says what is
missing. Folders of `trl-r1 eval` are shown too, their scores in one table.
"""


def add_report_command(commands: Any) -> None:
    """Add `report` to the command's subcommands."""
    report = commands.add_parser(
        "report",
        help="write a run's curves, stage table, lineage and samples as one HTML file",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folders of runs, as runs/tiny-cpu, or of what trl-r1 eval made",
    )
    report.add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help="report.html in the folder of the first run by default",
    )
    report.add_argument(
        "--png", type=Path, metavar="DIR", help="also draw the curves as PNG (needs matplotlib)"
    )
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.mistakes import PipelineError
    from trl_r1.report.page import collect, write_report
    from trl_r1.report.reading import read_runs

    output = options.output or options.runs[0] / "report.html"
    if output.is_dir():
        raise PipelineError(f"--output {output} is a folder; name a file, as {output}/report.html")
    if options.png is not None:
        from trl_r1.report.plots import load_matplotlib

        load_matplotlib()
    runs = read_runs(options.runs)
    data = collect(runs)
    size = write_report(data, output)
    for run in data["runs"]:
        for note in run["notes"]:
            _say(f"{run['label']}: {note}")
    shown = sum(source["shown"] for source in data["samples"]["sources"])
    total = sum(source["total"] for source in data["samples"]["sources"])
    _say(f"{output}: {size / 1e6:.1f} MB, {shown:,} of {total:,} samples; open it in a browser.")
    if options.png is not None:
        from trl_r1.report.plots import draw

        for path in draw(data, options.png):
            _say(str(path))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
