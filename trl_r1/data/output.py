"""Where data comes from and goes to: any file, folder or Hub id in; one whole folder out.

A folder is built under another name and gets its own at the end. It holds `train-*.parquet`, the
dataset card, and what a step has to tell under `report/`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.data.card import CARD_FILE, DataLog, card_text
from trl_r1.sampling.shards import fingerprint, partial_folder, promote, write_atomically
from trl_r1.tasks import DatasetSource
from trl_r1.tasks.sources import read_source

if TYPE_CHECKING:
    from datasets import Dataset

_SETTINGS_FILE = ".settings.json"
_WORK_FOLDER = ".work"
ROWS_PER_FILE = 100_000


class OutputFolder:
    """A data set under construction, or a finished one.

    What a killed run left is used again where the settings are the same, and dropped where not.

    Args:
        folder: of the finished data set.
        settings: plain data that the rows depend on.

    Raises:
        ValueError: the folder is there and was made with other settings, or by something else.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.partial = partial_folder(folder)
        record = json.dumps(settings, sort_keys=True, default=str)
        marker = self.partial / _SETTINGS_FILE
        self.is_finished = folder.exists()
        if self.is_finished:
            if _read(folder / _SETTINGS_FILE) != record:
                raise ValueError(
                    f"{folder} exists already and was made with other settings or data; delete it, "
                    "or choose another --output"
                )
            return
        if self.partial.exists() and _read(marker) != record:
            shutil.rmtree(self.partial)
        self.partial.mkdir(parents=True, exist_ok=True)
        if not marker.exists():
            write_atomically(marker, lambda path: path.write_text(record, encoding="utf-8"))

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
                write_atomically(path, part.to_parquet)
        for name, text in (reports or {}).items():
            file = self.partial / "report" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        card = card_text(title, log, sections or {})
        (self.partial / CARD_FILE).write_text(card, encoding="utf-8")
        shutil.rmtree(self.partial / _WORK_FOLDER, ignore_errors=True)
        promote(self.partial, self.folder)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def read_rows(name: str, split: str = "train") -> Dataset:
    """The rows of a file, a folder or a Hub id, as they are.

    Args:
        name: a path; or a Hub id, with `:config` behind it where it has several.
        split: of them.

    Raises:
        ValueError: they can't be read.
    """
    try:
        return read_source(DatasetSource(dataset_name=name, split=split))
    except (OSError, ValueError) as error:
        detail = " ".join(str(error).split())[:300]
        raise ValueError(f"{name}: {detail}") from error


def identity(name: str, rows: Dataset) -> str:
    """What a change of the data would change, without reading it all."""
    path = Path(name).expanduser()
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.is_file() else []
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    return fingerprint([name, len(rows), rows.column_names, stats])
