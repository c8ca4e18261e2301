"""`run.json`: what a run is of - its pipeline, the order of its stages, and a name of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trl_r1.pipeline.ledger import write_text

RUN_FILE = "run.json"


@dataclass(frozen=True)
class RunFile:
    """What `run.json` holds.

    Attributes:
        pipeline: the pipeline's name.
        recipes: its folder as the user named it.
        stages: the stages, in order.
        folder: the recipes' folder, absolute, when the run was last started.
        settings: values of `--set` then.
        seed: of `--seed`, then.
        id: a name that no other run has.
    """

    pipeline: str
    recipes: str = ""
    stages: tuple[str, ...] = ()
    folder: Path = Path()
    settings: tuple[str, ...] = ()
    seed: int | None = None
    id: str = ""


def write_run_file(run_dir: Path, run: RunFile) -> RunFile:
    """Write `run.json`; a run keeps the id that it has."""
    run = replace(run, id=run.id or _document(run_dir).get("id") or uuid.uuid4().hex)
    document = {**asdict(run), "folder": str(run.folder)}
    write_text(run_dir / RUN_FILE, json.dumps(document, indent=1) + "\n")
    return run


def read_run_file(run_dir: Path) -> RunFile:
    """What `run.json` says; a file that is damaged or of an older version is made whole."""
    document = _document(run_dir)
    run = RunFile(
        pipeline=str(document.get("pipeline") or run_dir.resolve().name),
        recipes=str(document.get("recipes") or ""),
        stages=_texts(document.get("stages")),
        folder=Path(str(document.get("folder") or document.get("recipes") or "")),
        settings=_texts(document.get("settings")),
        seed=document.get("seed"),
        id=str(document.get("id") or ""),
    )
    return run if run.id else write_run_file(run_dir, run)


def order_of(run_dir: Path, names: Sequence[str] | Iterable[str]) -> list[str]:
    """Stages in the order of the run; those that `run.json` does not know come last."""
    known = list(names)
    listed = [name for name in _texts(_document(run_dir).get("stages")) if name in known]
    return [*listed, *(name for name in known if name not in listed)]


def _document(run_dir: Path) -> dict[str, Any]:
    try:
        document = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
