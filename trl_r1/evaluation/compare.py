"""How two evaluations differ on the problems that both have: paired, with intervals.

Problems are the same where their hashes are: task, question and answer, whatever the prompt around
them. Left out: more than two at a time, and corrections for looking often.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trl_r1.evaluation.record import PROBLEMS_FILE, RECORD_FILE
from trl_r1.metrics.estimates import Estimate, mean_estimate, paired_difference
from trl_r1.pipeline.mistakes import PipelineError

Row = dict[str, Any]
_COLUMNS = {"problem_hash", "task", "num_samples", "num_right", "mean_length"}


@dataclass(frozen=True)
class Difference:
    """One figure of both evaluations on a set of problems.

    Attributes:
        task: the problems' task, or `all`.
        figure: `pass@1`, `majority` or `length` (tokens).
        first, second: of each evaluation.
        difference: second minus first, with its interval.
    """

    task: str
    figure: str
    first: float
    second: float
    difference: Estimate

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True)
class Comparison:
    """Two evaluations side by side.

    Attributes:
        first, second: folders.
        differences: of all problems, then of each task.
        num_matched, num_only_first, num_only_second: problems.
        other_settings: what they were made with where that differs, the template and the packages'
            versions included: name, first, second.
    """

    first: str
    second: str
    differences: tuple[Difference, ...]
    num_matched: int
    num_only_first: int
    num_only_second: int
    other_settings: tuple[tuple[str, Any, Any], ...]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        from trl_r1.sampling.shards import write_atomically

        text = json.dumps(asdict(self), indent=1, default=str) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def compare(first: Path, second: Path) -> Comparison:
    """Compare two evaluations.

    Args:
        first, second: folders with `problems.parquet` and `evaluation.json`.

    Raises:
        PipelineError: one is no evaluation or is damaged, or they have no problem in common.
    """
    ones, others = _problems(first), _problems(second)
    shared = [key for key in ones if key in others]
    if not shared:
        raise PipelineError(
            f"{first} and {second} have no problem in common ({_told(ones)}, and {_told(others)}); "
            "compare evaluations on the same task, split and rows"
        )
    tasks = list(dict.fromkeys(ones[key]["task"] or "none" for key in shared))
    sets = {"all": shared}
    if len(tasks) > 1:
        sets |= {t: [k for k in shared if (ones[k]["task"] or "none") == t] for t in tasks}
    differences = [
        difference
        for task, keys in sets.items()
        for difference in _differences(task, [ones[k] for k in keys], [others[k] for k in keys])
    ]
    return Comparison(
        str(first),
        str(second),
        tuple(differences),
        len(shared),
        len(ones) - len(shared),
        len(others) - len(shared),
        tuple(_other_settings(first, second)),
    )


def _differences(task: str, ones: Sequence[Row], others: Sequence[Row]) -> list[Difference]:
    found = [_rates(task, "pass@1", ones, others, _flags)]
    if all(row.get("majority_score") is not None for row in (*ones, *others)):
        found.append(_rates(task, "majority", ones, others, lambda row: [row["majority_score"]]))
    pairs = list(zip(ones, others, strict=True))
    estimate = mean_estimate([[b["mean_length"] - a["mean_length"]] for a, b in pairs])
    one, other = (_mean([row["mean_length"] for row in rows]) for rows in (ones, others))
    return [*found, Difference(task, "length", one, other, estimate)]


def _rates(
    task: str,
    figure: str,
    ones: Sequence[Row],
    others: Sequence[Row],
    values: Callable[[Row], list[float]],
) -> Difference:
    first, second = [values(row) for row in ones], [values(row) for row in others]
    one, other = (_mean([_mean(part) for part in clusters]) for clusters in (first, second))
    return Difference(task, figure, one, other, paired_difference(first, second))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _flags(row: Row) -> list[float]:
    return [1.0] * row["num_right"] + [0.0] * (row["num_samples"] - row["num_right"])


def _problems(folder: Path) -> dict[str, Row]:
    """The problems of an evaluation by hash; one that is there twice counts once."""
    path = folder / PROBLEMS_FILE
    try:
        rows = pq.read_table(path).to_pylist()
    except FileNotFoundError as error:
        begun = (folder / ".samples.partial").is_dir()
        hint = "it is not finished; run its command again" if begun else "name a folder of one"
        raise PipelineError(f"{folder} holds no evaluation ({path.name}): {hint}") from error
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{path} can't be read ({error}); run its evaluation again") from error
    if not rows or not set(rows[0]) >= _COLUMNS:
        raise PipelineError(f"{path} is not what `trl-r1 eval` writes; run the evaluation again")
    return {row["problem_hash"]: row for row in reversed(rows)}


def _other_settings(first: Path, second: Path) -> list[tuple[str, Any, Any]]:
    one, other = _flat(first), _flat(second)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [(name, one.get(name), other.get(name)) for name in sorted(names)]


def _told(problems: Mapping[str, Row]) -> str:
    tasks = sorted({row["task"] or "no task" for row in problems.values()})
    return f"{len(problems)} of {', '.join(tasks)}"


def _flat(folder: Path) -> Mapping[str, Any]:
    path = folder / RECORD_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        versions = {f"version of {k}": v for k, v in document.get("versions", {}).items()}
        settings = {**document["settings"], **document["template"], **versions}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{path} can't be read ({error!r}); run its evaluation again"
        ) from error
    for name in ("datasets", "general", "shard_size", "batch_size", "preference_model"):
        settings.pop(name, None)
    return settings
