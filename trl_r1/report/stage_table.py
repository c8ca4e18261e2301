"""The stage table, as the paper's table 3: what each model of a run scores, under its name there.

Names come from the ledger: which stage's weights and data a stage was made of, never from what it
is called. Intervals are shown where the scores hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trl_r1.pipeline.ledger import StageRecord
from trl_r1.report.reading import Run, finite, time_text, visible

# Score, heading, digits, whether more is better (None: neither).
SCORES: tuple[tuple[str, str, int, bool | None], ...] = (
    ("pass@1", "pass@1", 3, True),
    ("format", "well-formed", 3, True),
    ("mean_length", "length", 1, None),
    ("general", "general", 3, True),
    ("preference", "preference", 2, True),
)


def stage_roles(run: Run) -> dict[str, str]:
    """The paper's name of each stage's model; an empty text for a stage that makes none.

    Args:
        run: the run.
    """
    ledger = {stage.name: stage.record for stage in run.stages}
    roles: dict[str, str] = {}
    students = {
        _start(record)
        for record in ledger.values()
        if record.stage == "distillation" and _start(record) is not None
    }
    for name, record in ledger.items():
        parent = _parent(record, ledger)
        is_student = _start(record) in students or (
            parent is not None and roles.get(parent.name, "").startswith("Distilled")
        )
        roles[name] = _role(record, parent, is_student)
    return roles


def _role(record: StageRecord, parent: StageRecord | None, is_student: bool) -> str:
    if record.stage != "grpo":
        names = {
            "tiny_base": "Base",
            "cold_start": "R1 Dev1: cold start",
            "mixed_sft": "R1 Dev3: mixed SFT",
            "distillation": "Distilled student",
        }
        return names.get(record.stage, "")
    if parent is not None and parent.stage == "cold_start":
        return "R1 Dev2: reasoning RL"
    if parent is not None and parent.stage == "mixed_sft":
        return "R1: RL for all scenarios"
    if is_student:
        distilled = parent is not None and parent.stage == "distillation"
        return "Distilled student, then RL" if distilled else "Student by RL alone (control)"
    return "R1-Zero" if parent is None or parent.stage == "tiny_base" else "RL"


def _start(record: StageRecord) -> str | None:
    """What a stage's weights are: their hash, or their source where that is not known."""
    item = next((item for item in record.inputs if item.role == "weights"), None)
    return None if item is None else item.hash or item.source


def _parent(record: StageRecord, ledger: Mapping[str, StageRecord]) -> StageRecord | None:
    item = next((item for item in record.inputs if item.role == "weights"), None)
    return ledger.get(item.stage or "") if item is not None else None


def table_rows(run: Run) -> list[dict[str, Any]]:
    """Rows of the table: models that stages start from and that no stage scores, and the stages.

    Args:
        run: the run.
    """
    roles, rows, known = stage_roles(run), list[dict[str, Any]](), set[str | None]()
    later = _scored_later(run)
    for stage in run.stages:
        if stage.record.scores.get("after"):
            known.add(_made(stage.record))
    for stage in run.stages:
        record, start = stage.record, _start(stage.record)
        before = record.scores.get("before")
        if start is not None and start not in known and isinstance(before, dict):
            known.add(start)
            item = next(item for item in record.inputs if item.role == "weights")
            is_student = roles[stage.name].startswith(("Distilled", "Student"))
            role = "Student, as it is" if is_student else "Base, as it is"
            rows.append(_row(item.source, role, "", before, "", ""))
        if record.stage == "evaluation" or not (roles[stage.name] or record.scores):
            continue
        after = record.scores.get("after")
        status = "" if record.status == "finished" else record.status
        source = next((item.source for item in record.inputs if item.role == "weights"), "")
        time = time_text(record)
        scores = after if isinstance(after, dict) else {}
        # A preference model that is trained later scores a model only where a stage starts from it.
        scores = {**later.get(_made(record) or "", {}), **scores}
        rows.append(_row(stage.name, roles[stage.name], source, scores, time, status))
    _mark_best(rows)
    return rows


def _made(record: StageRecord) -> str | None:
    """Hash of the model that a stage made."""
    model = next(iter(record.artifacts.values()), None)
    return str(model["hash"]) if isinstance(model, Mapping) and model.get("hash") else None


def _scored_later(run: Run) -> dict[str, dict[str, Any]]:
    """By the hash of a model, what the stages that start from it stored of it before they ran."""
    found: dict[str, dict[str, Any]] = {}
    for stage in run.stages:
        before, start = stage.record.scores.get("before"), _start(stage.record)
        if isinstance(before, dict) and start is not None:
            found[start] = {**before, **found.get(start, {})}
    return found


def _row(
    name: str, role: str, source: str, scores: Mapping[str, Any], time: str, status: str
) -> dict[str, Any]:
    cells = [score_cell(scores, key, digits) for key, _, digits, _ in SCORES]
    return {
        "name": visible(name),
        "role": role,
        "source": visible(source),
        "cells": cells,
        "time": time,
        "status": status,
    }


def score_cell(scores: Mapping[str, Any], key: str, digits: int) -> dict[str, Any]:
    """A score and its interval as the page shows them.

    Args:
        scores: as stored.
        key: which.
        digits: after the point.
    """
    value = scores.get(key)
    low = high = None
    if isinstance(value, Mapping):
        low, high, value = value.get("low"), value.get("high"), value.get("value")
    if not _is_number(value):
        return {"value": None, "text": "", "interval": "", "best": False}
    ends = interval(scores, key) if low is None else (low, high)
    text = ""
    if ends is not None and all(map(_is_number, ends)):
        text = f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
    return {"value": value, "text": f"{value:.{digits}f}", "interval": text, "best": False}


def interval(scores: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """The stored interval of a score: `KEY_interval`, `KEY_ci`, `intervals.KEY` or
    `KEY_low` and `KEY_high`; None where there is none."""
    named = scores.get("intervals")
    held = [scores.get(f"{key}_interval"), scores.get(f"{key}_ci")]
    held += [named.get(key) if isinstance(named, Mapping) else None]
    held += [[scores.get(f"{key}_low"), scores.get(f"{key}_high")]]
    for ends in held:
        if isinstance(ends, Mapping):
            ends = [ends.get("low"), ends.get("high")]
        if isinstance(ends, (list, tuple)) and len(ends) == 2 and all(map(_is_number, ends)):
            return float(ends[0]), float(ends[1])
    return None


def _is_number(value: Any) -> bool:
    return finite(value) is not None


def _mark_best(rows: list[dict[str, Any]]) -> None:
    for column, (*_, is_more_better) in enumerate(SCORES):
        values = [row["cells"][column]["value"] for row in rows]
        shown = [value for value in values if value is not None]
        if is_more_better and len(shown) > 1:
            for row in rows:
                row["cells"][column]["best"] = row["cells"][column]["value"] == max(shown)
