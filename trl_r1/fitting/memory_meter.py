"""Counting of tensor memory while code runs on fake tensors, which have shapes but no data.

`MemoryMeter` is a dispatch mode, as torch's own `MemTracker` is: it sees every storage that an
operation makes and when it is freed, and remembers the highest sum and what it was made of. Where
code looks at data, which is not there (`.item()`, boolean masks), it answers as for rows without
padding, so that whole trainers run. Left out: what no tensor holds, such as a card's context,
a kernel's workspace and fragmentation; `accounts.py` estimates those.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Bytes by what they are for; the names that accounts show.
WEIGHTS, ADAPTERS, REFERENCE = "weights", "adapters", "reference"
GRADIENTS, OPTIMIZER = "gradients", "optimizer"
ACTIVATIONS, LOGITS, KV_CACHE = "activations", "logits", "KV cache"

_aten = torch.ops.aten


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measures the tensors that live while it is entered. Enter it inside a `FakeTensorMode`.

    Args:
        logit_widths: last dimensions by which logits are told from other activations.
        rounding: bytes that an allocation is rounded up to: 512 as CUDA's allocator does, 1 for
            plain sizes.

    Attributes:
        peak: the highest number of bytes since `start_phase`.
        peak_parts: what it was made of.
        cache_shape: of the keys of a layer after a decoding step, by which a KV cache is told from
            other activations; None for none.
    """

    def __init__(self, logit_widths: frozenset[int] = frozenset(), rounding: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._logit_widths = logit_widths
        self._rounding = rounding
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._part_of: dict[int, str] = {}
        self._parts: Counter[str] = Counter()
        self._total = 0
        self.peak = 0
        self.peak_parts: dict[str, int] = {}
        self.cache_shape: torch.Size | None = None

    def hold(self, tensors: Any, part: str) -> None:
        """Count tensors (any nesting of them) as `part`, also those that are known already."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                for storage in _storages(tensor):
                    self._count(storage, part)
                    self._move(storage._cdata, part)
        self._note_peak()

    def hold_gradients(self, model: torch.nn.Module) -> None:
        """From now on, count the gradients of a model's parameters as such."""

        def hold(parameter: torch.Tensor) -> None:
            self.hold(parameter.grad, GRADIENTS)

        parameters: list[Any] = list(model.parameters())
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hold)

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Forget the peak before, so that `peak` is the one of what runs inside."""
        self.peak, self.peak_parts = self._total, dict(self._parts)
        with self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = _without_data(func, args)
        if result is None:
            result = func(*args, **(kwargs or {}))
        is_new = False
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                part = self._part(tensor)
                for storage in _storages(tensor):
                    is_new |= self._count(storage, part)
        if is_new:
            self._note_peak()
        return result

    def _part(self, tensor: torch.Tensor) -> str:
        if tensor.dim() > 1 and tensor.shape[-1] in self._logit_widths:
            return LOGITS
        return KV_CACHE if tensor.shape == self.cache_shape else ACTIVATIONS

    def _count(self, storage: Any, part: str) -> bool:
        key = storage._cdata
        known = self._held.get(key)
        if known is not None and known[0]() is not None:
            return False
        size = -(-storage.nbytes() // self._rounding) * self._rounding

        def forget(_: Any) -> None:
            del self._held[key]
            self._parts[self._part_of.pop(key)] -= size
            self._total -= size

        self._held[key] = (weakref.ref(storage, forget), size)
        self._part_of[key] = part
        self._parts[part] += size
        self._total += size
        return True

    def _move(self, key: int, part: str) -> None:
        size = self._held[key][1]
        self._parts[self._part_of[key]] -= size
        self._parts[part] += size
        self._part_of[key] = part

    def _note_peak(self) -> None:
        if self._total > self.peak:
            self.peak, self.peak_parts = self._total, dict(self._parts)


def _storages(tensor: torch.Tensor) -> list[Any]:
    storages = [tensor.untyped_storage()]
    state = getattr(tensor, "quant_state", None)  # of bitsandbytes' 4-bit weights
    for part in (state, getattr(state, "state2", None)):
        for value in (getattr(part, "absmax", None), getattr(part, "code", None)):
            if isinstance(value, torch.Tensor):
                storages.append(value.untyped_storage())
    for name in ("CB", "SCB"):  # of its 8-bit weights
        value = getattr(tensor, name, None)
        if isinstance(value, torch.Tensor):
            storages.append(value.untyped_storage())
    return storages


def _without_data(func: Any, args: tuple[Any, ...]) -> Any:
    """The answer to an operation whose result depends on data; None where it does not."""
    if func in (_aten._local_scalar_dense.default, _aten.item.default):
        dtype = args[0].dtype
        return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
    if func is _aten.is_nonzero.default or func is _aten.equal.default:
        return True
    if func is _aten.index.Tensor:
        return _masked(args[0], args[1])
    if func is _aten.masked_select.default:
        return args[0].flatten().clone()
    if func is _aten.nonzero.default:
        shape = (args[0].numel(), args[0].dim())
        return torch.empty(shape, dtype=torch.long, device=args[0].device)
    return None


def _masked(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor | None:
    """`tensor[mask]` with all of the mask true; None where the index is no leading mask."""
    if len(indices) != 1 or indices[0] is None or indices[0].dtype != torch.bool:
        return None
    return tensor.reshape(-1, *tensor.shape[indices[0].dim() :]).clone()
