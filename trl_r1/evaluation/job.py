"""An evaluation of the command line: its mistakes before any model is loaded, its run."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trl_r1.evaluation.evaluator import Evaluator, num_shards, score_missing
from trl_r1.evaluation.provenance import provenance
from trl_r1.evaluation.reading import different_problems, read_problems, ungradable_problems
from trl_r1.evaluation.record import OWN_COLUMNS, VERSION, write_record
from trl_r1.evaluation.scores import SCORED
from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.sampling.command import trust_arguments
from trl_r1.sampling.engines import EngineArguments, closing_sampler, open_sampler, open_servers
from trl_r1.sampling.job import engine_of
from trl_r1.sampling.processes import Processes, parse_share
from trl_r1.sampling.prompts import check_temperature
from trl_r1.sampling.sample_rows import sample_schema
from trl_r1.sampling.shards import ShardFolder, fingerprint, read_shards, waiting_claim
from trl_r1.training.arguments import EvaluationSettings, ModelArguments
from trl_r1.verification.ungradable import RowFault

# Samples a problem in the paper (k of its pass@1, appendix on evaluation); 4 for other tasks.
PAPER_SAMPLES = {
    "aime_2024": 64,
    "aime_2025": 64,
    "gpqa_diamond": 64,
    "math_500": 16,
    "live_code_bench": 8,
}
_OTHER_SAMPLES = 4
_WEIGHTS = ("*.safetensors", "*.bin", "config.json", "adapter_config.json", "tokenizer.json")


@dataclass(frozen=True)
class EvaluationJob:
    """What is to be evaluated, on what, and where it goes; see the command's options."""

    source: str
    model: str | None
    engine: EngineArguments
    model_args: ModelArguments
    fmt: ReasoningFormat
    problems: Sequence[Mapping[str, Any]]
    settings: EvaluationSettings
    ks: Sequence[int]
    shard_size: int
    output: Path
    left_out: int
    faults: Sequence[RowFault]
    processes: Processes

    def headline(self) -> list[str]:
        """What is about to happen, and what to know of the problems."""
        number = self.settings.num_samples
        lines = [
            f"{len(self.problems)} problems x {number} samples of {self.source} "
            f"({self.engine.engine})"
        ]
        if self.left_out:
            lines.append(f"left out: {self.left_out} problems that repeat another one")
        if self.faults:
            lines.append(
                f"{len(self.faults)} problems can't be graded and count as wrong, such as "
                f"{self.faults[0]}"
            )
        return lines

    def run(
        self, on_progress: Callable[[int, int, Mapping[str, float]], None]
    ) -> dict[str, Any] | None:
        """Sample and score what is missing of this part; what `evaluation.json` holds, or None
        where other parts are missing.

        Raises:
            ServerError: servers do not answer, or refuse.
            ValueError: the folder holds another evaluation.
        """
        started = time.monotonic()
        shards = ShardFolder(
            self.output / "samples",
            num_shards(self.problems, self.shard_size),
            sample_schema(self.problems[0]["prompt"], OWN_COLUMNS),
            self._identity(),
        )
        told = provenance(self.model, self.model_args, self.fmt, self.engine)
        if self.processes.share(shards.missing()):
            with closing_sampler(self._open()) as sampler:
                evaluator = Evaluator(sampler, self.settings, self.fmt, self.shard_size)
                score_missing(evaluator, self.problems, shards, self.processes, on_progress)
        if shards.missing():
            return None
        with waiting_claim(self.output / ".finish.lock"):
            shards.finish()
            return self._finish(shards, told, time.monotonic() - started)

    def _finish(
        self, shards: ShardFolder, told: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        facts = {
            "model": self.source,
            "left_out": self.left_out,
            "ungradable": len(self.faults),
            "settings": {**self._settings(), "shard_size": self.shard_size},
            **told,
            "seconds": round(seconds, 1),
        }
        samples = (row for _, part in read_shards(shards.folder, SCORED) for row in part)
        number = self.settings.num_samples
        return write_record(self.output, samples, len(self.problems), number, facts, self.ks)

    def _settings(self) -> dict[str, Any]:
        kept = ("temperature", "top_p", "max_new_tokens", "num_samples", "seed", "extraction")
        values = asdict(self.settings)
        return {
            **{name: values[name] for name in (*kept, "datasets", "general")},
            "dtype": self.model_args.dtype,
            "chat_template": self.model_args.chat_template,
            **self.engine.record(),
        }

    def _identity(self) -> dict[str, Any]:
        """What samples depend on: an attempt with another of it must not go on with these."""
        record = {
            **self._settings(),
            "version": VERSION,
            "shard_size": self.shard_size,
            "format": self.fmt.name,
            "problems": fingerprint(self.problems),
            "model": self.source if self.engine.engine != "server" else self.model,
        }
        folder = Path(str(self.model))
        if self.model is not None and folder.is_dir():
            files = sorted({path for name in _WEIGHTS for path in folder.glob(name)})
            stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            record["weights"] = fingerprint(stats)
        return record

    def _open(self) -> Any:
        if self.engine.engine == "server" and self.model is None:
            return open_servers(self.engine)
        size = self.settings.batch_size
        return open_sampler(self.engine, str(self.model), self.model_args, self.fmt, size)


def job_of(options: argparse.Namespace) -> EvaluationJob:
    """The job that the command's options describe; no model is loaded.

    Raises:
        ValueError: for what is wrong with them, with what to do.
    """
    if not options.model:
        raise ValueError("name a model or a server to evaluate, or --compare two evaluations")
    engine, model = engine_of(options)
    source = ", ".join(options.model)
    processes = parse_share(options.shard) if options.shard else Processes()
    check_temperature(options.temperature, options.top_p)
    fmt = get_format(options.format)
    number = _num_samples(options)
    if options.k and max(options.k) > number:
        raise ValueError(f"--k {max(options.k)} needs as many samples a problem; --n is {number}")
    output = options.output or Path("evaluations") / _name(options)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; name a folder")
    if engine.engine == "server":
        open_servers(engine).close()  # before the rows, which may take a while
    rows, sources = read_problems(options, fmt)
    problems, left_out = different_problems(rows)
    faults = ungradable_problems(problems, fmt)
    settings = EvaluationSettings(
        datasets=sources,
        temperature=options.temperature,
        top_p=options.top_p,
        max_new_tokens=options.max_new_tokens,
        num_samples=number,
        batch_size=options.batch_size,
        seed=options.seed,
        extraction=options.extraction,
    )
    output.mkdir(parents=True, exist_ok=True)
    model_args = ModelArguments(
        model_name_or_path=model,
        dtype=options.dtype,
        chat_template=options.chat_template,
        **trust_arguments(options),
    )
    ks = sorted(set(options.k or ()))
    size = options.shard_size
    return EvaluationJob(
        source, model, engine, model_args, fmt, problems, settings, ks, size, output, left_out,
        faults, processes,
    )  # fmt: skip


def _num_samples(options: argparse.Namespace) -> int:
    if options.n:
        return int(options.n)
    numbers = {name: PAPER_SAMPLES.get(name, _OTHER_SAMPLES) for name in options.task}
    if len(set(numbers.values())) > 1:
        told = ", ".join(f"{number} for {name}" for name, number in numbers.items())
        raise ValueError(f"these tasks have samples of their own ({told}); give --n for all")
    return next(iter(numbers.values()), _OTHER_SAMPLES)


def _name(options: argparse.Namespace) -> str:
    model = str(options.model[0]).rstrip("/")
    model = model if "://" in model else Path(model).name
    tasks = [Path(task).stem for task in options.task] or [Path(str(options.data)).stem]
    return re.sub(r"[^\w.-]+", "-", "-".join([model, *tasks])).strip("-.")[:120] or "evaluation"
