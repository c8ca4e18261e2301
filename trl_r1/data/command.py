"""`trl-r1 data`: statistics, duplicates, decontamination, difficulty and mixtures on the command
line.

Input is a file, a folder or a Hub id; output a folder that appears in one piece. A command that was
killed goes on where it was when it is given again. Exit status: 0 done, 1 a mistake (or, for
`stats --template`, a chat template that loses targets). Left out: what the actions do, which is
`actions`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from trl_r1.pipeline.mistakes import PipelineError

_DATA_HELP = (
    "a .jsonl, .json, .parquet or .csv file, a folder, a task or a Hub id (owner/name[:config])"
)
_EXAMPLES = """\
examples:
  trl-r1 data stats rows.jsonl --tokenizer Qwen/Qwen2.5-0.5B-Instruct
  trl-r1 data dedup rows.jsonl --near 0.8 --output clean
  trl-r1 data decontaminate clean --against math_500 gsm8k my_test.jsonl --output safe
  trl-r1 data filter safe --pass-rates runs/x/zero/rollouts --min-pass-rate 0.1 \\
      --max-pass-rate 0.9 --output medium
  trl-r1 data mix reasoning,share=0.75 chat.jsonl,share=0.25,kind=general --seed 0 --output mixed
"""


def add_data_command(commands: Any) -> None:
    """Add `data` to the command's subcommands."""
    data = commands.add_parser(
        "data",
        help="look at, clean, filter and mix data",
        description="Look at, clean, filter and mix data.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = data.add_subparsers(title="actions", metavar="ACTION", required=True)
    stats = _action(actions, "stats", "stats", "lengths, shares and columns", output=False)
    stats.add_argument("--tokenizer", metavar="MODEL", help="count its tokens; words without it")
    stats.add_argument(
        "--template",
        metavar="MODEL",
        help="check that its chat template keeps every target, reasoning included",
    )
    dedup = _action(actions, "dedup", "dedup", "drop rows that repeat an earlier one")
    dedup.add_argument(
        "--near",
        type=_share_over_0,
        metavar="SHARE",
        help="also near-duplicates: from this Jaccard index of the runs of words on, such as 0.8",
    )
    clean = _action(
        actions, "decontaminate", "decontaminate", "drop rows that overlap with evaluation problems"
    )
    clean.add_argument(
        "--against",
        nargs="+",
        required=True,
        metavar="SET",
        help=f"evaluation sets: each a task (math_500, gsm8k, ...), or {_DATA_HELP}",
    )
    clean.add_argument("--against-split", default="test", metavar="SPLIT", help="test by default")
    clean.add_argument(
        "--ngram", type=_positive, default=10, metavar="N", help="words in a row; 10"
    )
    clean.add_argument(
        "--min-coverage",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="share of a problem's n-grams a row needs to be dropped; 0 is one n-gram, the paper's",
    )
    _add_filter(actions)
    _add_mix(actions)


def _add_filter(actions: Any) -> None:
    kept = _action(actions, "filter", "filter_rows", "keep rows by pass rate or length")
    kept.add_argument(
        "--pass-rates",
        metavar="SAMPLES",
        help="a samples/ or rollouts/ folder, or other data with a prompt and a reward or rate",
    )
    kept.add_argument("--reward", metavar="COLUMN", help="of the samples: says what is right")
    kept.add_argument("--min-pass-rate", type=_share, metavar="SHARE", help="0 to 1, included")
    kept.add_argument("--max-pass-rate", type=_share, metavar="SHARE", help="0 to 1, included")
    kept.add_argument(
        "--order", choices=["random", "easiest_first", "hardest_first"], default="random"
    )
    kept.add_argument("--min-length", type=_positive, metavar="N", help="with the response")
    kept.add_argument("--max-length", type=_positive, metavar="N", help="with the response")
    kept.add_argument("--tokenizer", metavar="MODEL", help="lengths in its tokens; else in words")


def _add_mix(actions: Any) -> None:
    mixed = actions.add_parser(
        "mix",
        help="mix sources by count or share, as conversations",
        description="Mix sources by count or share, as conversations with the columns messages, "
        "kind, source, task and solution.",
        epilog="SOURCE is PATH[,key=value...] with the keys share, num_rows, max_rows, kind "
        "(reasoning or general), name, task, split.",
    )
    mixed.add_argument("sources", nargs="+", metavar="SOURCE", help=f"{_DATA_HELP}; see below")
    mixed.add_argument("--seed", type=int, default=0, help="of the choice and the order; 0")
    mixed.add_argument("--total", type=_positive, metavar="N", help="rows; as many as fit")
    mixed.add_argument(
        "--max-repeats", type=_positive, default=1, metavar="N", help="uses of a row; 1"
    )
    mixed.add_argument(
        "--shape", choices=["messages", "prompt_completion"], default="messages", help="of the rows"
    )
    mixed.add_argument("--reasoning-format", default="r1", metavar="NAME", help="of tasks' rows")
    mixed.add_argument(
        "--template", metavar="MODEL", help="check that its chat template keeps every target"
    )
    mixed.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    mixed.set_defaults(run=_quietly("mix_sources"))


def _action(actions: Any, name: str, function: str, text: str, output: bool = True) -> Any:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("data", metavar="DATA", help=_DATA_HELP)
    parser.add_argument("--split", default="train", help="of DATA; train by default")
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="COLUMN", help="texts to look at; found if left"
    )
    parser.add_argument("--num-proc", type=_positive, default=1, metavar="N", help="processes; 1")
    if output:
        parser.add_argument(
            "--output", type=Path, required=True, metavar="DIR", help="a new folder"
        )
    parser.set_defaults(run=_quietly(function))
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return value


def _share_over_0(text: str) -> float:
    value = _share(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 would make all rows alike; use more, such as 0.8")
    return value


def _quietly(name: str) -> Any:
    """The handler of an action, without progress bars, and with its mistakes as one line."""

    def handler(options: argparse.Namespace) -> int:
        import datasets

        from trl_r1.data import actions

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # mistakes are told here
        try:
            status: int = getattr(actions, name)(options)
        except UnicodeDecodeError as error:
            data = getattr(options, "data", None) or ", ".join(options.sources)
            raise PipelineError(
                f"{data}: a text is not UTF-8 ({error.reason}); write the file as UTF-8"
            ) from error
        except ValueError as error:
            raise PipelineError(str(error)) from error
        return status

    return handler
