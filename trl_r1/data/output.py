"""Where data comes from and goes to: any file, folder or Hub id in; one whole folder out.

A folder is built under another name and gets its own at the end. It holds `train-*.parquet`, the
dataset card, and what a step has to tell under `report/`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.data.card import CARD_FILE, DataLog, card_text
from trl_r1.reasoning_format import FORMATS
from trl_r1.sampling.shards import (
    Claim,
    fingerprint,
    partial_folder,
    promote,
    write_atomically,
)
from trl_r1.tasks import DatasetSource, is_task_name, load_rows
from trl_r1.tasks.sources import read_source

if TYPE_CHECKING:
    from datasets import Dataset

_SETTINGS_FILE = ".settings.json"
_WORK_FOLDER = ".work"
_LOCK_FILE = ".lock"
ROWS_PER_FILE = 100_000


class OutputFolder:
    """A data set under construction, or a finished one.

    What a killed run left is used again where the settings are the same, and dropped where not.

    Args:
        folder: of the finished data set.
        settings: plain data that the rows depend on.

    Raises:
        ValueError: the folder is there and was made with other settings, or by something else; or
            another process is making it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        if not folder.name:
            raise ValueError(f"{folder} can't be made anew; name a folder in it")
        self.folder = folder
        self.partial = partial_folder(folder)
        record = json.dumps(settings, sort_keys=True, default=str)
        self.is_finished = False
        if not folder.exists():
            self._claim = self._taken()
        if folder.exists():  # it may have been finished by another command just now
            self._must_be(record)
            self.is_finished = True
            return
        marker = self.partial / _SETTINGS_FILE
        if _read(marker) != record:
            self._clear()
            write_atomically(marker, lambda path: path.write_text(record, encoding="utf-8"))

    def _must_be(self, record: str) -> None:
        made = _read(self.folder / _SETTINGS_FILE)
        if made != record:
            what = "was made with other settings or data" if made else "is something else"
            raise ValueError(
                f"{self.folder} exists already and {what}; delete it, or choose another --output"
            )

    def _taken(self) -> Claim:
        self.partial.mkdir(parents=True, exist_ok=True)
        claim = Claim.take(self.partial / _LOCK_FILE)
        if claim is None:
            raise ValueError(
                f"another command is making {self.folder}; wait for it, or choose another --output"
            )
        return claim

    def _clear(self) -> None:
        for leftover in self.partial.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            elif leftover.name != _LOCK_FILE:
                leftover.unlink()

    def give_up(self) -> None:
        """After a mistake: leave nothing behind where there was no work yet."""
        if not self.is_finished and not any((self.partial / _WORK_FOLDER).rglob("*.parquet")):
            shutil.rmtree(self.partial, ignore_errors=True)
            self._claim.release()

    def workspace(self, step: str) -> Path:
        """A folder for the chunks of a step; it goes when the data set is finished."""
        folder = self.partial / _WORK_FOLDER / step
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(
        self,
        rows: Dataset,
        title: str,
        log: DataLog,
        sections: Mapping[str, str] | None = None,
        reports: Mapping[str, str] | None = None,
    ) -> None:
        """Write the rows, the card and the reports, and give the folder its name.

        Args:
            rows: of the data set.
            title: of the card.
            log: the steps.
            sections: further headings of the card.
            reports: file names under `report/` and their texts.
        """
        num_files = max(1, -(-len(rows) // ROWS_PER_FILE))
        for index in range(num_files):
            path = self.partial / f"train-{index:05d}-of-{num_files:05d}.parquet"
            if not path.exists():
                start = index * ROWS_PER_FILE
                part = rows.select(range(start, min(start + ROWS_PER_FILE, len(rows))))
                write_atomically(path, partial(_write_rows, part))
        for name, text in (reports or {}).items():
            file = self.partial / "report" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        card = card_text(title, log, sections or {})
        (self.partial / CARD_FILE).write_text(card, encoding="utf-8")
        shutil.rmtree(self.partial / _WORK_FOLDER, ignore_errors=True)
        (self.partial / _LOCK_FILE).unlink(missing_ok=True)
        promote(self.partial, self.folder)
        self._claim.release()


def _write_rows(rows: Dataset, path: Path) -> None:
    # With content-defined chunks, the default, Arrow ends the process where the disk is full.
    rows.to_parquet(path, use_content_defined_chunking=False)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def read_rows(name: str, split: str = "train") -> Dataset:
    """The rows of a file, a folder or a Hub id, as they are, or those of a task.

    Args:
        name: a path; a task's name; or a Hub id, with `:config` behind it where it has several.
        split: of them.

    Raises:
        ValueError: they can't be read.
    """
    if is_task_name(name):
        return load_rows(DatasetSource(task=name, split=split), FORMATS["r1"])
    try:
        return read_source(DatasetSource(dataset_name=name, split=split))
    except (OSError, ValueError) as error:
        detail = " ".join(str(error).split())[:300]
        if isinstance(error, OSError):
            detail = f"no file or folder of that name, and not to be had from the Hub: {detail}"
        raise ValueError(detail if detail.startswith(name) else f"{name}: {detail}") from error


def identity(name: str, rows: Dataset) -> str:
    """What a change of the data would change, without reading it all."""
    return fingerprint([name, len(rows), rows.column_names, stamp(name)])


def stamp(name: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of the files of local data; none of data elsewhere."""
    path = Path(name).expanduser() if name else None
    if path is None or not path.exists():
        return []
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
