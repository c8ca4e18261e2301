"""Content hashes of what flows into a stage: files, folders, plain data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


def hash_data(value: Any) -> str:
    """The hash of plain data; the order of keys does not count."""
    document = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(document.encode()).hexdigest()[:32]


class FileHashes:
    """Hashes of files and folders; a file is read once as long as its size and time stay."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], str] = {}

    def path(self, path: Path) -> str:
        """The hash of a file's content, or of a folder's names and contents.

        Raises:
            OSError: it can't be read.
        """
        if path.is_file():
            return self._file(path)
        files = sorted(p for p in path.rglob("*") if p.is_file() and not _is_left_out(p, path))
        return hash_data([[p.relative_to(path).as_posix(), self._file(p)] for p in files])

    def sizes(self, folder: Path) -> dict[str, int]:
        """The sizes of a folder's files in bytes, by their path in it."""
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not _is_left_out(p, folder))
        return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}

    def _file(self, path: Path) -> str:
        stat = path.stat()
        key = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if key not in self._known:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
            self._known[key] = digest.hexdigest()[:32]
        return self._known[key]


def _is_left_out(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return any(part.startswith(".") or part == "__pycache__" for part in parts)
