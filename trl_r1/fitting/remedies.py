"""The nearest settings with which a stage fits: what to change, from what costs nothing in the
result to what does.

First what only costs time (checkpointing, smaller micro-batches with as many rows a step, vLLM's
sleep, optimizer states that the driver pages to the host), then LoRA, then 4 bit, last shorter rows
or fewer completions. Changes are tried one on top of the other, each measured, until the stage
fits; then those that turn out not to be needed are taken back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trl_r1.fitting.accounts import GIB, VLLM_WORKSPACE_BYTES, StageAccount, kv_bytes_per_token
from trl_r1.fitting.loads import SCORING
from trl_r1.fitting.phases import Load

Change = Mapping[str, Any]
Try = Callable[[Change], StageAccount]

# Shorter rows than this are no remedy.
_SHORTEST = 256
_QLORA = {"load_in_4bit": True, "use_peft": True}
_LORA = {"use_peft": True, "lora_r": 32, "lora_alpha": 64, "lora_target_modules": ["all-linear"]}


@dataclass(frozen=True)
class Remedy:
    """What would make a stage fit.

    Attributes:
        changes: keys of the stage and their new values.
        account: of the stage with them.
    """

    changes: Change
    account: StageAccount


def find_remedy(account: StageAccount, attempt: Try) -> Remedy | None:
    """The nearest settings with which a stage fits; None where none are known.

    Args:
        account: of the stage as it is, which does not fit.
        attempt: gives the account of the stage with some keys changed.
    """
    taken: list[Change] = []
    best = account
    for change in _changes(account):
        tried = attempt(_joined([*taken, change]))
        if not tried.fits and not _is_lower(tried, best):
            continue
        taken.append(change)
        best = tried
        if best.fits:
            break
    if not best.fits:
        return None
    for change in reversed(taken[:-1]):
        rest = [other for other in taken if other is not change]
        tried = attempt(_joined(rest))
        if tried.fits:
            taken, best = rest, tried
    return Remedy(_joined(taken), best)


def _joined(changes: list[Change]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for change in changes:
        joined.update(change)
    return joined


def _is_lower(one: StageAccount, other: StageAccount) -> bool:
    if one.peak is None or other.peak is None:
        return False
    return one.peak.total < other.peak.total or len(one.faults) < len(other.faults)


def _changes(account: StageAccount) -> Iterator[Change]:
    """Changes in the order in which they are tried."""
    load = account.stage_load.load
    assert load is not None, "what is not measured always fits"
    if load.kind == "generation":
        yield from _halved("batch_size", load.generated_rows, 1)
        if not load.model_args.load_in_4bit and account.stage_load.name != SCORING:
            yield {"load_in_4bit": True}
        yield from _halved("max_new_tokens", load.completion, _SHORTEST)
        return
    yield from _for_free(account, load)
    if not load.model_args.use_peft and not load.carries_adapter:
        yield _LORA
    if not load.model_args.load_in_4bit:
        yield {**_QLORA} if load.model_args.use_peft else {**_LORA, **_QLORA}
    yield from _for_a_price(load)


def _for_free(account: StageAccount, load: Load) -> Iterator[Change]:
    """What costs time and changes no result."""
    args, vllm_share = load.args, account.stage_load.vllm_share
    if vllm_share and not account.stage_load.vllm_sleeps:
        yield {"vllm_enable_sleep_mode": True}
    if vllm_share and account.faults:
        yield {"vllm_gpu_memory_utilization": _vllm_share(account, load)}
    if not args.gradient_checkpointing and not getattr(args, "activation_checkpointing", None):
        yield {"gradient_checkpointing": True}
    max_tokens = getattr(args, "max_tokens_per_micro_batch", None)
    if max_tokens is not None:
        yield from _halved("max_tokens_per_micro_batch", max_tokens, load.width)
    elif load.kind == "grpo":
        yield {"max_tokens_per_micro_batch": load.width}
    rows, steps = args.per_device_train_batch_size, args.gradient_accumulation_steps
    while rows > 1 and load.kind != "grpo":
        rows, steps = rows // 2, steps * 2
        yield {"per_device_train_batch_size": rows, "gradient_accumulation_steps": steps}
    yield {"optim": "paged_adamw_8bit"}


def _for_a_price(load: Load) -> Iterator[Change]:
    """Fewer completions at a time, then shorter rows."""
    args = load.args
    if load.generated_rows:
        steps = args.gradient_accumulation_steps
        while steps % 2 == 0 and _groups(args, steps // 2) >= 1:
            steps //= 2
            yield {"gradient_accumulation_steps": steps}
    key = "max_completion_length" if load.kind == "grpo" else "max_length"
    yield from _halved(key, load.completion, _SHORTEST)


def _groups(args: Any, steps: int) -> float:
    """Groups of completions in a batch with that many micro-steps; 0 where they don't divide."""
    rows = args.per_device_train_batch_size * steps
    return rows / args.num_generations if rows % args.num_generations == 0 else 0


def _halved(key: str, value: int, least: int) -> Iterator[Change]:
    while value > least:
        value = max(least, value // 2)
        yield {key: value}


def _vllm_share(account: StageAccount, load: Load) -> float:
    """The share of the card that vLLM needs for weights, workspace and four completions."""
    parts = account.phases[-1].measured
    weights = parts.get("weights", 0) // (2 if load.dtype == "float32" else 1)
    cache = 4 * kv_bytes_per_token(load.config) * load.width
    share = (weights + cache + VLLM_WORKSPACE_BYTES) / account.vram
    return math.ceil(share * 20) / 20


def set_options(name: str, changes: Change) -> str:
    """The `--set` options that make these changes to a stage."""
    return " ".join(f"--set {name}.{key}={_yaml(value)}" for key, value in changes.items())


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "'[" + ", ".join(map(str, value)) + "]'"
    return str(value)


def gib(size: int) -> str:
    """Bytes in words."""
    return f"{size / GIB:.2f}"
