"""`trl-r1 push` and `trl-r1 pull`: their options and what they print. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_PUSH_HELP = """\
Pushes a run to the Hub: for each artifact of a finished stage a repository with a card that says
what it is, what it came from and how it scored; a data set repository RUN with recipes, records and
the report; a Space that shows the report; a collection of all. Pushing again changes only what
changed, and goes on where a push was cut short. The token is that of `hf auth login`, or HF_TOKEN.
"""
_PULL_HELP = """\
Puts a run that was pushed back on this machine: its artifacts, checked against the hashes in their
records, and its recipes, so that `trl-r1 run` goes on from it. It runs nothing of what it fetches.
The same command goes on where it was cut short.
"""


def add_hub_commands(commands: Any) -> None:
    """Add `push` and `pull` to the command's subcommands."""
    push = commands.add_parser(
        "push",
        help="push a run to the Hub: models, data, cards, report, collection",
        description=_PUSH_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    push.add_argument("run_dir", type=Path, metavar="RUN", help="its folder, as runs/tiny-cpu")
    push.add_argument("--org", metavar="NAME", help="user or organisation; the token's by default")
    push.add_argument("--name", metavar="NAME", help="of the run there; its folder's by default")
    push.add_argument("--private", action="store_true", help="repositories only you can see")
    push.add_argument("--stages", nargs="+", metavar="STAGE", help="only what these left")
    push.add_argument("--recipes", type=Path, metavar="DIR", help="where the recipes are now")
    push.add_argument("--no_report", action="store_true", help="without the report and its Space")
    push.add_argument(
        "--overwrite_cards", action="store_true", help="also cards that were edited on the Hub"
    )
    push.set_defaults(run=_push)
    pull = commands.add_parser(
        "pull",
        help="put a run that was pushed back on this machine",
        description=_PULL_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pull.add_argument("repo_id", metavar="ORG/RUN", help="the run's own repository")
    pull.add_argument("--revision", metavar="REV", help="branch, tag or commit of it")
    pull.add_argument("--stages", nargs="+", metavar="STAGE", help="only these")
    pull.add_argument(
        "--output_dir", type=Path, metavar="DIR", help="of the run; runs/<pipeline> by default"
    )
    pull.add_argument(
        "--recipes", type=Path, metavar="DIR", help="for the recipes; <pipeline> by default"
    )
    pull.set_defaults(run=_pull)


def _push(options: argparse.Namespace) -> int:
    from trl_r1.hub.client import token_name
    from trl_r1.hub.contents import read_contents
    from trl_r1.hub.names import repo_name
    from trl_r1.hub.push import Pusher
    from trl_r1.pipeline.lock import RunLock

    contents = read_contents(options.run_dir, options.recipes)
    with RunLock(options.run_dir / ".lock"):
        owner = options.org or token_name()
        name = options.name or repo_name(options.run_dir.resolve().name)
        if contents.recipes is None:
            _say("note: the recipes are not where they were; --recipes DIR pushes them too")
        for path in contents.left_out():
            _say(f"note: {path} beside the recipes is data, and is not pushed")
        for stage, path in contents.local_paths():
            _say(
                f"note: {stage} names {path}, and whoever sees the run will see that; a path from "
                "the recipes' folder on would tell nothing of this machine"
            )
        report = None if options.no_report else _report(options.run_dir)
        pusher = Pusher(
            contents,
            owner,
            name,
            private=options.private,
            say=_say,
            report=report,
            overwrite_cards=options.overwrite_cards,
        )
        pusher.push(options.stages)
    _say("")
    _say(pusher.page)
    _say(f"put it back anywhere: trl-r1 pull {owner}/{name}")
    return 0


def _report(run_dir: Path) -> Path:
    """The run's report; written anew where something of the run is younger than it.

    It holds the time it was written, so that writing it anew would push it anew.
    """
    from trl_r1.report.page import collect, write_report
    from trl_r1.report.reading import read_runs

    file = run_dir / "report.html"
    made = [path.stat().st_mtime for path in run_dir.glob("*/*.json*")]
    if not file.is_file() or file.stat().st_mtime < max(made):
        write_report(collect(read_runs([run_dir])), file)
    return file


def _pull(options: argparse.Namespace) -> int:
    from trl_r1.hub.pull import Puller

    puller = Puller(options.repo_id, options.revision, _say)
    puller.pull(options.output_dir, options.recipes, options.stages)
    return 0


def _say(text: str) -> None:
    """Print a line; a stranger's names in it neither steer the terminal nor begin another."""
    from trl_r1.report.reading import visible

    line = visible(text).replace("\n", "\u27e8U+000A\u27e9")
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
