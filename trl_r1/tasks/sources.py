"""Reading a set of problems as it is: a data file, a folder, or a data set of the Hub.

Left out: streaming, and sets whose loading is a script, which `datasets` no longer runs; name their
files instead (`hf://datasets/owner/name/test.jsonl`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trl_r1.trust.withholding import WithheldError, is_withheld

if TYPE_CHECKING:
    from datasets import Dataset

_LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_HUB_FILES = "hf://"


class Source(Protocol):
    """What there is to know of a source to read it; `DatasetSource` has it."""

    @property
    def dataset_name(self) -> str | None: ...

    @property
    def split(self) -> str: ...


def read_source(source: Source, default: str | None = None) -> Dataset:
    """The rows of `source.dataset_name` (or `default`) as they are.

    A file is one split, whatever it is called. Of a folder it is the file named after the split
    (`test.jsonl`), or what `load_dataset` or `load_from_disk` makes of it. A Hub id may have a
    config behind it (`openai/gsm8k:main`), and files there may be named by their address.

    Raises:
        ValueError: where there is neither, or the source can't be read, or has no rows; it says
            which.
        OSError: the Hub is away, or does not have it.
    """
    from datasets.exceptions import DatasetGenerationError

    name = source.dataset_name or default
    if not name:
        raise ValueError("dataset_name is missing; name a file, a folder or a Hub id")
    path = Path(name).expanduser()
    if not path.exists() and _is_meant_as_path(name):
        raise ValueError(f"{name}: no such file or folder")
    try:
        rows = _read(name, source.split)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise ValueError(
            f"{name}: it is loaded by a script of its own, which is not run; name its data files"
        ) from error
    except DatasetGenerationError as error:
        raise ValueError(f"{name}: {_broken_place(path, source.split, error)}") from error
    except ValueError as error:
        if "corresponds to no data" in str(error):
            raise ValueError(f"{name}: there are no rows in its split {source.split}") from error
        said = _broken_line(path, source.split) or str(error)
        raise ValueError(said if said.startswith(name) else f"{name}: {said}") from error
    _refuse_other_separators(name, rows.column_names)
    return rows


def _read(name: str, split: str) -> Dataset:
    from datasets import load_dataset, load_from_disk

    if name.startswith(_HUB_FILES):
        return load_dataset(_loader(name), data_files={split: name}, split=split)
    path = Path(name).expanduser()
    if path.is_dir():
        file = _file_of_split(path, split)
        if file is None and (path / "state.json").is_file():
            return load_from_disk(str(path))
        if file is None and is_withheld():
            # Its README may name addresses, which are fetched even without a network allowed.
            raise WithheldError(f"{name}: which files it means is said in it")
        if file is None:
            # Whole, since `.` is a name to `load_dataset`.
            return load_dataset(str(path.resolve()), split=split)
        path = file
    if path.is_file():
        loader = _loader(str(path))
        if _is_blank(path):
            raise ValueError(f"{path} is empty")
        if loader == "parquet" and not _num_parquet_rows(path):
            raise ValueError(f"{path}: there are no rows in it")
        return load_dataset(loader, data_files={split: str(path)}, split=split)
    repository, _, config = name.partition(":")
    return load_dataset(repository, *([config] if config else []), split=split)


def _num_parquet_rows(path: Path) -> int:
    import pyarrow.parquet as pq

    count: int = pq.ParquetFile(path).metadata.num_rows
    return count


def _is_meant_as_path(name: str) -> bool:
    if name.startswith(_HUB_FILES):
        return False
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).suffix in _LOADERS


def _broken_place(path: Path, split: str, error: BaseException) -> str:
    """What is wrong with a data file, and in which line where that can be told."""
    if line := _broken_line(path, split):
        return line
    cause = error.__cause__ or error
    detail = " ".join(str(cause).split())[:250]
    hint = "; write it as UTF-8" if isinstance(cause, UnicodeDecodeError) else ""
    return f"it can't be read ({type(cause).__name__}: {detail}){hint}"


def _broken_line(path: Path, split: str) -> str | None:
    file = _file_of_split(path, split) if path.is_dir() else path
    if file is None or file.suffix != ".jsonl" or not file.is_file():
        return None
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                json.loads(line) if line.strip() else None
            except ValueError as mistake:
                detail = " ".join(str(mistake).split())[:150]
                return f"line {number} can't be read as JSON ({detail}); mend or delete it"
    return None


def _refuse_other_separators(name: str, columns: list[str]) -> None:
    is_csv = Path(name.removesuffix(".gz")).suffix == ".csv"
    for separator, called in ((";", "semicolons"), ("\t", "tabs")):
        if is_csv and len(columns) == 1 and separator in columns[0]:
            raise ValueError(f"{name}: its columns are parted by {called}; part them by commas")


def _loader(path: str) -> str:
    suffix = Path(path.removesuffix(".gz").removesuffix(".zst")).suffix
    loader = _LOADERS.get(suffix)
    if loader is None:
        raise ValueError(
            f"{path}: can't read {Path(path).suffix!r} files; use .jsonl, .json, .parquet or .csv"
        )
    return loader


def _file_of_split(folder: Path, split: str) -> Path | None:
    """`train.jsonl` and the like; None for a folder that names its files otherwise."""
    names = (f"{split}{suffix}{packed}" for suffix in _LOADERS for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _is_blank(path: Path) -> bool:
    with path.open("rb") as file:
        return all(not chunk.strip() for chunk in iter(lambda: file.read(1 << 16), b""))


def files_of_splits(path: Path) -> list[Path]:
    """The files that a path whose name has a `{split}` stands for, sorted."""
    before, _, after = path.name.partition("{split}")
    there = path.parent.iterdir() if path.parent.is_dir() else ()
    return sorted(p for p in there if p.name.startswith(before) and p.name.endswith(after))
