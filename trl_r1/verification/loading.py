"""From a reward reference in a recipe to a function that a trainer can call.

A reference is the name of a file in `rewards/` (`math_answer`), `package.module:function`, or
`file.py:function`. Every mistake in one is a `RewardReferenceError` with one clear message, so that
`trl-r1 check` can show it before a model is loaded. Imports neither torch nor TRL.

Left out: running the function elsewhere than in the calling process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trl_r1.verification import trl_rewards
from trl_r1.verification.bound_reward import BoundReward
from trl_r1.verification.reward_modules import (
    BUILTIN_PACKAGE,
    RewardReferenceError,
    builtin_rewards,
    find_file,
    load_builtin,
    load_file,
    load_module,
    suggestion,
)

if TYPE_CHECKING:
    from trl_r1.reasoning_format import ReasoningFormat
    from trl_r1.stages import RewardSpec

__all__ = [
    "RewardReferenceError",
    "build_reward",
    "builtin_rewards",
    "load_reward",
    "required_columns",
]

# What every reward gets from TRL whether or not the data set has such a column.
_PASSED_BY_TRL = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
}


def load_reward(reference: str, base_dir: Path | None = None) -> Callable[..., Any]:
    """The function a reference names.

    Args:
        reference: `name`, `package.module:function` or `file.py:function`.
        base_dir: folder that a relative `file.py` is looked up in before the working directory;
            a recipe's own folder.

    Raises:
        RewardReferenceError: it can't be imported, there is no such function, it lacks `**kwargs`
            (TRL passes every column as a keyword), or it can't be called that way.
    """
    target, _, name = reference.strip().rpartition(":")
    if not target and name.endswith(".py"):
        target, name = name, ""
    if not target:
        module, name = load_builtin(name), f"{name}_reward"
    elif target.endswith(".py"):
        module = load_file(find_file(target, base_dir, reference), reference)
    else:
        module = load_module(target, reference)
    function = _get_function(module, name, reference)
    if target == trl_rewards.MODULE:
        function = trl_rewards.adapted(function)
    _check_signature(function, reference)
    return function


def build_reward(
    spec: RewardSpec, base_dir: Path | None = None, fmt: ReasoningFormat | None = None
) -> BoundReward:
    """The reward of a recipe entry, with its arguments, step window and tasks bound to it.

    Args:
        spec: one entry of a recipe's `rewards:`.
        base_dir: see `load_reward`.
        fmt: response format of the stage. Built-in rewards are told its `profile` and whether it is
            `prefilled`, so that a recipe can't ask for one format and reward another.

    Raises:
        RewardReferenceError: see `load_reward`; also for `args` the function does not name, that
            contradict `fmt`, or that lack one of its `settings`.
    """
    function = load_reward(spec.use, base_dir)
    parameters = _keyword_parameters(function)
    for key in spec.args:
        if key in _PASSED_BY_TRL:
            raise RewardReferenceError(
                f"reward {spec.use!r}: args: {key!r} is passed by the trainer; leave it out"
            )
        if key not in parameters:
            known = [name for name in parameters if name not in _PASSED_BY_TRL]
            raise RewardReferenceError(
                f"reward {spec.use!r}: args: it has no argument {key!r}"
                + suggestion(key, known)
                + f"; it has: {', '.join(known) or 'none'}"
            )
    settings = getattr(function, "settings", ())
    if missing := [name for name in settings if name not in spec.args]:
        raise RewardReferenceError(
            f"reward {spec.use!r}: it needs {' and '.join(missing)} in its args"
        )
    return BoundReward(
        use=spec.use,
        name=spec.name or _function_name(function),
        args={**spec.args, **_format_arguments(spec, function, fmt)},
        from_step=spec.from_step,
        until_step=spec.until_step,
        tasks=tuple(spec.tasks),
        base_dir=base_dir,
        function=function,
    )


def _format_arguments(
    spec: RewardSpec, function: Callable[..., Any], fmt: ReasoningFormat | None
) -> dict[str, Any]:
    """What a built-in reward has to know of the stage's response format."""
    if fmt is None or not function.__module__.startswith(f"{BUILTIN_PACKAGE}."):
        return {}
    facts = {"profile": fmt.profile, "prefilled": fmt.is_prefilled}
    told = {key: facts[key] for key in _keyword_parameters(function) if key in facts}
    for key, value in told.items():
        if spec.args.get(key, value) != value:
            raise RewardReferenceError(
                f"reward {spec.use!r}: args: {key} is {spec.args[key]!r}, but responses are of "
                f"reasoning_format {fmt.name!r}, whose {key} is {value!r}; leave it out"
            )
    return told


def required_columns(function: Callable[..., Any]) -> set[str]:
    """Data set columns a reward can't do without: its parameters that have no default.

    What TRL always passes (`prompts`, `completions`, `completion_ids`, ...) does not count, nor
    does what a `BoundReward` has in its `args`; one with `tasks` also needs `task`.
    """
    if isinstance(function, BoundReward):
        columns = required_columns(function.function) - set(function.args)
        return columns | ({"task"} if function.tasks else set())
    return {
        parameter.name
        for parameter in _keyword_parameters(function).values()
        if parameter.default is parameter.empty and parameter.name not in _PASSED_BY_TRL
    }


def _get_function(module: ModuleType, name: str, reference: str) -> Callable[..., Any]:
    callables = [
        key
        for key, value in vars(module).items()
        if callable(value)
        and not key.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    if not name:
        raise RewardReferenceError(
            f"reward {reference!r}: it names no function; write {reference.rstrip(':')}:function, "
            f"with one of: {', '.join(callables) or '(the file defines none)'}"
        )
    function = getattr(module, name, None)
    if function is None:
        raise RewardReferenceError(
            f"reward {reference!r}: {module.__file__ or module.__name__} has no function {name!r}"
            + suggestion(name, callables or dir(module))
        )
    if inspect.isclass(function):
        raise RewardReferenceError(
            f"reward {reference!r}: {name!r} is a class; name a function, or an instance of it"
        )
    if not callable(function):
        raise RewardReferenceError(
            f"reward {reference!r}: {name!r} is a {type(function).__name__}, not a function"
        )
    found: Callable[..., Any] = function
    return found


def _check_signature(function: Callable[..., Any], reference: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardReferenceError(
            f"reward {reference!r}: its signature can't be read; write it as a Python function"
        ) from error
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise RewardReferenceError(
            f"reward {reference!r}: it lacks **kwargs; TRL passes every column as a keyword "
            "argument, so end its signature with **kwargs"
        )
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise RewardReferenceError(
                f"reward {reference!r}: {parameter.name!r} is positional-only; TRL passes "
                "everything by keyword, so drop the '/' from its signature"
            )


def _keyword_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind in kinds}


def _function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
