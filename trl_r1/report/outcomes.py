"""What became of the samples of rejection sampling: how many were kept, and why others were not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trl_r1.report.reading import Run, Stage, visible

REASONS = {
    "kept": "right, readable and no repetition of another: data for the next stage",
    "no_room": "the prompt left no room for an answer",
    "truncated": "cut off at the length limit",
    "malformed": "not in the format, so reasoning and answer can't be told apart",
    "ungradable": "no reward could say whether it is right",
    "wrong": "a reward says that the answer is wrong",
    "repetitive": "repeats itself",
    "long_paragraph": "a paragraph too long to read (paper, section 2.3.3)",
    "code_block": "a code block (paper, section 2.3.3)",
    "mixed_language": "more than one language (paper, section 2.3.3)",
    "duplicate": "the same text as a sample that was kept",
    "surplus": "fit, but more than are kept of one prompt",
}


def sampling_outcomes(run: Run) -> list[dict[str, Any]]:
    """Bars of each stage that sampled: word, count, share and meaning.

    Args:
        run: the run.
    """
    found = []
    for stage in run.stages:
        counts = _counts(stage)
        total = sum(counts.values())
        if not total:
            continue
        kept = counts.pop("kept", 0)
        ordered = [("kept", kept), *counts.most_common()]
        bars = [
            {
                "word": visible(word).replace("_", " "),
                "count": count,
                "share": count / total,
                "percent": "<0.1%" if 0 < count / total < 0.0005 else f"{count / total:.1%}",
                "meaning": REASONS.get(word.replace(" ", "_"), ""),
                "kept": word == "kept",
            }
            for word, count in ordered
        ]
        is_partial = stage.record.status == "running"
        found.append(
            {"stage": visible(stage.name), "total": total, "bars": bars, "partial": is_partial}
        )
    return found


def _counts(stage: Stage) -> Counter[str]:
    details = stage.record.details
    rejected = details.get("rejected")
    if isinstance(rejected, dict) and isinstance(details.get("kept"), int):
        whole = {str(k): v for k, v in rejected.items() if isinstance(v, int)}
        return Counter({"kept": details["kept"], **whole})
    if stage.record.stage != "rejection_sampling":
        return Counter()
    return _counts_so_far(stage)


def _counts_so_far(stage: Stage) -> Counter[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: Counter[str] = Counter()
    folder = stage.folders().get("samples", stage.folder)
    for path in sorted(path for path in folder.glob("*.parquet") if path.name[0] != "."):
        try:
            table = pq.read_table(path, columns=["verdict"])
        except (OSError, pa.ArrowException):
            continue
        counts.update(str(word) for word in table["verdict"].to_pylist())
    return counts
