"""Distillation: SFT of a smaller student on the responses of the big model.

The paper (section 2.4) trains students on the same 800k rows as the mixed SFT, with SFT only: two
to three epochs, batch 64, cosine to a tenth, 32,768 tokens, a learning rate by student, which are
the presets here. `on_policy` goes on from there with the student's own samples and the teacher's
next-token distribution, which the paper does not do: TRL's `DistillationTrainer` where both have
one vocabulary, its `GOLDTrainer` across tokenizers, and its `ServerDistillationTrainer` for a
teacher behind a vLLM server. Left out: RL on the student, which is the stage `grpo`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.packing import check_packing
from trl_r1.training.sft import ReasoningSFTConfig, ReasoningSFTTrainer
from trl_r1.training.sft_stage import run_sft

Method = Literal["none", "distillation", "gold", "server"]

# Highest learning rate by student (paper, appendix on hyper-parameters of distillation).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "qwen-1.5b": {"learning_rate": 1e-4},
    "qwen-7b": {"learning_rate": 8e-5},
    "qwen-14b": {"learning_rate": 7e-5},
    "qwen-32b": {"learning_rate": 6e-5},
    "llama-8b": {"learning_rate": 5e-5},
    "llama-70b": {"learning_rate": 2e-5},
}


@dataclass
class R1DistillationConfig(ReasoningSFTConfig):
    """TRL's `SFTConfig` with the paper's settings for students; see `PRESETS` for their rates."""

    gradient_accumulation_steps: int = field(
        default=64, metadata={"help": "Micro-batches an optimizer step."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing and self.packing_strategy != "bfd":
            raise ValueError(
                f"packing_strategy is {self.packing_strategy}, which cuts examples in two; use "
                "`bfd`, which packs whole ones"
            )


class R1DistillationTrainer(ReasoningSFTTrainer):
    """TRL's `SFTTrainer` for a student: loss on completions only, targets checked, and with
    `packing` a check that packed examples do not see each other.

    Raises:
        PackingError: at construction, where they do.
    """

    _tag_names = ["trl", "sft", "trl-r1", "distillation"]  # noqa: RUF012 - TRL declares it so

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Any = self.args  # typed as transformers' own
        if config.packing:
            check_packing(self.model, len(self._tokenizer))


@dataclass
class OnPolicyArguments:
    """What follows the SFT: on-policy distillation, off by default."""

    on_policy: Method = field(
        default="none",
        metadata={
            "help": "After the SFT: `distillation` for a teacher with the student's vocabulary, "
            "`gold` across tokenizers, `server` for a teacher behind a vLLM server."
        },
    )
    teacher_model_name_or_path: str | None = field(
        default=None, metadata={"help": "The teacher of `distillation` and `gold`."}
    )
    teacher_server: str | None = field(
        default=None,
        metadata={
            "help": "Address of a vLLM server (`vllm serve TEACHER`), as http://host:8000. TRL's "
            "client of it needs vLLM installed here, too."
        },
    )
    on_policy_args: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "Keys of TRL's DistillationConfig, GOLDConfig or ServerDistillationConfig, as "
            "`{max_steps: 200, learning_rate: 1.0e-6, max_completion_length: 4096}`."
        },
    )

    def __post_init__(self) -> None:
        if self.on_policy not in get_args(Method):
            known = ", ".join(get_args(Method))
            raise ValueError(f"unknown on_policy {self.on_policy!r}; known: {known}")
        wants_model = self.on_policy in ("distillation", "gold")
        if wants_model and not self.teacher_model_name_or_path:
            raise ValueError(f"on_policy: {self.on_policy} needs teacher_model_name_or_path")
        if self.on_policy == "server" and not self.teacher_server:
            raise ValueError("on_policy: server needs teacher_server, as http://host:8000")
        self._check_unused()
        if self.on_policy == "server" and not str(self.teacher_server).startswith("http"):
            raise ValueError(f"teacher_server {self.teacher_server!r}: write http://host:8000")
        if self.on_policy_args:
            from trl_r1.training.on_policy import check_arguments

            check_arguments(self.on_policy, self.on_policy_args)

    def _check_unused(self) -> None:
        given = {
            "on_policy_args": (bool(self.on_policy_args), ("distillation", "gold", "server")),
            "teacher_model_name_or_path": (
                bool(self.teacher_model_name_or_path),
                ("distillation", "gold"),
            ),
            "teacher_server": (bool(self.teacher_server), ("server",)),
        }
        for name, (is_given, methods) in given.items():
            if is_given and self.on_policy not in methods:
                wanted = " or ".join(f"`{method}`" for method in methods)
                raise ValueError(f"{name} is for on_policy {wanted}, not {self.on_policy}")


SPEC = StageSpec(
    configs=(DatasetArguments, ModelArguments, OnPolicyArguments, R1DistillationConfig),
    produces=("model",),
    updates_policy_with="sft",
    presets=PRESETS,
)


def run(context: StageContext) -> StageResult:
    """Train the student on the teacher's rows, then on its own samples where `on_policy` says so,
    and store it as `model/`."""
    if context.config(OnPolicyArguments).on_policy == "none":
        return run_sft(context, R1DistillationTrainer, R1DistillationConfig)
    from trl_r1.training.artifacts import finished_details
    from trl_r1.training.on_policy import run_on_policy

    details = finished_details(context.output_dir, ("model",))
    if details is not None:
        return StageResult(details=details)
    first = _first_part(context)
    sft = run_sft(first, R1DistillationTrainer, R1DistillationConfig)
    return run_on_policy(context, str(first.output_dir / "model"), dict(sft.details))


def _first_part(context: StageContext) -> StageContext:
    """The SFT as a stage of its own, in `sft/`, so that each part goes on where it was killed."""
    folder = context.output_dir / "sft"
    folder.mkdir(parents=True, exist_ok=True)
    args = copy.copy(context.config(R1DistillationConfig))
    args.output_dir = str(folder / "checkpoints")
    configs = tuple(
        args if isinstance(config, R1DistillationConfig) else config for config in context.configs
    )
    return replace(context, output_dir=folder, configs=configs)
