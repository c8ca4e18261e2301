"""What breaks a run only at its real sizes, looked at without running it: the place that it writes
to, the disk, the context of models, uploads.

Left out: the memory of a card, which is `trl-r1 plan`'s.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from trl_r1.fitting.architectures import UnknownArchitectureError, find_architecture
from trl_r1.hub.access import access_faults
from trl_r1.pipeline.recipe import Pipeline, StageRecipe
from trl_r1.pipeline.references import is_reference, outside_name

GIB = 2**30
WHOLE_RUN = "the run"


@dataclass(frozen=True)
class Concern:
    """Something about the real run.

    Attributes:
        where: a stage, or `WHOLE_RUN`.
        text: what, and what to do.
        breaks: whether the run would end by it.
    """

    where: str
    text: str
    breaks: bool = True


def concerns(pipeline: Pipeline, run_dir: Path) -> Iterator[Concern]:
    """What would, or may, keep the run from ending.

    Args:
        pipeline: as read.
        run_dir: folder of the run, which may not be there yet.
    """
    place = run_dir
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        text = f"can't write to {run_dir}; use --output_dir for another folder"
        yield Concern(WHOLE_RUN, text)
    else:
        yield from _disk_concerns(pipeline, place)
    for stage in pipeline.stages:
        for text in _context_faults(pipeline, stage):
            yield Concern(stage.name, text)
        for text in access_faults(stage.values):
            yield Concern(stage.name, text, breaks=False)  # what can't be pushed ends no run


def _disk_concerns(pipeline: Pipeline, place: Path) -> Iterator[Concern]:
    free = shutil.disk_usage(place).free
    sizes = {stage.name: bytes_of_stage(pipeline, stage) for stage in pipeline.stages}
    for name, (model, checkpoints) in sizes.items():
        if model + checkpoints > free:
            yield Concern(
                name,
                f"the disk of {place} has {free / GIB:.1f} GiB free, and its model and checkpoints "
                f"take about {(model + checkpoints) / GIB:.1f} GiB; make room, use --output_dir, "
                "or lower save_total_limit",
            )
            return
    total = sum(model for model, _ in sizes.values())
    if total > free:
        yield Concern(
            WHOLE_RUN,
            f"the models of all stages take about {total / GIB:.0f} GiB, and the disk of {place} "
            f"has {free / GIB:.0f} GiB free; make room, use --output_dir, or `adapter_output: "
            "adapter` where stages train LoRA",
            breaks=False,
        )


def bytes_of_stage(pipeline: Pipeline, stage: StageRecipe) -> tuple[int, int]:
    """Bytes that a stage's model takes on the disk, and its checkpoints while it trains."""
    config = _config(pipeline, stage)
    if config is None or not (stage.is_trained or stage.spec.produces[0] == "reward_model"):
        return 0, 0
    count = num_parameters(config)
    if stage.values.get("use_peft") and stage.values.get("adapter_output") == "adapter":
        return 0, 0  # a hundredth of the model
    model = 2 * count if stage.values.get("dtype") == "bfloat16" else 4 * count
    if stage.values.get("use_peft"):
        return model, 0
    kept = int(stage.values.get("save_total_limit") or 2) + 1
    return model, 12 * count * kept  # weights and Adam's two moments, in float32


def num_parameters(config: PretrainedConfig) -> int:
    """Parameters of a model of that config; nothing is allocated."""
    made: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return int(made.from_config(config).num_parameters())


def _config(pipeline: Pipeline, stage: StageRecipe) -> PretrainedConfig | None:
    """The config of the model that a stage goes back to; None where it can't be known."""
    name: Any = stage.values.get("model_name_or_path")
    seen = set()
    while is_reference(name) and name not in seen:
        seen.add(name)
        before = next((s for s in pipeline.stages if s.name == name[1:].partition("/")[0]), None)
        name = before.values.get("model_name_or_path") if before is not None else None
    if not isinstance(name, str) or is_reference(name):
        return None
    try:
        return find_architecture(outside_name(name, pipeline.folder)).config
    except UnknownArchitectureError:
        return None


def _context_faults(pipeline: Pipeline, stage: StageRecipe) -> Iterator[str]:
    config = _config(pipeline, stage)
    context = getattr(config.get_text_config(), "max_position_embeddings", None) if config else None
    if context is None:
        return
    for key in ("max_completion_length", "max_new_tokens"):
        limit = stage.values.get(key)
        if isinstance(limit, int) and limit >= context:
            yield (
                f"{key} is {limit}, and the model's context of {context} tokens has to hold the "
                "prompt too; lower it"
            )
