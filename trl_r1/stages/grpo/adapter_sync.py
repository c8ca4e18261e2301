"""vLLM that samples with the adapter in training: the base is loaded once and never written to.

TRL merges LoRA into the base and sends vLLM all weights at each sync, which 4-bit weights can't
take without rounding and which costs a model's size each time. Here a sync writes the adapter, some
megabytes, and generation asks vLLM for it by request. Colocated vLLM reads it from a folder of the
process; a server (`vllm serve BASE --enable-lora`) loads it by its own endpoint, from a folder that
both see. Left out: weights in shards (FSDP, ZeRO-3), whose adapters no process has whole.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from trl_r1.sampling.vllm_sampler import room_for_rank

# Of the folders of adapters; an older one may still be read by a request under way.
_KEPT = 2


def adapter_fault(model: Any) -> str | None:
    """Why vLLM can't serve a PEFT model's adapter by request; None where it can.

    Args:
        model: a `PeftModel`.
    """
    config = model.peft_config[model.active_adapter]
    faults = {
        "it is no LoRA": str(getattr(config.peft_type, "value", config.peft_type)) != "LORA",
        "use_dora: true": getattr(config, "use_dora", False),
        "lora_modules_to_save": bool(getattr(config, "modules_to_save", None)),
        "a bias": getattr(config, "bias", "none") != "none",
    }
    return next((name for name, is_so in faults.items() if is_so), None)


@contextmanager
def adapters_by_request(wanted: str) -> Iterator[None]:
    """Have a `GRPOTrainer` that is built meanwhile sync adapters alone, where it can.

    Args:
        wanted: `auto`, `adapter` or `merged`, see `R1GRPOConfig.vllm_weight_sync`.
    """

    def make(model: Any, **settings: Any) -> VLLMGeneration:
        in_shards = _is_in_shards(settings.get("accelerator"))
        is_merged = _is_merged(model, wanted, in_shards)
        kind = VLLMGeneration if is_merged else AdapterVLLMGeneration
        made: VLLMGeneration = kind(model=model, **settings)
        return made

    before = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = make  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = before  # type: ignore[misc]


def _is_in_shards(accelerator: Any) -> bool:
    """Whether no process has the adapter whole."""
    kind = str(getattr(accelerator, "distributed_type", "NO")).rpartition(".")[2]
    plugin = getattr(getattr(accelerator, "state", None), "deepspeed_plugin", None)
    return kind == "FSDP" or getattr(plugin, "zero_stage", 0) == 3


def _is_merged(model: Any, wanted: str, in_shards: bool = False) -> bool:
    """Whether TRL's way is to be taken. Raises ValueError where neither way works."""
    if not is_peft_model(model):
        if wanted == "adapter":
            raise ValueError("vllm_weight_sync: adapter needs LoRA (use_peft: true); take auto")
        return True
    is_quantised = any(getattr(model, f"is_loaded_in_{bits}bit", False) for bits in (4, 8))
    fault = "weights in shards" if in_shards else adapter_fault(model)
    if wanted != "merged" and fault is None:
        return False
    if is_quantised or wanted == "adapter":
        why = f"vLLM can't load this adapter by request ({fault}). " if fault else ""
        if is_quantised:
            why += "Merging into quantised weights would round them anew at each sync. "
        raise ValueError(
            f"vllm_weight_sync is {wanted!r}. {why}Leave that setting out, or set use_vllm: false"
        )
    return True


class AdapterVLLMGeneration(VLLMGeneration):
    """TRL's vLLM generation that is sent adapters.

    Attributes:
        num_syncs: adapters sent so far; vLLM knows each by its number.
    """

    def _init_vllm(self) -> None:
        self.num_syncs = 0
        self._folder = Path(tempfile.mkdtemp(prefix="trl-r1-adapters-"))
        policy: Any = self.model
        config = policy.peft_config[policy.active_adapter]
        rank = max([config.r, *(config.rank_pattern or {}).values()])
        with _lora_engines(room_for_rank(int(rank), str(policy.name_or_path))):
            super()._init_vllm()  # type: ignore[no-untyped-call]

    def sync_weights(self) -> None:
        """Send the adapter as it is now."""
        folder = self._write()
        if self.mode == "colocate":
            if self.enable_sleep_mode:
                vllm_generation.empty_cache()
                self.llm.wake_up(tags=["weights"])
                self._llm_weights_sleeping = False
            self.llm.use(self.num_syncs, folder)
        elif self.accelerator.is_main_process:
            client: Any = self.vllm_client
            client.use(self.num_syncs, folder)
        self.accelerator.wait_for_everyone()

    def _write(self) -> Path:
        """The adapter in a folder of its own; all but the last are removed."""
        self.num_syncs += 1
        folder = self._folder / f"{self.num_syncs:06d}"
        partial = folder.with_name(f".{folder.name}")
        if self.mode == "colocate" or self.accelerator.is_main_process:
            policy: Any = self.model
            policy.save_pretrained(
                str(partial),
                selected_adapters=[policy.active_adapter],
                save_embedding_layers=False,
            )
            _lay_flat(partial, policy.active_adapter)
            partial.replace(folder)
            for old in sorted(self._folder.iterdir())[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return folder

    def __del__(self) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)


class LoraEngine:
    """A `vllm.LLM` whose every request names the last adapter it was told of.

    Args:
        engine: the `vllm.LLM`, started with `enable_lora`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._request: Any = None

    def use(self, number: int, folder: Path) -> None:
        """Sample with an adapter from now on."""
        from vllm.lora.request import LoRARequest

        if self._request is not None:
            self._engine.llm_engine.remove_lora(self._request.lora_int_id)
        self._request = LoRARequest(f"policy-{number}", number, str(folder))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.generate(*args, **kwargs, lora_request=self._request)

    def sleep(self, level: int = 1) -> None:
        """Level 1, whatever is asked for: nobody sends the base again."""
        self._engine.sleep(level=1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class LoraClient(VLLMClient):
    """TRL's client of a vLLM server that is told to load adapters.

    The server is `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_SERVER_DEV_MODE=1 vllm serve BASE
    --enable-lora --max-lora-rank R --logprobs-mode processed_logprobs`.
    """

    _name: str | None = None

    def init_communicator(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: no weights are sent, so server and trainer need no connection of their own."""

    def use(self, number: int, folder: Path) -> None:
        """Have the server load an adapter, and name it in requests from now on.

        Raises:
            RuntimeError: the server does not; with what it has to be started with.
        """
        name = f"policy-{number}"
        self._told("load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        if self._name is not None:
            self._told("unload_lora_adapter", {"lora_name": self._name})
        self._name = self.model = name

    def _told(self, what: str, body: Mapping[str, str]) -> None:
        answer = self.session.post(f"{self.base_url}/v1/{what}", json=dict(body))
        if not answer.ok:
            raise RuntimeError(
                f"{self.base_url} does not {what} ({answer.status_code}: {answer.text[:300]}); "
                "start it as `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_SERVER_DEV_MODE=1 vllm serve "
                "BASE --enable-lora --max-lora-rank R --logprobs-mode processed_logprobs`, where "
                "it sees the trainer's temporary folder (TMPDIR)"
            )


@contextmanager
def _lora_engines(rank: int) -> Iterator[None]:
    """Let TRL start engines and clients that take adapters of up to that rank."""
    before = {name: getattr(vllm_generation, name, None) for name in ("LLM", "VLLMClient")}

    def start(*args: Any, **kwargs: Any) -> LoraEngine:
        engine: Any = before["LLM"]
        return LoraEngine(
            engine(*args, **kwargs, enable_lora=True, max_lora_rank=rank, max_loras=1)
        )

    vllm_generation.LLM = start
    vllm_generation.VLLMClient = LoraClient  # type: ignore[misc]
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(vllm_generation, name, value)


def _lay_flat(folder: Path, adapter: str) -> None:
    """Bring an adapter that PEFT puts into a folder of its name to where vLLM looks for it."""
    inner = folder / adapter
    if inner.is_dir():
        for file in inner.iterdir():
            file.replace(folder / file.name)
        inner.rmdir()
