"""What a person sees: not too many lines, the figures that matter, the time left."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path

import pytest

from trl_r1.pipeline.display import Display, LiveDisplay, duration, make_display, shown_metrics
from trl_r1.pipeline.quiet import QuietLog


def test_plain_lines_come_every_few_seconds_at_most() -> None:
    now = [0.0]
    stream = io.StringIO()
    display = make_display(stream)
    assert type(display) is Display, "a stream in memory is no terminal"
    display.clock = lambda: now[0]
    display.stage_started("zero", 2, 11, "run")
    for step in range(1, 31):
        now[0] += 2.0
        display.progress(step, 30, {"reward": step / 30})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[2/11] zero: run"
    assert lines[1] == "[2/11] zero: step 1/30  reward 0.033"
    assert lines[2] == "[2/11] zero: step 6/30  reward 0.200  48 s left"
    assert len(lines) == 1 + 6


def test_the_time_left_goes_by_the_pace_of_this_attempt() -> None:
    now = [100.0]
    display = Display(io.StringIO(), clock=lambda: now[0])
    display.stage_started("zero", 1, 1, "resume")
    display.progress(50, 60, {})
    assert display.seconds_left(50, 60) is None, "one step tells no pace"
    now[0] += 6.0
    assert display.seconds_left(53, 60) == pytest.approx(14.0)
    display.progress(53, 60, {})
    # The stage goes on to another model.
    display.progress(55, 100, {})
    assert display.seconds_left(55, 100) is None
    now[0] += 6.0
    assert display.seconds_left(56, 100) == pytest.approx(264.0)


def test_the_live_view_shows_stage_step_and_figures() -> None:
    stream = io.StringIO()
    display = LiveDisplay(stream)
    display.stage_started("zero", 2, 11, "run")
    display.progress(6, 12, {"reward": 0.5, "completions/mean_length": 18.2})
    display._live.refresh()
    display.stage_finished("finished in 3 s")
    display.close()
    text = stream.getvalue()
    assert "step 6/12" in text
    assert "length 18" in text
    assert "finished in 3 s" in text


def test_the_figures_that_matter_are_found_under_trl_s_names() -> None:
    metrics = {
        "loss": 0.1,
        "reward": 0.9,
        "rewards/math_answer_reward/mean": 0.75,
        "completions/mean_length": 17.6,
        "grad_norm": 3.0,
    }
    assert shown_metrics(metrics) == [
        ("reward", "0.900"),
        ("accuracy", "0.750"),
        ("length", "18"),
        ("loss", "0.100"),
    ]


def test_durations_read_as_people_say_them() -> None:
    texts = [duration(s) for s in (0.4, 59.4, 60, 215, 1830, 7500)]
    assert texts == ["0 s", "59 s", "1 min 0 s", "3 min 35 s", "30 min", "2 h 5 min"]


def test_the_log_takes_prints_warnings_and_library_loggers_and_gives_them_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import logging
    import os

    library = logging.getLogger("a_library_of_this_test")
    handler = logging.StreamHandler(sys.stderr)
    library.addHandler(handler)
    with QuietLog() as log:
        sys.stdout.write("printed before there is a file\n")
        log.switch(tmp_path / "a" / "log.txt")
        sys.stderr.write("printed\n")
        os.write(2, b"written by compiled code\n")
        warnings.warn("warned", stacklevel=1)
        library.warning("logged")
        log.screen.write("for the person\n")
        log.switch(tmp_path / "b" / "log.txt")
        sys.stdout.write("in the second file\n")
    sys.stdout.write("after\n")
    out, err = capfd.readouterr()
    assert out == "for the person\nafter\n"
    assert err == ""
    first = (tmp_path / "a" / "log.txt").read_text()
    for word in ("before there is a file", "printed", "compiled code", "warned", "logged"):
        assert word in first
    assert (tmp_path / "b" / "log.txt").read_text() == "in the second file\n"
    assert library.handlers == [handler]
    library.removeHandler(handler)
