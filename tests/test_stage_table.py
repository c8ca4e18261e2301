"""The table at the end of a run: margins, and what terminals of little width get."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
from io import StringIO
from pathlib import Path

import pytest

from trl_r1.pipeline.ledger import Input, StageRecord, write_record
from trl_r1.pipeline.table import print_table, table_rows


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of one stage: its table is 95 columns wide, 77 without the data, 64 without either."""
    before = {"pass@1": 0.25, "format": 0.5, "mean_length": 10.2}
    after = {"pass@1": 0.75, "pass@1_interval": [0.7, 0.8], "format": 1.0, "mean_length": 20.0}
    record = StageRecord(
        "reasoning_rl",
        "grpo",
        "finished",
        inputs=(
            Input("model_name_or_path", "@cold_start", "weights"),
            Input("dataset_name", "@cold_start_data", "data"),
        ),
        scores={"before": before, "after": after},
        seconds=51.0,
    )
    (tmp_path / "reasoning_rl").mkdir()
    write_record(tmp_path / "reasoning_rl", record)
    return tmp_path


def on_a_terminal(run_dir: Path, columns: int) -> list[str]:
    """The lines that a terminal of that width gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        print_table(run_dir, stream)
    text = b""
    with contextlib.suppress(OSError):  # how a terminal says that the other end is closed
        while part := os.read(ours, 65536):
            text += part
    os.close(ours)
    return re.sub(r"\x1b\[\d*m", "", text.decode()).splitlines()


def test_a_score_is_shown_with_half_of_its_interval(run_dir: Path) -> None:
    (row,), _ = table_rows(run_dir)
    assert row[3:6] == ("0.250 → 0.750 ±0.050", "0.500 → 1.000", "10 → 20")
    (row,), _ = table_rows(run_dir, with_before=False)
    assert row[3:6] == ("0.750 ±0.050", "1.000", "20")


def test_a_pipe_gets_the_whole_table_whatever_its_width(run_dir: Path) -> None:
    stream = StringIO()
    print_table(run_dir, stream)
    assert stream.getvalue() == (
        "stage         starts from  data              "
        "pass@1                format         length   time\n"
        "reasoning_rl  @cold_start  @cold_start_data  "
        "0.250 → 0.750 ±0.050  0.500 → 1.000  10 → 20  51 s\n"
    )


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        (95, "reasoning_rl"),
        (94, "(too narrow for: data)"),
        (76, "(too narrow for: starts from, data)"),
        (64, "(too narrow for: starts from, data)"),
        (63, "(too narrow for: starts from, data, scores before the stage)"),
    ],
)
def test_a_narrow_terminal_goes_without_columns_and_no_figure_is_cut(
    run_dir: Path, columns: int, last: str
) -> None:
    lines = on_a_terminal(run_dir, columns)
    assert lines[-1].startswith(last)
    assert "0.750 ±0.050" in lines[1]
    assert max(map(len, lines[:2])) <= columns
