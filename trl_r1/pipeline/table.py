"""The table at the end of a run: a row a stage, from the ledger alone."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trl_r1.pipeline.display import duration
from trl_r1.pipeline.ledger import StageRecord, records
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.run_file import order_of

_HEADERS = (
    "stage",
    "starts from",
    "data",
    "pass@1",
    "format",
    "length",
    "general",
    "prefer",
    "time",
)
_BEFORE = "scores before the stage"
# What a narrow terminal goes without, step by step.
_LEFT_OUT = ((), ("data",), ("starts from", "data"), ("starts from", "data", _BEFORE))
_SCORES = (("pass@1", 3), ("format", 3), ("mean_length", 0), ("general", 3), ("preference", 2))


def table_rows(run_dir: Path, with_before: bool = True) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of a run's table, and the lines below it: what rejection sampling left out.

    Args:
        run_dir: of the run.
        with_before: whether the scores before a stage are shown, too.

    Raises:
        PipelineError: not the folder of a run.
    """
    ledger = records(run_dir)
    if not ledger:
        raise PipelineError(f"{run_dir} is not the folder of a run: it has no stages")
    rows, notes = [], []
    for name in order_of(run_dir, ledger):
        record = ledger[name]
        rows.append(_row(record, with_before))
        if record.details.get("rejected"):
            reasons = ", ".join(f"{n} {why}" for why, n in record.details["rejected"].items())
            notes.append(f"{name} left out: {reasons}")
    return rows, notes


def _row(record: StageRecord, with_before: bool) -> tuple[str, ...]:
    weights = [item.source for item in record.inputs if item.role == "weights"]
    data = [item.source for item in record.inputs if item.role == "data"]
    data += [
        source["task"]
        for source in record.recipe.get("datasets") or ()
        if source.get("task") and not source.get("dataset_name")
    ]
    if record.status == "running":
        return (record.name, _join(weights), _join(data), "unfinished", *[""] * len(_SCORES))
    scores = [_score(record.scores, key, digits, with_before) for key, digits in _SCORES]
    kept, samples = record.details.get("kept"), record.details.get("samples")
    if kept is not None and samples is not None:
        scores[0] = f"kept {kept}/{samples}"
    return (record.name, _join(weights), _join(data), *scores, duration(record.seconds))


def _score(scores: Mapping[str, Any], key: str, digits: int, with_before: bool) -> str:
    before, after = (
        scores.get(when, {}).get(key) if isinstance(scores.get(when), dict) else None
        for when in ("before", "after")
    )
    after = scores.get(key) if after is None else after
    before = before if with_before or after is None else None
    texts = [f"{v:.{digits}f}" for v in (before, after) if isinstance(v, (int, float))]
    holder = scores["after"] if isinstance(scores.get("after"), dict) else scores
    return " → ".join(texts) + (_margin(holder, key, digits) if texts and digits else "")


def _margin(scores: Mapping[str, Any], key: str, digits: int) -> str:
    """Half of a score's interval, as ` ±0.021`; nothing where it has none."""
    ends = scores.get(f"{key}_interval")
    if key != "pass@1" or not isinstance(ends, (list, tuple)) or len(ends) != 2:
        return ""
    if not all(isinstance(end, (int, float)) for end in ends):
        return ""
    return f" ±{(ends[1] - ends[0]) / 2:.{digits}f}"


def _join(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(_short, names)))


def _short(name: str) -> str:
    """A name as a table has room for: a path's last part, a commit's first digits."""
    if name.startswith("@"):
        return re.sub(r"@([0-9a-f]{8})[0-9a-f]{32}$", r"@\1", name)
    return name if name.count("/") < 2 else Path(name).name


def table_text(run_dir: Path) -> str:
    """A run's table as text.

    Raises:
        PipelineError: not the folder of a run.
    """
    text = io.StringIO()
    print_table(run_dir, text)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def print_table(run_dir: Path, stream: TextIO) -> None:
    """Print a run's table.

    A terminal that is too narrow for all of it gets less, and a line that says what is left out;
    no figure is ever cut. A pipe has no width of its own and gets all.

    Raises:
        PipelineError: not the folder of a run.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    # rich would take the width of standard input's terminal.
    width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    for left_out in _LEFT_OUT:
        rows, notes = table_rows(run_dir, _BEFORE not in left_out)
        lines = _lines(rows, left_out)
        if not width or max(map(cell_len, lines)) <= width:
            break
    # What is still too wide, the terminal wraps.
    console.print(Text(lines[0], style="bold"), soft_wrap=True)
    for line in (*lines[1:], *notes):
        console.print(line, markup=False, soft_wrap=True)
    if left_out:
        names = ", ".join(left_out)
        console.print(f"(too narrow for: {names})", markup=False, soft_wrap=True)


def _lines(rows: Sequence[tuple[str, ...]], left_out: Sequence[str]) -> list[str]:
    """The table as aligned lines, the headings first."""
    from rich.cells import cell_len, set_cell_size

    # No column for what no stage has, as where there is no preference model.
    shown = [
        i
        for i, heading in enumerate(_HEADERS)
        if heading not in left_out and (i == 0 or any(row[i] for row in rows))
    ]
    table = [[row[i] for i in shown] for row in (_HEADERS, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(set_cell_size, row, widths)).rstrip() for row in table]
