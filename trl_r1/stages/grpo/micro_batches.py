"""Rows of one optimizer step as micro-batches of little padding; plain functions on tensors.

TRL pads every row to the longest prompt and the longest completion of the whole generation, and
cuts the rows into micro-batches in random order. Here rows of like length go together, under a
limit of tokens, and each micro-batch is as wide as its own longest row. `update.py` trains with
them. Left out: packing several rows into one sequence, which needs attention kernels that a CPU
and some cards lack, and is not exact with all models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# What one more micro-batch may save to be worth its fixed cost: this part of the token limit.
_FIXED_COST = 1 / 64

# How TRL weighs the summed loss of a row: by the rows of its micro-batch, by the tokens of its
# micro-batch, or by the tokens of its generation.
ROWS, TOKENS, GENERATION = "rows", "tokens", "generation"
NORMALIZERS: Mapping[str, str] = {
    "grpo": ROWS,
    "sapo": ROWS,
    "dr_grpo": ROWS,
    "luspo": ROWS,
    "bnpo": TOKENS,
    "dapo": GENERATION,
    "cispo": GENERATION,
    "vespo": GENERATION,
}


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut rows into micro-batches with as little padding as is worth it.

    The rows are sorted by length and cut into runs, by dynamic programming over
    `padded tokens + a fixed cost for each micro-batch`.

    Args:
        lengths: tokens of each row, prompt and completion.
        max_tokens: limit of rows x longest row; a row longer than that is alone.

    Returns:
        Row indices of each micro-batch, the longest rows first.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    widths = np.maximum(np.asarray(lengths)[order], 1)
    num_rows = len(widths)
    cost, cut = np.zeros(num_rows + 1), np.zeros(num_rows + 1, dtype=int)
    for end in range(1, num_rows + 1):
        width = widths[end - 1]
        starts = np.arange(max(0, end - max(1, int(max_tokens // width))), end)
        costs = cost[starts] + (end - starts) * width
        best = int(costs.argmin())
        cost[end] = costs[best] + _FIXED_COST * max_tokens
        cut[end] = starts[best]
    batches, end = [], num_rows
    while end:
        batches.append([int(row) for row in order[cut[end] : end]])
        end = int(cut[end])
    return batches


@dataclass(frozen=True)
class RowLengths:
    """Where B rows have their tokens in TRL's layout: prompts end, completions begin, at `split`.

    Attributes:
        prompts, completions: tokens of each, of shape (B,).
        split: columns before the completions.
    """

    prompts: torch.Tensor
    completions: torch.Tensor
    split: int

    @classmethod
    def of(cls, attention_mask_BT: torch.Tensor, logits_to_keep: int) -> RowLengths:
        split = attention_mask_BT.size(1) - logits_to_keep
        mask = attention_mask_BT.long()
        return cls(mask[:, :split].sum(1), mask[:, split:].sum(1), split)

    @property
    def totals(self) -> list[int]:
        """Tokens of each row."""
        return [int(n) for n in (self.prompts + self.completions).tolist()]

    def take(self, rows: torch.Tensor) -> RowLengths:
        return RowLengths(self.prompts[rows], self.completions[rows], self.split)


@dataclass(frozen=True)
class CompactRows:
    """Rows without padding before or between, as wide as the longest of them.

    Attributes:
        input_ids, attention_mask: (B, width).
        logits_to_keep: columns at the end that hold every completion.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    logits_to_keep: int
    lengths: RowLengths

    @classmethod
    def of(cls, input_ids_BT: torch.Tensor, lengths: RowLengths) -> CompactRows:
        """Move each row's tokens to the left edge."""
        totals_B1 = (lengths.prompts + lengths.completions).unsqueeze(1)
        width = max(2, int(totals_B1.max()))
        columns_BT = torch.arange(width, device=input_ids_BT.device).expand(len(totals_B1), -1)
        is_token_BT = columns_BT < totals_B1
        first_B1 = (lengths.split - lengths.prompts).unsqueeze(1)
        source_BT = (columns_BT + first_B1).clamp(max=input_ids_BT.size(1) - 1)
        keep = min(width - 1, max(1, width - int(lengths.prompts.min())))
        return cls(input_ids_BT.gather(1, source_BT), is_token_BT.long(), keep, lengths)

    def back(self, values_BK: torch.Tensor, num_columns: int) -> torch.Tensor:
        """Values of the last `logits_to_keep` columns in TRL's layout, (B, num_columns).

        Zero where a row has no completion token.
        """
        offset = self.input_ids.size(1) - self.logits_to_keep
        columns_T = torch.arange(num_columns, device=values_BK.device)
        source_BT = (self.lengths.prompts - offset).unsqueeze(1) + columns_T
        source_BT = source_BT.clamp(0, self.logits_to_keep - 1)
        is_token_BT = columns_T < self.lengths.completions.unsqueeze(1)
        return values_BK.gather(1, source_BT).masked_fill(~is_token_BT, 0)


@dataclass(frozen=True)
class Window:
    """All rows of one optimizer step on this process, from its A micro-steps of TRL.

    Attributes:
        inputs: what TRL's loss takes, of N rows.
        micro_steps: what TRL passed for each micro-step.
        micro_step: micro-step of each row, (N,).
        normalizers: what TRL divides a row's summed loss by, up to what all share, (N,).
        lengths: of each row.
    """

    inputs: dict[str, Any]
    micro_steps: Sequence[dict[str, Any]]
    micro_step: torch.Tensor
    normalizers: torch.Tensor
    lengths: RowLengths

    @classmethod
    def of(cls, micro_steps: Sequence[dict[str, Any]], loss_type: str) -> Window:
        sizes = [len(inputs["completion_ids"]) for inputs in micro_steps]
        device = micro_steps[0]["completion_ids"].device
        micro_step = torch.repeat_interleave(
            torch.arange(len(sizes), device=device), torch.tensor(sizes, device=device)
        )
        of_steps = torch.stack([normalizer(inputs, loss_type) for inputs in micro_steps])
        joined = _join(micro_steps)
        mask = torch.cat([joined["prompt_mask"], joined["completion_mask"]], dim=1)
        lengths = RowLengths.of(mask, joined["completion_mask"].size(1))
        return cls(joined, micro_steps, micro_step, of_steps[micro_step], lengths)

    @property
    def padded_tokens(self) -> int:
        """Tokens of the largest of TRL's micro-batches, padding included."""
        sizes: list[int] = [
            inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
            for inputs in self.micro_steps
        ]
        return max(sizes)

    def unknown(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies, (N, T), to be filled in where rows are computed.

        Rows that are not have their old log-probabilities, or such as count for nothing.
        """
        ids = self.inputs["completion_ids"]
        zeros = torch.zeros(ids.shape, device=ids.device)
        old = self.inputs.get("old_per_token_logps")
        return (zeros if old is None else old.clone()), zeros.clone()

    def rows_with_signal(self, tolerance: float | None) -> torch.Tensor:
        """Indices of the rows that have a gradient; the shortest row where none has.

        One row has to stay: gradients that are zero are not the same as none, to Adam and to DDP.

        Args:
            tolerance: advantages up to this size count as zero, and rows without advantage are
                left out; None to keep them, for the other terms of their loss.
        """
        mask = loss_mask(self.inputs)
        has_signal_N = mask.sum(1) > 0
        if tolerance is not None:
            size_N = self.inputs["advantages"].abs().reshape(len(mask), -1).amax(1)
            has_signal_N &= size_N > tolerance
        rows = has_signal_N.nonzero().flatten()
        if len(rows):
            return rows
        return (self.lengths.prompts + self.lengths.completions).argmin().reshape(1)

    def take(self, rows: torch.Tensor) -> dict[str, Any]:
        """The inputs of some rows, without the columns in which all of them have padding."""
        num_rows = len(self.micro_step)
        lengths = self.lengths.take(rows)
        num_prompt, num_completion = self.lengths.split, self.inputs["completion_ids"].size(1)
        first = num_prompt - max(1, int(lengths.prompts.max()))
        last = max(1, int(lengths.completions.max()))
        taken = {}
        for name, value in self.inputs.items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0 or len(value) != num_rows:
                taken[name] = value
            elif name in ("prompt_ids", "prompt_mask"):
                taken[name] = value[rows, first:]
            elif value.dim() > 1 and value.size(1) == num_completion:
                taken[name] = value[rows, :last]
            else:
                taken[name] = value[rows]
        return taken

    def weights(self, rows: torch.Tensor, taken: dict[str, Any], loss_type: str) -> torch.Tensor:
        """What TRL's loss of some rows alone has to be multiplied with, a number a row."""
        return normalizer(taken, loss_type) / self.normalizers[rows]


def normalizer(inputs: Mapping[str, Any], loss_type: str) -> torch.Tensor:
    """What TRL divides the summed losses by, up to what is the same for all micro-batches."""
    kind = NORMALIZERS[loss_type]
    completion_mask = inputs["completion_mask"]
    if kind == ROWS:
        return torch.tensor(float(len(completion_mask)), device=completion_mask.device)
    if kind == GENERATION:
        number: torch.Tensor = inputs["num_items_in_batch"]
        return number.clamp(min=1).float()
    return loss_mask(inputs).sum().clamp(min=1).float()


def loss_mask(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Completion tokens that the policy wrote, (B, T)."""
    mask: torch.Tensor = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _join(micro_steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of all micro-steps, padded to one width where they come from several generations."""
    joined: dict[str, Any] = {}
    for name, first in micro_steps[0].items():
        values = [inputs[name] for inputs in micro_steps]
        if not isinstance(first, torch.Tensor) or first.dim() == 0:
            joined[name] = first
            continue
        if first.dim() > 1:
            width = max(value.size(1) for value in values)
            values = [_widen(value, width, name.startswith("prompt_")) for value in values]
        joined[name] = torch.cat(values)
    return joined


def _widen(value: torch.Tensor, width: int, on_the_left: bool) -> torch.Tensor:
    missing = width - value.size(1)
    if not missing:
        return value
    return torch.nn.functional.pad(value, (missing, 0) if on_the_left else (0, missing))
