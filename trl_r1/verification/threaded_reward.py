"""A reward that works outside of this process already, waited for in a thread.

`code_tests` has a sandbox of its own, so the worker processes would add nothing; but a trainer that
calls it waits for every program. With `submit` it can go on with its scoring passes meanwhile. Left
out: limits; the reward has those.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import update_wrapper
from typing import Any


class ThreadedReward:
    """A reward function that can be started and waited for; called, it does both.

    Args:
        reward: TRL reward function. One call runs at a time, in the order of the calls.
    """

    def __init__(self, reward: Callable[..., Any]) -> None:
        self.reward = reward
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")
        update_wrapper(self, reward)

    def __call__(self, completions: list[Any], **kwargs: Any) -> list[float | None]:
        """Rewards of B completions; `kwargs` are TRL's."""
        return self.submit(completions, **kwargs).result()

    def submit(self, completions: list[Any], **kwargs: Any) -> Future[list[float | None]]:
        """Start grading and return at once; `.result()` waits, and raises what the reward raised.

        What the reward logs is logged before the result is there.
        """
        return self._thread.submit(self.reward, completions=completions, **kwargs)
