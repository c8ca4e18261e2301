"""A sampling job of the command line: its mistakes before any model is loaded, and its
run."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.sampling.assistants import AssistantArguments
from trl_r1.sampling.command import trust_arguments
from trl_r1.sampling.engines import (
    EngineArguments,
    Unopened,
    closing_sampler,
    open_sampler,
    open_servers,
)
from trl_r1.sampling.job_figures import Progress, reward_figures
from trl_r1.sampling.processes import Processes, parse_share
from trl_r1.sampling.prompt_rows import PromptRows
from trl_r1.sampling.server_address import is_server, lacks_scheme
from trl_r1.sampling.shards import write_atomically
from trl_r1.stages import RewardSpec
from trl_r1.stages.rejection_sampling import (
    RejectionSampler,
    RejectionSamplingConfig,
)
from trl_r1.tasks import DatasetSource, find_task, load_rows
from trl_r1.training.arguments import GradingArguments, ModelArguments


@dataclass(frozen=True)
class Job:
    """What is to be sampled, from what, and where it goes; see the command's options."""

    model: str | None
    engine: EngineArguments
    model_args: ModelArguments
    fmt: ReasoningFormat
    rows: PromptRows
    rewards: tuple[RewardSpec, ...]
    assistants: AssistantArguments
    config: RejectionSamplingConfig
    processes: Processes
    output: Path

    def headline(self) -> str:
        """What is about to happen, in a line."""
        source = self.model if self.engine.engine != "server" else ", ".join(self.engine.servers)
        rewards = ", ".join(spec.use for spec in self.rewards) or "no reward"
        return (
            f"{len(self.rows)} prompts x {self.config.num_samples} samples of {source} "
            f"({self.engine.engine}), graded by {rewards}"
        )

    def run(self, progress: Progress) -> dict[str, Any] | None:
        """Sample what is missing of this part; the figures, or None where other parts are missing.

        Raises:
            ServerError: servers do not answer, or refuse.
            ValueError: settings that do not go with what is there.
        """
        started = time.monotonic()
        with self.assistants.open(self.fmt) as (judge, rewriter):
            made = RejectionSampler(
                Unopened(),
                self.fmt,
                self.rewards,
                self.config,
                "sample",
                GradingArguments(),
                judge,
                rewriter,
                {**self.engine.record(), **self.assistants.record(), "model": self.model},
            )
            if made.missing(self.rows, self.output, self.processes):
                with closing_sampler(self._open()) as made.sampler:
                    made.draw(self.rows, self.output, self.processes, progress)
        if self.processes.count > 1 and made.missing(self.rows, self.output, Processes()):
            return None
        figures = made.assemble(self.rows, self.output, must_keep=False)
        figures["seconds"] = round(time.monotonic() - started, 1)
        figures.update(reward_figures(self.output / "samples"))
        text = json.dumps(figures, indent=1)
        write_atomically(self.output / "summary.json", lambda path: path.write_text(text))
        return figures

    def _open(self) -> Any:
        if self.engine.engine == "server" and self.model is None:
            return open_servers(self.engine)
        path = str(self.model)
        return open_sampler(self.engine, path, self.model_args, self.fmt, self.config.batch_size)


def job_of(options: argparse.Namespace) -> Job:
    """The job that the command's options describe; no model is loaded.

    Raises:
        ValueError: for what is wrong with them, with what to do.
    """
    from trl_r1.verification.loading import load_reward

    engine, model = engine_of(options)
    if options.output.exists() and not options.output.is_dir():
        raise ValueError(f"--output {options.output} is a file; name a folder")
    processes = parse_share(options.shard) if options.shard else Processes()
    fmt = get_format(options.format)
    rewards = _reward_specs(options)
    for spec in rewards:
        load_reward(spec.use)
    assistants = AssistantArguments(
        judge_servers=options.judge,
        judge_served_name=options.judge_name,
        judge_key_variable=options.key_variable,
    )
    config = RejectionSamplingConfig(
        num_samples=options.n,
        temperature=options.temperature,
        top_p=options.top_p,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size,
        shard_size=options.shard_size,
        seed=options.seed,
        keep_per_prompt=options.keep,
        policy=options.policy,
        language=None if options.language == "none" else options.language,
    )
    if engine.engine == "server":
        open_servers(engine).close()  # before the rows, which may take a while
    return Job(
        model,
        engine,
        ModelArguments(
            model_name_or_path=model,
            dtype=options.dtype,
            chat_template=options.chat_template,
            **trust_arguments(options),
        ),
        fmt,
        _rows(options, fmt),
        rewards,
        assistants,
        config,
        processes,
        options.output,
    )


def engine_of(options: argparse.Namespace) -> tuple[EngineArguments, str | None]:
    """The engine that a command's options ask for, and its model (of servers: the tokenizer).

    Raises:
        ValueError: for what does not go together, or is not there.
    """
    from trl_r1.pipeline.yaml_files import parse_yaml

    servers = [name for name in options.model if is_server(name)]
    if servers and len(servers) < len(options.model):
        raise ValueError("give a model or servers, not both; --tokenizer names servers' tokenizer")
    if not servers and len(options.model) > 1:
        raise ValueError(f"one model at a time, not {len(options.model)}; servers may be many")
    given, mistakes = parse_yaml(options.vllm_options, "--vllm_options")
    if mistakes or not isinstance(given, dict):
        raise ValueError(str(mistakes[0]) if mistakes else "--vllm_options: write a mapping")
    arguments = EngineArguments(
        "server" if servers else options.engine,
        servers=servers,
        served_name=options.served_name,
        continuous_batching=options.continuous_batching,
        server_template=options.tokenizer is None,
        server_concurrency=options.concurrency,
        server_key_variable=options.key_variable,
        vllm_options=given,
    )
    model = options.tokenizer if servers else options.model[0]
    if model is not None and lacks_scheme(model) and not Path(model).exists():
        raise ValueError(f"{model}: for a server write http://{model}")
    looks_local = model is not None and (model.count("/") != 1 or model.startswith((".", "~")))
    if model is not None and looks_local and not Path(model).expanduser().is_dir():
        raise ValueError(f"{model}: no such folder, and no id on the Hub, which is owner/name")
    if model is not None and looks_local:
        _check_model_folder(Path(model).expanduser())
    if options.dtype and not isinstance(getattr(torch, options.dtype, None), torch.dtype):
        raise ValueError(f"--dtype {options.dtype}: use bfloat16, float16 or float32")
    return arguments, str(Path(model).expanduser()) if model is not None and looks_local else model


def _check_model_folder(folder: Path) -> None:
    names = ("config.json", "adapter_config.json", "tokenizer_config.json")
    if not any((folder / name).is_file() for name in names):
        raise ValueError(f"{folder}: no model is in this folder: it has none of {', '.join(names)}")


def _reward_specs(options: argparse.Namespace) -> tuple[RewardSpec, ...]:
    if options.rewards is not None:
        return tuple(RewardSpec(use=reference) for reference in options.rewards)
    task = find_task(options.task)
    return (RewardSpec(use=task.grader if task else "math_answer"),)


def _rows(options: argparse.Namespace, fmt: ReasoningFormat) -> PromptRows:
    if not (options.task or options.data):
        raise ValueError("there is nothing to sample for; give --task, --data, or both")
    task = find_task(options.task)
    if task is not None and task.makes_rows and options.data:
        raise ValueError(f"{options.task} makes its own problems; leave --data out")
    source = DatasetSource(
        options.data, options.task, options.split, options.num_rows, options.seed
    )
    try:
        rows = load_rows(source, fmt)
    except OSError as error:  # the Hub is away, or does not have it; the text is often empty
        name = options.data or options.task
        raise ValueError(
            f"{name}: no file or folder of that name, and not to be had from the Hub ({error!r})"
        ) from error
    if "prompt" not in rows.column_names:
        raise ValueError(
            f"{options.data}: its rows have no `prompt` but {', '.join(rows.column_names)}; name "
            "the --task that makes prompts of them"
        )
    try:
        return PromptRows(rows)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{options.data}: a text is not UTF-8 ({error.reason}); write the file as UTF-8"
        ) from error
    except ValueError as error:
        raise ValueError(f"{options.data or options.task}: {error}") from error
