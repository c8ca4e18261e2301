"""The reward that a rehearsal adds: random weights earn none, and equal rewards teach nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spread_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """0 and 1 by turns, so that the rows of a group differ and the update has work to do."""
    return [float(i % 2) for i in range(len(completions))]
