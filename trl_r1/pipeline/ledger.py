"""The ledger: a `stage.json` in every stage's folder, and what it says about lineage.

Everything is written to a temporary name and renamed, so a reader never sees half a file. A
finished result stays in its place until its successor is complete; `StageFolder.settle` finishes a
promotion that was cut short, and may be called at any time, any number of times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pydantic

from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.trust.secrets import clean

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
RECORD_FILE = "stage.json"
RECIPE_FILE = "recipe.yaml"


@dataclass(frozen=True)
class Input:
    """Something that flows into a stage.

    Attributes:
        key: where its recipe names it, `datasets[0].dataset_name`.
        source: as written there: `@zero/rollouts`, a path or a Hub id.
        role: `weights`, `data` or `reward`.
        hash: of its content; None where it can't be known (a Hub id).
        stage: the stage that made it, if one of this run did.
        artifact: the artifact's name, then.
        fingerprint: the producer's, then.
        commit: of the Hub, where it is a repository there.
    """

    key: str
    source: str
    role: str
    hash: str | None = None
    stage: str | None = None
    artifact: str | None = None
    fingerprint: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class StageRecord:
    """What `stage.json` holds.

    Attributes:
        name: the stage's name.
        stage: its type.
        status: `running`: in work or cut short; `trained`: its artifacts are complete, its scores
            are not; `finished`.
        inputs: what flows into it, by content hash.
        recipe: its keys, merged, as written; no secrets.
        seed: its seed.
        versions: of the packages it ran with.
        scores: `before` and `after`, each with `pass@1, format, mean_length, general` and others,
            and their intervals as `pass@1_interval: [low, high]` (see `evaluation.scores`); empty
            where it makes no model.
        scored_on: what those were measured on: the pipeline's `evaluation` as written; no secrets.
        seconds: wall time over all attempts.
        artifacts: by name, the `hash` and `kind` of each, and the `sizes` of its files in bytes.
        fingerprint: `stage`, of recipe and inputs, and `scores`, of how it is scored.
        details: plain data from the stage, and `step`, the last one reported.
    """

    name: str
    stage: str
    status: Literal["running", "trained", "finished"]
    inputs: tuple[Input, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    scored_on: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    artifacts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece: killed at any time, it holds the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_record(folder: Path, record: StageRecord) -> None:
    """Write a stage's `stage.json`."""
    write_text(
        folder / RECORD_FILE, json.dumps(clean(asdict(record)), indent=1, default=str) + "\n"
    )


def read_record(folder: Path) -> StageRecord | None:
    """A stage's record; None where there is none.

    Raises:
        PipelineError: it is not one that this package wrote.
    """
    path = folder / RECORD_FILE
    try:
        record = _record_type().validate_json(path.read_bytes(), strict=True)
        fault = _name_fault(record)
        if fault is None:
            return record
    except (FileNotFoundError, NotADirectoryError):
        return None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        fault = f"{place}: {first['msg']}" if place else first["msg"]
    except OSError as error:
        fault = error.strerror or str(error)
    raise PipelineError(
        f"{path} can't be read ({fault}); move the folder {folder} away to run the stage again"
    )


def _name_fault(record: StageRecord) -> str | None:
    """A name that leads out of the stage's folder: a stranger's record may hold one."""
    if not _NAME.fullmatch(record.name.lstrip(".")):  # a successor's begins with a point
        return f"{record.name!r} is no name that a run gives"
    for name in record.artifacts:
        if not _NAME.fullmatch(name):
            return f"{name!r} is no name that a run gives"
    for artifact in record.artifacts.values():
        sizes = artifact.get("sizes") or {}
        if not isinstance(sizes, dict) or not all(type(size) is int for size in sizes.values()):
            return "the sizes of an artifact are no numbers by file"
        for file in sizes:
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or "\\" in file:
                return f"{file!r} leads out of its artifact"
    return None


@cache
def _record_type() -> pydantic.TypeAdapter[StageRecord]:
    return pydantic.TypeAdapter(StageRecord)


def damage(record: StageRecord, place: Path) -> str | None:
    """What is missing of a stage's artifacts, in words; None where they are whole.

    Names and sizes are compared, not contents: large models are not read on every run. A file that
    somebody added is no damage.
    """
    for name, artifact in record.artifacts.items():
        if not (place / name).is_dir():
            return f"its {name} is gone"
        for file, size in (artifact.get("sizes") or {}).items():
            path = place / name / file
            if not path.is_file():
                return f"its {name}/{file} is gone"
            if path.stat().st_size < size:
                return f"its {name}/{file} is cut short"
    return None


class StageFolder:
    """Where a stage lives in a run.

    Its place is `RUN/NAME`. A rerun works in `RUN/.NAME.next` and takes the place only when it is
    complete.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self.place = run_dir / name
        self._next = run_dir / f".{name}.next"
        self._old = run_dir / f".{name}.old"

    def finished(self) -> StageRecord | None:
        """The record of the finished result in its place."""
        record = read_record(self.place)
        return record if record is not None and record.status == "finished" else None

    def work_dir(self) -> Path:
        """Where to work: in place for a first result, beside a finished one."""
        return self._next if self.finished() is not None else self.place

    def unfinished(self) -> StageRecord | None:
        """The record of an attempt that was cut short."""
        return read_record(self.work_dir())

    def start_afresh(self) -> None:
        """Drop what an attempt with another recipe or other inputs left.

        Raises:
            PipelineError: something else is in its place, which nobody said to drop.
        """
        folder = self.work_dir()
        if folder == self.place and self._is_foreign():
            raise PipelineError(
                f"{folder} is in the way: it has no {RECORD_FILE}, so no run made it; move it away "
                "or use --output_dir for another folder."
            )
        if folder.exists():
            self._trash(folder)
        folder.mkdir(parents=True, exist_ok=True)

    def _is_foreign(self) -> bool:
        if not self.place.is_dir():
            return self.place.exists()
        # What is written before the first record may stand alone after a kill.
        ours = {RECIPE_FILE, "log.txt"}
        names = {path.name for path in self.place.iterdir() if not path.name.startswith(".")}
        return RECORD_FILE not in names and not names <= ours

    def drop_attempt(self) -> None:
        """Drop a successor that was begun and is not wanted any more."""
        if self._next.exists():
            self._trash(self._next)

    def _trash(self, folder: Path) -> None:
        # Renamed first: a kill in the middle must not leave half a folder under a live name.
        trash = folder.with_name(f".{self.place.name}.trash")
        _remove(trash)
        folder.rename(trash)
        _remove(trash)

    def settle(self) -> None:
        """Promote a complete successor, and remove leftovers."""
        successor = read_record(self._next)
        if successor is not None and successor.status == "finished":
            if self.place.exists():
                _remove(self._old)
                self.place.rename(self._old)
            self._next.rename(self.place)
        elif not self.place.exists() and self._old.exists():
            self._old.rename(self.place)
        for leftover in (self._old, self.place.with_name(f".{self.place.name}.trash")):
            _remove(leftover)


def _remove(path: Path) -> None:
    """Remove a folder, or whatever is in its place, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def records(run_dir: Path) -> dict[str, StageRecord]:
    """The records of a run, by stage."""
    found = {}
    for folder in sorted(run_dir.iterdir()) if run_dir.is_dir() else ():
        if not folder.name.startswith(".") and (record := read_record(folder)) is not None:
            found[record.name] = record
    return found


def weight_ancestors(run: Path | Mapping[str, StageRecord], stage: str) -> set[str]:
    """The stages whose weights flow into a stage's: its `weights` inputs, theirs, and so on.

    Args:
        run: folder of the run, or its records by stage.
        stage: name of the stage.

    Raises:
        KeyError: no such stage in the ledger.
    """
    ledger = records(run) if isinstance(run, Path) else run
    return set(_walk(ledger, stage, only_weights=True)) - {stage}


def data_ancestors(run: Path | Mapping[str, StageRecord], stage: str) -> set[str]:
    """The stages that a stage learns from by data or rewards, at any distance.

    The same stage may be both: the base's weights flow into a model that also learns from samples
        of a model that started there.

    Args:
        run: folder of the run, or its records by stage.
        stage: name of the stage.

    Raises:
        KeyError: no such stage in the ledger.
    """
    ledger = records(run) if isinstance(run, Path) else run
    found: set[str] = set()
    for name in _walk(ledger, stage, only_weights=True):
        for item in ledger[name].inputs:
            if item.stage is not None and item.role != "weights" and item.stage in ledger:
                found |= set(_walk(ledger, item.stage, only_weights=False))
    return found


def _walk(
    ledger: Mapping[str, StageRecord], stage: str, only_weights: bool, seen: set[str] | None = None
) -> Iterator[str]:
    seen = set() if seen is None else seen
    if stage in seen:
        return
    seen.add(stage)
    yield stage
    for item in ledger[stage].inputs:
        if item.stage is None or item.stage not in ledger:
            continue
        if item.role == "weights" or not only_weights:
            yield from _walk(ledger, item.stage, only_weights, seen)
