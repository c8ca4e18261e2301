"""Answers of servers, kept line by line as they come, so that a kill costs only what was under way.

A parquet shard is written in one piece; with thousands of long completions in a shard, what a
killed run had paid for would be lost. Left out: any locking, since one process at a time makes a
shard.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TextIO

from trl_r1.sampling import Sample


class AnswerLog:
    """The answers of one shard.

    Args:
        path: file of JSON lines; made where it is missing. A line that a kill cut short is no
            answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Sample] = {}
        whole = self._read() if path.exists() else ""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if whole and not whole.endswith("\n"):
            self._file.write("\n")

    def _read(self) -> str:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self.answers[entry["key"]] = Sample(**entry["sample"])
            except (ValueError, KeyError, TypeError):
                continue  # cut short by a kill
        return text

    def add(self, key: str, sample: Sample) -> None:
        """Keep an answer; it is out of this process when the call returns."""
        self.answers[key] = sample
        self._file.write(json.dumps({"key": key, "sample": asdict(sample)}) + "\n")
        self._file.flush()

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
