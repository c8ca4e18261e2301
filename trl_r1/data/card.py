"""What was done to a data set: one record a step, and the dataset card made from them.

The card lies beside the data as `README.md`, as the Hub has it. Its header carries the records, so
the next command goes on with them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, DatasetCardData

CARD_FILE = "README.md"
STEPS_KEY = "trl_r1_steps"


@dataclass
class StepRecord:
    """One step.

    Attributes:
        step: its name.
        rows_before: rows it got.
        rows_after: rows it left.
        text: what it did, in one line.
        settings: plain data.
        seconds: wall time.
    """

    step: str
    rows_before: int
    rows_after: int = 0
    text: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class DataLog:
    """The records of the steps so far, in order.

    Args:
        records: of earlier commands.
    """

    def __init__(self, records: Sequence[StepRecord] = ()) -> None:
        self.records = list(records)

    @contextmanager
    def step(self, name: str, rows: int, settings: Mapping[str, Any]) -> Iterator[StepRecord]:
        """A record to fill in while the step runs; kept if it ends well."""
        record = StepRecord(name, rows, settings=dict(settings))
        start = time.monotonic()
        yield record
        record.seconds = round(time.monotonic() - start, 2)
        self.records.append(record)

    @classmethod
    def of_folder(cls, folder: Path) -> DataLog:
        """The log that a data set's card carries; an empty one where it carries none."""
        records = []
        with suppress(FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            given = DatasetCard.load(folder / CARD_FILE).data.to_dict().get(STEPS_KEY, [])
            records = [StepRecord(**record) for record in given]
        return cls(records)


def card_text(title: str, log: DataLog, sections: Mapping[str, str]) -> str:
    """The text of a dataset card.

    Args:
        title: of the data set.
        log: the steps.
        sections: further headings with Markdown under them.
    """
    fields: dict[str, Any] = {STEPS_KEY: [asdict(record) for record in log.records]}
    # No `configs`: with them `datasets` caches a local folder by its name alone, and would read the
    # rows of another folder of that name.
    data = DatasetCardData(tags=["trl-r1"], **fields)
    lines = [f"# {title}", "", "## How it was made", "", "| step | rows | what |", "|---|---|---|"]
    for record in log.records:
        text = record.text.replace("|", "\\|")
        rows = f"{record.rows_before:,} → {record.rows_after:,}"
        lines.append(f"| {record.step} | {rows} | {text} |")
    for heading, body in sections.items():
        lines += ["", f"## {heading}", "", body]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(lines) + "\n"
