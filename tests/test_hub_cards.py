"""Cards: what the Hub reads in their headers, and what a reader finds on them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub
from hub_runs import all_links, hash_for, scores, small_run, subject, weights, write_folders
from huggingface_hub import DatasetCard, ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from trl_r1.hub.cards import dataset_card, model_card, run_card
from trl_r1.pipeline.ledger import Input, StageRecord

LEDGER = small_run()
LINKS = all_links(LEDGER)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    write_folders(folder, LEDGER)
    return folder


def load_model_card(text: str, tmp_path: Path) -> ModelCard:
    """A card as the Hub's own class reads it from a file."""
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    return ModelCard.load(tmp_path / "README.md")


def section(text: str, heading: str) -> str:
    """What stands under a heading of a card."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_header_of_a_model_says_what_it_is_and_comes_back_as_it_was(
    run_dir: Path, tmp_path: Path
) -> None:
    text = model_card(subject(run_dir, LEDGER, "cold", links=LINKS))
    card = load_model_card(text, tmp_path)
    assert card.data.base_model == "me/small-base-model"
    assert card.data.get("base_model_relation") == "finetune"
    assert card.data.datasets == ["me/small-picked-dataset"]
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.license == "apache-2.0"
    assert card.data.language == ["en"]
    assert card.data.tags == ["trl", "trl-r1", "sft", "cold-start"]
    assert card.data.model_name == "small-cold"
    again = load_model_card(str(card), tmp_path)
    assert again.data.to_dict() == card.data.to_dict()
    assert again.text == card.text


def test_scores_after_the_stage_are_model_index_entries_with_how_they_were_measured(
    run_dir: Path, tmp_path: Path
) -> None:
    card = load_model_card(model_card(subject(run_dir, LEDGER, "zero")), tmp_path)
    name, results = model_index_to_eval_results(card.data.to_dict()["model-index"])
    assert name == "small-zero"
    found = {(r.dataset_type, r.metric_type): r for r in results}
    assert set(found) == {("digit_sums", "pass@1"), ("small_talk", "accuracy")}
    assert len(results) == 2, "those of the model it starts from are no results of this one"
    right = found["digit_sums", "pass@1"]
    assert (right.task_type, right.metric_value, right.verified) == ("text-generation", 0.75, False)
    assert right.dataset_split == "test"
    assert right.metric_args == {
        "num_samples": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_new_tokens": 40,
        "seed": 0,
        "extraction": "strict",
        "num_problems": 400,
        "interval_95": [0.73, 0.77],
    }
    assert found["small_talk", "accuracy"].metric_value == 0.5


def test_an_evaluation_stage_counts_for_the_very_model_that_it_scored(
    run_dir: Path, tmp_path: Path
) -> None:
    def exams(ledger: dict[str, StageRecord], stage: str) -> list[Any]:
        card = load_model_card(model_card(subject(run_dir, ledger, stage)), tmp_path)
        return [r for r in card.data.eval_results or [] if r.dataset_type == "openai/gsm8k"]

    (exam,) = exams(LEDGER, "general")
    assert (exam.dataset_config, exam.dataset_split, exam.metric_value) == ("main", "test", 0.125)
    assert exam.metric_args["num_problems"] == 1319
    assert exam.metric_args["temperature"] == 0.6, "the stage's default"
    assert exams(LEDGER, "cold") == []
    other = replace(LEDGER["exam"].inputs[0], hash="of an older model")
    assert exams({**LEDGER, "exam": replace(LEDGER["exam"], inputs=(other,))}, "general") == []


def test_an_evaluation_of_several_tasks_has_an_entry_for_each(
    run_dir: Path, tmp_path: Path
) -> None:
    recipe = {**LEDGER["exam"].recipe, "datasets": [{"task": "gsm8k"}, {"task": "math_500"}]}
    ledger = {**LEDGER, "exam": replace(LEDGER["exam"], recipe=recipe)}
    tasks = {"gsm8k": {"pass@1": 0.5}, "math_500": {"pass@1": 0.25}}
    target = run_dir / "exam" / "evaluation.json"
    target.write_text(json.dumps({"tasks": tasks}))
    try:
        card = load_model_card(model_card(subject(run_dir, ledger, "general")), tmp_path)
    finally:
        target.unlink()
    found = {r.dataset_type: r.metric_value for r in card.data.eval_results or []}
    assert found["openai/gsm8k"] == 0.5
    assert found["HuggingFaceH4/MATH-500"] == 0.25
    assert "| score | `exam`: `gsm8k` | `exam`: `math_500` |" in card.text
    assert "Held-out problems: `gsm8k` (test), `math_500` (test). 8 samples" in card.text


def test_before_and_after_stand_side_by_side_with_intervals_and_what_they_were_measured_on(
    run_dir: Path,
) -> None:
    text = model_card(subject(run_dir, LEDGER, "zero"))
    told = section(text, "Scores")
    assert "| score | before: `@base` | this model |" in told
    assert "| right answers (pass@1) | 0.250 (0.230 to 0.270) | 0.750 (0.730 to 0.770) |" in told
    assert "| length in tokens | 12.2 | 12.2 |" in told, "no interval where there is none"
    assert "`digit_sums` (test, 400 rows); general prompts: `small_talk` (test, 150 rows)" in told
    assert "4 samples each, temperature 1.0, top-p 1.0, at most 40 tokens, seed 0" in told
    assert "(pass@1, 95% interval): 0.250 (0.230 to 0.270) → 0.750 (0.730 to 0.770)." in text


def test_scores_of_an_older_ledger_are_shown_and_claimed_of_no_data_set(
    run_dir: Path, tmp_path: Path
) -> None:
    ledger = {**LEDGER, "zero": replace(LEDGER["zero"], scored_on={})}
    card = load_model_card(model_card(subject(run_dir, ledger, "zero")), tmp_path)
    assert card.data.eval_results is None
    assert "0.750 (0.730 to 0.770)" in card.text
    assert "What these were measured on is not in the run's ledger." in card.text


def test_another_artifact_has_the_scores_of_a_stage_that_starts_from_it(run_dir: Path) -> None:
    assert section(model_card(subject(run_dir, LEDGER, "base", "student")), "Scores") == ""
    start = weights("base", "student")
    distilled = replace(LEDGER["cold"], name="distilled", inputs=(start,),
                        scores={"before": scores(0.125), "after": scores(0.5)})  # fmt: skip
    ledger = {**LEDGER, "distilled": distilled}
    told = section(model_card(subject(run_dir, ledger, "base", "student")), "Scores")
    assert "| right answers (pass@1) | 0.125 (0.105 to 0.145) |" in told


def test_a_reward_model_is_a_classifier_and_scored_by_its_held_out_pairs(
    run_dir: Path, tmp_path: Path
) -> None:
    text = model_card(subject(run_dir, LEDGER, "pref", "reward_model", links=LINKS))
    card = load_model_card(text, tmp_path)
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.base_model == "me/small-cold-model"
    (result,) = card.data.eval_results or []
    assert (result.task_type, result.metric_type) == ("text-classification", "accuracy")
    assert (result.metric_value, result.metric_args) == (0.8, {"held_out_pairs": 10})
    assert "The better answer scores higher in 0.800 of 10 held-out pairs." in text


def test_the_lineage_names_every_ancestor_by_its_role_pinned_at_its_commit(run_dir: Path) -> None:
    told = section(model_card(subject(run_dir, LEDGER, "general", links=LINKS)), "Lineage")
    assert "Weights: from `base`, `cold`." in told
    assert "Data and rewards alone: from `zero`, `picked`, `pref`." in told
    rows = {line.split(" | ")[0].strip("| `"): line for line in told.splitlines() if "| `" in line}
    assert f"`{hash_for('cold', 'model')[:12]}`" in rows["cold/model"]
    assert "`pref`, `general` as weights" in rows["cold/model"]
    place = LINKS["cold", "model"]
    page = f"https://huggingface.co/me/small-cold-model/tree/{place.commit}"
    assert f"[me/small-cold-model@{place.commit[:8]}]({page})" in rows["cold/model"]
    assert "https://huggingface.co/datasets/me/small-picked-dataset/tree/" in rows["picked/dataset"]
    assert "`general` as reward" in rows["pref/reward_model"]
    assert "a task of trl_r1" in rows["digit_sums"]
    assert "`cccccccccccc`" in rows["math_answer"]
    assert "exam" not in told, "what was made from it is no ancestor"


def test_the_drawing_has_each_way_that_something_flowed_in(run_dir: Path) -> None:
    told = section(model_card(subject(run_dir, LEDGER, "general")), "Lineage")
    drawing = told.partition("```mermaid\n")[2].partition("\n```")[0]
    nodes = dict(re.findall(r'^  (\w+)\(?\["(\w+)', drawing, flags=re.M))
    arrows = {
        (nodes[a], kind, nodes[b])
        for a, kind, b in re.findall(r"^  (\w+) \S+\|(\w+)\| (\w+)$", drawing, flags=re.M)
    }
    assert arrows == {
        ("base", "weights", "zero"),
        ("digit_sums", "data", "zero"),
        ("zero", "weights", "picked"),
        ("digit_sums", "data", "picked"),
        ("base", "weights", "cold"),
        ("picked", "data", "cold"),
        ("cold", "weights", "pref"),
        ("small_talk_preferences", "data", "pref"),
        ("cold", "weights", "general"),
        ("pref", "reward", "general"),
        ("digit_sums", "data", "general"),
    }
    mark = re.search(r"style (\w+) stroke-width", drawing)
    assert mark is not None
    assert nodes[mark[1]] == "general"


def test_the_order_of_a_ledger_is_that_of_the_run_whatever_the_names(run_dir: Path) -> None:
    by_name = dict(sorted(LEDGER.items()))
    assert list(by_name)[:2] == ["base", "cold"], "which comes after `zero` and `picked`"
    in_order = model_card(subject(run_dir, LEDGER, "general"))
    assert model_card(subject(run_dir, by_name, "general")) == in_order
    assert "Data and rewards alone: from `zero`, `picked`, `pref`." in in_order


def test_a_teacher_is_a_model_and_no_data_set(run_dir: Path, tmp_path: Path) -> None:
    teacher = Input("teacher_model_name_or_path", "lab/teacher", "data")
    files = Input("datasets[0].dataset_name", "hf://datasets/lab/rows/a.jsonl", "data")
    cold = replace(LEDGER["cold"], inputs=(*LEDGER["cold"].inputs, teacher, files))
    text = model_card(subject(run_dir, {**LEDGER, "cold": cold}, "cold"))
    assert load_model_card(text, tmp_path).data.datasets == ["lab/rows"]
    assert "[lab/teacher](https://huggingface.co/lab/teacher)" in text
    assert "[lab/rows](https://huggingface.co/datasets/lab/rows)" in text


def test_what_was_made_anew_since_is_linked_to_nothing(run_dir: Path, tmp_path: Path) -> None:
    new = {"model": {"hash": "dd" * 16, "kind": "model"}}
    ledger = {**LEDGER, "cold": replace(LEDGER["cold"], artifacts=new)}
    text = model_card(subject(run_dir, ledger, "general", links=LINKS))
    (row,) = [line for line in text.splitlines() if line.startswith("| `cold/model`")]
    assert "made anew since" in row
    assert "huggingface.co" not in row
    # The nearest model on the Hub that the weights do come from.
    assert load_model_card(text, tmp_path).data.base_model == "me/small-base-model"


def test_a_reference_to_the_hub_is_pinned_at_the_commit_that_was_used(
    run_dir: Path, tmp_path: Path, fake_hub: FakeHub
) -> None:
    fake_hub.api.create_repo("lab/start")
    upload = fake_hub.api.upload_file
    used = upload(path_or_fileobj=b"---\nlicense: mit\n---\n", path_in_repo="README.md",
                  repo_id="lab/start").oid  # fmt: skip
    upload(path_or_fileobj=b"---\nlicense: gemma\n---\n", path_in_repo="README.md",
           repo_id="lab/start")  # fmt: skip
    start = Input("model_name_or_path", "@hub:lab/start@main", "weights", "ab" * 16, commit=used)
    rows = Input("datasets[0].dataset_name", "@hub:lab/rows", "data", "cd" * 16)
    zero = replace(LEDGER["zero"], inputs=(start, rows))
    card = load_model_card(model_card(subject(run_dir, {**LEDGER, "zero": zero}, "zero")), tmp_path)
    assert (card.data.base_model, card.data.datasets) == ("lab/start", ["lab/rows"])
    assert card.data.license == "mit", "that of the commit, not of today"
    assert f"[lab/start@{used[:8]}]" in card.text
    assert f"/lab/start/tree/{used})" in card.text


def test_the_hub_takes_every_card_of_a_run(run_dir: Path, fake_hub: FakeHub) -> None:
    for record in LEDGER.values():
        for name, artifact in record.artifacts.items():
            about = subject(run_dir, LEDGER, record.name, name, LINKS)
            if artifact["kind"] == "dataset":
                DatasetCard(dataset_card(about)).validate()
            else:
                ModelCard(model_card(about)).validate()
    DatasetCard(run_card("small", "A run", LEDGER, LINKS, "a table", "me/small")).validate()
    checked = [request for request in fake_hub.requests if "validate-yaml" in request.path]
    assert len(checked) == 11


def test_how_a_model_was_made_is_told_with_its_whole_recipe(run_dir: Path) -> None:
    text = model_card(subject(run_dir, LEDGER, "zero"))
    told = section(text, "How it was made")
    assert "**R1-Zero**: RL with rules as rewards" in text
    assert "| starts from | `@base` |" in told
    assert "| data | `digit_sums`, num_rows 64 |" in told
    assert "| reward | `math_answer`, weight 1.0, on `digit_sums` |" in told
    assert "| optimizer steps | 120 |" in told
    assert "| alarms | kl_runaway: 2 |" in told
    assert "| prompts by task | digit_sums: 960 |" in told
    assert "`learning_rate` 0.0003" in told
    assert "| wall time | 1 min 1 s |" in told
    assert "trl 1.16.0" in told
    assert "<summary>The whole recipe of this stage</summary>" in told
    assert "preset: zero\nlearning_rate: 0.0003\n" in told
