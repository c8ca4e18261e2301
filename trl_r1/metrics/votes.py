"""Majority vote over the answers of a problem (cons@n in the paper).

Answers that mean the same vote together: `math` by the reward `math_answer`'s notion, `choice` and
`text` by their text. An answer of None casts no vote. Of several answers with the most votes each
counts with an equal share, as if the tie were broken at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

Kind = Literal["math", "choice", "text"]
KINDS: tuple[Kind, ...] = ("math", "choice", "text")


@dataclass(frozen=True)
class Vote:
    """The outcome of a vote.

    Attributes:
        answers: those with the most votes, each as first given; empty where nothing was answered.
        votes: for each of them.
        num_voters: samples with an answer.
        score: 1.0 right, 0.0 wrong or nothing answered, a share between for a tie; None where no
            verdicts and no gold answer were given.
    """

    answers: tuple[str, ...]
    votes: int
    num_voters: int
    score: float | None = None


def majority_vote(
    answers: Sequence[str | None],
    kind: Kind | Callable[[str, str], bool] = "math",
    gold: str | None = None,
    verdicts: Sequence[bool] | None = None,
) -> Vote:
    """Which answer most samples of a problem give, and whether it is right.

    Args:
        answers: of each sample, None for one without.
        kind: when two answers are the same: a kind, or a function that says so.
        gold: the right answer.
        verdicts: whether each sample was found right, in place of `gold`: right ones vote together
            and never with wrong ones, so that the vote agrees with the grader.

    Raises:
        ValueError: for an unknown kind, or another number of verdicts.
    """
    is_same = kind if callable(kind) else _equality(kind)
    if verdicts is not None and len(verdicts) != len(answers):
        raise ValueError(f"{len(verdicts)} verdicts for {len(answers)} answers")
    classes: list[tuple[str, bool | None, list[int]]] = []
    for i, answer in enumerate(answers):
        if answer is None or not answer.strip():
            continue
        verdict = None if verdicts is None else verdicts[i]
        found = next((c for c in classes if _belongs(answer, verdict, c[:2], is_same)), None)
        if found is None:
            found = (answer.strip(), verdict, [])
            classes.append(found)
        found[2].append(i)
    most = max((len(members) for *_, members in classes), default=0)
    best = [(text, verdict) for text, verdict, members in classes if len(members) == most]
    rights: list[bool] | None = None
    if verdicts is not None:
        rights = [bool(verdict) for _, verdict in best]
    elif gold is not None:
        rights = [is_same(gold.strip(), text) for text, _ in best]
    score = None if rights is None else (sum(rights) / len(rights) if rights else 0.0)
    voters = sum(len(members) for *_, members in classes)
    return Vote(tuple(text for text, _ in best), most, voters, score)


def _belongs(
    answer: str,
    verdict: bool | None,
    other: tuple[str, bool | None],
    is_same: Callable[[str, str], bool],
) -> bool:
    if verdict != other[1]:
        return False
    return verdict is True or is_same(other[0], answer.strip())


def _equality(kind: str) -> Callable[[str, str], bool]:
    if kind == "math":
        from trl_r1.rewards.math_answer import answers_match

        return partial(_same_mathematics, answers_match)
    if kind in KINDS:
        return lambda one, other: one.strip().casefold() == other.strip().casefold()
    raise ValueError(f"unknown kind of answers {kind!r}; known: {', '.join(KINDS)}")


def _same_mathematics(match: Callable[[str, str], bool], one: str, other: str) -> bool:
    return one == other or match(one, other)
