"""Plays the known ways of gaming a grader against a reward that is being checked.

Which games a reward is played against depends on what it is: answers where it asks for a
`solution`, programs where it asks for `tests`; formats, judges, languages and repetition where its
name says so, since a length or a style may well be preferred in what is malformed. Each group
first finds out what the reward gives for what is right, and says so where it can't tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trl_r1.verification import check_cases as cases
from trl_r1.verification.check_calls import Graded, Subject, reward_text
from trl_r1.verification.check_programs import CODE_FORMS, TASKS, Task
from trl_r1.verification.check_report import FAULT, NOTE, OK, CheckReport

_JUDGES = ("judge", "preference", "quality", "helpful", "reward_model")


def play_games(subject: Subject, report: CheckReport) -> None:
    """Play every game that the reward is open to.

    Raises:
        RewardError: see `Subject.call`.
    """
    name = f"{subject.reward.__name__} {subject.reward.spec.use}".casefold()
    if "solution" in subject.needed:
        _play_answers(subject, report)
    if "tests" in subject.needed:
        for task in TASKS:
            _play_programs(subject, report, task)
    if "format" in name:
        _play_formats(subject, report)
    if any(word in name for word in _JUDGES):
        prompts = [cases.JUDGED_PROMPT]
        _play_texts(subject, report, "judge", cases.GOOD_RESPONSE, cases.JUDGE_GAMES, prompts)
    if "language" in name:
        _play_texts(subject, report, "language", cases.ONE_LANGUAGE, cases.LANGUAGE_GAMES)
    if "repeti" in name:
        _play_texts(subject, report, "repetition", cases.NOT_REPEATED, cases.REPETITION_GAMES)


def answer_form(subject: Subject) -> tuple[Callable[[str], str], str, float] | None:
    """How to write a final answer so that the reward reads it: the form, its name, full marks."""
    for name, write in cases.ANSWER_FORMS.items():
        pair = [subject.form(write("4")), subject.form(write("7"))]
        right, wrong = subject.call_alone(pair, {"solution": ["4", "4"]}).rewards
        if right is not None and wrong is not None and right > wrong:
            return write, name, right
    return None


def _play_answers(subject: Subject, report: CheckReport) -> None:
    """Where it rewards the right answer over a wrong one, no game may get as much."""
    form = answer_form(subject)
    if form is None:
        report.add("games", NOTE, "not played: a right answer gets no more than a wrong one")
        return
    write, name, full = form
    texts = {g: write(g.answer) for g in cases.ANSWER_GAMES if g.answer is not None}
    texts |= {g: g.completion for g in cases.COMPLETION_GAMES if g.completion is not None}
    graded = subject.call_alone(
        [subject.form(text) for text in texts.values()], {"solution": [game.gold for game in texts]}
    )
    _score(report, f"answers in {name}", graded, full, [game.name for game in texts])


def _play_programs(subject: Subject, report: CheckReport, task: Task) -> None:
    """Where it rewards the right program over a wrong one, no game may get as much."""
    for name, write in CODE_FORMS.items():
        pair = [subject.form(write(task.right)), subject.form(write(task.wrong))]
        tried = subject.call_alone(pair, _task_columns(task, 2))
        right, wrong = tried.rewards
        if right is None or wrong is None or right <= wrong:
            continue
        games = [subject.form(write(program)) for program in task.games.values()]
        graded = subject.call_alone(games, _task_columns(task, len(games)))
        _score(report, f"programs, {task.name}, in {name}", graded, right, list(task.games))
        return
    report.add("games", NOTE, f"programs, {task.name}: not played: it takes no such tests")


def _task_columns(task: Task, num_rows: int) -> dict[str, list[Any]]:
    return {"tests": [task.tests] * num_rows, "prompts": [task.prompt] * num_rows}


def _play_formats(subject: Subject, report: CheckReport) -> None:
    """Where it rewards a format over plain text, no malformed response may get as much."""
    texts = [*cases.FORMATS.values(), cases.PLAIN_TEXT]
    *formed, plain = subject.call_alone([subject.form(text) for text in texts]).rewards
    scores = [reward for reward in formed if reward is not None]
    if plain is None or not scores or max(scores) <= plain:
        report.add("games", NOTE, "format: not played: none of ours gets more than plain text")
        return
    # The last one that gets full marks is the most lenient: tags are text to it.
    best = max(scores)
    profile = [name for name, got in zip(cases.FORMATS, formed, strict=True) if got == best][-1]
    games = dict(cases.FORMAT_GAMES)
    if profile == "answer tags":
        games.update(cases.TAG_GAMES)
    graded = subject.call_alone([subject.form(text) for text in games.values()])
    _score(report, f"format with {profile}", graded, best, list(games))


def _play_texts(
    subject: Subject,
    report: CheckReport,
    what: str,
    good: str,
    games: Mapping[str, str],
    prompts: Sequence[str] = (),
) -> None:
    """No game may get as much as a text that is as it should be."""
    texts = [subject.form(text) for text in (good, *games.values())]
    columns = {"prompts": list(prompts) * len(texts)} if prompts else {}
    graded = subject.call_alone(texts, columns)
    full = graded.rewards[0]
    if full is None:
        report.add("games", NOTE, f"{what}: not played: a good response is not graded")
        return
    rest = Graded(
        graded.rewards[1:],
        graded.verdicts[1:],
        graded.details[1:],
        graded.row_seconds[1:],
        graded.seconds,
    )
    _score(report, what, rest, full, list(games))


def _score(
    report: CheckReport, what: str, graded: Graded, full: float, names: Sequence[str]
) -> None:
    """One line for each game that is won or breaks the reward, and one for all of them."""
    num_lost = 0
    for row, (name, reward) in enumerate(zip(names, graded.rewards, strict=True)):
        if graded.details[row]:
            report.add(f"game: {name}", FAULT, graded.details[row])
        elif reward is not None and reward >= full:
            report.add(f"game: {name}", FAULT, f"gets {reward_text(reward)}, as if right")
        else:
            num_lost += 1
    report.add(
        "games",
        OK if num_lost == len(names) else FAULT,
        f"{what}: {num_lost} of {len(names)} get less than {full:g}",
    )
