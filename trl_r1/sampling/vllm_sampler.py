"""Sampling with vLLM in this process: paged attention, prefixes shared between the samples of a
prompt, LoRA adapters loaded by request.

Prompts are tokenised here and completions decoded here, so that an engine changes nothing but the
speed. A completion is a request with a seed of its own. Left out: weights that change while it
samples, which is TRL's colocated vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_r1.sampling import Sample, derive_seed
from trl_r1.sampling.prompts import encode_prompt, without_room


class VllmSampler:
    """Draws completions with a `vllm.LLM`.

    Args:
        engine: the `vllm.LLM`; see `from_pretrained`.
        tokenizer: of the model, with the chat template to use.
        end_ids: tokens that end a completion.
        max_length: context in tokens.
        adapter: folder of a LoRA adapter that requests name; None for the bare model.
    """

    def __init__(
        self,
        engine: Any,
        tokenizer: Any,
        end_ids: Sequence[int],
        max_length: int,
        adapter: str | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.end_ids = sorted(end_ids)
        self.max_length = max_length
        self.adapter = adapter

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        tokenizer: Any,
        options: Mapping[str, Any] | None = None,
        adapter: str | None = None,
    ) -> VllmSampler:
        """Start an engine.

        Args:
            path: folder or id of a plain model.
            tokenizer: of the model, with the chat template to use.
            options: keyword arguments of `vllm.LLM`, over those chosen here.
            adapter: folder of a LoRA adapter to sample with.

        Raises:
            ImportError: without vLLM, with what to do.
        """
        llm, _, _ = _vllm()
        lora: dict[str, Any] = {}
        if adapter is not None:
            lora = {"enable_lora": True, "max_lora_rank": lora_rank(adapter)}
        # The tokens are all that is exchanged.
        chosen = {"enable_prefix_caching": True, "skip_tokenizer_init": True, **lora}
        engine = llm(model=path, **{**chosen, **(options or {})})
        config = engine.llm_engine.model_config
        from_config = config.try_get_generation_config().get("eos_token_id")
        listed = from_config if isinstance(from_config, list) else [from_config]
        end_ids = {int(i) for i in (*listed, tokenizer.eos_token_id) if i is not None}
        return cls(engine, tokenizer, sorted(end_ids), int(config.max_model_len), adapter)

    def with_adapter(self, adapter: str | None) -> VllmSampler:
        """The same engine with another adapter, of at most the rank that it was started for."""
        return VllmSampler(self.engine, self.tokenizer, self.end_ids, self.max_length, adapter)

    def sample(
        self,
        prompts: Sequence[Any],
        num_samples: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 1024,
        seed: int = 0,
    ) -> list[list[Sample]]:
        """Draw `num_samples` completions of each prompt; see `Sampler.sample`."""
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it has to be at least 1")
        _, parameters, lora_request = _vllm()
        inputs, settings = [], []
        places: list[int] = []
        for place, prompt in enumerate(prompts):
            ids = encode_prompt(self.tokenizer, prompt)
            room = min(max_new_tokens, self.max_length - len(ids))
            if room < 1:
                continue
            places.append(place)
            for number in range(num_samples):
                inputs.append({"prompt_token_ids": ids})
                settings.append(
                    parameters(
                        temperature=temperature,
                        top_p=top_p if temperature > 0 else 1.0,
                        top_k=0,
                        max_tokens=room,
                        seed=derive_seed(seed, place, number),
                        stop_token_ids=self.end_ids,
                        detokenize=False,
                    )
                )
        request = None
        if self.adapter is not None:
            number = derive_seed(0, str(Path(self.adapter).resolve())) % (2**31 - 1) + 1
            request = lora_request(self.adapter, number, self.adapter)
        outputs = self.engine.generate(inputs, settings, lora_request=request, use_tqdm=False)
        samples = [
            self._sample(output.outputs[0], one.seed)
            for output, one in zip(outputs, settings, strict=True)
        ]
        drawn = [without_room(num_samples) for _ in prompts]
        for number, place in enumerate(places):
            drawn[place] = samples[number * num_samples : (number + 1) * num_samples]
        return drawn

    def _sample(self, output: Any, seed: int) -> Sample:
        ids = list(output.token_ids)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        reason = output.finish_reason
        return Sample(text, ids, reason != "stop", reason, seed)


def lora_rank(adapter: str) -> int:
    """The rank that an engine has to have room for, one of those that vLLM knows.

    Raises:
        ValueError: for a rank that is beyond them.
    """
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(adapter)
    return room_for_rank(max([config.r, *(config.rank_pattern or {}).values()]), adapter)


def room_for_rank(rank: int, adapter: str) -> int:
    """The least rank that vLLM can be started for and that holds `rank`.

    Raises:
        ValueError: there is none; it names the adapter.
    """
    for known in (8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= known:
            return known
    raise ValueError(f"{adapter} has rank {rank}; vLLM takes at most 512, so merge it first")


def _vllm() -> tuple[Any, Any, Any]:
    try:
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest
    except ImportError as error:
        raise ImportError(
            f"engine: vllm needs vLLM, which can't be imported ({error}); "
            "`pip install 'trl-r1[vllm]'`, or use another engine"
        ) from error
    return LLM, SamplingParams, LoRARequest
