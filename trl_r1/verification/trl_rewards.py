"""TRL's own rewards as recipes name them, `use: trl.rewards:NAME`.

They take messages only, so plain text is given to them as one message; and some of them make a
reward from settings, which here come from the recipe's `args` as for any other. What is right and
wrong with them says `trl_r1.rewards`.

Left out: mending them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

MODULE = "trl.rewards"
# For `trl-r1 rewards list`, which does not import TRL.
SUMMARIES: Mapping[str, str] = {
    "accuracy_reward": "Answers in a box against `solution`; parses a bare gold answer in part, so "
    "prefer math_answer.",
    "reasoning_accuracy_reward": "The same, on what follows the reasoning.",
    "think_format_reward": "Opens and closes <think>; takes empty reasoning and no answer, so "
    "prefer think_format.",
    "get_cosine_scaled_reward": "accuracy_reward scaled by length; needs max_len.",
    "get_repetition_penalty_reward": "Repeated n-grams of tokens; the same as repetition.",
    "get_soft_overlong_punishment": "DAPO's punishment of length; the same as overlong. Needs "
    "max_completion_len, soft_punish_cache.",
}
_Reward = Callable[..., Any]


def adapted(function: _Reward) -> _Reward:
    """A reward of TRL's, or what makes one, as a reward that takes plain text and settings.

    Args:
        function: of `trl.rewards`.
    """
    parameters = list(inspect.signature(function).parameters.values())
    is_maker = not any(p.kind is p.VAR_KEYWORD for p in parameters)
    settings = [p.name for p in parameters] if is_maker else []

    def reward(**kwargs: Any) -> Any:
        kwargs["completions"] = [_as_messages(completion) for completion in kwargs["completions"]]
        if not is_maker:
            return function(**kwargs)
        given = {name: kwargs.pop(name) for name in settings if name in kwargs}
        return function(**given)(**kwargs)

    if is_maker:
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [p.replace(kind=keyword) for p in parameters]
        parameters.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
        reward.settings = [  # type: ignore[attr-defined]
            p.name for p in parameters if p.default is p.empty and p.kind is keyword
        ]
    reward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    reward.__name__ = function.__name__.removeprefix("get_")
    reward.__doc__ = function.__doc__
    return reward


def _as_messages(completion: Any) -> Any:
    if completion is None or isinstance(completion, str):
        return [{"role": "assistant", "content": completion or ""}]
    return completion
