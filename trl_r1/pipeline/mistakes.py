"""Mistakes a person can mend, as one line each: where, what, and the next step."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """One mistake in a recipe.

    Attributes:
        where: the file as the user named it (`recipes/x/02_zero.yaml`) or the option (`--set
            zero.beta`).
        message: what is wrong and what to do, in one line.
    """

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.message.split())}"


class PipelineError(Exception):
    """Something a person has to mend before a run can go on; its text is the line to show."""


class RecipeError(PipelineError):
    """Mistakes in a pipeline folder, all of them.

    Attributes:
        mistakes: the mistakes, in the order of the files.
    """

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(dict.fromkeys(mistakes))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known word nearest to `word`, or an empty string."""
    by_small = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.strip().lower(), list(by_small), n=1, cutoff=0.7)
    return f"; did you mean {by_small[near[0]]!r}?" if near else ""


def one_of(known: Iterable[str]) -> str:
    """The known words, for the end of a message."""
    return ", ".join(repr(word) for word in known)


def os_message(error: OSError) -> str:
    """What the system refused, and the next step."""
    place = f" ({str(error.filename)[:200]})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{place}; make room, or name an output folder on another disk."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"not allowed to write{place}; name an output folder that is yours."
    return f"{error.strerror or type(error).__name__}{place}"
