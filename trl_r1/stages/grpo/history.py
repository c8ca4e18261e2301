"""The figures of an RL training so far, as a monitor looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

# Above this accuracy a policy has learnt what it is taught: that it has settled is no fault.
MASTERED = 0.9
# One of them is in every log of a training step.
_TRAINING = ("entropy", "kl", "frac_reward_zero_std")


@dataclass(frozen=True)
class Finding:
    """What a monitor has to say.

    Attributes:
        seen: the figures.
        since: optimizer step of the last log before it began, 0 where it was so from the start.
        meaning: what that is a sign of.
        advice: settings and their new values.
        figures: the numbers in `seen`, by name.
    """

    seen: str
    since: int
    meaning: str
    advice: str
    figures: Mapping[str, float] = field(default_factory=dict)


class History:
    """The logs of a training, as one series a metric.

    Args:
        logs: mappings with `step`.
        settings: the training's, by name, for advice; `accuracy_name` is the accuracy reward's.
    """

    def __init__(
        self, logs: Sequence[Mapping[str, Any]] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        self.settings = dict(settings or {})
        self.steps: list[int] = []
        self._series: dict[str, list[tuple[int, float | None]]] = {}
        for log in logs:
            self.add(log)

    def add(self, log: Mapping[str, Any]) -> bool:
        """Take a log in; False for one that is not of a training step."""
        is_training = any(name in log for name in _TRAINING)
        step = int(log["step"])
        for name, value in log.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name != "step" and (is_number or value is None):
                number = float(value) if is_number else None
                self._series.setdefault(name, []).append((step, number))
        if is_training:
            self.steps.append(step)
        return is_training

    @property
    def names(self) -> list[str]:
        """The metrics that were logged at least once."""
        return list(self._series)

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) pairs of a metric, without gaps and without what is no number."""
        return [
            (step, value)
            for step, value in self._series.get(name, ())
            if value is not None and math.isfinite(value)
        ]

    def last(self, name: str, count: int) -> list[float]:
        """The last values of a metric; an empty list where there are fewer than `count`."""
        values = [value for _, value in self.series(name)]
        return values[-count:] if len(values) >= count else []

    def is_lost(self, name: str) -> bool:
        """Whether a metric was a number once and is none in the last log."""
        values = self._series.get(name)
        if not values:
            return False
        last = values[-1][1]
        return (last is None or not math.isfinite(last)) and bool(self.series(name))

    def since(self, name: str, is_bad: Callable[[float], bool]) -> int:
        """The step before which the values at the end that are bad began."""
        series = self.series(name)
        place = len(series)
        while place and is_bad(series[place - 1][1]):
            place -= 1
        # A log is of the steps since the one before it.
        return series[place - 1][0] if place else 0

    def halves(self, name: str, window: int) -> tuple[float, float, int] | None:
        """Means of the first and second half of the last `window` values, and the step before."""
        series = self.series(name)[-window:]
        if len(series) < window:
            return None
        middle = window // 2
        values = [value for _, value in series]
        return fmean(values[:middle]), fmean(values[middle:]), series[middle - 1][0]

    def span(self, count: int) -> str:
        """The steps of the last `count` logs, in words."""
        first = self.steps[-count - 1] if len(self.steps) > count else 0
        return f"steps {first + 1} to {self.steps[-1]}" if self.steps else "no step"

    def has_mastered(self, count: int) -> bool:
        """Whether the accuracy of the last logs is high; False where it is not known."""
        values = self.last("accuracy", count)
        return bool(values) and fmean(values) >= MASTERED

    def is_stuck(self, count: int, least_rise: float = 0.02) -> bool:
        """Whether accuracy (or the reward, where it is not known) is neither high nor rising."""
        name = "accuracy" if self.series("accuracy") else "reward"
        halves = self.halves(name, 2 * count)
        if halves is None:
            return not self.has_mastered(count)
        return halves[1] - halves[0] < least_rise and not self.has_mastered(count)

    def setting(self, name: str, default: float) -> float:
        """A setting of the training as a number."""
        value = self.settings.get(name)
        return float(value) if isinstance(value, (int, float)) else default
