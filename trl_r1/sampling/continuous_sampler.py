"""Sampling with transformers' continuous batching: a completion that ends makes room for the next
at once, so that short ones do not wait for long ones.

Its tokens are drawn from one random generator, so a completion depends on all that is in flight
with it. What is in flight is therefore made to follow from the arguments of `sample` alone: all
requests are queued before the first step, and the cache has a fixed size, where transformers' own
depends on the memory that is free. On a CPU (SmolLM2-135M in float32, tokens a second of CPU time)
it made 45.2 against 32.8 of plain generation for 48 requests of 1 to 192 tokens, 16 at a time, and
43.8 against 43.9 where a limit of 64 cut most to one length. Left out: flash attention, which
transformers would load over the network, and requests that join under way, as a server's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from trl_r1.sampling import Sample, derive_seed
from trl_r1.sampling.transformers_sampler import TransformersSampler

_PAGE_SIZE = 64
_PROMPT_TOKENS_AT_A_TIME = 512


class ContinuousSampler(TransformersSampler):
    """Draws completions as `TransformersSampler` does, `batch_size` at a time, each as long as it
    is."""

    def _draw(
        self, prompt_ids: Sequence[list[int]], config: Any, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        if not prompt_ids:
            return []
        own_seed = derive_seed(seed, "continuous") % 2**31
        manager = self.model.init_continuous_batching(
            generation_config=self._own_config(config, max_new_tokens),
            continuous_batching_config=self._batching(prompt_ids, max_new_tokens, own_seed),
        )
        try:
            numbers = {
                manager.add_request(ids, max_new_tokens=self._limit(ids, max_new_tokens)): number
                for number, ids in enumerate(prompt_ids)
            }
            torch.manual_seed(own_seed)
            manager.start()
            outputs = _finished(manager, len(numbers))
        except BaseException:
            manager.stop(hard_stop=True)  # else Ctrl-C would wait for all that is in flight
            raise
        manager.stop()
        manager.destroy()
        ordered = sorted(outputs, key=lambda output: numbers[output.request_id])
        return [self._sample(list(output.generated_tokens), own_seed) for output in ordered]

    def _own_config(self, config: GenerationConfig, max_new_tokens: int) -> GenerationConfig:
        config.max_new_tokens = max_new_tokens
        return config

    def _batching(
        self, prompt_ids: Sequence[list[int]], max_new_tokens: int, seed: int
    ) -> ContinuousBatchingConfig:
        """A cache with room for what plain generation with this `batch_size` would fill."""
        longest = max(len(ids) for ids in prompt_ids)
        pages = -(-(longest + max_new_tokens) // _PAGE_SIZE) + 1
        return ContinuousBatchingConfig(
            page_size=_PAGE_SIZE,
            num_blocks=pages * min(self.batch_size, len(prompt_ids)),
            max_batch_tokens=self.batch_size + _PROMPT_TOKENS_AT_A_TIME,
            max_requests_per_batch=self.batch_size,
            auto_switch_to_flash=False,
            use_async_batching=False,
            seed=seed,
        )

    def _sample(self, generated: list[int], seed: int) -> Sample:
        ids, is_truncated = self._cut(generated)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Sample(text, ids, is_truncated, "length" if is_truncated else "stop", seed)


def _finished(manager: Any, count: int) -> list[Any]:
    """The results of all requests.

    Raises:
        RuntimeError: the generation ended before they were there.
    """
    outputs: list[Any] = []
    while len(outputs) < count:
        output = manager.get_result(timeout=1.0)
        if output is None and not manager.is_running():
            error = manager.background_thread_status.fatal_error
            raise RuntimeError(f"continuous batching ended early: {error!r}")
        if output is None or not (output.error or output.is_finished()):
            continue
        if output.error:
            raise RuntimeError(f"continuous batching failed: {output.error}")
        outputs.append(output)
    return outputs
