"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

# Label on the screen: the metric it comes from, by the first key that ends with or equals it.
_METRICS = (
    ("reward", ("reward",)),
    ("accuracy", ("accuracy", "rewards/math_answer/mean", "rewards/math_answer_reward/mean",
                  "mean_token_accuracy")),
    ("format", ("format", "rewards/think_format/mean", "rewards/think_format_reward/mean")),
    ("length", ("completions/mean_length", "mean_length")),
    ("kept", ("kept",)),
    ("loss", ("loss",)),
)  # fmt: skip


class Display:
    """Plain lines, one every few seconds at most: for pipes, logs and CI.

    Args:
        stream: where to write.
        every_seconds: least time between two progress lines.
        clock: for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = stream
        self.every_seconds = every_seconds
        self.clock = clock
        self.label = ""
        self._started = 0.0
        self._first_step: int | None = None
        self._first_time = 0.0
        self._last = (0, 0)
        self._last_line = float("-inf")

    def line(self, text: str) -> None:
        """Show a line."""
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def stage_started(self, name: str, number: int, total: int, what: str) -> None:
        """A stage begins; `what` says how (run, resume, ...)."""
        self.label = f"[{number}/{total}] {name}"
        self._started = self.clock()
        self._first_step = None
        self._last_line = float("-inf")
        self.line(f"{self.label}: {what}")

    def phase(self, text: str) -> None:
        """The stage does something that has no steps, like scoring."""
        self._first_step = None
        self.line(f"{self.label}: {text}")

    def progress(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """The stage has done `step` of `max_steps` steps."""
        now = self.clock()
        self._keep_pace(step, max_steps, now)
        if now - self._last_line >= self.every_seconds:
            self._last_line = now
            self.line(f"{self.label}: {self.progress_text(step, max_steps, metrics)}")

    def _keep_pace(self, step: int, max_steps: int, now: float) -> None:
        last_step, last_max = self._last
        # A stage may train several models, one after the other; each has a pace of its own.
        if self._first_step is None or step < last_step or max_steps != last_max:
            self._first_step, self._first_time = step, now
        self._last = (step, max_steps)

    def progress_text(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> str:
        """Step, the figures that matter, and the time left."""
        parts = [f"step {step}/{max_steps}" if max_steps > 0 else f"step {step}"]
        parts += [f"{label} {value}" for label, value in shown_metrics(metrics)]
        left = self.seconds_left(step, max_steps)
        if left is not None:
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def seconds_left(self, step: int, max_steps: int) -> float | None:
        """From the pace since the first step of this attempt; None until there is one."""
        first = self._first_step
        if first is None or step <= first or max_steps <= 0:
            return None
        return (self.clock() - self._first_time) / (step - first) * max(0, max_steps - step)

    def stage_finished(self, text: str) -> None:
        """A stage is complete; `text` is its result in short."""
        self.line(f"{self.label}: {text}")

    def close(self) -> None:
        """The run ends, well or not."""


class LiveDisplay(Display):
    """A panel at the bottom of a terminal that follows the stage; finished lines stay above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, every_seconds=0.0)
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._live = Live(
            console=Console(file=stream, force_terminal=True),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def line(self, text: str) -> None:
        self._live.console.print(self._text(text))

    def stage_started(self, name: str, number: int, total: int, what: str) -> None:
        super().stage_started(name, number, total, what)
        self._show("starting")

    def phase(self, text: str) -> None:
        self._first_step = None
        self._show(text)

    def progress(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        now = self.clock()
        self._keep_pace(step, max_steps, now)
        bar = ""
        if max_steps > 0:
            done = int(20 * min(1.0, step / max_steps))
            bar = "━" * done + "╌" * (20 - done) + "  "
        self._show(bar + self.progress_text(step, max_steps, metrics))

    def _show(self, text: str) -> None:
        spent = duration(self.clock() - self._started)
        self._live.update(self._text.assemble((self.label, "bold"), f"  {text}  ({spent})"))

    def close(self) -> None:
        self._live.update("")
        self._live.stop()


def make_display(stream: TextIO) -> Display:
    """A live view for a terminal, plain lines for anything else."""
    return LiveDisplay(stream) if stream.isatty() else Display(stream)


def shown_metrics(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The metrics that matter to a person, in order, as (label, value)."""
    shown = []
    for label, keys in _METRICS:
        value = next((metrics[key] for key in keys if key in metrics), None)
        if isinstance(value, (int, float)):
            digits = 0 if label == "length" else 3
            shown.append((label, f"{value:.{digits}f}" if isinstance(value, float) else f"{value}"))
    return shown


def duration(seconds: float) -> str:
    """Seconds as people say them: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
