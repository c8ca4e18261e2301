"""The gate before code that a recipe names: while it is shut, none of that code is run.

Every loader of such code asks it first, so that a check that loads in a new place is held back,
too. Names are not looked up on the Hub meanwhile: to a stranger even the question may say too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_withheld: ContextVar[bool] = ContextVar("withheld", default=False)


class WithheldError(Exception):
    """Code that a recipe names was not run, since it comes from a stranger."""


@contextmanager
def withheld() -> Iterator[None]:
    """Shut the gate for a while."""
    token = _withheld.set(True)
    try:
        yield
    finally:
        _withheld.reset(token)


def is_withheld() -> bool:
    """Whether the gate is shut."""
    return _withheld.get()


def is_ours(module: str) -> bool:
    """Whether a module that a recipe names is this package's or TRL's rewards."""
    return module == "trl.rewards" or (module.partition(".")[0] == "trl_r1" and "__" not in module)
