"""Scores are what they say: worked out by hand, and the same in the runner and in the stage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from trl_r1.evaluation import evaluator
from trl_r1.evaluation.evaluator import Evaluator, last_number
from trl_r1.evaluation.scores import summarise
from trl_r1.reasoning_format import get_format
from trl_r1.sampling import Sample
from trl_r1.stages import StageContext, evaluation
from trl_r1.stages.evaluation import evaluate_model, load_problems
from trl_r1.training.arguments import EvaluationSettings, ModelArguments

FMT = get_format("zero_bare")


class Scripted:
    """A sampler that gives the same completions to every prompt."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def sample(self, prompts: Sequence[Any], num_samples: int, **_: Any) -> list[list[Sample]]:
        group = [Sample(text, list(range(i + 1)), False) for i, text in enumerate(self.texts)]
        return [group[:num_samples] for _ in prompts]


def problem(solution: str, **columns: Any) -> dict[str, Any]:
    row = {"prompt": FMT.prompt("?"), "solution": solution, "task": "digit_sums"}
    return {**row, "is_general": False, **columns}


def scores_of(texts: Sequence[str], problems: list[dict[str, Any]], **settings: Any) -> Any:
    chosen = EvaluationSettings(num_samples=len(texts), **settings)
    rows = Evaluator(Scripted(texts), chosen, FMT).score_shard(problems, 0)
    return summarise(rows, len(problems), len(texts))


def means(scores: dict[str, Any]) -> dict[str, float]:
    """The scores without what the tests of `trl_r1.evaluation` look at."""
    names = ("pass@1", "format", "mean_length", "general", "preference")
    return {name: scores[name] for name in names if name in scores}


RIGHT, WRONG, BARE = "<think>3</think><answer>3</answer>", "<think>3</think>4", "so 3"


def test_pass_at_1_is_the_mean_over_samples() -> None:
    scores = scores_of([RIGHT, WRONG, RIGHT, ""], [problem("3"), problem("5")])
    assert means(scores) == {"pass@1": 0.25, "format": 0.5, "mean_length": 2.5}


def test_what_can_not_be_graded_counts_as_wrong() -> None:
    assert scores_of([RIGHT], [problem("3"), problem("")])["pass@1"] == 0.5


def test_lenient_extraction_takes_the_last_number_and_leaves_the_format_score() -> None:
    strict = scores_of([BARE], [problem("3")])
    lenient = scores_of([BARE], [problem("3")], extraction="lenient")
    assert (strict["pass@1"], lenient["pass@1"]) == (0.0, 1.0)
    assert strict["format"] == lenient["format"] == 0.0
    assert last_number("1 then <think>2</think> 3 or 1,200.50.") == "\\boxed{1,200.50}"
    assert last_number("<think>7</think> none") == "\\boxed{7}"
    assert last_number("none") == ""


def test_general_answers_are_scored_apart_by_their_own_rule() -> None:
    general = problem("hello Ada", task="general_chat", is_general=True)
    scores = scores_of(["Hello Ada!"], [problem("3"), general])
    assert means(scores) == {"pass@1": 0.0, "format": 0.0, "mean_length": 1.0, "general": 1.0}


def test_lost_samples_are_an_error() -> None:
    rows = Evaluator(Scripted([RIGHT]), EvaluationSettings(), FMT).score_shard([problem("3")], 0)
    with pytest.raises(RuntimeError, match="1 samples were drawn for 1 problems; expected 2"):
        summarise(rows, 1, 2)


def test_nothing_to_evaluate_on_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to evaluate on"):
        load_problems(EvaluationSettings(), FMT)


def test_problems_come_from_the_test_split_unless_told_otherwise() -> None:
    source = {"task": "digit_sums", "num_rows": 5}
    assert load_problems(EvaluationSettings(datasets=[source]), FMT) == load_problems(
        EvaluationSettings(datasets=[{**source, "split": "test"}]), FMT
    )


def test_the_stage_and_the_runner_get_the_same_scores_and_a_kill_changes_none(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "SHARD_SIZE", 6)
    settings = EvaluationSettings(
        datasets=[{"task": "digit_sums", "num_rows": 10}],
        general=[{"task": "small_talk", "num_rows": 4}],
        max_new_tokens=6,
        num_samples=2,
        batch_size=5,
    )
    model_args = ModelArguments(
        model_name_or_path=str(tiny_model_dir), reasoning_format="zero_bare"
    )
    kept = tmp_path / "kept" / "after.parquet"
    expected = evaluate_model(str(tiny_model_dir), settings, FMT, model_args, kept)
    shown = pq.read_table(kept).to_pylist()
    assert len(shown) == 28
    assert {"prompt", "completion", "score", "problem_hash", "answer"} <= set(shown[0])
    assert set(means(expected)) == {"pass@1", "format", "mean_length", "general"}
    assert 1 <= expected["mean_length"] <= 6

    class KilledError(Exception):
        pass

    def kill_after_the_second_shard(step: int, *_: Any) -> None:
        if step == 2:
            raise KilledError

    context = StageContext(
        "evaluation", tmp_path, (settings, model_args), on_progress=kill_after_the_second_shard
    )
    with pytest.raises(KilledError):
        evaluation.run(context)
    shards = list((tmp_path / ".samples.partial").glob("*.parquet"))
    times = {path.name: path.stat().st_mtime_ns for path in shards}
    assert len(times) == 2
    result = evaluation.run(StageContext("evaluation", tmp_path, (settings, model_args)))
    assert result.scores == expected
    document = json.loads((tmp_path / "evaluation.json").read_text())
    assert document["scores"] == expected
    assert set(document["tasks"]) == {"digit_sums", "small_talk"}
    assert len(document["template"]["chat_template_hash"]) == 64
    assert document["versions"]["trl"]
    samples = tmp_path / "samples"
    assert all((samples / name).stat().st_mtime_ns == time for name, time in times.items())
    loaded = load_dataset(str(samples), split="train", cache_dir=str(tmp_path / "cache"))
    assert sorted(zip(loaded["prompt_index"], loaded["sample_index"], strict=True)) == [
        (p, s) for p in range(14) for s in range(2)
    ]
