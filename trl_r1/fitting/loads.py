"""From a recipe's stage to the `Load` that is measured: shapes, types, and what is assumed.

References between stages are followed to the model they begin with. Left out: several processes;
what is said holds for each card of a run with plain data parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from trl_r1.fitting.architectures import UnknownArchitectureError, find_architecture
from trl_r1.fitting.phases import Load
from trl_r1.pipeline.configs import build_configs
from trl_r1.pipeline.recipe import Pipeline, StageRecipe
from trl_r1.pipeline.references import Reference, is_reference, outside_name
from trl_r1.training.arguments import ModelArguments

_SFT_STAGES = ("cold_start", "mixed_sft", "distillation")
# Stages that make their own small models: not measured.
_MADE_ON_THE_SPOT = "tiny_base"
# Keys that a card understands and this CPU does not, and that change no memory.
_CARD_KEYS = ("tf32", "fp16", "bf16", "torch_compile", "use_cpu")
_BYTES_OF_TYPE = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}


@dataclass(frozen=True)
class StageLoad:
    """A stage, ready to be measured.

    Attributes:
        name: of the stage.
        stage: its type.
        load: what is measured; None where nothing is, and `notes` say why.
        notes: assumptions that the figures stand on.
        vllm_share: part of the card that a colocated vLLM takes, 0..1; 0 without.
        vllm_sleeps: it gives that back while the stage trains.
        rollout_bytes: an estimate of the tensors that hold a rollout's rows.
        reward_model_bytes: an estimate of the weights of a preference model that grades.
    """

    name: str
    stage: str
    load: Load | None
    notes: tuple[str, ...] = ()
    vllm_share: float = 0.0
    vllm_sleeps: bool = False
    rollout_bytes: int = 0
    reward_model_bytes: int = 0


@dataclass
class _Start:
    """The model that a stage begins with."""

    config: PretrainedConfig
    carries_adapter: bool = False
    notes: list[str] = field(default_factory=list)


def stage_load(
    pipeline: Pipeline, recipe: StageRecipe, prompt_tokens: int, *, on_card: bool
) -> StageLoad:
    """What a stage puts on the device.

    Args:
        pipeline: the stage's.
        recipe: the stage.
        prompt_tokens: tokens of the longest prompt; recipes set no limit to it.
        on_card: for a CUDA card; False for this CPU.
    """
    if recipe.stage == _MADE_ON_THE_SPOT:
        return StageLoad(recipe.name, recipe.stage, None, ("makes tiny models: not measured",))
    try:
        start = _start_of(pipeline, recipe)
    except UnknownArchitectureError as error:
        return StageLoad(recipe.name, recipe.stage, None, (str(error),))
    configs = build_configs(recipe.spec, _values(recipe, on_card), Path("/run"), pipeline.seed)
    model_args = next(c for c in configs if isinstance(c, ModelArguments))
    args = configs[-1]
    shared: dict[str, Any] = {
        "config": start.config,
        "model_args": model_args,
        "carries_adapter": start.carries_adapter,
        "on_card": on_card,
    }
    if recipe.stage == "grpo":
        return _grpo(pipeline, recipe, args, shared, prompt_tokens, start.notes)
    if recipe.stage in (*_SFT_STAGES, "reward_model"):
        return _supervised(recipe, args, shared, start.notes)
    engine = next((c.engine for c in configs if hasattr(c, "engine")), "transformers")
    if engine != "transformers":
        return StageLoad(recipe.name, recipe.stage, None, (_engine_note(engine),))
    return _sampling(recipe.name, recipe.stage, args, shared, prompt_tokens, start.notes)


def scoring_load(pipeline: Pipeline, prompt_tokens: int, *, on_card: bool) -> StageLoad | None:
    """What the scoring of models before and after stages takes, for the largest of them.

    None where the pipeline scores none.

    Args:
        pipeline: with its `evaluation`.
        prompt_tokens: tokens of the longest prompt.
        on_card: for a CUDA card; False for this CPU.
    """
    settings = pipeline.evaluation
    if not (settings.datasets or settings.general):
        return None
    engine = getattr(settings, "engine", "transformers")
    if engine != "transformers":
        return StageLoad(SCORING, "scoring", None, (_engine_note(engine),))
    largest: tuple[int, PretrainedConfig, ModelArguments] | None = None
    for recipe in pipeline.stages:
        if not recipe.is_trained or recipe.stage == _MADE_ON_THE_SPOT:
            continue
        try:
            config = _start_of(pipeline, recipe).config
        except UnknownArchitectureError:
            continue
        size = num_parameters(config)
        if largest is None or size > largest[0]:
            largest = (size, config, _model_arguments(recipe))
    if largest is None:
        return None
    shared = {"config": largest[1], "model_args": largest[2], "on_card": on_card}
    return _sampling(SCORING, "of models, after each stage", settings, shared, prompt_tokens, [])


# The name of the account of scoring: the target of `--set` that it is changed with.
SCORING = "evaluation"


def _engine_note(engine: str) -> str:
    if engine == "server":
        return "engine: server: nothing on this card"
    return (
        f"engine: {engine}: alone on the card, of which it takes gpu_memory_utilization "
        "(vllm_options; 0.9 by default); not measured"
    )


def _model_arguments(recipe: StageRecipe) -> ModelArguments:
    names = ModelArguments.__dataclass_fields__
    return ModelArguments(**{k: v for k, v in recipe.values.items() if k in names})


def _values(recipe: StageRecipe, on_card: bool) -> dict[str, Any]:
    """The recipe's keys as they are measured on this CPU."""
    values = dict(recipe.values)
    if not on_card:
        return values
    is_mixed = bool(values.get("bf16", not values.get("fp16")) or values.get("fp16"))
    for key in _CARD_KEYS:
        values.pop(key, None)
    if recipe.spec.updates_policy_with or recipe.stage == "reward_model":
        values.update(bf16=is_mixed, use_cpu=True)
    return values


def _start_of(pipeline: Pipeline, recipe: StageRecipe) -> _Start:
    name = str(recipe.values.get("model_name_or_path"))
    carries, is_first = False, True
    while is_reference(name):
        reference = Reference((), name)
        maker = pipeline.stage(reference.stage)
        artifact = reference.artifact or maker.main_artifact
        is_adapter = artifact == "adapter" or maker.values.get("adapter_output") == "adapter"
        carries |= is_first and is_adapter
        is_first = False
        if maker.stage == _MADE_ON_THE_SPOT:
            return _Start(_tiny_config(maker, artifact))
        name = str(maker.values.get("model_name_or_path"))
    architecture = find_architecture(outside_name(name, pipeline.folder))
    notes = []
    if architecture.source == "known sizes":
        notes.append(f"{name}: sizes from the table of known models, as the Hub was not reached")
    return _Start(architecture.config, carries, notes)


class _Vocabulary:
    """As much of a tokenizer as an untrained model is made from."""

    eos_token_id, pad_token_id = 1, 0

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def _tiny_config(maker: StageRecipe, artifact: str) -> PretrainedConfig:
    from trl_r1.stages.tiny_base import TinyBaseArguments, new_model

    names = TinyBaseArguments.__dataclass_fields__
    sizes = TinyBaseArguments(**{k: v for k, v in maker.values.items() if k in names})
    width = sizes.student_hidden_size if artifact == "student" else sizes.hidden_size
    vocabulary: Any = _Vocabulary(sizes.vocab_size)
    config: PretrainedConfig = new_model(vocabulary, width, sizes, 0).config
    return config


def _trained_dtype(model_args: ModelArguments, on_card: bool) -> str:
    """As `training.models.resolve_dtype`, for a device that is not here."""
    is_frozen = model_args.use_peft or model_args.load_in_4bit or model_args.load_in_8bit
    return model_args.dtype or ("bfloat16" if on_card and is_frozen else "float32")


def _supervised(
    recipe: StageRecipe, args: Any, shared: Mapping[str, Any], notes: list[str]
) -> StageLoad:
    model_args, on_card = shared["model_args"], shared["on_card"]
    length = args.max_length or shared["config"].max_position_embeddings
    notes.append(f"rows of max_length {length}, the longest that are trained on")
    load = Load(
        "reward_model" if recipe.stage == "reward_model" else "sft",
        dtype=_trained_dtype(model_args, on_card),
        args=args,
        rows=args.per_device_train_batch_size,
        completion=length,
        **shared,
    )
    return StageLoad(recipe.name, recipe.stage, load, tuple(notes))


def _grpo(
    pipeline: Pipeline,
    recipe: StageRecipe,
    args: Any,
    shared: Mapping[str, Any],
    prompt_tokens: int,
    notes: list[str],
) -> StageLoad:
    model_args, on_card = shared["model_args"], shared["on_card"]
    schedule = getattr(args, "max_completion_length_schedule", None) or []
    longest = max([args.max_completion_length, *(int(entry["value"]) for entry in schedule)])
    width = prompt_tokens + longest
    max_tokens = getattr(args, "max_tokens_per_micro_batch", None)
    rows = args.per_device_train_batch_size
    if max_tokens is not None:
        rows = max(1, max_tokens // width)
    num_rollouts = args.per_device_train_batch_size * args.steps_per_generation
    notes.append(f"prompts of {prompt_tokens} tokens and completions of {longest}: the longest")
    is_full = not (model_args.use_peft or shared["carries_adapter"])
    load = Load(
        "grpo",
        dtype=_trained_dtype(model_args, on_card),
        args=args,
        rows=rows,
        prompt=prompt_tokens,
        completion=longest,
        generated_rows=0 if args.use_vllm else num_rollouts,
        has_reference=args.beta != 0.0,
        has_reference_weights=args.beta != 0.0 and is_full,
        has_reference_adapter=args.beta != 0.0
        and not is_full
        and bool(shared["carries_adapter"] or getattr(args, "reference_replacement_steps", None)),
        **shared,
    )
    is_colocated = bool(args.use_vllm and args.vllm_mode == "colocate")
    return StageLoad(
        recipe.name,
        recipe.stage,
        load,
        tuple(notes),
        vllm_share=args.vllm_gpu_memory_utilization if is_colocated else 0.0,
        vllm_sleeps=is_colocated and args.vllm_enable_sleep_mode,
        rollout_bytes=num_rollouts * (width * 32 + longest * 16),
        reward_model_bytes=_reward_model_bytes(pipeline, recipe, on_card),
    )


def _reward_model_bytes(pipeline: Pipeline, recipe: StageRecipe, on_card: bool) -> int:
    """Weights of the preference models among a stage's rewards, each loaded once."""
    total = 0
    for reward in recipe.rewards:
        model = reward.args.get("model")
        if reward.use != "preference_model" or not on_card or not is_reference(model):
            continue
        maker = pipeline.stage(Reference((), str(model)).stage)
        try:
            config = _start_of(pipeline, maker).config
        except UnknownArchitectureError:
            continue
        size = _BYTES_OF_TYPE[_trained_dtype(_model_arguments(maker), on_card)]
        total += num_parameters(config) * size
    return total


def num_parameters(config: PretrainedConfig) -> int:
    """Parameters of a model of that architecture, the output layer's where it has its own."""
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    return int(model.num_parameters())


def _sampling(
    name: str,
    stage: str,
    args: Any,
    shared: Mapping[str, Any],
    prompt_tokens: int,
    notes: list[str],
) -> StageLoad:
    model_args, on_card = shared["model_args"], shared["on_card"]
    dtype = model_args.dtype or ("bfloat16" if on_card else "float32")
    notes.append(f"prompts of {prompt_tokens} tokens, all completions at max_new_tokens")
    load = Load(
        "generation",
        dtype=dtype,
        prompt=prompt_tokens,
        completion=args.max_new_tokens,
        generated_rows=args.batch_size,
        **shared,
    )
    return StageLoad(name, stage, load, tuple(notes))
