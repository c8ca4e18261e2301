"""`--set X.key=value`: values from the command line, over those of the files.

X is a stage's name, a stage type (all its stages), `defaults`, `evaluation` or `pipeline`; the
value is YAML. A key may lead into a list or mapping, as in `zero.rewards.0.weight=0.5`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trl_r1.pipeline.mistakes import Mistake
from trl_r1.pipeline.yaml_files import parse_yaml
from trl_r1.trust.secrets import is_secret, remember, remember_in

PIPELINE_TARGETS = ("defaults", "evaluation", "pipeline")


@dataclass(frozen=True)
class Override:
    """One `--set`.

    Attributes:
        target: what stands before the first point.
        keys: the key, and the keys or indices that lead further in.
        value: the value, read as YAML.
        where: what mistakes call it.
    """

    target: str
    keys: tuple[str, ...]
    value: Any
    where: str


def read_overrides(options: Iterable[str]) -> tuple[list[Override], list[Mistake]]:
    """The overrides of a command line, and the mistakes in them."""
    overrides, mistakes = [], []
    for option in options:
        where = f"--set {option}"
        name, has_value, text = option.partition("=")
        if is_secret(name.strip().rpartition(".")[2]):
            remember(text.strip().strip("'\""))
            where = f"--set {name.strip()}"
        target, _, path = name.strip().partition(".")
        keys = tuple(path.split(".")) if path else ()
        if not has_value or not target or not all(keys) or not keys:
            mistakes.append(Mistake(where, "should look like NAME.key=value, as zero.beta=0.01"))
            continue
        # On a command line the shell has taken the quotes away that YAML wants around `@name`.
        is_reference = text.strip().startswith("@")
        value, wrong = (text.strip(), []) if is_reference else parse_yaml(text, where)
        mistakes += wrong
        remember(value) if is_secret(keys[-1]) else remember_in(value)
        if not wrong:
            overrides.append(Override(target, keys, value, where))
    return overrides, mistakes


def apply_override(mapping: dict[str, Any], override: Override) -> Mistake | None:
    """Set an override's value in a mapping, in place; the mistake where its keys lead nowhere."""
    *path, last = override.keys
    node: Any = mapping
    for depth, part in enumerate(path):
        if isinstance(node, list) and _is_index(part, node):
            node = node[int(part)]
        elif isinstance(node, dict):
            # A key that is not there yet starts a mapping, as `zero.lr_scheduler_kwargs.min_lr`.
            node = node.setdefault(part, {})
        else:
            return Mistake(override.where, f"{'.'.join(path[: depth + 1])} is not there")
    if isinstance(node, dict):
        node[last] = override.value
    elif isinstance(node, list) and _is_index(last, node):
        node[int(last)] = override.value
    else:
        return Mistake(override.where, f"{'.'.join(override.keys)} is not there")
    return None


def _is_index(text: str, items: list[Any]) -> bool:
    return text.isascii() and text.isdigit() and int(text) < len(items)
