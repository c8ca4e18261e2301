"""The processes of one `accelerate launch`, as sampling sees them: each takes its part of the
shards.

Nothing is sent between them; shards meet in the file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _no_one_else() -> None:
    """There is nobody to wait for."""


@dataclass(frozen=True)
class Processes:
    """This process among those at work.

    Attributes:
        index: this one's number, from 0.
        count: how many there are.
        wait: returns once all have called it.
    """

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = _no_one_else

    @property
    def is_main(self) -> bool:
        """Whether this one puts together what all have made."""
        return self.index == 0

    def share(self, shards: Sequence[int]) -> list[int]:
        """The shards that are this process's to make, whichever are missing when it looks."""
        return [index for index in shards if index % self.count == self.index]


def current_processes() -> Processes:
    """The processes that this one was launched with."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    from accelerate import PartialState

    state = PartialState()
    return Processes(state.process_index, state.num_processes, state.wait_for_everyone)
