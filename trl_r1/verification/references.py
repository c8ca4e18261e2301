"""From what a user hands to `pooled` to a reference that a worker can load.

A function crosses to a worker by its name, never as a pickle of itself.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trl_r1.stages import RewardSpec
from trl_r1.verification.bound_reward import BoundReward
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.protocol import RewardKey

Reward = str | RewardSpec | BoundReward | Callable[..., Any]


def reward_spec(reward: Reward, args: Mapping[str, Any] | None = None) -> RewardSpec:
    """The recipe entry that names a reward.

    Args:
        reward: a reference, a recipe entry, a reward that `build_reward` made, or a function of a
            module or file.
        args: keyword arguments bound to it, beside those it has.

    Raises:
        RewardReferenceError: for a function that can't be found by its name.
    """
    if isinstance(reward, BoundReward):
        spec = RewardSpec(
            use=reward.use,
            args=reward.args,
            from_step=reward.from_step,
            until_step=reward.until_step,
            tasks=reward.tasks,
            name=reward.__name__,
        )
    elif isinstance(reward, RewardSpec):
        spec = reward
    elif isinstance(reward, str):
        spec = RewardSpec(use=reward)
    else:
        spec = RewardSpec(use=function_reference(reward))
    if not args:
        return spec
    return RewardSpec(**{**vars(spec), "args": {**spec.args, **args}})


def reward_key(spec: RewardSpec, base_dir: Path | None) -> RewardKey:
    """What a worker loads of a recipe entry; a file's path is made absolute.

    Raises:
        RewardReferenceError: its `args` can't be passed to another process.
    """
    try:
        args = pickle.dumps(dict(spec.args), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle raises whatever a value's own code does
        raise RewardReferenceError(
            f"reward {spec.use!r}: its args can't be passed to a worker process: {error}"
        ) from error
    # The working directory may change later, so it is fixed now, as the second place to look.
    return RewardKey(spec.use, spec.name, args, (base_dir or Path.cwd()).resolve())


def function_reference(function: Callable[..., Any]) -> str:
    """`module:function` or `file.py:function` of a function.

    Raises:
        RewardReferenceError: for a lambda, a nested function or one of the running script, which a
            worker could only get by running that script.
    """
    name = getattr(function, "__qualname__", "")
    module_name = getattr(function, "__module__", None)
    if not inspect.isfunction(function) or not name.isidentifier():
        raise RewardReferenceError(
            f"{function!r} can't be found by name from a worker process: pass a plain function of "
            "a module, or write the reference as text, file.py:function, with its arguments in args"
        )
    module = sys.modules.get(module_name or "")
    if module is None or module_name == "__main__":
        raise RewardReferenceError(
            f"reward {name!r} is defined in the script or notebook that is running; a worker would "
            f"have to run that to get it. Move it to a file of its own (in a notebook: a cell that "
            f"begins with %%writefile my_reward.py) and write my_reward.py:{name}"
        )
    if getattr(module, name, None) is not function:
        raise RewardReferenceError(
            f"{module_name}:{name} is not the function that was passed; give it a name of its own"
        )
    if module_name and module_name.startswith("_trl_r1_reward_"):  # loaded from a file
        return f"{module.__file__}:{name}"
    return f"{module_name}:{name}"
