"""An evaluation of the command line: its mistakes before any model is loaded, its run."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trl_r1.evaluation.problems import duplicates, grader_of, problem_hash
from trl_r1.evaluation.record import OWN_COLUMNS, VERSION, template_of, write_record
from trl_r1.evaluation.scores import SCORED
from trl_r1.pipeline.run import package_versions
from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.sampling.command import trust_arguments
from trl_r1.sampling.engines import EngineArguments, closing_sampler, open_sampler, open_servers
from trl_r1.sampling.grading import needed_columns
from trl_r1.sampling.job import engine_of
from trl_r1.sampling.processes import Processes
from trl_r1.sampling.prompts import check_prompt, check_temperature
from trl_r1.sampling.sample_rows import sample_schema
from trl_r1.sampling.shards import ShardFolder, fingerprint, read_shards, waiting_claim
from trl_r1.stages import RewardSpec
from trl_r1.stages.evaluation import Evaluator, num_shards, score_missing
from trl_r1.tasks import DatasetSource, load_rows, load_task
from trl_r1.training.arguments import EvaluationSettings, ModelArguments
from trl_r1.verification.loading import build_reward
from trl_r1.verification.ungradable import RowFault, ungradable_rows

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

    def run(self, on_progress: Callable[[int, int, Mapping[str, float]], None]) -> dict[str, Any]:
        """Sample and score what is missing; returns what `evaluation.json` holds.

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
        chat_template = self._chat_template()
        if shards.missing():
            with closing_sampler(self._open()) as sampler:
                evaluator = Evaluator(sampler, self.settings, self.fmt, self.shard_size)
                score_missing(evaluator, self.problems, shards, Processes(), on_progress)
        with waiting_claim(self.output / ".finish.lock"):
            shards.finish()
            return self._finish(shards, chat_template, time.monotonic() - started)

    def _finish(
        self, shards: ShardFolder, chat_template: str | None, seconds: float
    ) -> dict[str, Any]:
        facts = {
            "model": self.source,
            "left_out": self.left_out,
            "ungradable": len(self.faults),
            "settings": {**self._settings(), "shard_size": self.shard_size},
            "template": template_of(self.fmt, chat_template),
            "versions": package_versions(),
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

    def _chat_template(self) -> str | None:
        if self.model is None:
            return None
        from trl_r1.training.models import load_tokenizer

        try:
            tokenizer = load_tokenizer(self.model, self.model_args, self.fmt)
        except OSError as error:
            said = " ".join(str(error).split())[:200]
            raise ValueError(f"{self.model}: its tokenizer can't be loaded ({said})") from error
        return str(tokenizer.chat_template)

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
    rows, sources = _rows(options, fmt)
    problems, left_out = _different(rows)
    faults = _faults(problems, fmt)
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
        faults,
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


def _rows(
    options: argparse.Namespace, fmt: ReasoningFormat
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The problems of every task, and the sources as they are recorded."""
    from trl_r1.pipeline.yaml_files import parse_yaml

    if not (options.task or options.data):
        raise ValueError("there is nothing to evaluate on; give --task, --data, or both")
    if options.data and len(options.task) > 1:
        raise ValueError("--data is of one task; evaluate the tasks one by one")
    given, mistakes = parse_yaml(options.args, "--args")
    if mistakes or not isinstance(given, dict):
        raise ValueError(str(mistakes[0]) if mistakes else "--args: write a mapping")
    rows: list[dict[str, Any]] = []
    sources: list[dict[str, Any]] = []
    for name in options.task or [None]:
        task = load_task(name) if name else None
        if task is not None and task.kind == "preference":
            raise ValueError(f"{name}: its rows are pairs, which have no right answer")
        if task is not None and task.makes_rows and options.data:
            raise ValueError(f"{name} makes its own problems; leave --data out")
        source = DatasetSource(
            options.data, name, options.split, options.num_rows, options.seed, given
        )
        found = _loaded(source, fmt)
        is_general = task is not None and task.kind == "general"
        rows += [{**row, "is_general": is_general} for row in found]
        kept = ("dataset_name", "task", "split", "num_rows", "seed", "args")
        sources.append({key: getattr(source, key) for key in kept})
    if not rows:
        names = ", ".join([*options.task, *([options.data] if options.data else [])])
        raise ValueError(f"nothing to evaluate on: {names} has no problems in {options.split}")
    return rows, sources


def _loaded(source: DatasetSource, fmt: ReasoningFormat) -> Any:
    name = source.dataset_name or source.task
    try:
        rows = load_rows(source, fmt)
    except OSError as error:  # the Hub is away, or does not have it; the text is often empty
        raise ValueError(
            f"{name}: no file or folder of that name, and not to be had from the Hub ({error!r})"
        ) from error
    if "prompt" not in rows.column_names:
        raise ValueError(
            f"{name}: its rows have no `prompt` but {', '.join(rows.column_names)}; name the "
            "--task that makes prompts of them"
        )
    return rows.remove_columns([n for n in ("completion",) if n in rows.column_names])


def _different(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The first of each problem, and how many repeat one."""
    for number, row in enumerate(rows):
        check_prompt(row["prompt"], number)
        if isinstance(row["prompt"], str) != isinstance(rows[0]["prompt"], str):
            raise ValueError(
                f"row {number}: its prompt is of another kind than those before; make all prompts "
                "texts, or all lists of messages"
            )
        if not isinstance(row.get("task"), (str, type(None))):
            raise ValueError(f"row {number}: its task is {row['task']!r}; it has to be a name")
    hashes = [problem_hash(row) for row in rows]
    first = dict(zip(reversed(hashes), reversed(rows), strict=True))
    return [first[digest] for digest in dict.fromkeys(hashes)], duplicates(hashes)


def _faults(problems: Sequence[dict[str, Any]], fmt: ReasoningFormat) -> list[RowFault]:
    """The problems that no answer could be graded on.

    Raises:
        ValueError: all are, or a column is missing that the grader needs.
    """
    faults: list[RowFault] = []
    for grader in dict.fromkeys(grader_of(row.get("task")) for row in problems):
        part = [row for row in problems if grader_of(row.get("task")) == grader]
        reward = build_reward(RewardSpec(grader), fmt=fmt)
        missing = [n for n in needed_columns(reward.function) if all(n not in r for r in part)]
        if missing:
            raise ValueError(
                f"the grader {grader} needs the column {', '.join(missing)}, which the problems "
                "lack; name the --task that makes it"
            )
        faults += ungradable_rows([reward], part)
    if len(faults) >= len(problems):
        raise ValueError(f"none of the {len(problems)} problems can be graded: {faults[0]}")
    return faults
