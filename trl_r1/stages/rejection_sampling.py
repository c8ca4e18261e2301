"""Rejection sampling: completions of a model, judged one by one; the good ones become training
data.

The paper's two uses: cold-start data from R1-Zero (section 2.3.1: correct, readable, tidied) and
the reasoning part of the mixed SFT set from the RL-1 model (section 2.3.3). Every sample is kept
with its verdict in `samples/`, the accepted ones become rows of `dataset/`. Work is cut into shards
of prompts that are written in one piece and have a seed each, so a killed run does only what is
missing and ends with what an undisturbed one would have. Servers may help, with a judge where rules
can't grade and with a model that writes reasoning more readably. Left out on purpose: the engines,
which are `trl_r1.sampling`'s.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from datasets import Dataset

from trl_r1.reasoning_format import ReasoningFormat, get_format
from trl_r1.sampling import RemoteSampler, Sample, Sampler, derive_seed
from trl_r1.sampling.accepted import judged_schema, sample_figures, write_accepted
from trl_r1.sampling.assistants import AssistantArguments
from trl_r1.sampling.checks import check_of, language_reward
from trl_r1.sampling.drawing import drawn_ahead
from trl_r1.sampling.engines import EngineArguments, Unopened, closing_sampler, open_sampler
from trl_r1.sampling.filters import SampleFilters
from trl_r1.sampling.grading import Reward
from trl_r1.sampling.judging import (
    JUDGE,
    KEPT,
    AskModel,
    Judgement,
    SampleJudge,
    is_reasoning,
)
from trl_r1.sampling.model_judge import question_of
from trl_r1.sampling.processes import Processes, ShardQueue, current_processes
from trl_r1.sampling.prompt_rows import PromptRows
from trl_r1.sampling.prompts import check_temperature
from trl_r1.sampling.sample_rows import sample_row
from trl_r1.sampling.shards import ShardFolder, waiting_claim
from trl_r1.stages import RewardSpec, StageContext, StageResult, StageSpec
from trl_r1.training.arguments import DatasetArguments, GradingArguments, ModelArguments

if TYPE_CHECKING:
    from trl_r1.sampling.tidying import Rewriter

JobRows: TypeAlias = PromptRows | Dataset | Sequence[Mapping[str, Any]]
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
        check_temperature(self.temperature, self.top_p)


SPEC = StageSpec(
    configs=(
        ModelArguments,
        DatasetArguments,
        GradingArguments,
        EngineArguments,
        AssistantArguments,
        RejectionSamplingConfig,
    ),
    produces=("dataset", "samples"),
    uses_rewards=True,
)


class RejectionSampler:
    """Draws, judges and stores samples.

    Args:
        sampler: where completions come from, such as `TransformersSampler`; `Unopened` where it
            is set later.
        fmt: response format of the reasoning rows.
        rewards: TRL rewards, or `RewardSpec`s of a recipe. A sample is correct where each of
            positive weight reaches `min_reward`; one of weight 0 is only recorded. Without any,
            correctness is not judged.
        config: how to draw and what to keep.
        source: value of the dataset's `source` column.
        grading: where and within what limits the rewards of `RewardSpec`s run.
        ask_model: grades what no reward can, `ModelJudge` as a rule.
        rewriter: writes the reasoning of kept samples anew.
        record: plain data about the engine that the samples depend on.

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
        ask_model: AskModel | None = None,
        rewriter: Rewriter | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.sampler: Sampler = sampler
        self.rewriter = rewriter
        self.record = dict(record or {})
        self.config = config or RejectionSamplingConfig()
        self.source = source
        grading = grading or GradingArguments()
        self.checks = [check_of(reward, fmt, grading) for reward in rewards]
        counts = Counter(check.name for check in self.checks)
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"several rewards are called {twice}; give each a `name` of its own")
        language = language_reward(fmt) if self.config.language else None
        self.judge = SampleJudge(
            fmt, self.checks, self.config, language, self.config.seed, ask_model
        )

    def run(self, rows: JobRows, output_dir: Path) -> dict[str, Any]:
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
        unique = PromptRows.of(rows)
        self.draw(unique, output_dir)
        return self.assemble(unique, output_dir)

    def draw(
        self,
        rows: JobRows,
        output_dir: Path,
        processes: Processes | None = None,
        on_shard: OnShard | None = None,
    ) -> None:
        """Make this process's share of the shards of `samples/` that are missing."""
        unique = PromptRows.of(rows)
        shards = self._shards(unique, output_dir)
        remote = self.sampler if isinstance(self.sampler, RemoteSampler) else None
        for other in self._remotes().values():
            other.keep_answers_in(shards.partial)
        size = self.config.shard_size

        def sample(index: int) -> list[list[Sample]]:
            return self._sample(index, unique.part(index * size, (index + 1) * size))

        queue = ShardQueue(shards, processes or Processes())
        with drawn_ahead(queue, sample, remote) as drawn:
            for index, samples in drawn:
                rows_of_shard = unique.part(index * size, (index + 1) * size)
                judged = self._judge(index, rows_of_shard, samples)
                shards.write(index, judged)
                for use, other in self._remotes().items():
                    other.forget_answers(self._seed(index, use))
                if on_shard is not None:
                    on_shard(shards.num_made(), shards.num_shards, _progress(judged))

    def missing(self, rows: JobRows, output_dir: Path, processes: Processes) -> list[int]:
        """The shards of a process's share that are still to be made."""
        return processes.share(self._shards(PromptRows.of(rows), output_dir).missing())

    def assemble(self, rows: JobRows, output_dir: Path, must_keep: bool = True) -> dict[str, Any]:
        """Complete `samples/`, write `dataset/` from it, and return the figures of `run`.

        Processes that share a folder may all call it; they take turns.

        Args:
            rows, output_dir: as in `run`.
            must_keep: whether it is an error that nothing is kept; else there is no `dataset/`.
        """
        with waiting_claim(output_dir / ".assembling.lock"):
            return self._assemble(rows, output_dir, must_keep)

    def _assemble(self, rows: JobRows, output_dir: Path, must_keep: bool) -> dict[str, Any]:
        samples, dataset = output_dir / "samples", output_dir / "dataset"
        shards = self._shards(PromptRows.of(rows), output_dir)
        if not shards.is_finished and dataset.exists():
            shutil.rmtree(dataset)  # of other samples, which somebody has deleted
        shards.finish()
        figures = sample_figures(samples)
        if not figures["kept"]:
            if not must_keep:
                return figures
            reasons = ", ".join(
                f"{count} {reason}" for reason, count in figures["rejected"].items()
            )
            raise ValueError(
                f"none of {figures['samples']} samples was kept ({reasons}); look into {samples}, "
                "then draw more samples a prompt, or change the model or the filters"
            )
        if not dataset.exists():
            write_accepted(samples, dataset, self.source)
        return figures

    def _shards(self, rows: PromptRows, output_dir: Path) -> ShardFolder:
        if not len(rows):
            raise ValueError("there are no rows to sample for; look at the stage's `datasets`")
        for check in self.checks:
            if lacking := [name for name in check.needs if name not in rows.columns]:
                raise ValueError(
                    f"the reward {check.name} needs {', '.join(lacking)}, which the rows do not "
                    f"have; they have {', '.join(rows.columns)}"
                )
        settings = {
            "config": asdict(self.config),
            "rewards": [[check.name, check.record] for check in self.checks],
            "rows": rows.fingerprint,
            **self.record,
        }
        num_shards = -(-len(rows) // self.config.shard_size)
        names = [check.name for check in self.checks]
        schema = judged_schema(
            rows.part(0, 1)[0]["prompt"], [*names, JUDGE] if self.judge.ask_model else names
        )
        return ShardFolder(output_dir / "samples", num_shards, schema, settings)

    def _seed(self, index: int, use: str = "") -> int:
        """The seed of a shard; of its judging and rewriting, where `use` names these."""
        return derive_seed(self.config.seed, index, *([use] if use else []))

    def _remotes(self) -> dict[str, RemoteSampler]:
        """What samples elsewhere, and may cost money, by its use: here "", judging, rewriting."""
        uses = {
            "": self.sampler,
            "judge": getattr(self.judge.ask_model, "sampler", None),
            "rewrite": getattr(self.rewriter, "sampler", None),
        }
        return {use: one for use, one in uses.items() if isinstance(one, RemoteSampler)}

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
        judged = self.judge.judge(rows, drawn, self._seed(index, "judge"))
        rewritten = self._rewrite(rows, drawn, judged, self._seed(index, "rewrite"))
        return [
            {
                **sample_row(row, start + offset, number, sample),
                **{f"reward_{name}": score for name, score in judgement.scores.items()},
                "target": rewritten.get((offset, number), judgement.target),
                "is_rewritten": (offset, number) in rewritten,
                "verdict": judgement.verdict,
            }
            for offset, (row, group, judgements) in enumerate(zip(rows, drawn, judged, strict=True))
            for number, (sample, judgement) in enumerate(zip(group, judgements, strict=True))
        ]

    def _rewrite(
        self,
        rows: Sequence[Mapping[str, Any]],
        drawn: Sequence[Sequence[Sample]],
        judged: Sequence[Sequence[Judgement]],
        seed: int,
    ) -> dict[tuple[int, int], str]:
        """New targets of kept samples, by row and number, where they pass what the old ones did."""
        if self.rewriter is None:
            return {}
        places = [
            (p, n)
            for p, group in enumerate(judged)
            for n, judgement in enumerate(group)
            if judgement.verdict == KEPT and is_reasoning(rows[p].get("task"))
        ]
        targets = self.rewriter.rewrite(
            [question_of(rows[p]["prompt"]) for p, _ in places],
            [judged[p][n].target for p, n in places],
            self.judge.fmt,
            seed,
        )
        tried = [(place, t) for place, t in zip(places, targets, strict=True) if t is not None]
        samples = [replace(drawn[p][n], text=target) for (p, n), target in tried]
        passed = self.judge.passes_again([rows[p] for (p, _), _ in tried], samples)
        return {place: t for (place, t), is_good in zip(tried, passed, strict=True) if is_good}


def run(context: StageContext) -> StageResult:
    """The stage: sample for the rows of `datasets` with the model, judge with `rewards`."""
    from trl_r1.training.data import load_mixture

    samples, dataset = context.output_dir / "samples", context.output_dir / "dataset"
    if samples.exists() and dataset.exists():
        return StageResult(details=sample_figures(samples))
    model_args = context.config(ModelArguments)
    config = context.config(RejectionSamplingConfig)
    engine, assistants = context.config(EngineArguments), context.config(AssistantArguments)
    fmt = get_format(model_args.reasoning_format)
    rows = PromptRows(load_mixture(context.config(DatasetArguments).sources(), fmt, config.seed))
    path = str(model_args.model_name_or_path)
    processes = current_processes()
    # Before a model is loaded, which takes longer than to find that a server is away.
    with assistants.open(fmt) as (judge, rewriter):
        sampler = RejectionSampler(
            Unopened(),
            fmt,
            context.rewards,
            config,
            context.name,
            context.config(GradingArguments),
            judge,
            rewriter,
            {**engine.record(), **assistants.record()},
        )
        if sampler.missing(rows, context.output_dir, processes):
            opened = open_sampler(engine, path, model_args, fmt, config.batch_size)
            on_shard = context.on_progress if processes.is_main else None
            with closing_sampler(opened) as source:
                sampler.sampler = context.wrap_sampler(source)
                sampler.draw(rows, context.output_dir, processes, on_shard)
    processes.wait()
    if processes.is_main:
        sampler.assemble(rows, context.output_dir)
    processes.wait()
    return StageResult(details=sample_figures(samples))


def _progress(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        "kept": sum(row["verdict"] == KEPT for row in rows) / len(rows),
        "mean_length": sum(row["num_tokens"] for row in rows) / len(rows),
    }
