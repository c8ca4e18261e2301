"""The curves as PNG files, drawn with matplotlib: the paper's Figure 1 and a stage's panels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_r1.pipeline.mistakes import PipelineError

_COLOURS = ("#0b62a8", "#c2410c", "#047857", "#a21caf", "#854d0e", "#475569", "#be123c", "#4338ca")
_DASHES = ("-", "--", ":", "-.")


def load_matplotlib() -> Any:
    """matplotlib's `Figure`, which draws without a screen.

    Raises:
        PipelineError: it is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PipelineError(
            "--png needs matplotlib: pip install 'trl-r1[report]', or leave --png out"
        ) from error
    return Figure


def draw(data: dict[str, Any], folder: Path) -> list[Path]:
    """Draw each stage's curves, all runs over one another; returns the files.

    Args:
        data: as `page.collect` gives it.
        folder: for the files; made where it is missing.

    Raises:
        PipelineError: matplotlib is not installed.
    """
    figure_type = load_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    stages = list(dict.fromkeys(name for run in data["runs"] for name in run["curves"]))
    paths = []
    for stage in stages:
        held = [(run["label"], run["curves"].get(stage)) for run in data["runs"]]
        curves = [(label, own) for label, own in held if own is not None]
        idents = list(dict.fromkeys(p["id"] for _, own in curves for p in own["panels"]))
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", stage)
        first = [ident for ident in idents if ident in ("accuracy", "length")]
        if first and any(own["rl"] for _, own in curves):
            paths.append(_draw(figure_type, curves, first, stage, folder / f"{safe}-figure-1.png"))
        if idents:
            paths.append(_draw(figure_type, curves, idents, stage, folder / f"{safe}-curves.png"))
    return paths


def _draw(
    figure_type: Any,
    curves: Sequence[tuple[str, dict[str, Any]]],
    idents: Sequence[str],
    stage: str,
    path: Path,
) -> Path:
    columns = min(len(idents), 3)
    rows = math.ceil(len(idents) / columns)
    figure = figure_type(figsize=(4.6 * columns, 3.2 * rows), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    for ident, axis in zip(idents, figure.axes, strict=False):
        _draw_panel(axis, curves, ident)
    for axis in figure.axes[len(idents) :]:
        axis.set_visible(False)
    figure.suptitle(stage, fontsize=12, parse_math=False)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png", dpi=130)
    partial.replace(path)
    return path


def _draw_panel(axis: Any, curves: Sequence[tuple[str, dict[str, Any]]], ident: str) -> None:
    number = 0
    for run, (label, own) in enumerate(curves):
        panel = next((p for p in own["panels"] if p["id"] == ident), None)
        if panel is None:
            continue
        axis.set_title(panel["title"], fontsize=10, loc="left")
        axis.set_ylabel(panel["unit"], fontsize=8)
        band = panel.get("band")
        if band:
            axis.fill_between(band["x"], band["low"], band["high"], alpha=0.15, lw=0,
                              color=_COLOURS[run % len(_COLOURS)])  # fmt: skip
        for place, series in enumerate(panel["series"]):
            several = len(curves) > 1
            colour = run if several else 3 if "low" in series else place
            name = f"{label}: {series['label']}" if several else series["label"]
            _draw_series(
                axis,
                series,
                # A name that starts with an underscore has no place in matplotlib's legends.
                label=f" {name}".replace("$", r"\$"),
                color=_COLOURS[colour % len(_COLOURS)],
                linestyle=_DASHES[(place if several else place // 4) % len(_DASHES)],
            )
            number += 1
    _set_bottom(axis)
    for step in {alarm["step"] for _, own in curves for alarm in own["alarms"]} - {None}:
        axis.axvline(step, color="#b3261e", lw=1.0, linestyle=(0, (5, 3)))
    axis.set_xlabel("step", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if number > 1:
        axis.legend(fontsize=7, frameon=False)


def _set_bottom(axis: Any) -> None:
    """Begin at zero where the page does: a small change then looks small."""
    low, high = axis.dataLim.y0, axis.dataLim.y1
    if low == high == 0:
        axis.set_ylim(0, 0.1)
    elif 0 <= low < 0.6 * high:
        axis.set_ylim(bottom=0)


def _draw_series(axis: Any, series: dict[str, Any], linestyle: str, **look: Any) -> None:
    xs, ys = series["x"], series["y"]
    if "low" not in series:
        # A single point is no line yet.
        axis.plot(xs, ys, linestyle=linestyle, lw=1.3, marker="o" if len(xs) == 1 else "", **look)
        return
    ends = zip(ys, series["low"], series["high"], strict=True)
    errors = [
        (0.0, 0.0) if low is None else (max(y - low, 0.0), max(high - y, 0.0))
        for y, low, high in ends
    ]
    axis.errorbar(xs, ys, yerr=list(zip(*errors, strict=True)), fmt="o", ms=4, capsize=3, lw=1.3,
                  **look)  # fmt: skip
