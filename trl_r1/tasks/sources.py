"""Reading a set of problems as it is: a data file, a folder, or a data set of the Hub.

Left out: streaming, and sets whose loading is a script, which `datasets` no longer runs; name their
files instead (`hf://datasets/owner/name/test.jsonl`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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
        ValueError: where there is neither, or the source can't be read; it says which.
    """
    from datasets import load_dataset, load_from_disk

    name = source.dataset_name or default
    if not name:
        raise ValueError("dataset_name is missing")
    if name.startswith(_HUB_FILES):
        return load_dataset(_loader(name), data_files={source.split: name}, split=source.split)
    path = Path(name).expanduser()
    if path.is_dir():
        file = _file_of_split(path, source.split)
        if file is None and (path / "state.json").is_file():
            return load_from_disk(str(path))
        if file is None:
            return load_dataset(str(path), split=source.split)
        path = file
    if path.is_file():
        loader = _loader(str(path))
        if _is_blank(path):
            raise ValueError(f"{path} is empty")
        return load_dataset(loader, data_files={source.split: str(path)}, split=source.split)
    repository, _, config = name.partition(":")
    return load_dataset(repository, *([config] if config else []), split=source.split)


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
