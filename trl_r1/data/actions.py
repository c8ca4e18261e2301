"""What the actions of `trl-r1 data` do with their options: read, run a step, write, tell.

Left out: the options (`command`) and the steps, a module each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.data.mixture_sources import mixture_source, short_names, split_source

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.data.card import DataLog
    from trl_r1.data.difficulty import PassRates
    from trl_r1.data.output import OutputFolder


def stats(options: argparse.Namespace) -> int:
    """Print lengths and shares; check a chat template."""
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


def dedup(options: argparse.Namespace) -> int:
    """Drop duplicates."""
    from trl_r1.data.duplicates import drop_exact_duplicates, drop_near_duplicates
    from trl_r1.data.output import identity

    rows, log = _read(options)
    with _making(options, input=identity(options.data, rows)) as output:
        if output.is_finished:
            return _finished(output)
        rows = drop_exact_duplicates(rows, options.columns, log, output.workspace("exact"))
        if options.near is not None:
            work = output.workspace("near")
            rows = drop_near_duplicates(
                rows, options.near, options.columns, 3, log, work, options.num_proc
            )
        return _write(output, rows, log)


def decontaminate(options: argparse.Namespace) -> int:
    """Drop rows that overlap with evaluation problems, and say which."""
    import json
    from dataclasses import asdict

    from trl_r1.data import decontamination
    from trl_r1.data.output import identity, stamp

    rows, log = _read(options)
    stamps = [stamp(name) for name in options.against]
    with _making(options, input=identity(options.data, rows), sets=stamps) as output:
        if output.is_finished:
            return _finished(output)
        names = short_names(options.against)
        sets = {
            short: _evaluation_set(name, options.against_split)
            for short, name in zip(names, options.against, strict=True)
        }
        result = decontamination.decontaminate(
            rows,
            sets,
            options.columns,
            options.ngram,
            options.min_coverage,
            log,
            output.workspace("decontamination"),
            options.num_proc,
        )
        lines = decontamination.report_lines(result)
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
    from trl_r1.tasks import is_task_name

    rows = read_rows(name, split)
    if not is_task_name(name):
        return rows
    return [question_of(prompt) for prompt in rows["prompt"]]


def filter_rows(options: argparse.Namespace) -> int:
    """Keep rows by pass rate or length."""
    from trl_r1.data.difficulty import buckets, filter_by_pass_rate
    from trl_r1.data.lengths import filter_by_length, measure_lengths
    from trl_r1.data.output import identity, stamp

    _check_limits(options)
    rows, log = _read(options)
    inputs = {"input": identity(options.data, rows), "rates": stamp(options.pass_rates or "")}
    with _making(options, **inputs) as output:
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
            rates = _rates(options)
            _say("| pass rate | rows |", "|---|---|")
            _say(*(f"| {name} | {n:,} |" for name, n in buckets(rates.of(rows)).items()), "")
            limits = (options.min_pass_rate, options.max_pass_rate)
            rows = filter_by_pass_rate(rows, rates, *limits, options.order, log)
        return _write(output, rows, log)


def _check_limits(options: argparse.Namespace) -> None:
    lengths = (options.min_length, options.max_length)
    rates = (options.min_pass_rate, options.max_pass_rate)
    if rates != (None, None) and not options.pass_rates:
        raise ValueError("--min-pass-rate and --max-pass-rate need --pass-rates: samples to judge")
    if lengths == (None, None) and not options.pass_rates:
        raise ValueError("nothing to filter by; give --pass-rates, or --min-length or --max-length")
    for name, (low, high) in (("length", lengths), ("pass-rate", rates)):
        if low is not None and high is not None and low > high:
            raise ValueError(f"--min-{name} {low:g} is over --max-{name} {high:g}")


def _rates(options: argparse.Namespace) -> PassRates:
    from trl_r1.data.difficulty import pass_rates
    from trl_r1.data.output import read_rows

    samples = read_rows(options.pass_rates)
    try:
        return pass_rates(samples, options.reward)
    except ValueError as error:
        hint = "" if options.reward else "; --reward names a column"
        raise ValueError(f"--pass-rates {options.pass_rates}: {error}{hint}") from error


def mix_sources(options: argparse.Namespace) -> int:
    """Mix sources as conversations."""
    from trl_r1.data.card import DataLog
    from trl_r1.data.lengths import share_lines
    from trl_r1.data.mixing import mix
    from trl_r1.data.output import identity
    from trl_r1.data.templates import check_template
    from trl_r1.reasoning_format import get_format

    get_format(options.reasoning_format)
    sources = [mixture_source(text, options.reasoning_format) for text in options.sources]
    names = [split_source(text)[0] for text in options.sources]
    inputs = [identity(n, source.rows) for n, source in zip(names, sources, strict=True)]
    with _making(options, inputs=inputs) as output:
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


def _read(options: argparse.Namespace) -> tuple[Dataset, DataLog]:
    from trl_r1.data.card import DataLog
    from trl_r1.data.output import read_rows

    return read_rows(options.data, options.split), DataLog.of_folder(Path(options.data))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the rows depend on; not how many processes make them."""
    left = ("run", "output", "num_proc")
    return {key: value for key, value in vars(options).items() if key not in left}


@contextmanager
def _making(options: argparse.Namespace, **inputs: Any) -> Iterator[OutputFolder]:
    """The output folder; a mistake on the way leaves no empty one behind."""
    from trl_r1.data.output import OutputFolder

    output = OutputFolder(options.output, {**_settings(options), **inputs})
    try:
        yield output
    except ValueError:
        output.give_up()
        raise


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
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer {name}: {' '.join(str(error).split())[:200]}") from error


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
