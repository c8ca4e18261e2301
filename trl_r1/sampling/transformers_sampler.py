"""Sampling with plain `transformers.generate`, in batches of prompts of similar length.

Works for any causal language model that generates, PeftModel and 4-bit weights included. Left out:
continuous batching, which is `continuous_sampler`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from trl_r1.sampling import Sample, derive_seed
from trl_r1.sampling.prompts import encode_prompt, without_room


class TransformersSampler:
    """Draws completions with `model.generate`.

    Args:
        model: causal language model, on the device it is to run on.
        tokenizer: its tokenizer, with a chat template where prompts are messages.
        batch_size: completions generated at a time. Part of what a seed means: another batch size
            draws other completions.

    Raises:
        ValueError: where neither the generation config nor the tokenizer names an end token, since
            every completion would then run to the limit.
    """

    def __init__(self, model: Any, tokenizer: Any, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it has to be at least 1")
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.end_ids = end_token_ids(model, tokenizer)
        pad = tokenizer.pad_token_id
        # Padding is masked in prompts and cut off after the end token, so any valid id serves.
        self.pad_id = int(pad) if pad is not None else min(self.end_ids)

    def sample(
        self,
        prompts: Sequence[Any],
        num_samples: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 1024,
        seed: int = 0,
    ) -> list[list[Sample]]:
        """Draw `num_samples` completions of each prompt; see `Sampler.sample`.

        The random state of the caller is left as it was.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it has to be at least 1")
        prompt_ids = [self.encode(prompt) for prompt in prompts]
        context = getattr(self.model.config, "max_position_embeddings", None)
        fits = [context is None or len(ids) < context for ids in prompt_ids]
        # Longest first, so that running out of memory shows at once. Sorting is stable: same
        # prompts, same batches.
        order = sorted(range(len(prompts)), key=lambda index: -len(prompt_ids[index]))
        rows = [index for index in order if fits[index] for _ in range(num_samples)]
        drawn = [[] if one_fits else without_room(num_samples) for one_fits in fits]
        config = self._generation_config(temperature, top_p)
        with _evaluating(self.model), _own_random_state(self.model.device):
            samples = self._draw(
                [prompt_ids[index] for index in rows], config, max_new_tokens, seed
            )
        for index, sample in zip(rows, samples, strict=True):
            drawn[index].append(sample)
        return drawn

    def _draw(
        self, prompt_ids: Sequence[list[int]], config: Any, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """A completion of each of B encoded prompts, the longest first."""
        samples: list[Sample] = []
        for number, start in enumerate(range(0, len(prompt_ids), self.batch_size)):
            batch = list(prompt_ids[start : start + self.batch_size])
            batch_seed = derive_seed(seed, number)
            torch.manual_seed(batch_seed)
            config.max_new_tokens = self._limit(batch[0], max_new_tokens)
            samples += self._generate(batch, config, batch_seed)
        return samples

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of a prompt: messages through the chat template, text as it stands."""
        return encode_prompt(self.tokenizer, prompt)

    def _limit(self, longest_prompt: list[int], max_new_tokens: int) -> int:
        context = getattr(self.model.config, "max_position_embeddings", None)
        if context is None:
            return max_new_tokens
        return min(max_new_tokens, int(context) - len(longest_prompt))

    def _generation_config(self, temperature: float, top_p: float) -> GenerationConfig:
        """Everything that shapes the distribution, said out loud: what is left out comes from the
        model's own generation config, where many models carry a top-k or a repetition penalty."""
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        config: Any = GenerationConfig  # its constructor is untyped
        made: GenerationConfig = config(
            **(sampling if temperature > 0 else {"do_sample": False}),
            num_beams=1,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            use_cache=True,
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self.pad_id,
        )
        return made

    def _generate(
        self, prompt_ids: list[list[int]], config: GenerationConfig, seed: int
    ) -> list[Sample]:
        width = max(len(ids) for ids in prompt_ids)
        # On the left, so that every row's next token follows its last prompt token. (B, T)
        padded = [[self.pad_id] * (width - len(ids)) + ids for ids in prompt_ids]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids]
        device = self.model.device
        output = self.model.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=config,
        )
        completions = [self._cut(ids) for ids in output[:, width:].tolist()]
        texts = self.tokenizer.batch_decode(
            [ids for ids, _ in completions], skip_special_tokens=True
        )
        return [
            Sample(text, ids, is_truncated, "length" if is_truncated else "stop", seed)
            for text, (ids, is_truncated) in zip(texts, completions, strict=True)
        ]

    def _cut(self, ids: list[int]) -> tuple[list[int], bool]:
        """The tokens up to the first end token, and whether there was none."""
        for position, token in enumerate(ids):
            if token in self.end_ids:
                return ids[: position + 1], False
        return ids, True


def end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that end a completion: the generation config's, and the tokenizer's own.

    Raises:
        ValueError: where there are none.
    """
    generation_config = getattr(model, "generation_config", None)
    from_config = getattr(generation_config, "eos_token_id", None)
    listed = from_config if isinstance(from_config, list) else [from_config]
    ids = frozenset(int(i) for i in (*listed, tokenizer.eos_token_id) if i is not None)
    if not ids:
        raise ValueError(
            "no end token: set eos_token_id in the model's generation config, or eos_token in the "
            "tokenizer; without one every completion runs to the limit"
        )
    return ids


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Eval mode for a while: no dropout, no gradient checkpointing (which disables the cache)."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
