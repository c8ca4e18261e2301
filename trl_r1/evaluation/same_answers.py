"""Which answers of a problem mean the same and vote together, found within limits.

Whether two formulas are equal is decided in the worker processes that grade: a hostile answer may
take forever or all memory. One that does so stands alone, and the rest vote without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trl_r1.metrics.votes import Kind

Row = Mapping[str, Any]
Match = Callable[[Sequence[tuple[str, str]]], Sequence[float | None]]
REFERENCE = "trl_r1.evaluation.same_answers:same_answer_reward"
_PROBE = "1"


def votes_of(rows: Sequence[Row], kinds: Sequence[Kind | None]) -> list[str | None]:
    """What each sample votes for: the first answer of its problem that means the same.

    Right answers of a problem vote together, and never with wrong ones.

    Args:
        rows: samples with `prompt_index`, `solution`, `score` and `answer`.
        kinds: of each, when two answers are the same; None where there is no vote.
    """
    votes: list[str | None] = [None] * len(rows)
    wrong: dict[tuple[int, Kind], list[int]] = {}
    first_right: dict[int, str] = {}
    for i, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        answer = (row["answer"] or "").strip()
        if kind is None:
            continue
        if row["score"] == 1.0:
            # A right answer that the grader found and the reader did not is a vote, too.
            answer = answer or str(row["solution"])
            votes[i] = first_right.setdefault(row["prompt_index"], answer)
        elif answer:
            votes[i] = answer if kind == "math" else answer.casefold()
            if kind == "math":
                wrong.setdefault((row["prompt_index"], kind), []).append(i)
    texts = [[str(votes[i]) for i in members] for members in wrong.values()]
    for members, leaders in zip(wrong.values(), leaders_of(texts, pooled_match), strict=True):
        for i, leader in zip(members, leaders, strict=True):
            votes[i] = leader
    return votes


def leaders_of(groups: Sequence[Sequence[str]], match: Match) -> list[list[str]]:
    """Each answer's leader: the first of its group, not led by another, that means the same.

    Args:
        groups: answers of a problem each.
        match: of pairs, 1.0 where they mean the same, None where it ran past a limit.
    """
    leaders = [{answer: answer for answer in group} for group in groups]
    several = [list(found) for found in leaders if len(found) > 1]
    # One that can't even be compared with a number in time is compared with nothing else.
    texts = list(dict.fromkeys(text for found in several for text in found))
    probed = match([(_PROBE, text) for text in texts]) if texts else []
    hostile = {text for text, same in zip(texts, probed, strict=True) if same is None}
    left = {
        i: [text for text in found if text not in hostile]
        for i, found in enumerate(leaders)
        if len(found) > 1
    }
    while left := {i: texts for i, texts in left.items() if len(texts) > 1}:
        pairs = [(i, texts[0], other) for i, texts in left.items() for other in texts[1:]]
        verdicts = match([pair[1:] for pair in pairs])
        for (i, leader, other), verdict in zip(pairs, verdicts, strict=True):
            if verdict == 1.0:
                leaders[i][other] = leader
        left = {i: [t for t in texts[1:] if leaders[i][t] == t] for i, texts in left.items()}
    return [[found[text] for text in group] for found, group in zip(leaders, groups, strict=True)]


def pooled_match(pairs: Sequence[tuple[str, str]]) -> list[float | None]:
    """`same_answer_reward` of pairs in the worker processes; None past a limit."""
    from trl_r1.training.arguments import GradingArguments
    from trl_r1.verification.pooled_reward import pooled

    limits = GradingArguments()
    reward = pooled(
        REFERENCE,
        timeout=limits.reward_timeout,
        memory_mb=limits.reward_memory_mb,
        on_kill="none",
    )
    return reward(completions=[other for _, other in pairs], other=[one for one, _ in pairs])


def same_answer_reward(completions: list[str], other: list[str], **_: Any) -> list[float]:
    """1.0 where two answers mean the same by the notion of the reward `math_answer`."""
    from trl_r1.rewards.math_answer import answers_match

    return [float(answers_match(b, a)) for a, b in zip(completions, other, strict=True)]
