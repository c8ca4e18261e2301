"""A pickle that leaves a mark when somebody unpickles it."""

from pathlib import Path
from typing import Any


class Evil:
    """Makes a file when it is unpickled.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
