"""Whether what a program came to is what was expected; both are plain data, and text.

The expected side is trusted, the other is not: it is made of built-in types alone (see
`isolation/plain_data.py`), so no comparison here runs anybody's code.
"""

from __future__ import annotations

import math
from typing import Any

_MAX_NUMBER_LENGTH = 400


def same_value(expected: Any, got: Any, tolerance: float, is_loose: bool = False) -> bool:
    """Python's equality, with a tolerance where the expected value is a float.

    Args:
        expected: built-in types.
        got: likewise; an iterator equals nothing.
        tolerance: relative; absolute where 0.0 is expected. An absolute one elsewhere would make
            every tiny number equal to every other.
        is_loose: a list may stand for a tuple, as in JSON.
    """
    if isinstance(expected, list | tuple):
        kinds: Any = (list, tuple) if is_loose else type(expected)
        return (
            isinstance(got, kinds)
            and len(got) == len(expected)
            and all(
                same_value(e, g, tolerance, is_loose) for e, g in zip(expected, got, strict=True)
            )
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(same_value(v, got[k], tolerance, is_loose) for k, v in expected.items())
        )
    if isinstance(expected, float) and isinstance(got, int | float):
        return close(expected, got, tolerance)
    return bool(expected == got)


def close(expected: float, got: float, tolerance: float) -> bool:
    """Whether a number is within the tolerance; not-a-number equals itself here."""
    if math.isnan(expected):
        return got != got
    absolute = tolerance if expected == 0 else 0.0
    try:
        return math.isclose(expected, got, rel_tol=tolerance, abs_tol=absolute)
    except OverflowError:  # an integer beyond any float
        return False


def same_output(expected: str, got: str, tolerance: float) -> bool:
    """The whole output, spaces at the ends of lines and empty lines at its end aside.

    Args:
        expected: text.
        got: text.
        tolerance: see `same_value`; of expected words with a decimal point.
    """
    wanted, found = ([line.rstrip() for line in t.rstrip().splitlines()] for t in (expected, got))
    if len(wanted) != len(found):
        return False
    return all(
        w == f or _same_words(w.split(), f.split(), tolerance)
        for w, f in zip(wanted, found, strict=True)
    )


def _same_words(expected: list[str], got: list[str], tolerance: float) -> bool:
    if len(expected) != len(got):
        return False
    return all(w == f or _same_decimal(w, f, tolerance) for w, f in zip(expected, got, strict=True))


def _same_decimal(expected: str, got: str, tolerance: float) -> bool:
    if "." not in expected or len(got) > _MAX_NUMBER_LENGTH:
        return False
    try:
        return close(float(expected), float(got), tolerance)
    except ValueError:
        return False
