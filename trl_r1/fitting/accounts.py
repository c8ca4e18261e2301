"""The account of a stage: what each of its phases takes on a card, and whether that fits.

Tensors are measured (`phases.py`); what no tensor holds is estimated here: the card's context, the
allocator's fragmentation, vLLM's share, the rows of a rollout, preference models. Estimates carry
a mark wherever they are shown. Left out: host memory, and the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl_r1.fitting.loads import StageLoad
from trl_r1.fitting.phases import Load, Measured, measure

GIB = 2**30
# CUDA's context, cuBLAS' workspaces and the driver's own part; and what the caching allocator holds
# beyond the tensors. Estimates, on the safe side of what PyTorch on a desktop card shows.
CONTEXT_BYTES = int(0.7 * GIB)
FRAGMENTATION = 0.06
# What vLLM needs beside weights and KV cache: activations of a prefill, graphs, its own buffers.
VLLM_WORKSPACE_BYTES = int(0.8 * GIB)

ESTIMATED = ("vLLM's share", "rollout rows", "preference model", "context", "fragmentation")


@dataclass(frozen=True)
class PhaseAccount:
    """A phase on a card.

    Attributes:
        phase: `generation`, `scoring`, `update` or `step`.
        measured: bytes by what they are for, from tensors.
        estimated: bytes by what they are for, of `ESTIMATED`.
    """

    phase: str
    measured: dict[str, int]
    estimated: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all."""
        return sum(self.measured.values()) + sum(self.estimated.values())


@dataclass(frozen=True)
class StageAccount:
    """A stage on a card of `vram` bytes.

    Attributes:
        stage_load: what was measured.
        phases: in running order; empty where nothing was measured.
        vram: bytes of the card.
        faults: what keeps it from running whatever the peak, as a vLLM share that is too small.
    """

    stage_load: StageLoad
    phases: tuple[PhaseAccount, ...]
    vram: int
    faults: tuple[str, ...] = field(default=())

    @property
    def peak(self) -> PhaseAccount | None:
        """The phase that takes most."""
        return max(self.phases, key=lambda phase: phase.total, default=None)

    @property
    def fits(self) -> bool:
        return not self.faults and (self.peak is None or self.peak.total <= self.vram)


class Accountant:
    """Makes accounts, and measures no load twice.

    Args:
        vram: bytes of the card.
    """

    def __init__(self, vram: int) -> None:
        self.vram = vram
        self._known: dict[Any, list[Measured]] = {}

    def account(self, stage_load: StageLoad) -> StageAccount:
        """The account of a stage."""
        load = stage_load.load
        if load is None:
            return StageAccount(stage_load, (), self.vram)
        measured = self._measure(load)
        phases = [self._phase(stage_load, phase) for phase in measured]
        faults: tuple[str, ...] = ()
        if stage_load.vllm_share:
            phases.insert(0, self._vllm_phase(stage_load, measured))
            faults = self._vllm_faults(stage_load, measured)
        return StageAccount(stage_load, tuple(phases), self.vram, faults)

    def _measure(self, load: Load) -> list[Measured]:
        key = _fingerprint(load)
        if key not in self._known:
            self._known[key] = measure(load)
        return self._known[key]

    def _phase(self, stage_load: StageLoad, measured: Measured) -> PhaseAccount:
        vllm = 0 if stage_load.vllm_sleeps else int(stage_load.vllm_share * self.vram)
        return self._account(stage_load, measured.phase, measured.parts, vllm)

    def _vllm_phase(self, stage_load: StageLoad, measured: list[Measured]) -> PhaseAccount:
        """Generation by vLLM, beside what the trainer keeps."""
        kept = {name: size for name, size in measured[-1].parts.items() if name in _KEPT}
        vllm = int(stage_load.vllm_share * self.vram)
        return self._account(stage_load, "generation", kept, vllm)

    def _account(
        self, stage_load: StageLoad, phase: str, parts: dict[str, int], vllm: int
    ) -> PhaseAccount:
        is_card = stage_load.load is not None and stage_load.load.on_card
        tensors = {name: size for name, size in parts.items() if size > 0}
        estimated = {
            "vLLM's share": vllm,
            "rollout rows": stage_load.rollout_bytes,
            "preference model": stage_load.reward_model_bytes,
            "context": CONTEXT_BYTES if is_card else 0,
            "fragmentation": int(FRAGMENTATION * sum(tensors.values())) if is_card else 0,
        }
        return PhaseAccount(phase, tensors, {k: v for k, v in estimated.items() if v})

    def _vllm_faults(self, stage_load: StageLoad, measured: list[Measured]) -> tuple[str, ...]:
        """Whether vLLM's share holds its copy of the weights and one completion."""
        load = stage_load.load
        assert load is not None
        weights = measured[-1].parts.get("weights", 0) + measured[-1].parts.get("adapters", 0)
        if load.dtype == "float32":  # vLLM serves 16 bit, whatever is trained
            weights //= 2
        cache = kv_bytes_per_token(load.config) * load.width
        needed = weights + cache + VLLM_WORKSPACE_BYTES
        share = int(stage_load.vllm_share * self.vram)
        if share >= needed:
            return ()
        return (
            f"vllm_gpu_memory_utilization {stage_load.vllm_share:g} gives vLLM "
            f"{share / GIB:.1f} GiB; its weights, one completion of {load.width} tokens and its "
            f"workspace need about {needed / GIB:.1f}",
        )


_KEPT = ("weights", "adapters", "reference", "optimizer")


def kv_bytes_per_token(config: Any) -> int:
    """Bytes of a token's keys and values in all layers, in 16 bit."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * 2 * text.num_hidden_layers * heads * width)


def _fingerprint(load: Load) -> Any:
    """What decides the measured figures."""
    model, args = load.model_args, load.args
    named = [name for name in vars(model) if name.startswith(("lora_", "load_in", "use_", "bnb_"))]
    trained: list[Any] = []
    if args is not None:
        names = (
            "gradient_checkpointing",
            "activation_checkpointing",
            "gradient_checkpointing_kwargs",
            "activation_offloading",
            "optim",
            "bf16",
            "beta",
            "loss_type",
            "use_vllm",
            "steps_per_generation",
            "num_iterations",
            "gradient_accumulation_steps",
            "vllm_importance_sampling_correction",
            "cast_lm_head_to_fp32",
        )
        trained = [str(getattr(args, name, None)) for name in names]
    shapes = (load.rows, load.prompt, load.completion, load.generated_rows)
    flags = (
        load.has_reference,
        load.has_reference_weights,
        load.has_reference_adapter,
        load.carries_adapter,
        load.on_card,
    )
    return (
        load.kind,
        load.config.to_json_string(),
        load.dtype,
        tuple(str(getattr(model, name)) for name in named),
        tuple(trained),
        shapes,
        flags,
    )
