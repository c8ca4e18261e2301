"""What a sample got and why: which reward gave what, in sentences.

A sentence says what is stored: the number, the weight and the pool's verdict, and what the parser
of the format finds in the text. No reward is run again; what a reward is for is the first line of
its docstring, read without running it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from trl_r1.pipeline.ledger import StageRecord
from trl_r1.reasoning_format import FORMATS, ReasoningFormat
from trl_r1.report.reading import finite

_WORDS = {
    "not gradable": "it can't grade this row, which then counts neither way",
    "left out": "it does not apply to this row: another task, or not yet or no longer at this step",
    "malformed": "there is nothing to grade in the text",
    "timed out": "the reward took longer than it may and was ended",
    "out of memory": "the reward took more memory than it may and was ended",
    "crashed": "the reward's process died on this row",
    "error": "the reward raised an error on this row",
}
_NO_GRADERS = ("format", "language", "length", "overlong", "repetition", "preference", "brevity")


@cache
def reward_purpose(name: str) -> str:
    """The first line of a built-in reward's docstring; an empty text for others.

    Args:
        name: of its function, as `math_answer_reward`.
    """
    stem = name.removesuffix("_reward")
    try:
        text = (files("trl_r1.rewards") / f"{stem}.py").read_text(encoding="utf-8")
        functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    except (OSError, ValueError, SyntaxError):
        return ""
    found = next((f for f in functions if f.name == name), None)
    return (ast.get_docstring(found) or "").split("\n\n")[0].replace("\n", " ") if found else ""


def reward_weights(record: StageRecord, names: Sequence[str]) -> dict[str, float]:
    """Weight of each reward by the name of its column; 1.0 where the recipe says nothing.

    Args:
        record: of the stage.
        names: of the rewards, as columns have them.
    """
    entries = record.recipe.get("rewards")
    weights = dict.fromkeys(names, 1.0)
    entries = [entry for entry in entries or () if isinstance(entry, Mapping)]
    for place, name in enumerate(names):
        own = [e for e in entries if str(e.get("use", "")).split(":")[-1] == name]
        own += [e for e in entries if f"{e.get('use')}_reward" == name]
        if len(entries) == len(names):
            own.append(entries[place])
        weight = own[0].get("weight", 1.0) if own else 1.0
        if (found := finite(weight)) is not None:
            weights[name] = found
    return weights


def graders(record: StageRecord, names: Sequence[str]) -> list[str]:
    """The rewards that can say whether an answer is right, the most telling first.

    Args:
        record: of the stage.
        names: of its rewards.
    """
    wanted = record.recipe.get("accuracy_reward")
    first = [name for name in names if wanted and wanted in (name, name.removesuffix("_reward"))]
    answers = [name for name in names if "math_answer" in name]
    others = [name for name in names if not any(word in name for word in _NO_GRADERS)]
    return list(dict.fromkeys([*first, *answers, *others]))


def outcome(values: Mapping[str, float | None], order: Sequence[str], verdict: str | None) -> str:
    """`right`, `wrong`, `in part` or `not graded`.

    Args:
        values: by reward.
        order: rewards that may say so, the most telling first.
        verdict: of rejection sampling, if it was that.
    """
    if verdict == "wrong":
        return "wrong"
    value = next((v for name in order if (v := values.get(name)) is not None), None)
    if value is None:
        return "not graded"
    return "right" if value >= 1 else "wrong" if value <= 0 else "in part"


def format_of(record: StageRecord) -> ReasoningFormat:
    """The response format of a stage; R1-Zero's where its recipe names none."""
    return FORMATS.get(str(record.recipe.get("reasoning_format")), FORMATS["zero"])


def reason(
    name: str,
    value: float | None,
    word: str | None,
    answer: str | None,
    fault: str | None,
    gold: Any,
) -> str:
    """Why a reward gave what it gave.

    Args:
        name: the reward's.
        value: what it gave.
        word: the pool's verdict, if one is stored.
        answer: the final answer that the format's parser finds.
        fault: what it finds wrong with the form.
        gold: the expected answer.
    """
    if "format" in name and word in ("malformed", "ok", None) and value is not None:
        return "the response is well-formed" if fault is None else f"not well-formed: {fault}"
    if word == "malformed" and fault is not None:
        return f"{_WORDS['malformed']}: {fault}"
    if word is not None and word != "ok":
        return _WORDS.get(word, word)
    if value is None:
        return _WORDS["not gradable"]
    if "math_answer" in name or name.startswith("choice"):
        return _compared(value, answer, gold)
    return reward_purpose(name)


def reason_of_score(name: str, score: float | None, answer: str | None, gold: Any) -> str:
    """Why an evaluation counted a sample as it did.

    Args:
        name: of the task's grader.
        score: what that gave; None where it could not grade.
        answer: the final answer as the grader read it.
        gold: the expected answer.
    """
    if score is None:
        return "it could not be graded, which counts as wrong"
    if answer is None and score <= 0 and "math_answer" in name:
        return "no final answer was found"
    if answer is None:
        return "counts as right" if score >= 1 else "counts as wrong, as anything below 1 does"
    return _compared(score, answer, gold)


def _compared(value: float, answer: str | None, gold: Any) -> str:
    got = f"the answer {_clip(answer)}" if answer else "no final answer was found; the text"
    verb = "agrees" if value >= 1 else "does not agree"
    return f"{got} {verb} with the expected {_clip(gold)}" if gold is not None else got


def _clip(text: Any) -> str:
    text = " ".join(str(text).split())
    return f"\u201c{text if len(text) <= 60 else text[:57] + '...'}\u201d"
