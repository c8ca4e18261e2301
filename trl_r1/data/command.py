"""`trl-r1 data`: statistics, duplicates, decontamination, difficulty and mixtures on the command
line.

Input is a file, a folder or a Hub id; output a folder that appears in one piece. A command that was
killed goes on where it was when it is given again. Exit status: 0 done, 1 a mistake (or, for
`stats --template`, a chat template that loses targets).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.pipeline.mistakes import PipelineError

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.data.card import DataLog
    from trl_r1.data.mixing import MixtureSource
    from trl_r1.data.output import OutputFolder

_DATA_HELP = "a .jsonl, .json, .parquet or .csv file, a folder, or a Hub id (owner/name[:config])"
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
    stats = _action(actions, "stats", _stats, "lengths, shares and columns", output=False)
    stats.add_argument("--tokenizer", metavar="MODEL", help="count its tokens; words without it")
    stats.add_argument(
        "--template",
        metavar="MODEL",
        help="check that its chat template keeps every target, reasoning included",
    )
    dedup = _action(actions, "dedup", _dedup, "drop rows that repeat an earlier one")
    dedup.add_argument(
        "--near",
        type=float,
        metavar="SHARE",
        help="also near-duplicates: from this Jaccard index of the runs of words on, such as 0.8",
    )
    clean = _action(
        actions, "decontaminate", _decontaminate, "drop rows that overlap with evaluation problems"
    )
    clean.add_argument(
        "--against",
        nargs="+",
        required=True,
        metavar="SET",
        help=f"evaluation sets: names of tasks (math_500, gsm8k, ...), or each {_DATA_HELP}",
    )
    clean.add_argument("--against-split", default="test", metavar="SPLIT", help="test by default")
    clean.add_argument("--ngram", type=int, default=10, metavar="N", help="words in a row; 10")
    clean.add_argument(
        "--min-coverage",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of a problem's n-grams a row needs to be dropped; 0 is one n-gram, the paper's",
    )
    _add_filter(actions)
    _add_mix(actions)


def _add_filter(actions: Any) -> None:
    kept = _action(actions, "filter", _filter, "keep rows by pass rate or length")
    kept.add_argument(
        "--pass-rates",
        metavar="SAMPLES",
        help="a samples/ or rollouts/ folder, or other data with a prompt and a reward or rate",
    )
    kept.add_argument("--reward", metavar="COLUMN", help="of the samples: says what is right")
    kept.add_argument("--min-pass-rate", type=float, metavar="SHARE", help="0 to 1, included")
    kept.add_argument("--max-pass-rate", type=float, metavar="SHARE", help="0 to 1, included")
    kept.add_argument(
        "--order", choices=["random", "easiest_first", "hardest_first"], default="random"
    )
    kept.add_argument("--min-length", type=int, metavar="N", help="problem and response together")
    kept.add_argument("--max-length", type=int, metavar="N", help="problem and response together")
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
    mixed.add_argument("--total", type=int, metavar="N", help="rows; by default as many as fit")
    mixed.add_argument("--max-repeats", type=int, default=1, metavar="N", help="uses of a row; 1")
    mixed.add_argument(
        "--shape", choices=["messages", "prompt_completion"], default="messages", help="of the rows"
    )
    mixed.add_argument("--reasoning-format", default="r1", metavar="NAME", help="of tasks' rows")
    mixed.add_argument(
        "--template", metavar="MODEL", help="check that its chat template keeps every target"
    )
    mixed.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    mixed.set_defaults(run=_quietly(_mix))


def _action(actions: Any, name: str, run: Any, text: str, output: bool = True) -> Any:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("data", metavar="DATA", help=_DATA_HELP)
    parser.add_argument("--split", default="train", help="of DATA; train by default")
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="COLUMN", help="texts to look at; found if left"
    )
    parser.add_argument("--num-proc", type=int, default=1, metavar="N", help="processes; 1")
    if output:
        parser.add_argument(
            "--output", type=Path, required=True, metavar="DIR", help="a new folder"
        )
    parser.set_defaults(run=_quietly(run))
    return parser


def _quietly(run: Any) -> Any:
    """The handler without progress bars, and with its mistakes as one line."""

    def handler(options: argparse.Namespace) -> int:
        import datasets

        datasets.disable_progress_bars()
        try:
            status: int = run(options)
        except ValueError as error:
            raise PipelineError(str(error)) from error
        return status

    return handler


def _stats(options: argparse.Namespace) -> int:
    from trl_r1.data.lengths import length_lines, measure_lengths, share_lines
    from trl_r1.data.templates import check_template

    rows, _ = _read(options)
    tokenizer = _tokenizer(options.tokenizer)
    lengths = measure_lengths(rows, tokenizer, options.columns, num_proc=options.num_proc)
    _say(f"{len(rows):,} rows; columns {', '.join(rows.column_names)}", "")
    _say(*length_lines(lengths), "", *share_lines(rows, lengths))
    if options.template:
        checked = check_template(rows, _tokenizer(options.template))
        _say("", f"The chat template of {options.template} keeps the {checked:,} targets checked.")
    return 0


def _dedup(options: argparse.Namespace) -> int:
    from trl_r1.data.duplicates import drop_exact_duplicates, drop_near_duplicates

    rows, log = _read(options)
    output = _output(options, rows)
    if output.is_finished:
        return _finished(output)
    rows = drop_exact_duplicates(rows, options.columns, log, output.workspace("exact"))
    if options.near is not None:
        work = output.workspace("near")
        rows = drop_near_duplicates(
            rows, options.near, options.columns, 3, log, work, options.num_proc
        )
    return _write(output, rows, log)


def _decontaminate(options: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from trl_r1.data.decontamination import decontaminate, report_lines

    rows, log = _read(options)
    output = _output(options, rows)
    if output.is_finished:
        return _finished(output)
    names = _short_names(options.against)
    sets = {
        short: _evaluation_set(name, options.against_split)
        for short, name in zip(names, options.against, strict=True)
    }
    result = decontaminate(
        rows,
        sets,
        options.columns,
        options.ngram,
        options.min_coverage,
        log,
        output.workspace("decontamination"),
        options.num_proc,
    )
    lines = report_lines(result)
    hits = "".join(f"{json.dumps(asdict(hit), ensure_ascii=False)}\n" for hit in result.hits)
    _say(*lines, "", f"Every hit is in {output.folder}/report/decontamination.jsonl.", "")
    return _write(
        output,
        result.rows,
        log,
        {"Decontamination": "\n".join(lines)},
        {"decontamination.jsonl": hits},
    )


def _evaluation_set(name: str, split: str) -> Any:
    """The problems of a task, as the task's source has them, or of a data set."""
    from trl_r1.data.output import read_rows
    from trl_r1.data.texts import question_of
    from trl_r1.reasoning_format import FORMATS
    from trl_r1.tasks import DatasetSource, find_task

    if Path(name).exists() or find_task(name) is None:
        return read_rows(name, split)
    rows = find_task(name).rows(DatasetSource(task=name, split=split), FORMATS["r1"])  # type: ignore[union-attr]
    return [question_of(prompt) for prompt in rows["prompt"]]


def _filter(options: argparse.Namespace) -> int:
    from trl_r1.data.difficulty import buckets, filter_by_pass_rate, pass_rates
    from trl_r1.data.lengths import filter_by_length, measure_lengths
    from trl_r1.data.output import read_rows

    rows, log = _read(options)
    output = _output(options, rows)
    if output.is_finished:
        return _finished(output)
    if options.min_length is not None or options.max_length is not None:
        lengths = measure_lengths(
            rows,
            _tokenizer(options.tokenizer),
            options.columns,
            output.workspace("lengths"),
            options.num_proc,
        )
        rows = filter_by_length(rows, lengths, options.min_length, options.max_length, log)
    if options.pass_rates:
        rates = pass_rates(read_rows(options.pass_rates), options.reward)
        _say("| pass rate | rows |", "|---|---|")
        _say(*(f"| {name} | {n:,} |" for name, n in buckets(rates.of(rows)).items()), "")
        limits = (options.min_pass_rate, options.max_pass_rate)
        rows = filter_by_pass_rate(rows, rates, *limits, options.order, log)
    elif (options.min_pass_rate, options.max_pass_rate) != (None, None):
        raise ValueError("--min-pass-rate and --max-pass-rate need --pass-rates: samples to judge")
    return _write(output, rows, log)


def _mix(options: argparse.Namespace) -> int:
    from trl_r1.data.card import DataLog
    from trl_r1.data.lengths import share_lines
    from trl_r1.data.mixing import mix
    from trl_r1.data.output import OutputFolder, identity
    from trl_r1.data.templates import check_template

    sources = [_mixture_source(text, options.reasoning_format) for text in options.sources]
    names = [text.split(",")[0] for text in options.sources]
    inputs = [identity(n, source.rows) for n, source in zip(names, sources, strict=True)]
    output = OutputFolder(options.output, {**_settings(options), "inputs": inputs})
    if output.is_finished:
        return _finished(output)
    log = DataLog()
    rows = mix(
        sources,
        options.seed,
        options.total,
        options.max_repeats,
        options.shape,
        log,
        output.workspace("mix"),
    )
    if options.template:
        checked = check_template(rows, _tokenizer(options.template))
        log.records[-1].text += f"; {options.template} keeps the {checked:,} targets checked"
    lines = share_lines(rows)
    _say(*lines, "")
    return _write(output, rows, log, {"Shares": "\n".join(lines)})


_SOURCE_KEYS = {
    "share": float,
    "num_rows": int,
    "max_rows": int,
    "kind": str,
    "name": str,
    "task": str,
    "split": str,
}


def _mixture_source(text: str, format_name: str) -> MixtureSource:
    from trl_r1.data.mixing import MixtureSource
    from trl_r1.data.output import read_rows
    from trl_r1.reasoning_format import get_format
    from trl_r1.tasks import DatasetSource, find_task, load_rows

    path, *pairs = text.split(",")
    values = _source_values(text, pairs)
    task = values.pop("task", None)
    split = values.pop("split", "train")
    if task is None and not Path(path).exists() and find_task(path) is not None:
        task = path
    if task is None:
        rows = read_rows(path, split)
    else:
        name = None if task == path else path
        source = DatasetSource(dataset_name=name, task=task, split=split)
        rows = load_rows(source, get_format(format_name))
    if values.get("kind") not in (None, "reasoning", "general"):
        raise ValueError(f"{text}: kind is reasoning or general")
    return MixtureSource(name=values.pop("name", _short_name(path)), rows=rows, **values)


def _source_values(text: str, pairs: Sequence[str]) -> dict[str, Any]:
    from trl_r1.pipeline.mistakes import suggestion

    values: dict[str, Any] = {}
    for pair in pairs:
        key, is_pair, value = pair.partition("=")
        if not is_pair or key not in _SOURCE_KEYS:
            hint = suggestion(key, _SOURCE_KEYS) or f"; known: {', '.join(_SOURCE_KEYS)}"
            raise ValueError(f"{text}: unknown key {key!r}{hint}")
        try:
            values[key] = _SOURCE_KEYS[key](value)
        except ValueError as error:
            raise ValueError(f"{text}: {key} is no number: {value!r}") from error
    return values


# Names of files and folders that say nothing of what is in them.
_ANY_DATA = {"dataset", "samples", "rollouts", "data", "train", "test", "validation", "rows"}


def _short_name(path: str) -> str:
    """What to call a source: its file or folder, the stage of an artifact, the Hub's name."""
    parts = [Path(part).name.split(".")[0] for part in Path(path).parts]
    telling = [part for part in parts if part and part not in _ANY_DATA]
    return (telling or parts or [path])[-1]


def _short_names(paths: Sequence[str]) -> list[str]:
    """A name for each path; the path itself where two have the same."""
    names = [_short_name(path) for path in paths]
    return [
        path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)
    ]


def _read(options: argparse.Namespace) -> tuple[Dataset, DataLog]:
    from trl_r1.data.card import DataLog
    from trl_r1.data.output import read_rows

    return read_rows(options.data, options.split), DataLog.of_folder(Path(options.data))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the rows depend on; not how many processes make them."""
    left = ("run", "output", "num_proc")
    return {key: value for key, value in vars(options).items() if key not in left}


def _output(options: argparse.Namespace, rows: Dataset) -> OutputFolder:
    from trl_r1.data.output import OutputFolder, identity

    settings = {**_settings(options), "input": identity(options.data, rows)}
    return OutputFolder(options.output, settings)


def _finished(output: OutputFolder) -> int:
    _say(f"{output.folder} is finished already.")
    return 0


def _write(
    output: OutputFolder,
    rows: Dataset,
    log: DataLog,
    sections: Mapping[str, str] | None = None,
    reports: Mapping[str, str] | None = None,
) -> int:
    output.finish(rows, output.folder.name, log, sections, reports)
    for record in log.records:
        _say(f"{record.step}: {record.rows_before:,} → {record.rows_after:,} rows; {record.text}")
    _say(f"{len(rows):,} rows are in {output.folder}")
    return 0


def _tokenizer(name: str | None) -> Any:
    if name is None:
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer {name}: {' '.join(str(error).split())[:200]}") from error


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
