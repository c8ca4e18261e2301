"""Reward for problems of reasoning-gym: 1.0 where the generator's own verifier accepts the answer.

Each of its hundred generators brings a verifier; the row's `entry` says which one, and what it is
to verify. Verifiers give partial credit for mere attempts (0.01 to 0.5), which is what a policy
would learn to collect, so less than full marks is 0.0 unless `score` is `partial`. A verifier that
takes nonsense for right is not asked: the answer is compared with the gold answer as text.

Some verifiers hand the answer to `eval` or to sympy's `parse_expr`, which runs code. Before these,
an answer has to be an expression: numbers, operators, brackets, one-letter names and functions of
mathematics. Towers of powers and the like are refused too; for a limit on time and memory of any
verifier run it in `pooled` workers.

This file stands alone: it imports neither a sibling nor `trl_r1`, so it can be copied next to any
script and passed to `trl.GRPOTrainer(reward_funcs=...)`; give the copy another name, or it hides
the package of this name. Left out: making problems, see the task of this name in `trl_r1.tasks`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

_MAX_ANSWER_CHARS = 10_000
_RUNS_CODE = re.compile(r"\beval\(|\bexec\(|\bparse_expr\(|\bsympify\(")
_QUOTED = re.compile(r"'[^'\\\n]*'|\"[^\"\\\n]*\"")
_NAME = re.compile(r"(?<!\w)[^\W\d]\w+")
_NONSENSE = "no answer at all"
_MATHEMATICS = frozenset(
    re.findall(
        r"\w+",
        "sin cos tan sec csc cot asin acos atan sinh cosh tanh asinh acosh atanh exp log ln sqrt "
        "pi Abs abs Rational and or not True False None",
    )
)
# What makes huge values: a tower of powers, an exponent that is long, a power of powers.
_HUGE = re.compile(
    r"(?:\*\*|\^)\s*[-+]?(?:\d{4}|\d+\s*(?:\*\*|\^)|\((?![-+]?\s*\d{1,3}(?:\s*/\s*\d{1,3})?\s*\)))"
    r"|\d{300}|!"
)
_POWER_OF_BRACKETS = re.compile(r"\)\s*(?:\*\*|\^)")
_MAX_POWERS_OF_BRACKETS = 3


def reasoning_gym_reward(
    completions: list[Any],
    entry: list[Any],
    score: Literal["full", "partial"] = "full",
    prefilled: bool = False,
    **kwargs: Any,
) -> list[float | None]:
    r"""Score answers with the verifiers of reasoning-gym.

    Args:
        completions: B completions, plain text or lists of messages. The answer is what stands in
            the last `<answer>` tags, else the last `\boxed{}`, else all that follows the reasoning.
        entry: B entries as the library makes them, with `question`, `answer` and `metadata`, as
            JSON or as mappings; None for a row of another kind.
        score: `full`: 1.0 for full marks, else 0.0; `partial`: the verifier's own mark.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` is all reasoning.

    Returns:
        B rewards, None for a row without an entry, and for one that its verifier can't verify.

    Raises:
        ImportError: reasoning-gym is not installed, or hidden by a file of this name.
        ValueError: an unknown `score`, or an entry that is none.
    """
    if score not in ("full", "partial"):
        raise ValueError(f"reasoning_gym_reward: score is {score!r}; use full or partial")
    rewards: list[float | None] = []
    for completion, raw in zip(completions, entry, strict=True):
        if raw is None:
            rewards.append(None)
            continue
        exam = _exam_of_json(raw) if isinstance(raw, str) else _exam(raw)
        answer = final_answer(completion_text(completion), prefilled)
        if exam is None:
            rewards.append(None)
            continue
        mark = _mark(answer, exam)
        rewards.append(mark if score == "partial" else float(mark >= 1.0))
    return rewards


@dataclass(frozen=True)
class Exam:
    """An entry ready to be verified.

    Attributes:
        problem: the entry.
        verifier: its generator's; None where it takes nonsense, or not the gold answer's text, so
            that texts are compared.
        runs_code: whether the verifier evaluates answers.
    """

    problem: Mapping[str, Any]
    verifier: Callable[[Any, Any], float] | None
    runs_code: bool


@lru_cache(maxsize=4096)
def _exam_of_json(raw: str) -> Exam | None:
    try:
        return _exam(json.loads(raw))
    except ValueError as error:
        raise ValueError(f"reasoning_gym_reward: {raw[:80]!r} is no entry: {error}") from error


def _exam(entry: Any) -> Exam | None:
    """The entry in a form that its verifier takes the gold answer for; None where there is none.

    Raises:
        ValueError: it is no entry of reasoning-gym.
    """
    try:
        name = entry["metadata"]["source_dataset"]
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"reasoning_gym_reward: {str(entry)[:80]!r} is no entry of reasoning-gym, which has "
            "metadata.source_dataset; make it with json.dumps(dataset[i], default=str)"
        ) from error
    verifier, runs_code = _verifier(name)
    gold = entry.get("answer")
    # JSON has no tuples, which some verifiers compare with.
    for problem in (entry, _with_tuples(entry)):
        nonsense = _asked(verifier, _NONSENSE, problem)
        if gold is None:
            return (
                None if nonsense is None or nonsense >= 1.0 else Exam(problem, verifier, runs_code)
            )
        takes_gold = [(_asked(verifier, g, problem) or 0.0) >= 1.0 for g in (str(gold), gold)]
        if any(takes_gold):
            is_of_use = takes_gold[0] and (nonsense or 0.0) < 1.0
            return Exam(problem, verifier if is_of_use else None, runs_code)
    return None


def _with_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_tuples(part) for key, part in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _mark(answer: str | None, exam: Exam) -> float:
    """What an answer is worth, 0..1."""
    if answer is None or len(answer) > _MAX_ANSWER_CHARS:
        return 0.0
    gold = exam.problem.get("answer")
    if exam.verifier is None:
        return float(answer.strip(" .").casefold() == str(gold).casefold())
    if exam.runs_code and answer != gold and not is_expression(answer):
        return 0.0
    return min(max(_asked(exam.verifier, answer, exam.problem) or 0.0, 0.0), 1.0)


def _asked(verifier: Callable[[Any, Any], float], answer: Any, problem: Any) -> float | None:
    try:
        return float(verifier(answer, problem))
    except Exception:  # noqa: BLE001 - each of a hundred verifiers raises what it likes
        return None


def is_expression(answer: str) -> bool:
    """Whether an answer is safe to evaluate: an expression, or a list, and nothing huge."""
    bare = _QUOTED.sub(" ", answer)
    has_items = bare != answer or "[" in bare
    if any(mark in bare for mark in ("__", "\\", "=", ":", ";", "'", '"', "@", "{")):
        return False
    if (has_items and "*" in bare) or re.search(r"\.\s*[^\W\d]", bare):
        return False
    if _HUGE.search(bare) or len(_POWER_OF_BRACKETS.findall(bare)) > _MAX_POWERS_OF_BRACKETS:
        return False
    return all(name in _MATHEMATICS for name in _NAME.findall(bare))


@lru_cache(maxsize=256)
def _verifier(name: str) -> tuple[Callable[[Any, Any], float], bool]:
    """The verifier of a generator, and whether it evaluates answers as code."""
    library = _library()
    try:
        verifier = library.get_score_answer_fn(name)
    except ValueError as error:
        raise ValueError(
            f"reasoning_gym_reward: this version of reasoning-gym has no {name!r}: {error}"
        ) from error
    return verifier, _evaluates(verifier)


def _evaluates(verifier: Any) -> bool:
    """Whether a verifier, or a function of its module that it calls, evaluates text as code."""
    function, module = getattr(verifier, "__func__", verifier), inspect.getmodule(verifier)
    owner = type(getattr(verifier, "__self__", None))
    called = [getattr(owner, name, getattr(module, name, None)) for name in _names(function)]
    try:
        sources = [inspect.getsource(f) for f in (function, *filter(inspect.isfunction, called))]
    except (OSError, TypeError):
        return True  # not to be seen, so not to be trusted
    found = set(_RUNS_CODE.findall("\n".join(sources)))
    own = getattr(module, "parse_expr", None)
    if inspect.isfunction(own) and own.__module__ == module.__name__:  # type: ignore[union-attr]
        found.discard("parse_expr(")
    return bool(found)


def _names(function: Any) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return code.co_names if code is not None else ()


def _library() -> Any:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ImportError(
            "reasoning_gym_reward: the package is missing; install it with: "
            'pip install reasoning-gym, or pip install "trl-r1[reasoning-gym]"'
        )
    library = importlib.import_module("reasoning_gym")
    if not hasattr(library, "get_score_answer_fn"):
        raise ImportError(
            f"reasoning_gym_reward: {library.__file__} hides the package reasoning_gym; give that "
            "file another name"
        )
    return library


# Importing the library takes seconds, which no row's time limit should pay for.
reasoning_gym_reward.prepare = _library  # type: ignore[attr-defined]


def has_no_answer(completions: list[Any], prefilled: bool = False, **kwargs: Any) -> list[bool]:
    """Whether each response has no final answer; logged as the share malformed."""
    return [final_answer(completion_text(c), prefilled) is None for c in completions]


reasoning_gym_reward.malformed = has_no_answer  # type: ignore[attr-defined]


def final_answer(text: str, prefilled: bool = False) -> str | None:
    """What follows the reasoning: the last answer tags, else the last box, else the text."""
    _, is_closed, visible = text.rpartition("</think>")
    if prefilled and not is_closed:
        return None
    visible = visible.partition("<think>")[0].strip()
    _, has_open, inner = visible.rpartition("<answer>")
    if has_open:
        return inner.partition("</answer>")[0].strip() or None
    start = visible.rfind("\\boxed{")
    depth = 0
    for place in range(start + 6, len(visible)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(visible[place], 0)
        if depth == 0:
            return visible[start + 7 : place].strip() or None
    return visible or None


def completion_text(completion: Any) -> str:
    """Text of a plain-text or conversational completion (its last message); `""` for None."""
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    # What a tool or a user said last is no answer of the model's.
    content = None if last.get("role") in ("tool", "user") else last.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content or ""
