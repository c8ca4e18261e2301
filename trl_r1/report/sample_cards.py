"""One sample as the page shows it: its texts, what it got and why.

Rows are those of rollouts and of rejection sampling, whose rewards stand in `reward_NAME` and
`verdict_NAME`, and those of an evaluation, which have one `score` by the grader of their task.
Long texts lose their middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.report.reading import Stage, finite, visible
from trl_r1.report.verdicts_explained import (
    format_of,
    graders,
    outcome,
    reason,
    reason_of_score,
    reward_purpose,
    reward_weights,
)
from trl_r1.rewards.think_format import THINK_CLOSE, THINK_OPEN, completion_text
from trl_r1.tasks import TASKS, find_task

MAX_TEXT = 6_000


class Texts:
    """Texts that occur again and again, as numbers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._in_order: list[str] = []

    def __getitem__(self, number: int) -> str:
        return self._in_order[number]

    def number(self, text: Any) -> int:
        """The number of a text."""
        shown = visible(text)
        if shown not in self.known:
            self.known[shown] = len(self.known)
            self._in_order.append(shown)
        return self.known[shown]


class CardMaker:
    """Makes samples of the page from rows of a source.

    Args:
        stage: whose rows they are.
        number: of the source in the page.
        texts: takes up texts that occur again and again.
    """

    def __init__(self, stage: Stage, number: int, texts: Texts) -> None:
        self.record, self.number, self.texts = stage.record, number, texts
        self.format = format_of(stage.record)

    def state(self, row: Mapping[str, Any]) -> str:
        """`right`, `wrong`, `in part` or `not graded`."""
        if is_scored(row):
            score = number(row["score"])
            return "not graded" if score is None else "right" if score >= 1 else "wrong"
        values = reward_values(row)
        return outcome(values, graders(self.record, list(values)), row.get("verdict"))

    def sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row as the page shows it; keys are short, since there are thousands."""
        text = completion_text(row.get("completion") or "")
        fault = None if row.get("is_general") else self.format.parse(text).fault
        reasoning, answer = split_shown(text, self.format)
        gold, verdict = row.get("solution"), row.get("verdict")
        verdicts = self._of_score(row, fault) if is_scored(row) else self._of_rewards(row, text)
        is_told = fault is not None and any(fault in self.texts[verdict[4]] for verdict in verdicts)
        return {
            "s": self.number,
            "t": _count(row.get("step")),
            "k": self.texts.number(row.get("task") or ""),
            "o": self.state(row),
            "v": verdict and visible(verdict).replace("_", " "),
            "p": [[visible(role), shorten(text)] for role, text in turns(row.get("prompt"))],
            "r": None if reasoning is None else shorten(reasoning),
            "a": shorten(answer),
            "f": None if fault is None or is_told else self.texts.number(fault),
            "g": None if gold is None else shorten(str(gold), 1000),
            "n": _count(row.get("length", row.get("num_tokens"))),
            "c": bool(row.get("is_truncated")),
            "w": verdicts,
            "z": number(row.get("reward")),
            "d": number(row.get("advantage")),
            "u": row.get("is_used") is not False,
        }

    def _of_rewards(self, row: Mapping[str, Any], text: str) -> list[list[Any]]:
        """Of each reward its name, value, weight, verdict, reason and purpose."""
        values, parts = reward_values(row), self.format.parse(text)
        weights = reward_weights(self.record, list(values))
        # Rejection sampling adds no rewards up, so a weight would say nothing.
        is_summed = self.record.stage != "rejection_sampling"
        verdicts = []
        for name, value in values.items():
            word = row.get(f"verdict_{name}")
            why = reason(name, value, word, parts.answer, parts.fault, row.get("solution"))
            weight = weights[name] if is_summed else None
            verdicts.append(self._verdict(name, value, weight, word, why))
        return verdicts

    def _of_score(self, row: Mapping[str, Any], fault: str | None) -> list[list[Any]]:
        """What an evaluation says of a sample, in the same form."""
        score, name = number(row["score"]), _grader(row.get("task"))
        why = reason_of_score(name, score, _text(row.get("answer")), row.get("solution"))
        verdicts = [self._verdict(name, score, None, None, why)]
        if (form := number(row.get("is_well_formed"))) is not None and not row.get("is_general"):
            said = "the response is well-formed" if form else f"not well-formed: {fault}"
            verdicts.append(self._verdict("format", form, None, None, said))
        if (share := number(row.get("language_share"))) is not None:
            said = "share of the reasoning's words in the problem's language"
            verdicts.append(self._verdict("language", share, None, None, said))
        if (preference := number(row.get("preference"))) is not None:
            said = "by the preference model; it says nothing of right or wrong"
            verdicts.append(self._verdict("preference", preference, None, None, said))
        return verdicts

    def _verdict(
        self, name: str, value: float | None, weight: float | None, word: str | None, why: str
    ) -> list[Any]:
        number = self.texts.number
        return [number(name), value, weight, number(word or ""), number(why),
                number(reward_purpose(name))]  # fmt: skip


@cache
def _grader(task: Any) -> str:
    """Name of the reward that grades a task; `grader` where the task is not a built-in one."""
    found = find_task(task) if isinstance(task, str) and task in TASKS else None
    return f"{found.grader.split(':')[-1].removesuffix('_reward')}_reward" if found else "grader"


def is_scored(row: Mapping[str, Any]) -> bool:
    """Whether a row is of an evaluation."""
    return "score" in row and not any(name.startswith("reward_") for name in row)


def reward_values(row: Mapping[str, Any]) -> dict[str, float | None]:
    """What each reward gave, by its name."""
    return {k.removeprefix("reward_"): number(v) for k, v in row.items() if k.startswith("reward_")}


def number(value: Any) -> float | None:
    """A number that can be written down, to four digits; None for anything else."""
    found = finite(float(value) if isinstance(value, bool) else value)
    return None if found is None else float(f"{found:.4g}")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def turns(prompt: Any) -> list[tuple[str, str]]:
    """(role, text) of a prompt, which is a text or messages."""
    if isinstance(prompt, list):
        return [
            (str(m.get("role")), completion_text([{"content": m.get("content")}]))
            for m in prompt
            if isinstance(m, Mapping)
        ]
    return [("user", "" if prompt is None else str(prompt))]


def split_shown(text: str, fmt: ReasoningFormat) -> tuple[str | None, str]:
    """A completion as reasoning and the rest, nothing left out but the tags between them.

    Args:
        text: the completion.
        fmt: says whether it starts inside the reasoning.
    """
    if not fmt.is_prefilled and THINK_OPEN not in text:
        return None, text
    before, opener, rest = text.partition(THINK_OPEN)
    if not opener or before.strip():
        rest = text
    reasoning, _, answer = rest.partition(THINK_CLOSE)
    return reasoning.strip("\n"), answer.strip("\n")


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """A text with what can't be seen written out, and without its middle where it is long."""
    if len(text) > limit:
        head, tail = 2 * limit // 3, limit // 3
        left_out = f"{len(text) - head - tail:,}"
        gap = f"\n\u2026 {left_out} characters are left out here \u2026\n"
        text = f"{text[:head]}{gap}{text[-tail:]}"
    return visible(text)
