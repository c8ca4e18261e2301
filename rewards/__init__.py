"""Rewards for GRPO, one stand-alone file each, and those of TRL's that are right as they are.

Names load on first use, so that importing this package imports neither torch nor TRL.

    name                           what it is
    choice_reward                  letters and texts of multiple choice
    code_tests_reward              programs against tests, in a sandbox
    instruction_reward             constraints checked by rule, IFEval's among them
    language_consistency_reward    share of the reasoning in the wanted language
    length_within_group_reward     shorter right answers over longer ones (Kimi k1.5)
    math_answer_reward             final answers of mathematics
    overlong_reward                TRL's soft overlong punishment, with arguments of a recipe
    preference_model_reward        a reward model's score
    reasoning_gym_reward           verifiers of reasoning-gym
    repetition_reward              TRL's repetition penalty, with arguments of a recipe
    think_format_reward            reasoning first, then an answer
    get_soft_overlong_punishment   TRL's own: makes a reward (DAPO, equation 13)
    get_repetition_penalty_reward  TRL's own: makes a reward (n-grams of tokens)

Of TRL's rewards these are not here, for what was measured with TRL 1.16; `trl.rewards:NAME` still
names them in a recipe:

    accuracy_reward            parses a bare gold answer in part, so that wrong answers score 1.0
                               (58 of MATH-500's 500), and hangs on some; see math_answer
    reasoning_accuracy_reward  the same, on what follows `</think>`
    get_cosine_scaled_reward   scales accuracy_reward; see length_within_group
    think_format_reward        takes empty reasoning, no answer, tags in tags; see think_format
"""

from __future__ import annotations

import importlib
from typing import Any

_OWN = (
    "choice",
    "code_tests",
    "instruction",
    "language_consistency",
    "length_within_group",
    "math_answer",
    "overlong",
    "preference_model",
    "reasoning_gym",
    "repetition",
    "think_format",
)
_FROM_TRL = ("get_repetition_penalty_reward", "get_soft_overlong_punishment")

__all__ = [*(f"{name}_reward" for name in _OWN), *_FROM_TRL]


def __getattr__(name: str) -> Any:
    if name in _FROM_TRL:
        return getattr(importlib.import_module("trl.rewards"), name)
    if name.removesuffix("_reward") in _OWN and name.endswith("_reward"):
        module = importlib.import_module(f"{__name__}.{name.removesuffix('_reward')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
