"""The problems of an evaluation of the command line, checked before any model is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from trl_r1.evaluation.problems import duplicates, grader_of, problem_hash
from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.sampling.grading import needed_columns
from trl_r1.sampling.prompts import check_prompt
from trl_r1.stages import RewardSpec
from trl_r1.tasks import DatasetSource, load_rows, load_task
from trl_r1.verification.loading import build_reward
from trl_r1.verification.ungradable import RowFault, ungradable_rows


def read_problems(
    options: argparse.Namespace, fmt: ReasoningFormat
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The problems of every task, and the sources as they are recorded.

    Raises:
        ValueError: there are none, or the options that name them do not go together.
    """
    from trl_r1.pipeline.yaml_files import parse_yaml

    if not (options.task or options.data):
        raise ValueError("there is nothing to evaluate on; give --task, --data, or both")
    if options.data and len(options.task) > 1:
        raise ValueError("--data is of one task; evaluate the tasks one by one")
    given, mistakes = parse_yaml(options.args, "--args")
    if mistakes or not isinstance(given, dict):
        raise ValueError(str(mistakes[0]) if mistakes else "--args: write a mapping")
    rows: list[dict[str, Any]] = []
    sources: list[dict[str, Any]] = []
    for name in options.task or [None]:
        task = load_task(name) if name else None
        if task is not None and task.kind == "preference":
            raise ValueError(f"{name}: its rows are pairs, which have no right answer")
        if task is not None and task.makes_rows and options.data:
            raise ValueError(f"{name} makes its own problems; leave --data out")
        source = DatasetSource(
            options.data, name, options.split, options.num_rows, options.seed, given
        )
        found = _loaded(source, fmt)
        is_general = task is not None and task.kind == "general"
        rows += [{**row, "is_general": is_general} for row in found]
        kept = ("dataset_name", "task", "split", "num_rows", "seed", "args")
        sources.append({key: getattr(source, key) for key in kept})
    if not rows:
        names = ", ".join([*options.task, *([options.data] if options.data else [])])
        raise ValueError(f"nothing to evaluate on: {names} has no problems in {options.split}")
    return rows, sources


def _loaded(source: DatasetSource, fmt: ReasoningFormat) -> Any:
    name = source.dataset_name or source.task
    try:
        rows = load_rows(source, fmt)
    except OSError as error:  # the Hub is away, or does not have it; the text is often empty
        raise ValueError(
            f"{name}: no file or folder of that name, and not to be had from the Hub ({error!r})"
        ) from error
    if "prompt" not in rows.column_names:
        raise ValueError(
            f"{name}: its rows have no `prompt` but {', '.join(rows.column_names)}; name the "
            "--task that makes prompts of them"
        )
    return rows.remove_columns([n for n in ("completion",) if n in rows.column_names])


def different_problems(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The first of each problem, and how many repeat one.

    Raises:
        ValueError: a row is no problem, or of another kind than the others.
    """
    for number, row in enumerate(rows):
        check_prompt(row["prompt"], number)
        if isinstance(row["prompt"], str) != isinstance(rows[0]["prompt"], str):
            raise ValueError(
                f"row {number}: its prompt is of another kind than those before; make all prompts "
                "texts, or all lists of messages"
            )
        if not isinstance(row.get("task"), (str, type(None))):
            raise ValueError(f"row {number}: its task is {row['task']!r}; it has to be a name")
    hashes = [problem_hash(row) for row in rows]
    first = dict(zip(reversed(hashes), reversed(rows), strict=True))
    return [first[digest] for digest in dict.fromkeys(hashes)], duplicates(hashes)


def ungradable_problems(problems: Sequence[dict[str, Any]], fmt: ReasoningFormat) -> list[RowFault]:
    """The problems that no answer could be graded on.

    Raises:
        ValueError: all are, or a column is missing that the grader needs.
    """
    faults: list[RowFault] = []
    for grader in dict.fromkeys(grader_of(row.get("task")) for row in problems):
        part = [row for row in problems if grader_of(row.get("task")) == grader]
        reward = build_reward(RewardSpec(grader), fmt=fmt)
        missing = [n for n in needed_columns(reward.function) if all(n not in r for r in part)]
        if missing:
            raise ValueError(
                f"the grader {grader} needs the column {', '.join(missing)}, which the problems "
                "lack; name the --task that makes it"
            )
        faults += ungradable_rows([reward], part)
    if len(faults) >= len(problems):
        raise ValueError(f"none of the {len(problems)} problems can be graded: {faults[0]}")
    return faults
