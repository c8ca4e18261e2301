"""The options of a multiple choice question, in their order, and the letter of the right one."""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

_LETTERS = string.ascii_uppercase


def with_options(question: str, options: Sequence[str]) -> str:
    """A question with its lettered options under it."""
    lettered = (f"{_LETTERS[i]}. {option}" for i, option in enumerate(options))
    return "\n".join([question.strip(), "", *lettered])


def read_choices(
    choices: str | tuple[str, ...], row: Mapping[str, Any], solution: str, shuffles: bool
) -> tuple[list[str], str]:
    """Texts of the options, in order, and the letter of the right one.

    Args:
        choices: a column of them, or several with a text each.
        row: of the source.
        solution: a letter or label, a text of one, or a place from 0.
        shuffles: in an order of their own for each question, always the same.

    Raises:
        ValueError: for a row without options, with more than 26, or whose answer is none of them.
    """
    if isinstance(choices, tuple):
        if empty := [name for name in choices if row[name] is None]:
            raise ValueError(f"choices: {', '.join(empty)} is empty (null)")
        options, labels = [str(row[name]).strip() for name in choices], list(_LETTERS)
    else:
        options, labels = _of_column(choices, row[choices])
    if not 2 <= len(options) <= len(_LETTERS):
        raise ValueError(f"choices: {len(options)} options; there should be 2 to {len(_LETTERS)}")
    right = _place(solution.strip(), options, labels)
    if shuffles:
        # By the question's own text, so that no other row and no seed moves them.
        seed = hashlib.sha256("\0".join(options).encode()).digest()
        order = random.Random(seed).sample(range(len(options)), len(options))
        options, right = [options[i] for i in order], order.index(right)
    return options, _LETTERS[right]


def _of_column(name: str, given: Any) -> tuple[list[str], list[str]]:
    """Texts and labels of a column's cell."""
    wanted = f"choices: {name} should be a list of texts, or have `text` and `label`"
    if given is None:
        raise ValueError(f"choices: {name} is empty (null)")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"{wanted}; it is the text {given[:40]!r}") from error
    texts: Any = given
    labels: Any = list(_LETTERS)
    if isinstance(given, Mapping):
        texts, labels = given.get("text"), given.get("label")
        if not isinstance(labels, list) or not isinstance(texts, list) or None in labels:
            raise ValueError(f"{wanted}; it has {', '.join(map(str, given))}")
    if not isinstance(texts, list) or None in texts:
        raise ValueError(f"{wanted}; it is {str(texts)[:40]}")
    return [str(text) for text in texts], [str(label) for label in labels]


def _place(solution: str, options: Sequence[str], labels: Sequence[str]) -> int:
    if solution in options:
        return options.index(solution)
    if solution in labels[: len(options)]:
        return labels.index(solution)
    if solution.isdigit() and int(solution) < len(options):
        return int(solution)
    raise ValueError(f"the answer {solution!r} is none of the options")
