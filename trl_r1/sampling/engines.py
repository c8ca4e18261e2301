"""Which engine samples, as keys of a recipe, and the opening of it.

Left out: the engines, a module each, which are imported when one is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from trl_r1.sampling import RemoteSampler, Sampler
from trl_r1.sampling.server import ServerError
from trl_r1.sampling.server_address import KEY_VARIABLE, ServerAddress
from trl_r1.trust.model_files import check_model

if TYPE_CHECKING:
    from trl_r1.reasoning_format import ReasoningFormat
    from trl_r1.sampling.server_sampler import ServerSampler
    from trl_r1.training.arguments import ModelArguments

Engine = Literal["transformers", "vllm", "server"]


@dataclass
class EngineArguments:
    """Where completions come from."""

    engine: Engine = field(
        default="transformers",
        metadata={
            "help": "`transformers`: plain generate; `vllm`: vLLM in this process; `server`: "
            "OpenAI-compatible servers that have the model already."
        },
    )
    servers: list[str] = field(
        default_factory=list,
        metadata={"help": "With `engine: server`: addresses, as http://host:8000/v1."},
    )
    served_name: str | None = field(
        default=None,
        metadata={"help": "Name of the model on the servers; None for the first they list."},
    )
    server_template: bool = field(
        default=False,
        metadata={
            "help": "Leave the chat template to the servers (`/v1/chat/completions`) where they "
            "have another one than `model_name_or_path`; else prompts are rendered here."
        },
    )
    server_concurrency: int | None = field(
        default=None,
        metadata={
            "help": "Requests at a time, a server. None: 16, and 1 for `transformers serve`, whose "
            "seeds hold only then."
        },
    )
    server_timeout: float = field(
        default=3600.0, metadata={"help": "Seconds that a completion may take."}
    )
    server_patience: float = field(
        default=600.0,
        metadata={"help": "Seconds for which all servers have to fail before the stage stops."},
    )
    server_key_variable: str = field(
        default=KEY_VARIABLE,
        metadata={"help": "Environment variable with the servers' API key, where they want one."},
    )
    continuous_batching: bool = field(
        default=False,
        metadata={
            "help": "With `engine: transformers`: a completion that ends makes room for the next "
            "at once; faster where lengths differ much. Draws other completions than without."
        },
    )
    vllm_options: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "With `engine: vllm`: keyword arguments of `vllm.LLM`, as "
            "`{gpu_memory_utilization: 0.8, tensor_parallel_size: 2, max_model_len: 16384}`."
        },
    )

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            known = ", ".join(get_args(Engine))
            raise ValueError(f"unknown engine {self.engine!r}; known: {known}")
        if (self.engine == "server") != bool(self.servers):
            raise ValueError(
                "servers is for `engine: server`, which is not set"
                if self.servers
                else "engine is `server`, and `servers` names none"
            )
        self.addresses()
        if self.server_concurrency is not None and self.server_concurrency < 1:
            raise ValueError(f"server_concurrency is {self.server_concurrency}; use 1 or more")
        for name in ("server_timeout", "server_patience"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it is in seconds, over 0")
        if self.served_name is not None and self.engine != "server":
            raise ValueError("served_name is for `engine: server`, which is not set")
        if self.continuous_batching and self.engine != "transformers":
            raise ValueError(
                f"continuous_batching is for `engine: transformers`; {self.engine} has its own"
            )
        if self.vllm_options and self.engine != "vllm":
            raise ValueError("vllm_options is for `engine: vllm`, which is not set")

    def addresses(self) -> list[ServerAddress]:
        """The servers. Raises ValueError for what is no address."""
        return [ServerAddress.parse(text, self.server_key_variable) for text in self.servers]

    def record(self) -> Mapping[str, Any]:
        """What samples depend on; which servers are up, and how many, is not among it."""
        record = {"engine": self.engine, "served_name": self.served_name}
        return {**record, "continuous_batching": True} if self.continuous_batching else record


def open_sampler(
    arguments: EngineArguments,
    model_path: str,
    model_args: ModelArguments,
    fmt: ReasoningFormat,
    batch_size: int,
) -> Sampler:
    """The engine that a recipe asks for, ready to sample.

    Args:
        arguments: which one.
        model_path: folder or id of a model or an adapter; for servers just of its tokenizer.
        model_args: how to load it.
        fmt: response format of reasoning prompts.
        batch_size: completions that plain transformers generates at a time.

    Raises:
        ServerError: no server answers.
        ImportError: the engine is not installed.
        ValueError: the model can't be loaded.
    """
    try:
        return _opened(arguments, model_path, model_args, fmt, batch_size)
    except (ServerError, ImportError):
        raise
    except OSError as error:  # what transformers says of a model that it does not find
        said = " ".join(f"{error} {error.__cause__ or ''}".split()) or repr(error)
        raise ValueError(
            f"{model_path}: this model can't be loaded; name a folder with a config.json or "
            f"adapter_config.json, or an id on the Hub ({said[:200]})"
        ) from error


def _opened(
    arguments: EngineArguments,
    model_path: str,
    model_args: ModelArguments,
    fmt: ReasoningFormat,
    batch_size: int,
) -> Sampler:
    if arguments.engine == "server":
        tokenizer = None
        if not arguments.server_template:
            from trl_r1.training.models import load_tokenizer

            tokenizer = load_tokenizer(model_path, model_args, fmt)
        return open_servers(arguments, tokenizer)
    from trl_r1.training.models import (
        base_model_path,
        is_adapter_folder,
        load_policy,
        load_tokenizer,
    )

    tokenizer = load_tokenizer(model_path, model_args, fmt)
    if arguments.engine == "vllm":
        from trl_r1.sampling.vllm_sampler import VllmSampler

        adapter = model_path if is_adapter_folder(model_path) else None
        dtype: dict[str, Any] = {"dtype": model_args.dtype} if model_args.dtype else {}
        if model_args.load_in_4bit:
            dtype["quantization"] = "bitsandbytes"
        base = base_model_path(model_path)
        for path in dict.fromkeys((model_path, base)):
            check_model(path, model_args.allowed())
        trust: dict[str, Any] = {"trust_remote_code": model_args.trust_remote_code}
        if model_args.use_safetensors and not dtype.get("quantization"):
            trust["load_format"] = "safetensors"
        return VllmSampler.from_pretrained(
            base, tokenizer, {**dtype, **trust, **arguments.vllm_options}, adapter
        )
    from trl_r1.sampling.continuous_sampler import ContinuousSampler
    from trl_r1.sampling.transformers_sampler import TransformersSampler

    model, _ = load_policy(model_path, model_args, trainable=False)
    if arguments.continuous_batching:
        return ContinuousSampler(model, tokenizer, batch_size)
    return TransformersSampler(model, tokenizer, batch_size)


def open_servers(arguments: EngineArguments, tokenizer: Any = None) -> ServerSampler:
    """The servers alone, once one of them has answered.

    Raises:
        ServerError: none does, or one lacks the model.
    """
    from trl_r1.sampling.server_pool import PoolSettings
    from trl_r1.sampling.server_sampler import ServerSampler

    settings = PoolSettings(
        arguments.served_name,
        arguments.server_concurrency,
        arguments.server_timeout,
        arguments.server_patience,
    )
    sampler = ServerSampler(arguments.addresses(), tokenizer, settings)
    try:
        sampler.check()
    except BaseException:
        sampler.close()
        raise
    return sampler


class Unopened:
    """Stands where a sampler will, so that nothing is loaded where nothing is missing."""

    def sample(self, *_: Any, **__: Any) -> Any:
        """Raises RuntimeError."""
        raise RuntimeError("sampled before the engine was opened")


@contextmanager
def closing_sampler(sampler: Sampler) -> Iterator[Sampler]:
    """The sampler for a while; one whose work is done elsewhere is closed after it."""
    try:
        yield sampler
    finally:
        if isinstance(sampler, RemoteSampler):
            sampler.close()
