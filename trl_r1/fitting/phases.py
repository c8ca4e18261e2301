"""The phases of a stage, run once on fake tensors under a `MemoryMeter`: TRL's own code.

A training stage's trainer is built from a fake model, so that LoRA, casts and mixed precision are
TRL's, and makes one micro-batch of the largest shape that the recipe allows, with the gradients
and optimizer states of an ongoing run in place. Generation is a prefill and the last of the
decoding steps, with a full KV cache. Left out: rewards, evaluation loops of TRL, and everything
that several processes do.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, GenerationConfig, PretrainedConfig, Trainer
from trl import GRPOTrainer, SFTTrainer, get_peft_config
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation

from trl_r1.fitting.fake_models import (
    fake_model,
    kernels_of_a_card,
    movable_fakes,
    stand_in_tokenizer,
)
from trl_r1.fitting.memory_meter import (
    ADAPTERS,
    GRADIENTS,
    KV_CACHE,
    OPTIMIZER,
    REFERENCE,
    WEIGHTS,
    MemoryMeter,
)
from trl_r1.stages.reward_model import PreferenceTrainer
from trl_r1.training.arguments import ModelArguments

# TRL's output layer works on tiles of the vocabulary of this width.
_TILE = 32768
_CUDA_ROUNDING = 512


@dataclass(frozen=True)
class Load:
    """What a stage puts on the device, in the shapes of its largest micro-batch.

    Attributes:
        kind: `sft`, `grpo`, `reward_model`, or `generation` for stages that only sample.
        config: the architecture.
        model_args: LoRA and quantisation keys.
        dtype: type of the weights.
        args: TRL's config; None for `generation`.
        rows: rows (pairs of `reward_model`) of a micro-batch.
        prompt, completion: tokens of a row; for SFT and reward models their sum counts.
        generated_rows: rows that are generated at a time; 0 where a server or vLLM does it.
        has_reference: a KL penalty is used, so that a reference scores too.
        has_reference_weights: the reference has weights of its own.
        has_reference_adapter: the reference is a frozen copy of the adapter.
        carries_adapter: the adapter is of an earlier stage.
        on_card: measure as on a CUDA card; False as on this CPU.
    """

    kind: str
    config: PretrainedConfig
    model_args: ModelArguments
    dtype: str
    args: Any = None
    rows: int = 1
    prompt: int = 0
    completion: int = 0
    generated_rows: int = 0
    has_reference: bool = False
    has_reference_weights: bool = False
    has_reference_adapter: bool = False
    carries_adapter: bool = False
    on_card: bool = True

    @property
    def width(self) -> int:
        return self.prompt + self.completion

    @property
    def accumulates(self) -> bool:
        """Whether gradients of an earlier micro-batch are there while the next one runs."""
        return self.kind == "grpo" or (self.args.gradient_accumulation_steps or 1) > 1


@dataclass(frozen=True)
class Measured:
    """Bytes of a phase at its highest point.

    Attributes:
        phase: `generation`, `scoring` (old and reference log-probabilities), `update` or `step`
            (of the optimizer).
        peak: bytes of all tensors.
        parts: what they are for.
    """

    phase: str
    peak: int
    parts: dict[str, int] = field(default_factory=dict)


def measure(load: Load) -> list[Measured]:
    """Run every phase of a load on fake tensors, and measure each."""
    meter = MemoryMeter(_logit_widths(load.config), _CUDA_ROUNDING if load.on_card else 1)
    with ExitStack() as stack:
        stack.enter_context(_fresh_accelerator())
        stack.enter_context(kernels_of_a_card() if load.on_card else nullcontext())
        output_dir = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(movable_fakes())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        is_scorer = load.kind == "reward_model"
        model = fake_model(load.config, load.model_args, load.dtype, is_scorer=is_scorer)
        if load.kind == "generation":
            meter.hold(_tensors(model), WEIGHTS)
            return [_generation(load, meter, model.eval())]
        return _training(load, meter, _trainer(load, model, output_dir))


def _training(load: Load, meter: MemoryMeter, trainer: Any) -> list[Measured]:
    model = trainer.accelerator.prepare_model(trainer.model)
    meter.hold(_tensors(trainer.model), WEIGHTS)
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    if load.model_args.use_peft or load.carries_adapter:
        meter.hold(trained, ADAPTERS)
    meter.hold_gradients(trainer.model)
    if load.has_reference_weights:
        reference = [torch.empty_like(t) for t in _tensors(trainer.model)]
        meter.hold(reference, REFERENCE)
    if load.has_reference_adapter:
        copies = [torch.empty_like(parameter) for parameter in trained]
        meter.hold(copies, REFERENCE)
    optimizer, states = _optimizer(trainer, trained)
    meter.hold(states, OPTIMIZER)
    phases = []
    if load.generated_rows:
        with unwrap_model_for_generation(
            model,
            trainer.accelerator,
            gradient_checkpointing_kwargs=load.args.gradient_checkpointing_kwargs,
        ) as unwrapped:
            phases.append(_generation(load, meter, unwrapped))
    if load.kind == "grpo" and (load.has_reference or _scores_old(load)):
        phases.append(_scoring(load, meter, trainer, model))
    if load.accumulates:
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        meter.hold([p.grad for p in trained], GRADIENTS)
    inputs = _inputs(load)
    with meter.phase():
        trainer.training_step(model, inputs, num_items_in_batch=_num_items(load))
    phases.append(Measured("update", meter.peak, meter.peak_parts))
    if optimizer is not None:
        with meter.phase():
            trainer.accelerator.clip_grad_norm_(trained, 1.0)
            optimizer.step()
        phases.append(Measured("step", meter.peak, meter.peak_parts))
    return phases


def _scores_old(load: Load) -> bool:
    """TRL scores the completions again where they can be older than the policy."""
    args = load.args
    generate_every = args.steps_per_generation * args.num_iterations
    is_misaligned = args.gradient_accumulation_steps % generate_every != 0
    return bool(is_misaligned or (args.use_vllm and args.vllm_importance_sampling_correction))


def _scoring(load: Load, meter: MemoryMeter, trainer: Any, model: Any) -> Measured:
    ids = torch.ones(load.rows, load.width, dtype=torch.long)
    checkpointing = load.args.gradient_checkpointing_kwargs
    model.train()
    with meter.phase(), torch.no_grad(), disable_gradient_checkpointing(model, checkpointing):
        trainer._get_per_token_logps_and_entropies(
            model, ids, torch.ones_like(ids), load.completion, load.rows
        )
    return Measured("scoring", meter.peak, meter.peak_parts)


def _generation(load: Load, meter: MemoryMeter, model: Any) -> Measured:
    """The higher peak of the prefill and of the last decoding step."""
    config: Any = GenerationConfig
    rows = load.generated_rows
    settings = config(
        do_sample=True, temperature=1.0, top_p=0.95, top_k=0, max_new_tokens=1, pad_token_id=0
    )
    prompt = torch.ones(rows, max(1, load.prompt), dtype=torch.long)
    meter.cache_shape = _cache_shape(load.config, rows, prompt.size(1))
    with meter.phase(), torch.no_grad():
        model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), generation_config=settings
        )
    prefill = Measured("generation", meter.peak, meter.peak_parts)
    whole = torch.ones(rows, max(2, load.width), dtype=torch.long)
    cache = _full_cache(load.config, rows, whole.size(1) - 1, _state_dtype(load))
    meter.hold(_held_by(cache), KV_CACHE)
    meter.cache_shape = _cache_shape(load.config, rows, whole.size(1))
    with meter.phase(), torch.no_grad():
        model.generate(
            input_ids=whole,
            attention_mask=torch.ones_like(whole),
            past_key_values=cache,
            generation_config=settings,
        )
    meter.cache_shape = None
    last = Measured("generation", meter.peak, meter.peak_parts)
    return max(prefill, last, key=lambda measured: measured.peak)


def _cache_shape(config: PretrainedConfig, rows: int, length: int) -> torch.Size:
    """The shape of a layer's keys."""
    text: Any = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return torch.Size([rows, heads, length, width])


def _full_cache(
    config: PretrainedConfig, rows: int, length: int, dtype: torch.dtype
) -> DynamicCache:
    """A KV cache of that many tokens in every layer."""
    shape = _cache_shape(config, rows, length)
    cache: Any = DynamicCache(config=config)
    for layer in range(int(config.get_text_config().num_hidden_layers)):
        cache.update(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype), layer)
    result: DynamicCache = cache
    return result


def _held_by(cache: Any) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def _state_dtype(load: Load) -> torch.dtype:
    """The type of keys and values."""
    if load.args is not None and (load.args.bf16 or load.args.fp16):
        return torch.bfloat16
    return torch.float32 if load.dtype == "auto" else getattr(torch, load.dtype)


def _trainer(load: Load, model: Any, output_dir: str) -> Any:
    """TRL's trainer around a fake model, as a stage builds it."""
    args = copy.copy(load.args)
    args.output_dir, args.report_to, args.logging_dir = output_dir, [], None
    tokenizer = stand_in_tokenizer()
    model_args = copy.copy(load.model_args)
    if load.kind == "reward_model":
        model_args.lora_task_type = "SEQ_CLS"
    peft_config = get_peft_config(model_args) if model_args.use_peft else None
    common: dict[str, Any] = {
        "args": args,
        "processing_class": tokenizer,
        "peft_config": peft_config,
    }
    if load.kind == "grpo":
        # The reference would be loaded from its weights; its memory and passes are added apart.
        args.beta, args.use_vllm = 0.0, False
        rows = Dataset.from_list([{"prompt": "a"}])
        reward: Any = _no_reward
        trainer: Any = _GRPO(model, reward, train_dataset=rows, **common)
        trainer.beta = load.args.beta
    elif load.kind == "reward_model":
        rows = Dataset.from_list([{"chosen_ids": [2, 1], "rejected_ids": [2, 1]}])
        trainer = PreferenceTrainer(model, train_dataset=rows, **common)
    else:
        rows = Dataset.from_list([{"input_ids": [2, 1], "completion_mask": [0, 1]}])
        trainer = SFTTrainer(model, train_dataset=rows, **common)
    trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
    if args.gradient_checkpointing:
        trainer.model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    return trainer


class _GRPO(GRPOTrainer):
    """TRL's trainer that is handed completions instead of generating them."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch


def _no_reward(completions: Any, **kwargs: Any) -> list[float]:
    return [0.0] * len(completions)


def _inputs(load: Load) -> dict[str, torch.Tensor]:
    """A micro-batch in the form that TRL's loss takes."""
    rows = load.rows * (2 if load.kind == "reward_model" else 1)
    ids = torch.ones(rows, load.width, dtype=torch.long)
    if load.kind == "reward_model":
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if load.kind == "sft":
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.ones_like(ids),
        }
    shape = (rows, load.completion)
    inputs = {
        "prompt_ids": torch.ones(rows, load.prompt, dtype=torch.long),
        "prompt_mask": torch.ones(rows, load.prompt, dtype=torch.long),
        "completion_ids": torch.ones(shape, dtype=torch.long),
        "completion_mask": torch.ones(shape, dtype=torch.long),
        "advantages": torch.ones(rows),
        "num_items_in_batch": torch.ones(()),
    }
    if load.has_reference:
        inputs["ref_per_token_logps"] = torch.ones(shape)
    if _scores_old(load):
        inputs["old_per_token_logps"] = torch.ones(shape)
    return inputs


def _num_items(load: Load) -> torch.Tensor | None:
    return torch.ones((), dtype=torch.long) if load.kind == "sft" else None


def _optimizer(trainer: Trainer, trained: list[torch.nn.Parameter]) -> tuple[Any, list[Any]]:
    """The recipe's optimizer after its first step, and its states.

    Only torch's own is run; of others (`state_bytes`) the states are taken as so many bytes.
    """
    name = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    if not name.startswith("adamw_torch"):
        return None, [torch.empty(size, dtype=torch.uint8) for size in state_bytes(name, trained)]
    optimizer = trainer.create_optimizer()
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer, [list(state.values()) for state in optimizer.state.values()]


def state_bytes(optim: str, trained: list[torch.nn.Parameter]) -> list[int]:
    """Bytes that an optimizer of bitsandbytes or transformers keeps on the card, by parameter.

    An estimate. Paged states are counted as none: the driver moves them to the host where the card
    is full.
    """
    if "paged" in optim:
        return []
    if "8bit" in optim:  # two of a byte, and a scale a block of 256; small ones stay in float32
        return [p.numel() * (2 if p.numel() >= 4096 else 8) + p.numel() // 32 for p in trained]
    if "adafactor" in optim:
        return [4 * sum(p.shape) for p in trained]
    return [8 * p.numel() for p in trained]


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _logit_widths(config: PretrainedConfig) -> frozenset[int]:
    vocabulary = int(config.get_text_config().vocab_size)
    widths = {vocabulary, _TILE, vocabulary % _TILE}
    return frozenset(widths - {0, int(config.get_text_config().hidden_size)})


@contextmanager
def _fresh_accelerator() -> Iterator[None]:
    """Forget accelerate's state, which another precision or device may have set."""

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    forget()
    try:
        yield
    finally:
        forget()
