"""Who makes which shard: the processes of one `accelerate launch`, parts of a job on several
machines (`--shard 2/4`), and processes that just share a folder.

Nothing is sent between them; shards meet in the file system. Processes with a number take their
share; whatever the numbers, a shard is claimed before it is made, so that two processes never make
the same one, and one that is killed leaves its shards to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trl_r1.sampling.shards import Claim, ShardFolder


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


class ShardQueue:
    """The missing shards of a process's share, claimed one by one.

    Args:
        shards: the folder they belong to.
        processes: this process among the others.
    """

    def __init__(self, shards: ShardFolder, processes: Processes) -> None:
        self._shards = shards
        self._processes = processes
        self._held: set[int] = set()
        self._ahead: list[int] = []

    def take(self) -> tuple[int, Claim] | None:
        """A shard for this process to make; None where there is none now."""
        for attempt in range(2):
            while self._ahead:
                index = self._ahead.pop(0)
                # A process's own lock does not stop it.
                if index not in self._held and (claim := self._shards.claim(index)) is not None:
                    self._held.add(index)
                    return index, claim
            if not attempt:
                self._ahead = self._missing()
        return None

    def is_done(self) -> bool:
        """Whether all of the share is made; False while others are at some of it, which come back
        if they die."""
        return not self._missing()

    def _missing(self) -> list[int]:
        return self._processes.share(self._shards.missing())


def current_processes() -> Processes:
    """The processes that this one was launched with."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    from accelerate import PartialState

    state = PartialState()
    return Processes(state.process_index, state.num_processes, state.wait_for_everyone)


def parse_share(text: str) -> Processes:
    """The part of a job that `2/4` says.

    Raises:
        ValueError: for what is no part.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"{text!r} is no part of a job; write 1/4 for the first of four")
    return Processes(int(number) - 1, int(count))
