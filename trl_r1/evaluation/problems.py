"""Problems of an evaluation: what makes two the same, and how the answers to them are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trl_r1.metrics.votes import Kind
from trl_r1.tasks import find_task

# Graders whose answers are texts that can be voted on.
_KINDS: dict[str, Kind] = {"math_answer": "math", "choice": "choice"}


def problem_hash(row: Mapping[str, Any]) -> str:
    """A short hash of a problem: task, question, answer and tests; not of the format's words, so
    that models that are prompted otherwise can be compared."""
    prompt = row["prompt"]
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    parts = [row.get(key) for key in ("task", "solution", "tests", "options", "constraints")]
    text = json.dumps([question, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def grader_of(task: str | None) -> str:
    """Reference of the grader of a task's rows; `math_answer` for rows of no known task."""
    known = find_task(task)
    return known.grader if known else "math_answer"


def kind_of_answers(task: str | None) -> Kind | None:
    """When two answers of a task are the same; None where its answers are not to be voted on."""
    return _KINDS.get(grader_of(task))


def answer_of(text: str, row: Mapping[str, Any], is_prefilled: bool) -> str | None:
    """The final answer of a response as its grader reads it; None where there is none."""
    kind = kind_of_answers(row.get("task"))
    if kind == "math":
        from trl_r1.rewards.math_answer import final_answer

        found: str | None = final_answer(text, prefilled=is_prefilled)
        return found
    if kind == "choice":
        return _choice(text, row.get("options"), is_prefilled)
    return None


def _choice(text: str, options: Any, is_prefilled: bool) -> str | None:
    from trl_r1.rewards.choice import chosen_labels, labelled_options

    _, is_closed, visible = text.rpartition("</think>")
    if not is_closed and is_prefilled:
        return None
    labels = chosen_labels(visible.partition("<think>")[0], labelled_options(options))
    return ", ".join(sorted(labels)) if labels else None


def language_of(text: str, row: Mapping[str, Any], is_prefilled: bool) -> float | None:
    """Share of the reasoning's words in the row's language; None where the row has none."""
    from trl_r1.rewards.language_consistency import LANGUAGES, language_share, reasoning_text

    language = row.get("language")
    if not isinstance(language, str) or language not in LANGUAGES:
        return None
    share: float = language_share(reasoning_text(text, is_prefilled), language)
    return share


def duplicates(hashes: Sequence[str]) -> int:
    """Problems that repeat an earlier one."""
    return len(hashes) - len(set(hashes))
