"""Rejection sampling: completions of a model, judged one by one; the good ones become training
data.

The paper's two uses: cold-start data from R1-Zero (section 2.3.1: correct, readable, tidied) and
the reasoning part of the mixed SFT set from the RL-1 model (section 2.3.3). Every sample is kept
with its verdict in `samples/`, the accepted ones become rows of `dataset/`. Work is cut into shards
of prompts that are written in one piece and have a seed each, so a killed run does only what is
missing and ends with what an undisturbed one would have. Left out on purpose: generative judges,
and rewriting by a model.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.sampling import RemoteSampler, Sample, Sampler, derive_seed
from trl_r1.sampling.drawing import drawn_ahead
from trl_r1.sampling.grading import Reward, told_of_prefill
from trl_r1.sampling.judging import KEPT, REASONS, Check, SampleFilters, SampleJudge
from trl_r1.sampling.processes import Processes, ShardQueue, current_processes
from trl_r1.sampling.sample_rows import sample_row, sample_schema, text_type
from trl_r1.sampling.shards import (
    ShardFolder,
    fingerprint,
    partial_folder,
    promote,
    read_shards,
    write_table,
)
from trl_r1.stages import RewardSpec, StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, GradingArguments, ModelArguments

OnShard = Callable[[int, int, Mapping[str, float]], None]


@dataclass
class RejectionSamplingConfig(SampleFilters):
    """How samples are drawn, and which are kept."""

    num_samples: int = field(default=16, metadata={"help": "Completions a prompt."})
    temperature: float = field(
        default=1.0, metadata={"help": "Of sampling; the paper's 1.0 for cold-start data."}
    )
    top_p: float = field(default=1.0, metadata={"help": "Nucleus of sampling; 1.0 for none."})
    max_new_tokens: int = field(
        default=32768,
        metadata={"help": "Limit of a completion in tokens; longer ones are rejected."},
    )
    batch_size: int = field(default=32, metadata={"help": "Completions generated at a time."})
    shard_size: int = field(
        default=64, metadata={"help": "Prompts a shard: the most that a kill costs."}
    )
    seed: int = field(default=0, metadata={"help": "Of sampling, and of the policy `random`."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_samples", "max_new_tokens", "batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it has to be at least 1")


SPEC = StageSpec(
    configs=(ModelArguments, DatasetArguments, GradingArguments, RejectionSamplingConfig),
    produces=("dataset", "samples"),
    uses_rewards=True,
)


class RejectionSampler:
    """Draws, judges and stores samples.

    Args:
        sampler: where completions come from, such as `TransformersSampler`.
        fmt: response format of the reasoning rows.
        rewards: TRL rewards, or `RewardSpec`s of a recipe. A sample is correct where each of
            positive weight reaches `min_reward`; one of weight 0 is only recorded. Without any,
            correctness is not judged.
        config: how to draw and what to keep.
        source: value of the dataset's `source` column.
        grading: where and within what limits the rewards of `RewardSpec`s run.

    Raises:
        ValueError: for two rewards of one name.
    """

    def __init__(
        self,
        sampler: Sampler,
        fmt: ReasoningFormat,
        rewards: Sequence[Reward | RewardSpec] = (),
        config: RejectionSamplingConfig | None = None,
        source: str = "rejection_sampling",
        grading: GradingArguments | None = None,
    ) -> None:
        self.sampler = sampler
        self.config = config or RejectionSamplingConfig()
        self.source = source
        grading = grading or GradingArguments()
        self.checks = [_check(reward, fmt, grading) for reward in rewards]
        counts = Counter(check.name for check in self.checks)
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"several rewards are called {twice}; give each a `name` of its own")
        language = _language_reward(fmt) if self.config.language else None
        self.judge = SampleJudge(fmt, self.checks, self.config, language, self.config.seed)

    def run(self, rows: Sequence[Mapping[str, Any]], output_dir: Path) -> dict[str, Any]:
        """Sample for all rows and store `samples/` and `dataset/` in `output_dir`.

        Called again after a kill it goes on with the shards that are missing. Rows that repeat a
        prompt are left out.

        Args:
            rows: each with a `prompt` and the columns that the rewards need; a `Dataset` or a list.
            output_dir: folder of the two artifacts.

        Returns:
            Figures: prompts, samples, kept, rejected by reason, mean lengths in tokens.

        Raises:
            ValueError: where nothing is kept; `samples/` is there to look into.
        """
        self.draw(rows, output_dir)
        return self.assemble(rows, output_dir)

    def draw(
        self,
        rows: Sequence[Mapping[str, Any]],
        output_dir: Path,
        processes: Processes | None = None,
        on_shard: OnShard | None = None,
    ) -> None:
        """Make this process's share of the shards of `samples/` that are missing."""
        unique = without_repeated_prompts(rows)
        shards = self._shards(unique, output_dir)
        remote = self.sampler if isinstance(self.sampler, RemoteSampler) else None
        if remote is not None:
            remote.keep_answers_in(shards.partial)
        size = self.config.shard_size

        def sample(index: int) -> list[list[Sample]]:
            return self._sample(index, unique[index * size : (index + 1) * size])

        queue = ShardQueue(shards, processes or Processes())
        with drawn_ahead(queue, sample, remote) as drawn:
            for index, samples in drawn:
                rows_of_shard = unique[index * size : (index + 1) * size]
                judged = self._judge(index, rows_of_shard, samples)
                shards.write(index, judged)
                if remote is not None:
                    remote.forget_answers(self._seed(index))
                if on_shard is not None:
                    num_made = shards.num_shards - len(shards.missing())
                    on_shard(num_made, shards.num_shards, _progress(judged))

    def assemble(self, rows: Sequence[Mapping[str, Any]], output_dir: Path) -> dict[str, Any]:
        """Complete `samples/`, write `dataset/` from it, and return the figures of `run`."""
        samples = output_dir / "samples"
        self._shards(without_repeated_prompts(rows), output_dir).finish()
        figures = sample_figures(samples)
        if not figures["kept"]:
            reasons = ", ".join(
                f"{count} {reason}" for reason, count in figures["rejected"].items()
            )
            raise ValueError(
                f"none of {figures['samples']} samples was kept ({reasons}); look into {samples}, "
                "then draw more samples a prompt, or change the model or the filters"
            )
        if not (output_dir / "dataset").exists():
            self._write_dataset(samples, output_dir / "dataset")
        return figures

    def _shards(self, rows: Sequence[Mapping[str, Any]], output_dir: Path) -> ShardFolder:
        if not rows:
            raise ValueError("there are no rows to sample for; look at the stage's `datasets`")
        settings = {
            "config": asdict(self.config),
            "rewards": [check.name for check in self.checks],
            "rows": fingerprint(rows),
        }
        num_shards = -(-len(rows) // self.config.shard_size)
        schema = _samples_schema(rows[0]["prompt"], [check.name for check in self.checks])
        return ShardFolder(output_dir / "samples", num_shards, schema, settings)

    def _seed(self, index: int) -> int:
        return derive_seed(self.config.seed, index)

    def _sample(self, index: int, rows: Sequence[Mapping[str, Any]]) -> list[list[Sample]]:
        config = self.config
        drawn = self.sampler.sample(
            [row["prompt"] for row in rows],
            num_samples=config.num_samples,
            temperature=config.temperature,
            top_p=config.top_p,
            max_new_tokens=config.max_new_tokens,
            seed=self._seed(index),
        )
        if len(drawn) != len(rows) or any(len(group) != config.num_samples for group in drawn):
            raise RuntimeError(
                f"{type(self.sampler).__name__} did not return {config.num_samples} samples "
                f"for each of {len(rows)} prompts"
            )
        return drawn

    def _judge(
        self, index: int, rows: Sequence[Mapping[str, Any]], drawn: Sequence[Sequence[Sample]]
    ) -> list[dict[str, Any]]:
        start = index * self.config.shard_size
        return [
            {
                **sample_row(row, start + offset, number, sample),
                **{f"reward_{name}": score for name, score in judgement.scores.items()},
                "target": judgement.target,
                "verdict": judgement.verdict,
            }
            for offset, (row, group, judgements) in enumerate(
                zip(rows, drawn, self.judge.judge(rows, drawn), strict=True)
            )
            for number, (sample, judgement) in enumerate(zip(group, judgements, strict=True))
        ]

    def _write_dataset(self, samples: Path, dataset: Path) -> None:
        partial = partial_folder(dataset)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        schema: pa.Schema | None = None
        for path, rows in read_shards(samples):
            kept = [self._dataset_row(row) for row in rows if row["verdict"] == KEPT]
            if not kept:
                continue
            schema = schema or _dataset_schema(kept[0]["prompt"])
            write_table(partial / path.name, kept, schema)
        promote(partial, dataset)

    def _dataset_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        is_chat = not isinstance(row["prompt"], str)
        message = [{"role": "assistant", "content": row["target"]}]
        completion = message if is_chat else row["target"]
        carried = {key: row[key] for key in ("prompt", "solution", "task")}
        return {**carried, "completion": completion, "source": self.source}


def run(context: StageContext) -> StageResult:
    """The stage: sample for the rows of `datasets` with the model, judge with `rewards`."""
    from trl_r1.sampling.transformers_sampler import TransformersSampler
    from trl_r1.training.data import load_mixture
    from trl_r1.training.models import load_policy, load_tokenizer

    samples, dataset = context.output_dir / "samples", context.output_dir / "dataset"
    if samples.exists() and dataset.exists():
        return StageResult(details=sample_figures(samples))
    model_args = context.config(ModelArguments)
    config = context.config(RejectionSamplingConfig)
    fmt = get_format(model_args.reasoning_format)
    rows = load_mixture(context.config(DatasetArguments).sources(), fmt, config.seed)
    path = str(model_args.model_name_or_path)
    tokenizer = load_tokenizer(path, model_args, fmt)
    model, _ = load_policy(path, model_args, trainable=False)
    engine = TransformersSampler(model, tokenizer, config.batch_size)
    grading = context.config(GradingArguments)
    sampler = RejectionSampler(engine, fmt, context.rewards, config, context.name, grading)
    processes = current_processes()
    on_shard = context.on_progress if processes.is_main else None
    sampler.draw(rows, context.output_dir, processes, on_shard)
    processes.wait()
    if processes.is_main:
        sampler.assemble(rows, context.output_dir)
    processes.wait()
    return StageResult(details=sample_figures(samples))


def sample_figures(samples: Path) -> dict[str, Any]:
    """Figures of a finished `samples/`, as `RejectionSampler.run` returns them."""
    verdicts: Counter[str] = Counter()
    prompts: set[int] = set()
    tokens = kept_tokens = 0
    for _, rows in read_shards(samples, ("prompt_index", "num_tokens", "verdict")):
        verdicts.update(row["verdict"] for row in rows)
        prompts.update(row["prompt_index"] for row in rows)
        tokens += sum(row["num_tokens"] for row in rows)
        kept_tokens += sum(row["num_tokens"] for row in rows if row["verdict"] == KEPT)
    total = sum(verdicts.values())
    kept = verdicts[KEPT]
    return {
        "prompts": len(prompts),
        "samples": total,
        "kept": kept,
        "rejected": {reason: verdicts[reason] for reason in REASONS if verdicts[reason]},
        "mean_length": tokens / total if total else 0.0,
        "mean_length_kept": kept_tokens / kept if kept else 0.0,
    }


def without_repeated_prompts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first row of each prompt: all samples of a prompt lie in one shard, to be compared."""
    unique: dict[str, dict[str, Any]] = {}
    for row in rows:
        # A completion of the source is no column of a sample, and would hide behind the same name.
        kept = {key: value for key, value in row.items() if key != "completion"}
        unique.setdefault(json.dumps(row["prompt"], sort_keys=True), kept)
    return list(unique.values())


def _check(reward: Reward | RewardSpec, fmt: ReasoningFormat, grading: GradingArguments) -> Check:
    from trl_r1.verification.stage_rewards import build_stage_reward

    if isinstance(reward, RewardSpec):
        function = build_stage_reward(reward, grading, fmt)
        return Check(function.__name__, function, reward.tasks, reward.weight > 0)
    return Check(getattr(reward, "__name__", type(reward).__name__), reward)


def _language_reward(fmt: ReasoningFormat) -> Reward:
    from trl_r1.verification.loading import load_reward

    return told_of_prefill(load_reward("language_consistency"), fmt.is_prefilled)


def _samples_schema(prompt: Any, rewards: Sequence[str]) -> pa.Schema:
    scores = [(f"reward_{name}", pa.float64()) for name in rewards]
    return sample_schema(prompt, [*scores, ("target", pa.string()), ("verdict", pa.string())])


def _dataset_schema(prompt: Any) -> pa.Schema:
    texts = [(name, text_type(prompt)) for name in ("prompt", "completion")]
    return pa.schema([*texts, *((name, pa.string()) for name in ("solution", "task", "source"))])


def _progress(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        "kept": sum(row["verdict"] == KEPT for row in rows) / len(rows),
        "mean_length": sum(row["num_tokens"] for row in rows) / len(rows),
    }
