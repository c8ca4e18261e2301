"""TRL's update for less work: the rows of an optimizer step regrouped, trimmed, and skipped.

TRL's own loss function is called on other groups of rows than TRL's, and the gradient of each
row's log-probabilities is scaled so that the sum is TRL's gradient. The logged metrics and the
loss come from TRL's loss function too, called once more for each of TRL's micro-steps with the
log-probabilities already at hand. Left out: settings in which rows of a micro-batch act upon each
other (`reasons_to_keep_micro_steps`); there TRL's groups stay and only padding goes.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from trl_r1.stages.grpo.exactness import (
    reasons_to_keep_micro_steps,
    reasons_to_keep_padding,
    reasons_to_keep_rows,
)
from trl_r1.stages.grpo.micro_batches import (
    CompactRows,
    RowLengths,
    Window,
    loss_mask,
    plan_micro_batches,
)

_logger = logging.getLogger(__name__)

# Tokens of skipped rows that are scored for the log, as a part of those that are trained on.
_SAMPLED_TOKENS = 0.05

# Advantages that rounding may leave in groups of equal rewards, and how many such rows are worth
# a word.
_ROUNDING = 0.01
_ROUNDED_ROWS = 0.1

LogProbs = tuple[torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"]
_IMAGE_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


class MicroBatchedUpdate(GRPOTrainer):
    """The part of the trainer that makes TRL's update from micro-batches of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._window: list[dict[str, Any]] = []
        self._row_weights: torch.Tensor | None = None
        self._seen: LogProbs | None = None
        self._known: LogProbs | None = None
        self._keeps_padding = _log_if_any(
            "padding stays as TRL has it", reasons_to_keep_padding(self)
        )
        self._keeps_micro_steps = self._keeps_padding or _log_if_any(
            "micro-batches stay as TRL has them", reasons_to_keep_micro_steps(self)
        )
        self._has_hinted = False
        self._keeps_rows = bool(reasons_to_keep_rows(self))
        self._max_tokens = getattr(self.args, "max_tokens_per_micro_batch", None)
        self._tolerance = float(getattr(self.args, "zero_advantage_tolerance", 0.0))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._window = []
        return super().train(*args, **kwargs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> LogProbs:
        if self._known is not None:
            return self._known
        score = super()._get_per_token_logps_and_entropies
        if self._keeps_padding or any(kwargs.get(name) is not None for name in _IMAGE_INPUTS):
            result: LogProbs = score(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
            return result
        lengths = RowLengths.of(attention_mask, logits_to_keep)
        parts, batches = [], self._batches_to_score(lengths, attention_mask, batch_size)
        for rows in batches:
            compact = CompactRows.of(input_ids[rows], lengths.take(rows))
            logps, entropies, aux_loss = score(
                model, compact.input_ids, compact.attention_mask, compact.logits_to_keep, **kwargs
            )
            back = [
                None if values is None else compact.back(values, logits_to_keep)
                for values in (logps, entropies)
            ]
            parts.append((back[0], back[1], aux_loss))
        return self._watched(_in_order(parts, batches))

    def _batches_to_score(
        self, lengths: RowLengths, attention_mask: torch.Tensor, batch_size: int | None
    ) -> list[torch.Tensor]:
        """Row indices of each forward pass; one pass where TRL's loss asks, which has its rows."""
        num_rows, device = len(attention_mask), attention_mask.device
        if batch_size is None:
            return [torch.arange(num_rows, device=device)]
        if self._keeps_micro_steps:
            return list(torch.split(torch.arange(num_rows, device=device), batch_size))
        max_tokens = self._max_tokens or batch_size * attention_mask.size(1)
        plan = plan_micro_batches(lengths.totals, max_tokens)
        return [torch.tensor(rows, device=device) for rows in plan]

    def _watched(self, result: LogProbs) -> LogProbs:
        """Note what the policy's pass gave, and weigh the rows' gradients."""
        logps, entropies, _ = result
        if self._row_weights is None or not logps.requires_grad:
            return result
        weights_B1 = self._row_weights.unsqueeze(1).to(logps.dtype)
        self._seen = (logps.detach(), None if entropies is None else entropies.detach(), None)
        hooked: Any = logps
        hooked.register_hook(lambda gradient: gradient * weights_B1)
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        policy: Any = self.model
        if self._keeps_micro_steps or not policy.training:
            return self._loss_of_trl(model, inputs)
        self._window.append(inputs)
        if not self.accelerator.sync_gradients:
            # The rows wait for the last micro-step, where all of the optimizer step are at hand.
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        window, self._window = Window.of(self._window, self.loss_type), []
        rows_N = window.rows_with_signal(None if self._keeps_rows else self._tolerance)
        if not self._keeps_rows:
            self._hint_at_rounding(window)
        logps, entropies = window.unknown()
        last = self._go_through(model, window, rows_N, logps, entropies)
        self._sample_entropies(window, rows_N, entropies)
        total = self._log_as_trl(model, window, logps, entropies)
        return total + (last - last.detach())  # TRL's loss, with the last micro-batch's gradient

    def _hint_at_rounding(self, window: Window) -> None:
        """Say once that groups of equal rewards are trained on, because of TRL's rounding."""
        size_N = window.inputs["advantages"].abs().reshape(len(window.micro_step), -1).amax(1)
        tiny = ((size_N > self._tolerance) & (size_N < _ROUNDING)).float().mean()
        if tiny > _ROUNDED_ROWS and not self._has_hinted:
            self._has_hinted = True
            _logger.warning(
                "R1GRPOTrainer: %.0f%% of the rows have advantages below %g, as rounding leaves "
                "them where all rewards of a group are equal. They are trained on, as in TRL; "
                "zero_advantage_tolerance=%g leaves them out.",
                100 * float(tiny),
                _ROUNDING,
                _ROUNDING,
            )

    def _loss_of_trl(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        trl: Any = super()
        loss: torch.Tensor = trl._compute_loss(model, inputs)
        return loss

    def _go_through(
        self,
        model: Any,
        window: Window,
        rows_N: torch.Tensor,
        logps: torch.Tensor,
        entropies: torch.Tensor,
    ) -> torch.Tensor:
        """Forward and backward over rows of the window, but for the last micro-batch's backward.

        Fills in `logps` and `entropies`, (N, T), and returns the loss of the last micro-batch.
        """
        totals = window.lengths.take(rows_N).totals
        plan = plan_micro_batches(totals, self._max_tokens or window.padded_tokens)
        for i, batch in enumerate(plan):
            is_last = i == len(plan) - 1
            rows = rows_N[torch.tensor(batch, device=rows_N.device)]
            inputs = window.take(rows)
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(model):
                with self._quietly(window.weights(rows, inputs, self.loss_type)):
                    loss = self._loss_of_trl(model, inputs)
                if not is_last:
                    self.accelerator.backward(loss)
            assert self._seen is not None
            for values, seen in zip((logps, entropies), self._seen[:2], strict=True):
                assert seen is not None
                values[rows, : seen.size(1)] = seen.to(values.dtype)
        self._seen = None
        computed = sum(len(batch) * max(totals[row] for row in batch) for batch in plan)
        figures = self._metrics["train"]
        figures["update/micro_batches"].append(float(len(plan)))
        figures["update/useful_tokens"].append(sum(totals) / computed)
        figures["update/skipped_rows"].append(1 - len(rows_N) / len(logps))
        return loss

    def _sample_entropies(
        self, window: Window, rows_N: torch.Tensor, entropies: torch.Tensor
    ) -> None:
        """Give skipped rows the mean entropy of a few of them, drawn at random.

        Without, the logged entropy would be that of the groups with signal alone, which is higher.
        """
        left_out = loss_mask(window.inputs).sum(1) > 0
        left_out[rows_N] = False
        skipped = left_out.nonzero().flatten()
        if not len(skipped):
            return
        generator = torch.Generator().manual_seed(int(self.state.global_step))
        drawn = skipped[torch.randperm(len(skipped), generator=generator).to(skipped.device)]
        totals = torch.tensor(window.lengths.take(drawn).totals).cumsum(0)
        limit = _SAMPLED_TOKENS * sum(window.lengths.take(rows_N).totals)
        rows = drawn[: max(1, int((totals <= limit).sum()))]
        inputs = window.take(rows)
        ids, mask = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1)
            for name in ("ids", "mask")
        )
        width = inputs["completion_ids"].size(1)
        policy: Any = self.model
        checkpointing: Any = self.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(policy, checkpointing):
            _, seen, _ = self._get_per_token_logps_and_entropies(
                policy, ids, mask, width, compute_entropy=True
            )
        assert seen is not None
        entropies[skipped] = seen[loss_mask(inputs).bool()].mean().to(entropies.dtype)
        entropies[rows, :width] = seen.to(entropies.dtype)

    @contextlib.contextmanager
    def _quietly(self, weights: torch.Tensor) -> Iterator[None]:
        """TRL's loss function without its collective calls and its logging."""
        accelerator, metrics = self.accelerator, self._metrics
        self.accelerator, self._row_weights = _Alone(accelerator), weights
        self._metrics = {mode: defaultdict(list) for mode in metrics}
        try:
            yield
        finally:
            self.accelerator, self._metrics, self._row_weights = accelerator, metrics, None

    def _log_as_trl(
        self, model: Any, window: Window, logps: torch.Tensor, entropies: torch.Tensor
    ) -> torch.Tensor:
        """Have TRL log each of its micro-steps from values at hand; the sum of its losses."""
        total = torch.zeros((), device=logps.device)
        with torch.no_grad():
            for step, inputs in enumerate(window.micro_steps):
                width = inputs["completion_ids"].size(1)
                rows = window.micro_step == step
                self._known = (logps[rows, :width], entropies[rows, :width], None)
                try:
                    total = total + self._loss_of_trl(model, inputs)
                finally:
                    self._known = None
        return total


class _Alone:
    """An accelerator as TRL's loss function would see it in a run of one process."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: Any) -> Any:
        return tensor

    def gather_for_metrics(self, tensor: Any) -> Any:
        return tensor

    def reduce(self, tensor: Any, reduction: str = "sum") -> Any:
        return tensor


def _in_order(parts: list[Any], batches: list[torch.Tensor]) -> LogProbs:
    """The parts of several passes put together, rows where they belong."""
    order = torch.cat(batches).argsort()  # a single pass has its rows in another order too
    joined: list[torch.Tensor | None] = []
    for values in list(zip(*parts, strict=True))[:2]:
        joined.append(None if values[0] is None else torch.cat(values)[order])
    aux_losses = [part[2] for part in parts]
    aux_loss = None if aux_losses[0] is None else torch.stack(aux_losses).mean()
    logps, entropies = joined
    assert logps is not None
    return logps, entropies, aux_loss


def _log_if_any(what: str, reasons: list[str]) -> bool:
    if reasons:
        _logger.warning("R1GRPOTrainer: %s, because of %s", what, "; ".join(reasons))
    return bool(reasons)
