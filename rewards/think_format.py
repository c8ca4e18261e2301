"""Format reward: 1.0 for a response that thinks first and then answers, else 0.0.

This file stands alone: it imports neither a sibling nor `trl_r1`, so it can be copied next to any
script and passed to `trl.GRPOTrainer(reward_funcs=...)`. `trl_r1.reasoning_format` builds on it, so
the template, the parser and this reward can't disagree. It gives no partial credit: a policy finds
every partial credit there is. There is no regular expression in it, so nothing backtracks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True)
class ResponseParts:
    """A response taken apart.

    Attributes:
        reasoning: text inside `<think> </think>`, stripped; None where there is no closed
            reasoning.
        answer: the final answer, stripped; None where there is none.
        fault: why the response is not well-formed, in a few words; None for a well-formed one.
    """

    reasoning: str | None
    answer: str | None
    fault: str | None

    @property
    def is_well_formed(self) -> bool:
        return self.fault is None


def split_response(
    text: str, profile: str = "answer_tags", prefilled: bool = False
) -> ResponseParts:
    """Take a response apart into reasoning and answer, in time linear in its length.

    A malformed response may still have an answer, for graders that forgive; never one that stands
    in reasoning, closed or not.

    Args:
        text: the completion as generated.
        profile: `answer_tags`, for `<think>..</think> <answer>..</answer>` (the R1-Zero template,
            paper section 2.2), or `think_then_text`, for `<think>..</think>` and then the answer in
            plain text (R1's output).
        prefilled: the prompt already ended with `<think>`, so the completion starts inside the
            reasoning. A completion that repeats the opener is accepted too.

    Raises:
        ValueError: for a profile that is not one of `PROFILES`.
    """
    if profile not in PROFILES:
        raise ValueError(f"unknown format profile {profile!r}; known: {', '.join(PROFILES)}")
    body = text.strip()
    if prefilled and not body.startswith(THINK_OPEN):
        body = THINK_OPEN + body
    head, has_close, tail = body.partition(THINK_CLOSE)
    before_open, has_open, reasoning = head.partition(THINK_OPEN)
    is_closed = bool(has_open and has_close)
    if profile == "answer_tags":
        # Without any think tag the whole text may hold an answer.
        answer, answer_fault = _tagged_answer(body if not (has_open or has_close) else tail)
    else:
        answer, answer_fault = _plain_answer(tail)
    fault: str | None = answer_fault
    if not is_closed:
        fault = "no closed <think>"
    elif before_open.strip():
        fault = "text before <think>"
    elif not any(map(str.isalnum, reasoning)):
        # Dots or zero-width characters between the tags are no reasoning either.
        fault = "empty reasoning"
    elif THINK_OPEN in reasoning:
        fault = "nested <think>"
    elif profile == "answer_tags" and (ANSWER_OPEN in reasoning or ANSWER_CLOSE in reasoning):
        fault = "answer tag inside the reasoning"
    return ResponseParts(
        reasoning=(reasoning.strip() or None) if is_closed else None, answer=answer, fault=fault
    )


PROFILES = ("answer_tags", "think_then_text")


def _visible(text: str) -> str | None:
    """The text, stripped; None where there is nothing to see in it, as in zero-width characters."""
    is_seen = any(char.isprintable() and not char.isspace() for char in text)
    return text.strip() if is_seen else None


def _tagged_answer(text: str) -> tuple[str | None, str | None]:
    """The answer between answer tags, and what is wrong with how it stands there."""
    before, has_open, rest = text.partition(ANSWER_OPEN)
    inner, has_close, junk = rest.partition(ANSWER_CLOSE)
    if not (has_open and has_close):
        return None, "no closed <answer>"
    answer = _visible(inner)
    if before.strip() or junk.strip():
        return answer, "text around <answer>"
    if answer is None:
        return None, "empty answer"
    has_tag = any(tag in inner for tag in (ANSWER_OPEN, THINK_OPEN, THINK_CLOSE))
    return answer, "tag inside the answer" if has_tag else None


def _plain_answer(text: str) -> tuple[str | None, str | None]:
    """The answer as plain text, and what is wrong with it."""
    answer = _visible(text)
    if answer is None:
        return None, "empty answer"
    has_tag = THINK_OPEN in answer or THINK_CLOSE in answer
    return answer, "tag inside the answer" if has_tag else None


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


def think_format_reward(
    completions: list[Any], profile: str = "answer_tags", prefilled: bool = False, **kwargs: Any
) -> list[float]:
    """Score whether each response is well-formed: 1.0 or 0.0 (paper section 2.2.2, format rewards).

    Args:
        completions: B completions, plain text or lists of messages.
        profile: `answer_tags` or `think_then_text`, see `split_response`.
        prefilled: whether the prompt ended with `<think>`.

    Returns:
        B floats, 1.0 for a well-formed response.
    """
    return [
        float(split_response(completion_text(c), profile, prefilled).is_well_formed)
        for c in completions
    ]


def is_ill_formed(completions: list[Any], **kwargs: Any) -> list[bool]:
    """Whether each response is ill-formed; logged as the share malformed."""
    return [reward == 0.0 for reward in think_format_reward(completions, **kwargs)]


think_format_reward.malformed = is_ill_formed  # type: ignore[attr-defined]
