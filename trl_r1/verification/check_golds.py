"""Whether the gold answers of a user's rows can be graded, and count as right themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trl_r1.verification.check_calls import Subject
from trl_r1.verification.check_games import answer_form
from trl_r1.verification.check_report import FAULT, NOTE, OK, CheckReport
from trl_r1.verification.ungradable import ungradable_rows

_MAX_ROWS = 20_000
_MAX_NAMED = 5


def check_golds(subject: Subject, report: CheckReport) -> None:
    """Give every row its own gold answer back: list those it can't grade, and those it denies.

    Only where there are rows, and the reward asks for their `solution`.

    Raises:
        RewardError: see `Subject.call`.
    """
    if subject.rows is None or "solution" not in subject.needed:
        return
    rows = subject.rows[:_MAX_ROWS]
    form = answer_form(subject)
    # Where none of our forms of an answer is read, at least what it can't grade shows.
    texts = [
        str(row.get("solution")) if form is None else form[0](str(row.get("solution")))
        for row in rows
    ]
    columns = subject.columns_of(rows)
    graded = subject.call_alone([subject.form(text) for text in texts], columns)
    open_rows = [row for row, verdict in enumerate(graded.verdicts) if verdict == "not gradable"]
    if open_rows:
        report.add(
            "gold answers",
            FAULT if len(open_rows) == len(rows) else NOTE,
            f"{len(open_rows)} of {len(rows)} can't be graded: "
            f"{_named(rows, open_rows, _reasons(subject, rows))}; mend "
            "these rows or leave them out",
        )
    else:
        report.add("gold answers", OK, f"{len(rows)} rows, all of them can be graded")
    if form is None:
        return
    denied = [row for row, reward in enumerate(graded.rewards) if _is_below(reward, form[2])]
    if denied:
        report.add(
            "golds as answers",
            NOTE,
            f"{len(denied)} of {len(rows)} do not count as right in {form[1]}: "
            f"{_named(rows, denied, {})}",
        )
    else:
        report.add("golds as answers", OK, f"each counts as right in {form[1]}")


def _is_below(reward: float | None, full: float) -> bool:
    return reward is not None and reward < full


def _reasons(subject: Subject, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    faults = ungradable_rows([subject.reward], rows)
    return {fault.row: f" ({fault.reason.removeprefix('not gradable ')})" for fault in faults}


def _named(
    rows: Sequence[Mapping[str, Any]], numbers: Sequence[int], reasons: Mapping[int, str]
) -> str:
    shown = [
        f"row {n + 1} {str(rows[n].get('solution'))[:40]!r}{reasons.get(n, '')}"
        for n in numbers[:_MAX_NAMED]
    ]
    more = len(numbers) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
