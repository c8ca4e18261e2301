"""Grading while the model scores: rewards begin when completions exist, and are waited for last.

TRL calls its reward functions after the old and the reference pass. A reward function with a
`submit` (what `verification/pooled_reward.py` makes) is started as soon as the completions are
there, and TRL's call then takes the result. Both times it is TRL that puts the arguments together.
Left out: reward functions without `submit`, reward models, coroutines, and the rewards of a
`rollout_func`, which adds columns later; those run when TRL runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOTrainer

# Where TRL's `_generate` has them in what it returns; a test holds it to that.
COMPLETION_IDS, COMPLETIONS = 1, 3


@dataclass
class _Started:
    """Rewards that are being computed, by their index, and the objects they were given."""

    given: tuple[Any, ...]
    pending: dict[int, Any] = field(default_factory=dict)

    def was_given(self, *objects: Any) -> bool:
        return all(a is b for a, b in zip(self.given, objects, strict=True))

    def cancel(self) -> None:
        for pending in self.pending.values():
            pending.cancel()


class OverlappedGrading(GRPOTrainer):
    """The part of the trainer that starts rewards early."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows_to_grade: Any = None
        self._started: _Started | None = None

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._rows_to_grade = inputs
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            # Something is left only where an error came between start and result.
            self._drop_started()
            self._rows_to_grade = None

    def _generate(self, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        output = super()._generate(prompts, *args, **kwargs)
        rewards: list[Any] = self.reward_funcs
        indices = [i for i, reward in enumerate(rewards) if hasattr(reward, "submit")]
        if indices and self._rows_to_grade is not None and self.rollout_func is None:
            given = (self._rows_to_grade, prompts, output[COMPLETIONS], output[COMPLETION_IDS])
            self._started = _Started(given)
            starters = {i: self._starter(self._started, i) for i in indices}
            with self._instead_of_rewards(starters, indices):
                super()._calculate_rewards(*given)
        return output

    def _starter(self, started: _Started, index: int) -> Callable[..., list[float]]:
        rewards: list[Any] = self.reward_funcs
        submit = rewards[index].submit

        def start(completions: Sequence[Any], **kwargs: Any) -> list[float]:
            started.pending[index] = submit(completions, **kwargs)
            return [0.0] * len(completions)

        return start

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Any:
        arguments = (inputs, prompts, completions, completion_ids_list)
        if self._started is None or not self._started.was_given(*arguments):
            # Something between here and TRL has made other completions of those that were there.
            self._drop_started()
            return super()._calculate_rewards(*arguments)
        waiting = {i: _result_of(pending) for i, pending in self._started.pending.items()}
        with self._instead_of_rewards(waiting, range(len(self.reward_funcs))):
            rewards = super()._calculate_rewards(*arguments)
        self._started = None
        return rewards

    def _drop_started(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            started.cancel()

    @contextlib.contextmanager
    def _instead_of_rewards(
        self, functions: Mapping[int, Callable[..., Any]], indices: Sequence[int]
    ) -> Iterator[None]:
        """Have TRL call these functions, and of the rewards only those of the `indices`."""
        names = ("reward_funcs", "reward_processing_classes", "reward_func_names")
        kept = {name: getattr(self, name) for name in names}
        for name, values in kept.items():
            setattr(self, name, [values[i] for i in indices])
        self.reward_funcs = [functions.get(i, kept["reward_funcs"][i]) for i in indices]
        try:
            yield
        finally:
            for name, values in kept.items():
                setattr(self, name, values)


def _result_of(pending: Any) -> Callable[..., Any]:
    def result(**_: Any) -> Any:
        return pending.result()

    return result
