"""The scores of evaluations, a row a task: of the stage `evaluation` and of `trl-r1 eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trl_r1.evaluation.record import RECORD_FILE
from trl_r1.report.reading import Run, Stage, finite, visible
from trl_r1.report.stage_table import score_cell

_HEADINGS = {"format": "well-formed", "truncated": "cut off", "mean_length": "length"}
_DIGITS = {"mean_length": 1}


def evaluation_table(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Headings and rows of the table of all evaluations; None where there is none.

    Args:
        runs: the runs; what can't be read of them goes into their notes.
    """
    found: list[tuple[str, str, Mapping[str, Any], str]] = []
    for run in runs:
        for stage in run.stages:
            document = _document(stage, run.notes)
            own = run.label if stage.name == "evaluation" else f"{run.label}: {stage.name}"
            for task, scores in _parts(document):
                about = f"{visible(own)}: {_about(document)}"
                found.append((visible(own), visible(task), scores, about))
    keys = [
        key
        for key in dict.fromkeys(key for *_, scores, _ in found for key in scores)
        if not key.endswith("_interval")
        and any(finite(row[2].get(key)) is not None for row in found)
    ]
    if not keys:
        return None
    return {
        "headings": [visible(_HEADINGS.get(key, key)) for key in keys],
        "rows": [
            {
                "label": label,
                "task": task,
                "about": about,
                "cells": [score_cell(scores, key, _DIGITS.get(key, 3)) for key in keys],
            }
            for label, task, scores, about in found
        ],
    }


def is_evaluation(run: Run) -> bool:
    """Whether a run is what `trl-r1 eval` left, or a pipeline of evaluations alone."""
    return bool(run.stages) and all(stage.record.stage == "evaluation" for stage in run.stages)


def _document(stage: Stage, notes: list[str]) -> Mapping[str, Any]:
    if stage.record.stage != "evaluation":
        return {}
    try:
        document = json.loads((stage.folder / RECORD_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        notes.append(f"{stage.name}/{RECORD_FILE} can't be read, so its scores are left out.")
        return {}
    return document if isinstance(document, Mapping) else {}


def _parts(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The scores of each task, and of all where there are several."""
    tasks, scores = document.get("tasks"), document.get("scores")
    parts = list(tasks.items()) if isinstance(tasks, Mapping) else []
    if len(parts) != 1:
        parts.append(("all", scores))
    return [(str(task), found) for task, found in parts if isinstance(found, Mapping)]


def _about(document: Mapping[str, Any]) -> str:
    """What was evaluated and how."""
    settings = document.get("settings")
    settings = settings if isinstance(settings, Mapping) else {}
    parts = [
        str(document.get("model") or ""),
        _told("{:,.0f} problems", document.get("problems")),
        _told("{:,.0f} samples", document.get("samples")),
        _told("temperature {:g}", settings.get("temperature")),
        _told("top-p {:g}", settings.get("top_p")),
        _told("at most {:,.0f} tokens", settings.get("max_new_tokens")),
        _told("seed {:.0f}", settings.get("seed")),
    ]
    return visible(", ".join(part for part in parts if part))


def _told(text: str, value: Any) -> str:
    number = finite(value)
    return "" if number is None else text.format(number)
