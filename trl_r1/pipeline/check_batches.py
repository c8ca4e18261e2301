"""Whether a batch of completions divides into groups, and what to change where it does not.

TRL says so too, but only once everything is loaded, for one process, and not what would work.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trl_r1.pipeline.keys import keys_of
from trl_r1.pipeline.recipe import StageRecipe


def batch_fault(recipe: StageRecipe, processes: int) -> str | None:
    """Why completions don't divide into groups, with what would work; None where they do."""
    keys = keys_of(*recipe.spec.configs)
    if not {"num_generations", "generation_batch_size", "per_device_train_batch_size"} <= set(keys):
        return None

    def setting(key: str) -> Any:
        if key in recipe.values:
            return recipe.values[key]
        owner = keys[key].owner
        assert owner is not None, "keys of configs are fields"
        return next(f.default for f in dataclasses.fields(owner) if f.name == key)

    group, per_device = setting("num_generations"), setting("per_device_train_batch_size")
    if not isinstance(group, int) or group < 2:
        return f"num_generations should be at least 2, not {group}"
    if not isinstance(per_device, int) or per_device < 1:
        return None
    micro = per_device * processes
    total, steps = setting("generation_batch_size"), setting("steps_per_generation")
    many = f" x {processes} processes" if processes > 1 else ""
    if total is not None:
        if total % micro:
            return (
                f"generation_batch_size {total} is not divisible by the {micro} completions of a "
                f"step ({per_device}{many}); {_neighbours(total, micro)} would work"
            )
        made = f"generation_batch_size {total}"
        unit = math.lcm(micro, group)
        repair = f"generation_batch_size {_neighbours(total, unit)}"
    else:
        steps = steps or setting("gradient_accumulation_steps")
        total = micro * steps
        made = (
            f"a batch of {total} completions (per_device_train_batch_size {per_device}{many} x "
            f"{steps} accumulated steps)"
        )
        unit = group // math.gcd(group, processes * steps)
        repair = f"per_device_train_batch_size {_neighbours(per_device, unit)}"
    if total % group == 0:
        return None
    groups = [n for n in range(2, total + 1) if total % n == 0]
    near = sorted(sorted(groups, key=lambda n: abs(n - group))[:3])
    others = f"; num_generations {' or '.join(map(str, near))} would work" if near else ""
    return f"{made} is not divisible by num_generations {group}{others}, or {repair}"


def _neighbours(value: int, unit: int) -> str:
    """The multiples of `unit` around a value."""
    below, above = value // unit * unit, -(-value // unit) * unit
    return " or ".join(str(n) for n in dict.fromkeys((below, above)) if n > 0)
