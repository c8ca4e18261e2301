"""What is wrong with a data source by its keys alone, and with gold answers once they are read.

Left out: reading rows, which is `check_data`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.tasks import DatasetSource, Task

# A smaller share of ungradable answers is noted and skipped in training; a larger one is a mistake.
_TOLERATED_SHARE = 0.001


def pass_rate_faults(source: DatasetSource, place: str) -> Iterator[str]:
    """Limits and orders that go without samples, or samples that go without either."""
    limits = (source.min_pass_rate, source.max_pass_rate)
    if source.pass_rates is None:
        if limits != (None, None) or source.order != "random" or source.pass_rate_column:
            yield f'{place}: pass_rates is missing; name samples, such as "@zero/rollouts"'
    elif limits == (None, None) and source.order == "random":
        yield f"{place}.pass_rates has no effect without min_pass_rate, max_pass_rate or order"
    elif None not in limits and limits[0] > limits[1]:  # type: ignore[operator]
        yield f"{place}: min_pass_rate {limits[0]:g} is over max_pass_rate {limits[1]:g}"


def argument_faults(source: DatasetSource, task: Task, place: str) -> Iterator[str]:
    """Keys of `args` that the task does not take."""
    known = f"it takes {one_of(task.arguments)}" if task.arguments else "it takes none"
    for key in source.args:
        if key not in task.arguments:
            hint = suggestion(key, task.arguments) or f"; {known}"
            yield f"{place}.args: task {task.name!r} has no argument {key!r}{hint}"


def share_faults(sources: Sequence[DatasetSource]) -> Iterator[str]:
    """Shares that do not add up."""
    for index, source in enumerate(sources):
        if source.share is not None and not 0 < source.share <= 1:
            yield f"datasets[{index}].share is {source.share:g}; it should be over 0 and at most 1"
            return
    shares = [source.share for source in sources if source.share is not None]
    total = sum(shares)
    if total > 1 + 1e-6 or (len(shares) == len(sources) and shares and total < 1 - 1e-6):
        yield f"datasets: the shares add up to {total:g}; they should make 1"
    elif shares and len(shares) < len(sources) and total > 1 - 1e-6:
        yield "datasets: the shares make 1, which leaves nothing to the sources without a share"


def gold_report(
    use: str, solutions: Sequence[Any], options: Sequence[Any] | None
) -> tuple[str | None, str | None]:
    """The mistake, or the note, about gold answers that a reward can't grade."""
    from trl_r1.rewards import choice, math_answer

    found = [
        choice.gold_fault(gold, options[i] if options is not None else None)
        if use == "choice"
        else math_answer.gold_fault(gold)
        for i, gold in enumerate(solutions)
    ]
    faults = [(i, fault) for i, fault in enumerate(found) if fault]
    if not faults:
        return None, None
    first = "; ".join(f"row {i} {str(solutions[i])[:40]!r} is {fault}" for i, fault in faults[:3])
    share = len(faults) / len(solutions)
    text = (
        f"{len(faults)} of {len(solutions)} gold answers ({share:.1%}) can't be graded: {first}; "
        "mend these rows or leave them out"
    )
    return (text, None) if share >= _TOLERATED_SHARE else (None, text)
