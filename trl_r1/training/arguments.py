"""Recipe keys that several stages share, as dataclasses.

`ModelArguments`, `DatasetArguments` and `GradingArguments` stand beside a stage's TRL config, the
way TRL's own scripts parse `ModelConfig` and `ScriptArguments`: their fields are the keys a recipe
may use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trl import ModelConfig

from trl_r1.sampling.engines import Engine, EngineArguments
from trl_r1.tasks import DatasetSource
from trl_r1.trust.model_files import Allowed


@dataclass
class ModelArguments(ModelConfig):
    """TRL's `ModelConfig` (model, LoRA and quantisation keys) plus how a stage's result is
    stored."""

    dtype: str | None = field(
        default=None,
        metadata={
            "help": "Type that the weights are loaded in. None: float32 on a CPU and for weights "
            "that are trained in full (in bfloat16 small updates round to nothing; mixed precision "
            "is `bf16`), bfloat16 for a frozen base under LoRA.",
            "choices": ["auto", "bfloat16", "float16", "float32"],
        },
    )
    lora_dropout: float = field(
        default=0.0,
        metadata={
            "help": "LoRA dropout. 0, since dropout stays active while RL generates and scores."
        },
    )
    reasoning_format: str = field(
        default="zero",
        metadata={"help": "Prompt and response format, a key of `reasoning_format.FORMATS`."},
    )
    chat_template: str | None = field(
        default=None,
        metadata={"help": "`chatml`, `compact`, or None to keep the model's own template."},
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={
            "help": "Run code that a model brings in its folder or repository. Read it first: it "
            "can do whatever you can."
        },
    )
    use_safetensors: bool = field(
        default=True,
        metadata={
            "help": "Load weights from safetensors alone. false: take pickles where there are no "
            "others, which can run code when they are read."
        },
    )
    adapter_output: Literal["merged", "adapter"] = field(
        default="merged",
        metadata={
            "help": "With LoRA: `merged` stores a plain model (and the adapter beside it), so the "
            "next stage and its reference start from it; `adapter` stores the adapter alone, "
            "which the next stage goes on training."
        },
    )

    def allowed(self) -> Allowed:
        """What of a model may run."""
        return Allowed(self.trust_remote_code, not self.use_safetensors)


@dataclass
class DatasetArguments:
    """The data of a stage: `datasets`, a list of `DatasetSource` mappings."""

    datasets: list[dict[str, Any]] = field(
        default_factory=list,
        metadata={"help": "Sources of rows, each a mapping with the fields of `DatasetSource`."},
    )

    def sources(self) -> list[DatasetSource]:
        """The sources as dataclasses. Raises TypeError for an unknown field."""
        return [DatasetSource(**source) for source in self.datasets]


@dataclass
class GradingArguments:
    """Where and within what limits a stage's rewards run."""

    reward_workers: int | None = field(
        default=None,
        metadata={
            "help": "Processes that grade, for each process that trains. None: one a core, shared "
            "among those; 0: grade in the training process, without limits."
        },
    )
    reward_timeout: float = field(
        default=5.0,
        metadata={"help": "Seconds that a reward may take for a row (a group, where it asks)."},
    )
    reward_memory_mb: int = field(
        default=1024, metadata={"help": "Memory of a grading process in MB, its code included."}
    )
    on_reward_kill: Literal["zero", "none", "raise"] = field(
        default="zero",
        metadata={
            "help": "What a row gets that ran past a limit or crashed its process: reward 0, no "
            "reward, or an error that stops the run."
        },
    )
    on_reward_error: Literal["raise", "none"] = field(
        default="raise",
        metadata={"help": "What a bug in a reward does: stop the run, or give the row none."},
    )

    def __post_init__(self) -> None:
        if self.reward_workers is not None and self.reward_workers < 0:
            raise ValueError(f"reward_workers is {self.reward_workers}; use 0 or more")
        if not 0 < self.reward_timeout < float("inf"):
            raise ValueError(f"reward_timeout is {self.reward_timeout}; use seconds above 0")
        if self.reward_memory_mb < 64:
            raise ValueError(f"reward_memory_mb is {self.reward_memory_mb}; use 64 or more")


@dataclass(frozen=True)
class EvaluationSettings:
    """How models are scored before and after a stage: `evaluation:` in `pipeline.yaml`.

    Attributes:
        datasets: held-out reasoning problems (pass@1, format, mean_length), as `DatasetSource`
            mappings.
        general: held-out general prompts (score `general`), the same; may be empty.
        temperature, top_p: of sampling; the paper's 0.6 and 0.95 by default.
        max_new_tokens: limit of a completion in tokens.
        num_samples: completions a problem; pass@1 is the mean over them.
        batch_size: completions generated at a time.
        seed: of sampling.
        preference_model: folder or id of a reward model that scores the general answers (score
            `preference`).
        extraction: `strict` grades the answer where the format has it; `lenient` the last number of
            a reasoning response, so that accuracy can be told from format.
        engine: what generates; `server` in the stage `evaluation` alone.
        servers, served_name, vllm_options: of the engine, as in `EngineArguments`.
    """

    datasets: list[dict[str, Any]] = field(default_factory=list)
    general: list[dict[str, Any]] = field(default_factory=list)
    temperature: float = 0.6
    top_p: float = 0.95
    max_new_tokens: int = 32768
    num_samples: int = 1
    batch_size: int = 32
    seed: int = 0
    preference_model: str | None = None
    extraction: Literal["strict", "lenient"] = "strict"
    engine: Engine = "transformers"
    servers: list[str] = field(default_factory=list)
    served_name: str | None = None
    vllm_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine_arguments()

    def engine_arguments(self) -> EngineArguments:
        """The keys of the engine. Raises ValueError for what does not go together."""
        return EngineArguments(
            self.engine,
            servers=self.servers,
            served_name=self.served_name,
            vllm_options=self.vllm_options,
        )
