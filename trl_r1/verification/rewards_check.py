"""Puts a reward function through its paces before a run depends on it.

What it takes and returns, how fast it is, whether it is deterministic, whether it stands what a
policy invents, whether the known ways of gaming a grader work on it, and whether the gold answers
of a file can be graded. It runs in worker processes, so a reward that hangs or crashes is a
finding, not the end of the check.

Left out: whether the reward measures the right thing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trl_r1.verification import check_cases as cases
from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.check_calls import (
    FAILURES,
    MAX_SPEED_ROWS,
    Subject,
    as_messages,
    as_text,
    read_rows,
    reward_text,
)
from trl_r1.verification.check_games import play_games
from trl_r1.verification.check_golds import check_golds
from trl_r1.verification.check_report import FAULT, NOTE, OK, CheckReport
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.pool import RewardPool
from trl_r1.verification.pooled_reward import pooled

_SLOW_SECONDS = 1.0
_SPEED_SECONDS = 2.0
_SLOW_SPEED = 100  # completions a second
_SECONDS_OF_ITS_OWN = 60.0
_CALLS = {"rows": "a row a call", "group": "a prompt's group a call", "batch": "a batch a call"}


def check_reward(
    reference: str,
    data: Path | None = None,
    args: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    timeout: float = 5.0,
    memory_mb: int = 1024,
) -> CheckReport:
    """Check a reward function.

    Args:
        reference: `name`, `package.module:function` or `file.py:function`.
        data: JSONL file of rows with the columns it needs, and `completion` (text or messages)
            where there are some; rows of our own by default.
        args: keyword arguments bound to it.
        base_dir: folder that a relative file reference starts from.
        timeout, memory_mb: limits of a call; what goes beyond them is a fault.

    Raises:
        ValueError: `data` can't be read, or this system can't have worker processes.
    """
    report = CheckReport(reference)
    rows = read_rows(data) if data else None
    with RewardPool(num_workers=2) as pool, _quiet():
        try:
            reward = pooled(
                reference,
                args=args,
                timeout=timeout,
                memory_mb=memory_mb,
                on_kill="none",
                on_error="none",
                cache=False,
                base_dir=base_dir,
                pool=pool,
                even_if_it_should_stay=True,
            )
        except RewardReferenceError as error:
            report.add("loads", FAULT, str(error))
            return report
        if reward.description.runs_in_trainer:  # its limits are its own, not the pool's
            wide = max(timeout, _SECONDS_OF_ITS_OWN)
            reward.limits = dataclasses.replace(reward.limits, timeout=wide)
        try:
            _check(Subject(reward, rows), report)
        except RewardError as error:  # it never came back, or asks for what can't be sent
            report.add("runs", FAULT, str(error))
    return report


def _check(subject: Subject, report: CheckReport) -> None:
    _say_what_it_is(subject, report)
    if subject.missing:
        _say_what_is_missing(subject, report)
        return
    if not _check_what_it_returns(subject, report):
        return
    _check_determinism(subject, report)
    _check_rows_alone(subject, report)
    _check_speed(subject, report)
    _check_trials(subject, report)
    check_golds(subject, report)
    play_games(subject, report)


def _say_what_it_is(subject: Subject, report: CheckReport) -> None:
    about = subject.reward.description
    optional = [name for name in about.optional if name not in subject.bound]
    report.add(
        "signature",
        OK,
        f"columns: {', '.join(subject.needed) or 'none but completions'}; "
        f"optional: {', '.join(optional) or 'none'}; {_CALLS[about.needs]}"
        + ("; equal rows graded once" if about.is_pure else "")
        + ("; runs in the trainer's process" if about.runs_in_trainer else ""),
    )
    if not about.summary:
        report.add("docstring", NOTE, "it has none; `rewards list` shows its first line")


def _say_what_is_missing(subject: Subject, report: CheckReport) -> None:
    names = ", ".join(subject.missing)
    if subject.rows is not None:
        report.add("data", FAULT, f"the rows have no column {names}")
    else:
        report.add(
            "data",
            NOTE,
            f"not run: it needs {names}; give rows with --data FILE.jsonl, or arguments with "
            "--args",
        )


def _check_what_it_returns(subject: Subject, report: CheckReport) -> bool:
    """What it returns for plain text and for messages; one of the two has to work."""
    completions, columns = subject.samples()
    plain = subject.call([as_text(sample) for sample in completions], columns)
    messages = subject.call([as_messages(sample) for sample in completions], columns)
    subject.takes_text, subject.takes_messages = not plain.failed, not messages.failed
    works = subject.takes_text or subject.takes_messages
    for name, graded in (("plain text", plain), ("messages", messages)):
        if graded.failed:
            report.add(name, NOTE if works else FAULT, graded.failed[0])
        elif any(reward is not None for reward in graded.rewards):
            report.add(name, OK, graded.in_words())
        else:
            seen = f"{graded.in_words()}: little can be said of it; give rows with --data or --args"
            report.add(name, NOTE, seen)
    if subject.takes_text and subject.takes_messages and plain.rewards != messages.rewards:
        report.add("text and messages", FAULT, "the same text gets other rewards as messages")
    return works


def _formed_samples(subject: Subject) -> tuple[list[Any], dict[str, list[Any]]]:
    completions, columns = subject.samples()
    return [subject.form(completion) for completion in completions], columns


def _check_determinism(subject: Subject, report: CheckReport) -> None:
    rows, columns = _formed_samples(subject)
    first, second = subject.call(rows, columns), subject.call(rows, columns)
    if first.rewards == second.rewards:
        report.add("determinism", OK, f"{len(rows)} rows graded twice alike")
        return
    differing = sum(a != b for a, b in zip(first.rewards, second.rewards, strict=True))
    level = FAULT if subject.reward.description.is_pure else NOTE
    report.add("determinism", level, f"{differing} of {len(rows)} rows differ in a second call")


def _check_rows_alone(subject: Subject, report: CheckReport) -> None:
    """Whether a row's reward depends on the others of its call, when it does not say so."""
    about = subject.reward.description
    if about.needs != "rows":
        return
    rows, columns = _formed_samples(subject)
    alone = subject.call(rows, columns)
    together = subject.call(rows, columns, needs="batch")
    if together.failed:
        report.add("batch", FAULT, together.failed[0])
    elif together.rewards == alone.rewards:
        report.add("rows alone", OK, "a row's reward does not depend on the others")
    else:
        report.add(
            "rows alone",
            FAULT,
            "a batch gets other rewards than its rows one by one; if it compares rows, set "
            f"{about.name}.needs = 'group' or 'batch' beside it",
        )


def _check_speed(subject: Subject, report: CheckReport) -> None:
    rows, columns = _formed_samples(subject)
    graded = subject.call(rows, columns)
    # A slow reward shows that in fewer rows.
    num_copies = int(min(MAX_SPEED_ROWS / len(rows), _SPEED_SECONDS / graded.seconds))
    if num_copies > 1:
        rows *= num_copies
        columns = {name: values * num_copies for name, values in columns.items()}
        graded = subject.call(rows, columns)
    speed = len(rows) / graded.seconds
    level = OK if speed > _SLOW_SPEED else NOTE
    report.add(
        "speed", level, f"{speed:,.0f} completions/s ({len(rows)} rows, 2 workers, no cache)"
    )


def _check_trials(subject: Subject, report: CheckReport) -> None:
    """What a policy may write: none of it may raise, hang or crash."""
    trials: dict[str, Any] = {name: subject.form(text) for name, text in cases.TRIALS.items()}
    if not subject.takes_messages:
        trials["None"] = None
    _try(subject, report, trials)
    if subject.takes_messages:
        _try(subject, report, cases.MESSAGE_TRIALS)


def _try(subject: Subject, report: CheckReport, trials: Mapping[str, Any]) -> None:
    graded = subject.call_alone(list(trials.values()))
    for row, name in enumerate(trials):
        seconds = graded.row_seconds[row]
        if graded.verdicts[row] in FAILURES:
            report.add(name, FAULT, graded.details[row])
        elif seconds > _SLOW_SECONDS:
            seen = f"{reward_text(graded.rewards[row])}, after {seconds:.1f} s"
            report.add(name, NOTE, seen)
        else:
            report.add(name, OK, reward_text(graded.rewards[row]))


@contextmanager
def _quiet() -> Any:
    """What the pool warns of is in the table."""
    log = logging.getLogger("trl_r1.verification")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
