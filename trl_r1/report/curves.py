"""The curves of a stage from its `metrics.jsonl`, grouped into panels and thinned out.

Thinned curves keep the lowest and the highest value of every stretch, so that no peak is lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trl_r1.report.reading import Stage, finite, read_lines, visible
from trl_r1.report.stage_table import interval

MAX_POINTS = 400
# Panels in the order of the page: id, title, unit, (label, metrics of which the first is taken).
# The first two are the paper's Figure 1.
_PANELS: tuple[tuple[str, str, str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    (
        "accuracy",
        "Accuracy",
        "share of completions",
        (
            ("pass@1", ("pass@1", "accuracy")),
            ("majority vote", ("majority_accuracy",)),
            ("while training", ("eval_accuracy", "eval_pass@1")),
        ),
    ),
    ("length", "Response length", "tokens", (("mean", ("completions/mean_length",)),)),
    ("pass_at_k", "pass@k of the groups", "share of problems", ()),
    ("rewards", "Rewards by name", "mean reward", ()),
    ("reward", "Weighted sum of rewards", "reward", (("mean", ("reward",)),)),
    ("kl", "KL to the reference", "nats a token", (("KL", ("kl",)),)),
    ("entropy", "Entropy", "nats a token", (("entropy", ("entropy",)),)),
    (
        "clip",
        "Clipped tokens",
        "share of tokens",
        (
            ("below 1 - \u03b5", ("clip_ratio/low_mean",)),
            ("above 1 + \u03b5", ("clip_ratio/high_mean",)),
            ("either", ("clip_ratio/region_mean", "clip_ratio")),
        ),
    ),
    (
        "dead",
        "Dead groups: no spread in reward",
        "share of groups",
        (("dead groups", ("frac_reward_zero_std",)),),
    ),
    (
        "truncated",
        "Truncation and language",
        "share of completions",
        (("cut off", ("completions/clipped_ratio",)), ("main language", ("language_share",))),
    ),
    ("verdicts", "Nothing to grade, or grading failed", "share of rows", ()),
    ("loss", "Loss", "loss", (("loss", ("loss",)), ("held-out", ("eval_loss",)))),
    (
        "tokens",
        "Right at the next token or pair",
        "share",
        (("tokens", ("mean_token_accuracy",)), ("pairs", ("accuracy",))),
    ),
    ("margin", "Margin of chosen over rejected", "reward", (("margin", ("margin",)),)),
    ("grad", "Gradient norm", "norm", (("norm", ("grad_norm",)),)),
    ("lr", "Learning rate", "rate", (("learning rate", ("learning_rate",)),)),
    ("time", "Time of a step", "seconds", (("step", ("step_time",)),)),
)
_FIGURE_1 = ("accuracy", "length")
_REWARD = re.compile(r"rewards/(.+)/mean")
_VERDICT = re.compile(r"rewards/(.+)/(malformed|timed_out|crashed|not_gradable)")
_PASS = re.compile(r"pass@\d+")


def stage_curves(stage: Stage, notes: list[str]) -> dict[str, Any] | None:
    """Panels and alarms of a stage; None where it has no metrics.

    Args:
        stage: the stage.
        notes: takes up what can't be read.
    """
    logs = _in_order(read_lines(stage.folder / "metrics.jsonl", notes))
    series = _series(logs)
    is_rl = "reward" in series or any(map(_REWARD.fullmatch, series))
    panels = []
    for ident, title, unit, lines in _PANELS:
        if ident == "tokens" if is_rl else ident in _FIGURE_1:
            continue
        curves = [_curve(label, series, names) for label, names in (*lines, *_named(ident, series))]
        shown = [curve for curve in curves if curve]
        if shown and (points := held_out(stage, ident, max(curve["x"][-1] for curve in shown))):
            shown.append(points)
        if shown:
            panel: dict[str, Any] = {"id": ident, "title": title, "unit": unit, "series": shown}
            if ident == "length":
                panel["band"] = _band(series)
            panels.append(panel)
    alarms = _alarms(stage, notes)
    if not panels and not alarms:
        return None
    return {"rl": is_rl, "panels": panels, "alarms": alarms}


def _in_order(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The logs of the training as it came to its end: steps that were trained again replace those
    before them."""
    kept: list[Mapping[str, Any]] = []
    for log in logs:
        step = finite(log.get("step"))
        if step is None:
            continue
        while kept and kept[-1]["step"] > step:
            kept.pop()
        kept.append(log)
    return kept


def _series(logs: Sequence[Mapping[str, Any]]) -> dict[str, dict[float, float]]:
    series: dict[str, dict[float, float]] = {}
    for log in logs:
        for name, value in log.items():
            found = finite(value)
            if name not in ("step", "time") and found is not None:
                series.setdefault(name, {})[log["step"]] = found
    return series


def _named(
    ident: str, series: Mapping[str, Mapping[float, float]]
) -> list[tuple[str, tuple[str, ...]]]:
    """The lines of a panel whose metrics have names of their own."""
    if ident == "rewards":
        found = [(match[1], (name,)) for name in series if (match := _REWARD.fullmatch(name))]
        return [(label.removesuffix("_reward"), names) for label, names in found]
    if ident == "verdicts":
        return [
            (f"{match[1].removesuffix('_reward')}: {match[2].replace('_', ' ')}", (name,))
            for name in series
            if (match := _VERDICT.fullmatch(name)) and any(series[name].values())
        ]
    if ident == "pass_at_k":
        found = [(name, (name,)) for name in series if _PASS.fullmatch(name) and name != "pass@1"]
        return sorted(found, key=lambda line: int(line[0].split("@")[1]))
    return []


def _curve(
    label: str, series: Mapping[str, Mapping[float, float]], names: Sequence[str]
) -> dict[str, Any] | None:
    name = next((name for name in names if name in series), None)
    if name is None:
        return None
    points = thin(list(series[name].items()))
    xs, ys = [x for x, _ in points], [_short(y) for _, y in points]
    return {"label": visible(label), "x": xs, "y": ys, "n": len(series[name])}


def held_out(stage: Stage, ident: str, last_step: float) -> dict[str, Any] | None:
    """The scores before and after a stage as a line of two points, with their intervals.

    Args:
        stage: the stage.
        ident: of the panel; only those of Figure 1 have such a score.
        last_step: where the score after the stage stands.
    """
    key = {"accuracy": "pass@1", "length": "mean_length"}.get(ident)
    points: list[tuple[float, float, float | None, float | None]] = []
    for when, step in (("before", 0.0), ("after", last_step)):
        scores = stage.record.scores.get(when)
        if key is None or not isinstance(scores, Mapping):
            continue
        if (value := finite(scores.get(key))) is not None:
            ends = interval(scores, key)
            low, high = (None, None) if ends is None else map(_short, ends)
            points.append((step, _short(value), low, high))
    if not points:
        return None
    steps, values, lows, highs = (list(column) for column in zip(*points, strict=True))
    return {"label": "held-out", "x": steps, "y": values, "low": lows, "high": highs, "n": 0}


def _band(series: Mapping[str, Mapping[float, float]]) -> dict[str, Any] | None:
    """The 10th to 90th percentile of lengths; a stretch's widest where points were thinned out."""
    low, high = (series.get(f"completions/length_{p}", {}) for p in ("p10", "p90"))
    steps = sorted(set(low) & set(high))
    if not steps:
        return None
    size = math.ceil(len(steps) / (MAX_POINTS // 2))
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    return {
        "label": "10th to 90th percentile",
        "x": [group[len(group) // 2] for group in groups],
        "low": [_short(min(low[step] for step in group)) for group in groups],
        "high": [_short(max(high[step] for step in group)) for group in groups],
    }


def thin(
    points: Sequence[tuple[float, float]], limit: int = MAX_POINTS
) -> list[tuple[float, float]]:
    """At most `limit` of the points: the first, the last, and of each stretch between them the
    lowest and the highest.

    Args:
        points: (step, value) pairs, in order.
        limit: at least 4.
    """
    if len(points) <= limit:
        return list(points)
    inner, stretches = points[1:-1], (limit - 2) // 2
    kept = [points[0]]
    for i in range(stretches):
        part = inner[i * len(inner) // stretches : (i + 1) * len(inner) // stretches]
        ends = {part.index(min(part, key=_value)), part.index(max(part, key=_value))}
        kept += [part[place] for place in sorted(ends)]
    return [*kept, points[-1]]


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _alarms(stage: Stage, notes: list[str]) -> list[dict[str, Any]]:
    """What the monitors reported, from the stage's `monitors.jsonl`."""
    alarms = []
    for record in read_lines(stage.folder / "monitors.jsonl", notes):
        step = record.get("step")
        is_step = finite(step) is not None
        went_back = record.get("action") == "went back"
        back = f"went back to step {record.get('to_step')}, learning rate "
        alarms.append(
            {
                "step": step if is_step else None,
                "monitor": visible(record.get("monitor", "")),
                "action": visible(record.get("action", "")),
                "seen": f"{back}{record.get('learning_rate')}"
                if went_back
                else visible(record.get("seen", "")),
                "since": visible(record.get("since", "")),
                "meaning": visible(record.get("meaning", "")),
                "advice": visible(record.get("advice", "")),
            }
        )
    return alarms
