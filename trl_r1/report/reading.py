"""A run's folder as it is: finished, still running, cut short or damaged; or an evaluation's.

Whatever can't be read becomes a line in `notes`, never an error, except a folder that no run made.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_r1.evaluation.record import RECORD_FILE as EVALUATION_FILE
from trl_r1.pipeline.display import duration
from trl_r1.pipeline.ledger import RECORD_FILE, Input, StageRecord, damage, read_record
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.run_file import RUN_FILE

# Escapes, directional overrides and the like would change how the text around them is shown.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


@dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes:
        name: its name.
        folder: where its files lie.
        record: its entry in the ledger.
    """

    name: str
    folder: Path
    record: StageRecord

    def folders(self) -> dict[str, Path]:
        """Its folders by name; of one that is still being filled under the name it will have."""
        found = {path.name: path for path in sorted(self.folder.glob("*")) if path.is_dir()}
        for name, path in list(found.items()):
            if name.startswith(".") and name.endswith(".partial"):
                found.setdefault(name[1:].removesuffix(".partial"), path)
        return found


@dataclass(frozen=True)
class Run:
    """A run to report on.

    Attributes:
        label: its name in the report, unique among the runs.
        folder: where it lies.
        pipeline: name of the pipeline.
        stages: those with a record, in the order they run in.
        notes: what is missing or can't be read, a line each.
    """

    label: str
    folder: Path
    pipeline: str
    stages: tuple[Stage, ...] = ()
    notes: list[str] = field(default_factory=list)


def visible(text: Any) -> str:
    """A text with control characters, lone surrogates and marks of direction written out."""
    return _UNSEEN.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", str(text))


def finite(value: Any) -> float | None:
    """A value as a finite number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # of a whole number with hundreds of digits
        return None
    return found if math.isfinite(found) else None


def time_text(record: StageRecord) -> str:
    """The time of a stage in words."""
    return "" if finite(record.seconds) is None else duration(record.seconds)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in some folders.

    Args:
        folders: of the runs, as `runs/tiny-cpu`.

    Raises:
        PipelineError: one is not the folder of a run.
    """
    return [
        read_run(folder, label) for folder, label in zip(folders, _labels(folders), strict=True)
    ]


def _labels(folders: Sequence[Path]) -> list[str]:
    paths = [folder.resolve() for folder in folders]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    labels: list[str] = []
    for path in paths:
        label, again = visible("/".join(path.parts[-depth:])), 2
        own = label
        while own in labels:
            own, again = f"{label} ({again})", again + 1
        labels.append(own)
    return labels


def read_run(folder: Path, label: str) -> Run:
    """The run in a folder.

    Args:
        folder: of the run.
        label: its name in the report.

    Raises:
        PipelineError: not the folder of a run.
    """
    if not folder.is_dir():
        kind = "not a folder" if folder.exists() else "no such folder"
        raise PipelineError(f"{folder}: {kind}; name the folder of a run, as runs/tiny-cpu")
    if (folder / RECORD_FILE).is_file():
        raise PipelineError(f"{folder} is a stage; name the folder of its run, {folder.parent}")
    notes: list[str] = []
    document = _run_document(folder, notes)
    found = {stage.name: stage for stage in _read_stages(folder, notes)}
    has_records = any((path / RECORD_FILE).exists() for path in folder.iterdir())
    if not found and not document and not has_records:
        return _evaluation_run(folder, label)
    planned = document.get("stages")
    planned = [str(name) for name in planned] if isinstance(planned, list) else []
    listed = [name for name in planned if name in found]
    stages = [found[name] for name in [*listed, *(n for n in found if n not in listed)]]
    begun = {path.parent.name for path in folder.glob(f"*/{RECORD_FILE}")}
    waiting = [name for name in planned if name not in begun]
    if waiting:
        notes.append(f"Not begun: {', '.join(waiting)}.")
    for stage in stages:
        notes += _stage_notes(stage)
    pipeline = visible(document.get("pipeline") or folder.resolve().name)
    return Run(label, folder, pipeline, tuple(stages), [visible(note) for note in notes])


def _evaluation_run(folder: Path, label: str) -> Run:
    """What `trl-r1 eval` left in a folder, as a run of one stage.

    Raises:
        PipelineError: it left nothing, or is not finished.
    """
    file = folder / EVALUATION_FILE
    if not file.is_file():
        raise PipelineError(
            f"{folder} is not the folder of a run: it has no stages, and no {EVALUATION_FILE} of a "
            "finished evaluation"
        )
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        record = StageRecord(
            "evaluation",
            "evaluation",
            "finished",
            inputs=(Input("model", str(document["model"]), "weights"),),
            recipe={**document["settings"], **document["template"]},
            versions=dict(document["versions"]),
            scores=dict(document["scores"]),
            seconds=document["seconds"],
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PipelineError(
            f"{file} can't be read; run the same trl-r1 eval again, which keeps its samples"
        ) from error
    return Run(label, folder, "evaluation", (Stage("evaluation", folder, record),))


def _run_document(folder: Path, notes: list[str]) -> dict[str, Any]:
    try:
        document = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{RUN_FILE} is missing, so the stages are in the order of their names.")
        return {}
    except (OSError, ValueError):
        notes.append(f"{RUN_FILE} can't be read, so the stages are in the order of their names.")
        return {}
    return document if isinstance(document, dict) else {}


def _read_stages(folder: Path, notes: list[str]) -> Iterator[Stage]:
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        # A rerun works beside the finished result, which stays in the report until it is replaced.
        if place.name.startswith("."):
            if place.name.endswith(".next"):
                name = place.name[1:].removesuffix(".next")
                notes.append(f"{name} is being run again; shown is its last finished result.")
            continue
        try:
            record = read_record(place)
        except PipelineError:
            notes.append(f"{place.name}/{RECORD_FILE} can't be read, so the stage is left out.")
            continue
        if record is not None:
            yield Stage(record.name, place, record)


def _stage_notes(stage: Stage) -> list[str]:
    record, notes = stage.record, []
    if record.status == "running":
        step, end = record.details.get("step"), record.details.get("max_steps")
        place = f" at step {step} of {end}" if step is not None and end is not None else ""
        notes.append(f"{stage.name} is still running or was cut short{place}; no scores yet.")
    elif record.status == "trained":
        notes.append(f"{stage.name} is trained; its scores are not complete.")
    try:
        harm = damage(record, stage.folder)
    except (AttributeError, TypeError, ValueError, OSError):
        # Somebody's edit may have left anything in a record.
        harm = "what its record says of its artifacts can't be read"
    if harm is not None and record.status != "running":
        notes.append(f"{stage.name}: {harm}.")
    return notes


def read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; lines that are none are counted in `notes`."""
    rows, bad = [], 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    bad += 1
                    continue
                if isinstance(row, dict):
                    rows.append(row)
                else:
                    bad += 1
    except FileNotFoundError:
        return []
    except OSError as error:
        notes.append(f"{path.parent.name}/{path.name} can't be read ({error.strerror}).")
    if bad:
        notes.append(left_out(f"{path.parent.name}/{path.name}", bad, "line"))
    return rows


def left_out(place: str, number: int, what: str) -> str:
    """A note of what can't be read."""
    damaged = f"1 damaged {what} is" if number == 1 else f"{number} damaged {what}s are"
    return f"{place}: {damaged} left out."
