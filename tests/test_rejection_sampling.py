"""What is kept of samples, and why the rest went."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset

from trl_r1.reasoning_format import get_format
from trl_r1.sampling import Sample, derive_seed
from trl_r1.sampling.assistants import AssistantArguments
from trl_r1.sampling.engines import EngineArguments
from trl_r1.sampling.processes import Processes
from trl_r1.sampling.prompt_rows import PromptRows
from trl_r1.sampling.readability import is_repetitive, longest_paragraph
from trl_r1.stages import RewardSpec, StageContext, rejection_sampling
from trl_r1.stages.rejection_sampling import RejectionSampler, RejectionSamplingConfig
from trl_r1.tasks.small_talk import name_reward
from trl_r1.training.arguments import DatasetArguments, GradingArguments, ModelArguments

FMT = get_format("zero")


def answer(text: str, reasoning: str = "two and two make four") -> str:
    return f"<think>{reasoning}</think><answer>{text}</answer>"


def equals_solution(completions: Any, solution: list[str], **kwargs: Any) -> list[float | None]:
    texts = [completion[-1]["content"] for completion in completions]
    answers = [FMT.parse(text).answer for text in texts]
    return [
        None if answer == "?" else float(answer == gold)
        for answer, gold in zip(answers, solution, strict=True)
    ]


class Scripted:
    """A sampler that says what it is told, the same for every prompt."""

    def __init__(self, texts: Sequence[str], truncated: Sequence[int] = ()) -> None:
        self.texts = texts
        self.truncated = truncated
        self.num_calls = 0

    def sample(self, prompts: Sequence[Any], num_samples: int, **_: Any) -> list[list[Sample]]:
        assert num_samples == len(self.texts)
        self.num_calls += 1
        return [
            [Sample(text, [1, 2, 3], i in self.truncated) for i, text in enumerate(self.texts)]
            for _ in prompts
        ]


class Seeded:
    """A sampler whose samples depend on prompt, index and seed alone."""

    def sample(
        self, prompts: Sequence[Any], num_samples: int, *, seed: int, **_: Any
    ) -> list[list[Sample]]:
        drawn = []
        for prompt in prompts:
            numbers = [derive_seed(seed, str(prompt), i) % 7 for i in range(num_samples)]
            drawn.append([Sample(answer(str(n), f"I see {n}"), [n], False) for n in numbers])
        return drawn


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": FMT.prompt(f"number {i}?"), "solution": str(i % 7), "task": "numbers"}
        for i in range(count)
    ]


def sampler_of(texts: Sequence[str], truncated: Sequence[int] = (), **config: Any) -> Any:
    settings = RejectionSamplingConfig(
        num_samples=len(texts), **{"language": None, "shard_size": 2, **config}
    )
    return RejectionSampler(Scripted(texts, truncated), FMT, [equals_solution], settings)


def table(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist()


def verdicts(output_dir: Path) -> list[str]:
    return [row["verdict"] for row in table(output_dir / "samples")]


def test_each_rejected_sample_has_its_reason(tmp_path: Path) -> None:
    loop = " ".join(["and so we add the two and get the next"] * 8)
    texts = {
        answer("4"): "kept",
        answer("4") + "...": "malformed",
        answer("5"): "wrong",
        answer("?"): "ungradable",
        "4": "malformed",
        answer("4", loop): "repetitive",
        answer("4", "word " + " ".join(str(i) for i in range(301))): "long_paragraph",
        answer("4", "as in\n```python\n2 + 2\n```"): "code_block",
        answer("4") + "  ": "duplicate",
        answer("4", "cut here"): "truncated",
    }
    sampler = sampler_of(list(texts), truncated=[len(texts) - 1])
    figures = sampler.run([{"prompt": FMT.prompt("2+2?"), "solution": "4"}], tmp_path)
    assert verdicts(tmp_path) == list(texts.values())
    assert figures["kept"] == 1
    assert figures["samples"] == len(texts)
    assert figures["rejected"]["malformed"] == 2
    assert sum(figures["rejected"].values()) + figures["kept"] == len(texts)


def test_targets_are_tidied_to_the_formats_own_spacing(tmp_path: Path) -> None:
    sampler = sampler_of(["<think>\n\n add  </think>\n\n<answer> 4 </answer>\n"])
    sampler.run([{"prompt": FMT.prompt("2+2?"), "solution": "4", "task": "sums"}], tmp_path)
    (row,) = table(tmp_path / "dataset")
    assert row["completion"] == [
        {"role": "assistant", "content": "<think>\nadd\n</think>\n<answer>4</answer>"}
    ]
    assert (row["prompt"], row["solution"], row["task"], row["source"]) == (
        FMT.prompt("2+2?"),
        "4",
        "sums",
        "rejection_sampling",
    )


def test_a_prefilled_opener_comes_back_into_the_target(tmp_path: Path) -> None:
    fmt = get_format("r1_prefilled")
    config = RejectionSamplingConfig(num_samples=1, language=None)
    sampler = RejectionSampler(Scripted(["so four</think>It is \\boxed{4}"]), fmt, [], config)
    sampler.run([{"prompt": fmt.prompt("2+2?"), "solution": "4"}], tmp_path)
    (row,) = table(tmp_path / "dataset")
    assert row["completion"][0]["content"] == "<think>\nso four\n</think>\nIt is \\boxed{4}"


@pytest.mark.parametrize(
    ("policy", "kept"), [("first", "bbb"), ("shortest", "a"), ("longest", "cccc")]
)
def test_the_policy_chooses_among_accepted_samples(tmp_path: Path, policy: Any, kept: str) -> None:
    texts = [answer("5", "x"), *(answer("4", text) for text in ("bbb", "a", "cccc"))]
    sampler = sampler_of(texts, policy=policy, keep_per_prompt=1)
    figures = sampler.run([{"prompt": FMT.prompt("2+2?"), "solution": "4"}], tmp_path)
    (row,) = table(tmp_path / "dataset")
    assert FMT.parse(row["completion"]).reasoning == kept
    assert figures["rejected"] == {"wrong": 1, "surplus": 2}


def test_filters_can_be_switched_off(tmp_path: Path) -> None:
    loop = " ".join(["and so we add the two and get the next"] * 50) + "```"
    sampler = sampler_of(
        [answer("4", loop)],
        reject_repetition=False,
        max_paragraph_words=None,
        reject_code=False,
    )
    assert sampler.run([{"prompt": "2+2?", "solution": "4"}], tmp_path)["kept"] == 1


def test_code_is_welcome_where_there_are_tests(tmp_path: Path) -> None:
    row = {"prompt": FMT.prompt("code it"), "solution": "4", "tests": ["f(2) == 4"]}
    assert sampler_of([answer("4", "```x```")]).run([row], tmp_path)["kept"] == 1


def test_plain_text_prompts_give_plain_text_targets(tmp_path: Path) -> None:
    sampler_of([answer("4")]).run([{"prompt": "2+2?", "solution": "4"}], tmp_path)
    (row,) = table(tmp_path / "dataset")
    assert (row["prompt"], row["completion"]) == (
        "2+2?",
        "<think>\ntwo and two make four\n</think>\n<answer>4</answer>",
    )


def test_a_reward_of_weight_zero_is_recorded_only(tmp_path: Path) -> None:
    spec = RewardSpec(use="think_format", weight=0.0, name="form")
    config = RejectionSamplingConfig(num_samples=1, language=None)
    sampler = RejectionSampler(Scripted([answer("4")]), FMT, [equals_solution, spec], config)
    sampler.run([{"prompt": "2+2?", "solution": "4"}], tmp_path)
    (row,) = table(tmp_path / "samples")
    assert row["reward_equals_solution"] == 1.0
    assert row["reward_form"] == 1.0
    assert row["verdict"] == "kept"


def test_keeping_nothing_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of 2 samples was kept \(1 malformed, 1 wrong\)"):
        sampler_of([answer("5"), "4"]).run([{"prompt": "2+2?", "solution": "4"}], tmp_path)
    assert verdicts(tmp_path) == ["wrong", "malformed"]


def test_repeated_prompts_are_sampled_once(tmp_path: Path) -> None:
    sampler = sampler_of([answer("4")])
    row = {"prompt": FMT.prompt("2+2?"), "solution": "4"}
    assert sampler.run([row, dict(row)], tmp_path)["prompts"] == 1


def test_a_finished_run_draws_nothing_again(tmp_path: Path) -> None:
    sampler = sampler_of([answer("1")])
    first = sampler.run(rows(5), tmp_path)
    assert sampler.sampler.num_calls == 3
    assert sampler.run(rows(5), tmp_path) == first
    assert sampler.sampler.num_calls == 3


def test_two_processes_make_what_one_makes(tmp_path: Path) -> None:
    config = RejectionSamplingConfig(num_samples=4, shard_size=3, language=None)
    sampler = RejectionSampler(Seeded(), FMT, [equals_solution], config)
    alone = sampler.run(rows(20), tmp_path / "alone")
    for index in (1, 0):
        sampler.draw(rows(20), tmp_path / "both", Processes(index, 2))
    assert sampler.assemble(rows(20), tmp_path / "both") == alone
    for artifact in ("samples", "dataset"):
        assert table(tmp_path / "both" / artifact) == table(tmp_path / "alone" / artifact)


def test_general_rows_need_neither_format_nor_thinking(tmp_path: Path) -> None:
    config = RejectionSamplingConfig(num_samples=2)
    sampler = RejectionSampler(Scripted(["hello Ada", "hello Ben"]), FMT, [name_reward], config)
    row = {"prompt": "greet Ada Hale", "solution": "Ada Hale", "task": "small_talk"}
    with pytest.raises(ValueError, match="2 wrong"):
        sampler.run([row], tmp_path / "wrong")
    sampler.sampler = Scripted(["hello Ada Hale", "hello Ben"])
    sampler.run([row], tmp_path / "right")
    assert [r["completion"] for r in table(tmp_path / "right" / "dataset")] == ["hello Ada Hale"]


def test_mixed_languages_are_rejected(tmp_path: Path) -> None:
    config = RejectionSamplingConfig(num_samples=2)
    texts = [answer("4"), answer("4", "zwei und zwei make four, nicht wahr, aber sicher")]
    sampler = RejectionSampler(Scripted(texts), FMT, [equals_solution], config)
    sampler.run([{"prompt": FMT.prompt("2+2?"), "solution": "4"}], tmp_path)
    assert verdicts(tmp_path) == ["kept", "mixed_language"]


def test_the_stage_leaves_folders_that_load_anywhere(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = RejectionSamplingConfig(
        num_samples=2, max_new_tokens=6, language=None, require_format=False, shard_size=3
    )
    config.reject_repetition = False
    model_args = ModelArguments(str(tiny_model_dir), reasoning_format="zero_bare")
    data = DatasetArguments([{"task": "digit_sums", "num_rows": 7}])
    # Nothing a random model says is right: its samples end at the limit, so let those pass too.
    grading = GradingArguments(reward_workers=0)
    configs = (model_args, data, grading, EngineArguments(), AssistantArguments(), config)
    context = StageContext("data", tmp_path / "data", configs)
    with pytest.raises(ValueError, match=r"none of 14 samples was kept \(14 truncated\)"):
        rejection_sampling.run(context)
    samples = load_dataset(str(tmp_path / "data" / "samples"), split="train", cache_dir=tmp_path)
    assert len(samples) == 14
    assert set(samples["verdict"]) == {"truncated"}
    assert {len(ids) for ids in samples["token_ids"]} == {6}


def test_other_settings_do_not_mix_with_what_is_there(tmp_path: Path) -> None:
    sampler_of([answer("1")]).run(rows(5), tmp_path)
    with pytest.raises(ValueError, match=r"made with other settings .*\(other temperature\)"):
        sampler_of([answer("1")], temperature=0.5).run(rows(5), tmp_path)
    with pytest.raises(ValueError, match=r"\(other num_shards, rows\)"):
        sampler_of([answer("1")]).run(rows(7), tmp_path)


def test_a_reward_whose_file_has_changed_does_not_mix_with_what_it_has_graded(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def mine(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    config = RejectionSamplingConfig(num_samples=1, language=None)
    grading = GradingArguments(reward_workers=0)

    def run(**settings: Any) -> None:
        spec = RewardSpec(f"{file}:mine", **settings)
        sampler = RejectionSampler(Scripted([answer("4")]), FMT, [spec], config, grading=grading)
        sampler.run(rows(3), tmp_path / "out")

    run()
    run()
    with pytest.raises(ValueError, match=r"\(other rewards\)"):
        run(weight=0.0)
    file.write_text("def mine(completions, **kwargs):\n    return [0.9] * len(completions)\n")
    with pytest.raises(ValueError, match=r"\(other rewards\)"):
        run()


def test_rows_of_a_dataset_are_what_the_same_rows_in_a_list_are() -> None:
    given = [{**row, "completion": "x"} for row in [*rows(7), *rows(5)]]
    listed, stored = PromptRows(given), PromptRows(Dataset.from_list(given))
    assert len(listed) == len(stored) == 7
    assert listed.fingerprint == stored.fingerprint != PromptRows(rows(6)).fingerprint
    assert listed.part(2, 9) == stored.part(2, 9) == rows(7)[2:]


def test_two_rewards_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="several rewards are called"):
        RejectionSampler(Scripted([""]), FMT, [equals_solution, equals_solution])


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'best'; known: first"):
        RejectionSamplingConfig(policy="best")  # type: ignore[arg-type]


def test_formulas_are_no_loops_but_loops_are() -> None:
    formula = "\\frac{1}{2} + \\frac{1}{2} = 1 and \\frac{1}{2} - \\frac{1}{2} = 0. " * 2
    assert not is_repetitive(formula)
    assert is_repetitive("I am sure. " * 20)
    assert is_repetitive("?!" * 50)
    assert not is_repetitive("10000000000000000000000000000000")
    assert longest_paragraph("one two\nthree") == 2


class Noted(Seeded):
    """Notes in a file what it samples, and takes its time."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal

    def sample(
        self, prompts: Sequence[Any], num_samples: int, *, seed: int, **_: Any
    ) -> list[list[Sample]]:
        with self.journal.open("a") as file:
            file.write(f"{seed}\n")
        time.sleep(0.02)
        return super().sample(prompts, num_samples, seed=seed)


def test_processes_that_share_a_folder_never_make_the_same_shard(tmp_path: Path) -> None:
    config = RejectionSamplingConfig(num_samples=4, shard_size=1, language=None)
    pids = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                sampler = RejectionSampler(
                    Noted(tmp_path / "calls"), FMT, [equals_solution], config
                )
                sampler.run(rows(30), tmp_path / "shared")
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) == len(set(calls)) == 30
    RejectionSampler(Seeded(), FMT, [equals_solution], config).run(rows(30), tmp_path / "alone")
    for artifact in ("samples", "dataset"):
        assert table(tmp_path / "shared" / artifact) == table(tmp_path / "alone" / artifact)
