"""Settings that TRL and transformers refuse only when a trainer starts, or never.

The configs themselves are built by the check, which shows what they refuse; here is the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.pipeline.recipe import StageRecipe

# Of TRL 1.16's GRPOTrainer, which looks at it after the first completions.
_GRPO_LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "luspo", "cispo", "sapo", "vespo")
# Values of `report_to` whose package is not there unless somebody installed it.
_REPORTERS = {
    **{name: (name,) for name in ("wandb", "mlflow", "trackio", "comet_ml", "clearml", "swanlab")},
    **{"neptune": ("neptune",), "tensorboard": ("tensorboard", "tensorboardX")},
}


def setting_faults(recipe: StageRecipe) -> Iterator[tuple[str, str]]:
    """Mistakes in the settings of a stage, as (key, message)."""
    values = recipe.values
    is_rl = recipe.spec.updates_policy_with == "rl"
    if is_rl and (loss := values.get("loss_type", "grpo")) not in _GRPO_LOSSES:
        hint = suggestion(str(loss), _GRPO_LOSSES) or f"; known: {one_of(_GRPO_LOSSES)}"
        yield "loss_type", f"unknown loss_type {loss!r}{hint}"
    if is_rl and values.get("temperature") == 0:
        yield "temperature", "temperature should be over 0: without chance a group is all the same"
    if values.get("use_vllm") and find_spec("vllm") is None:
        yield "use_vllm", "use_vllm: vllm is not installed; pip install 'trl-r1[vllm]'"
    if values.get("on_policy") == "server" and find_spec("vllm") is None:
        yield (
            "on_policy",
            "on_policy: server needs vLLM installed here, for TRL's client of it; "
            "pip install 'trl-r1[vllm]'",
        )
    for key in ("load_in_4bit", "load_in_8bit"):
        if values.get(key) and is_trained(recipe) and not values.get("use_peft"):
            yield key, f"{key}: such weights can't be trained themselves; set use_peft: true too"
            break
    if values.get("eval_strategy", "no") not in ("no", None):
        yield (
            "eval_strategy",
            "eval_strategy: a stage has no rows to evaluate on while it trains; a run scores its "
            "model before and after, as `evaluation:` in pipeline.yaml says",
        )
    yield from _reporter_faults(recipe)


def is_trained(recipe: StageRecipe) -> bool:
    """Whether the stage updates weights."""
    return recipe.spec.updates_policy_with is not None or recipe.spec.produces[0] == "reward_model"


def _reporter_faults(recipe: StageRecipe) -> Iterator[tuple[str, str]]:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    given = recipe.values.get("report_to") or ()
    known = ("none", "all", *INTEGRATION_TO_CALLBACK)
    for name in [given] if isinstance(given, str) else given:
        if name not in known:
            hint = suggestion(str(name), known) or f"; known: {one_of(known)}"
            yield "report_to", f"unknown report_to {name!r}{hint}"
        elif name in _REPORTERS and not any(map(find_spec, _REPORTERS[name])):
            yield "report_to", f"report_to: {name} is not installed; pip install {name}"
