"""Length reward within a prompt's group: the shorter of two right answers is the better one.

The length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3): with `len` in tokens over the
responses to one prompt, and lambda = 0.5 - (len - min_len) / (max_len - min_len), a right response
gets lambda, a wrong one min(0, lambda), and all get 0 where all are of one length. R1 itself does
without. It compares, so it has no preferred length, and an easy prompt may be answered shortly.

What is right says a grader, another reward: `math_answer` by default; any name, `module:function`
or `file.py:function` of a recipe, or a function. It is called with the same columns. Add that
reward itself with a larger weight: from the shortest to the longest right response this one falls
by 1.0.
Switch it on late (`from_step`), as Kimi does: from the start, it keeps a policy from learning to
think.

This file stands alone: it imports neither a sibling nor `trl_r1`; a grader named by text is looked
up through `trl_r1`, a function works anywhere. Groups are neighbours with equal prompts. In plain
TRL on several processes, a group that straddles two of them is compared within each.

Left out: lengths of the reasoning or the answer alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_Grader = Callable[..., Any]


def length_within_group_reward(
    completions: list[Any],
    completion_ids: list[list[int]],
    prompts: list[Any] | None = None,
    grader: str | _Grader | None = "math_answer",
    grader_args: Mapping[str, Any] | None = None,
    min_right: float = 1.0,
    only_right: bool = False,
    prefilled: bool = False,
    solution: list[Any] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """Compare the lengths of each prompt's responses (Kimi k1.5, section 2.3.3).

    Args:
        completions: B completions, plain text or lists of messages.
        completion_ids: B lists of token ids.
        prompts: B prompts; without them the batch is one group.
        grader: reward that says what is right; None: lengths alone, as if all were right.
        grader_args: arguments of the grader.
        min_right: what the grader gives a right response, at least.
        only_right: compare the right responses with one another and leave wrong ones at 0.0.
        prefilled: the prompt ended with `<think>`; passed on to a grader that takes it.
        solution, kwargs: columns, passed on to the grader.

    Returns:
        B rewards in -0.5..0.5, None for a row that the grader can't grade.

    Raises:
        ValueError: the grader can't be had, or a column that it needs is missing.
    """
    columns = {"solution": solution, **kwargs} if solution is not None else kwargs
    grades = _grades(
        grader,
        {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
        | columns,
        {"prefilled": prefilled, **(grader_args or {})},
    )
    rewards: list[float | None] = [None] * len(completions)
    for group in _groups(prompts, len(completions)):
        graded = {row: grade for row in group if (grade := grades[row]) is not None}
        are_right = {row: grade >= min_right for row, grade in graded.items()}
        lengths = {
            row: len(completion_ids[row])
            for row, is_right in are_right.items()
            if is_right or not only_right
        }
        for row in graded:
            rewards[row] = 0.0 if row not in lengths else _score(row, lengths, are_right[row])
    return rewards


# It compares the responses to a prompt, so it has to see them in one call.
length_within_group_reward.needs = "group"  # type: ignore[attr-defined]


def _score(row: int, lengths: Mapping[int, int], is_right: bool) -> float:
    shortest, longest = min(lengths.values()), max(lengths.values())
    if shortest == longest:
        return 0.0
    share = 0.5 - (lengths[row] - shortest) / (longest - shortest)
    return share if is_right else min(0.0, share)


def _groups(prompts: list[Any] | None, num_rows: int) -> list[list[int]]:
    """Rows of each group: neighbours with equal prompts."""
    groups: list[list[int]] = []
    for row in range(num_rows):
        if groups and (prompts is None or prompts[row] == prompts[row - 1]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _grades(
    grader: str | _Grader | None, columns: Mapping[str, Any], settings: Mapping[str, Any]
) -> Sequence[float | None]:
    if grader is None:
        return [1.0] * len(columns["completions"])
    function = _function(grader)
    parameters = inspect.signature(function).parameters
    # `prefilled` is ours to offer; what the user set is the grader's to refuse.
    own = {k: v for k, v in settings.items() if k in parameters or k != "prefilled"}
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in columns
        and name not in own
    ]
    if missing:
        raise ValueError(
            f"length_within_group: its grader {_name(grader)} needs {', '.join(missing)}; give the "
            "data set such a column, set it in grader_args, or take another grader"
        )
    grades: Sequence[float | None] = function(**{**columns, **own})
    if len(grades) != len(columns["completions"]):
        raise ValueError(
            f"length_within_group: its grader {_name(grader)} returned {len(grades)} rewards for "
            f"{len(columns['completions'])} completions"
        )
    return grades


def _function(grader: str | _Grader) -> _Grader:
    if not isinstance(grader, str):
        return grader
    try:
        from trl_r1.verification.loading import load_reward
    except ImportError as error:
        raise ValueError(
            f"length_within_group: a grader named by text, here {grader!r}, is looked up by "
            "trl_r1, which is not installed; pass the function itself, or None"
        ) from error
    function = load_reward(grader)
    if getattr(function, "__name__", "") == "length_within_group_reward":
        raise ValueError(
            "length_within_group: it can't be its own grader; name what grades answers"
        )
    return function


def _name(grader: str | _Grader) -> str:
    return repr(grader if isinstance(grader, str) else getattr(grader, "__name__", str(grader)))
