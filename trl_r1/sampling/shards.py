"""Work cut into shards that survive a kill: each is a parquet file written in one piece, missing
ones are redone.

While it is incomplete an artifact is `.<name>.partial`; the finished one is renamed, so a folder
`<name>` is always whole. Left out on purpose: what the rows are.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# Hidden, so that `load_dataset` passes it by.
_SETTINGS_FILE = ".settings.json"


class Claim:
    """A lock on a file, of the kind that a shared folder (NFS) knows, too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """The lock on `path`; None where another process has it, or the folder is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            return None
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


class ShardFolder:
    """An artifact made of parquet shards, under construction or finished.

    Args:
        folder: where the finished artifact goes.
        num_shards: how many shards it has.
        schema: of every shard, so that one whose column happens to be all null agrees with the
            others.
        settings: plain data that the rows depend on.

    Raises:
        ValueError: where what is there was made with other settings.
    """

    def __init__(
        self, folder: Path, num_shards: int, schema: pa.Schema, settings: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.num_shards = num_shards
        self.schema = schema
        self.partial = partial_folder(folder)
        if not self.is_finished:
            self.partial.mkdir(parents=True, exist_ok=True)
        place = folder if self.is_finished else self.partial
        record = json.dumps({**settings, "num_shards": num_shards}, sort_keys=True, default=str)
        marker = place / _SETTINGS_FILE
        if not marker.exists():
            write_atomically(marker, lambda path: path.write_text(record, encoding="utf-8"))
        elif (found := marker.read_text(encoding="utf-8")) != record:
            raise ValueError(
                f"{place} was made with other settings or rows ({_differences(found, record)}); "
                "delete it to start over, or choose another output folder"
            )
        if self.is_finished and len(list(folder.glob("*.parquet"))) != num_shards:
            raise ValueError(
                f"some of the {num_shards} shards of {folder} have gone; rename it to "
                f"{self.partial.name} and run again to have these made anew"
            )

    @property
    def is_finished(self) -> bool:
        """Whether the artifact has its final name."""
        return self.folder.exists()

    def path(self, index: int) -> Path:
        """Where shard `index` lies while the folder is incomplete."""
        return self.partial / f"train-{index:05d}-of-{self.num_shards:05d}.parquet"

    def missing(self) -> list[int]:
        """Indices of the shards that are still to be made."""
        if self.is_finished:
            return []
        try:
            # Asking for each takes far longer.
            made = {path.name for path in self.partial.iterdir()}
        except FileNotFoundError:  # another process has just finished it
            made = set()
            if self.is_finished:
                return []
        return [index for index in range(self.num_shards) if self.path(index).name not in made]

    def num_made(self) -> int:
        """How many shards there are."""
        return self.num_shards - len(self.missing())

    def claim(self, index: int) -> Claim | None:
        """Take a missing shard, for this process to make; None where another process has it.

        The system gives the claim back when the process dies, however it dies.
        """
        claim = Claim.take(self.partial / f".train-{index:05d}.lock")
        if claim is not None and (self.is_finished or self.path(index).exists()):
            claim.release()  # made between the look and the claim
            return None
        return claim

    def write(self, index: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a shard in one piece."""
        write_table(self.path(index), rows, self.schema)

    def finish(self) -> None:
        """Give the folder its final name.

        Raises:
            FileNotFoundError: where a shard is missing.
        """
        if self.is_finished:
            return
        if missing := self.missing():
            first = ", ".join(str(index) for index in missing[:5])
            raise FileNotFoundError(
                f"{self.partial}: {len(missing)} shards are missing, the first of them {first}"
            )
        for pattern in (".*.tmp", ".*.lock", ".answers-*.jsonl"):
            for leftover in self.partial.glob(pattern):
                leftover.unlink(missing_ok=True)
        promote(self.partial, self.folder)


@contextmanager
def waiting_claim(path: Path) -> Iterator[None]:
    """The lock on `path` for a while, waited for where another process has it."""
    while (claim := Claim.take(path)) is None:
        time.sleep(0.2)
    try:
        yield
    finally:
        claim.release()  # the file stays: whoever waits for it has it open


def partial_folder(folder: Path) -> Path:
    """Where an artifact is built before it gets its name."""
    return folder.with_name(f".{folder.name}.partial")


def read_shards(
    folder: Path, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Each shard of a finished artifact with its rows, in order, one in memory at a time.

    Raises:
        ValueError: for a damaged one, with what to do.
    """
    for path in sorted(folder.glob("*.parquet")):
        try:
            table = pq.read_table(path, columns=list(columns) if columns else None)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{path} is damaged ({str(error)[:100]}); delete it, rename {folder} to "
                f"{partial_folder(folder).name}, and run again to have it made anew"
            ) from error
        yield path, table.to_pylist()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a temporary file in the same folder, then put it in place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write(temporary)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write rows to a parquet file in one piece."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def promote(partial: Path, final: Path) -> None:
    """Give a finished folder its final name."""
    _sync(partial)
    partial.replace(final)
    _sync(final.parent)


def fingerprint(value: Any) -> str:
    """A short hash of plain data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _differences(found: str, wanted: str) -> str:
    """The names of what differs between two records."""
    with suppress(ValueError, TypeError):
        one, other = _flat(dict(json.loads(found))), _flat(json.loads(wanted))
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        return "other " + ", ".join(sorted(names))
    return "its record can't be read"


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    inner = record.get("config")
    return {**record, **inner, "config": None} if isinstance(inner, dict) else dict(record)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some file systems refuse to sync a folder; the rename is still atomic there.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
