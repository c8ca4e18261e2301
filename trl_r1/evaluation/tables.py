"""What a person sees of an evaluation and of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from trl_r1.evaluation.compare import Comparison, Difference

_SHARES = ("format", "truncated", "language", "general")


def print_scores(document: Mapping[str, Any], out: TextIO) -> None:
    """A row a task, and one of all where there are several; intervals are 95%."""
    rows = dict(document["tasks"])
    if len(rows) > 1:
        rows["all"] = document["scores"]
    keys = list(dict.fromkeys(key for scores in rows.values() for key in scores))
    rates = [key for key in keys if "@" in key and not key.endswith("_interval")]
    shares = [key for key in _SHARES if key in keys]
    lengths = ["mean_length"] if "mean_length" in keys else []
    table = [["task", *rates, *shares, *(["length"] if lengths else [])]]
    for task, scores in rows.items():
        cells = [_cell(scores, key, 3, key in ("pass@1", "general")) for key in rates + shares]
        table.append([task, *cells, *(_cell(scores, key, 0, False) for key in lengths)])
    _print(table, out)
    out.write(
        f"{document['problems']} problems, {document['samples']} samples; [95% interval, problems "
        "as clusters]\n"
    )


def print_comparison(result: Comparison, out: TextIO) -> None:
    """A row a figure, then what does not match."""
    table = [["problems", "figure", "A", "B", "B - A", "95% interval", ""]]
    table += [_difference(difference) for difference in result.differences]
    out.write(f"A: {result.first}\nB: {result.second}\n")
    _print(table, out)
    out.write(f"{result.num_matched} problems in both")
    lone = [(result.num_only_first, "A"), (result.num_only_second, "B")]
    out.write("".join(f"; {n} only in {name}, left out" for n, name in lone if n) + "\n")
    for name, one, other in result.other_settings:
        out.write(f"not the same: {name} {one} in A, {other} in B\n")


def _difference(item: Difference) -> list[str]:
    digits = 0 if item.figure == "length" else 3
    low, high = item.difference.low, item.difference.high
    ends = "" if low is None or high is None else f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    verdict = ("higher" if item.difference.value > 0 else "lower") if item.is_clear else "unclear"
    values = [f"{value:.{digits}f}" for value in (item.first, item.second)]
    told = f"{item.difference.value:+.{digits}f}"
    return [
        f"{item.task} ({item.difference.num_problems})",
        item.figure,
        *values,
        told,
        ends,
        verdict,
    ]


def _cell(scores: Mapping[str, Any], key: str, digits: int, has_interval: bool) -> str:
    if key not in scores:
        return ""
    ends = scores.get(f"{key}_interval") if has_interval else None
    text = f"{scores[key]:.{digits}f}"
    return f"{text} [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else text


def _print(rows: list[list[str]], out: TextIO) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.write("  ".join(cells).rstrip() + "\n")
