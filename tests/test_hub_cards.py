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

from trl_r1.data.card import DataLog, card_text
from trl_r1.hub.cards import Link, dataset_card, model_card, run_card
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


def load_dataset_card(text: str, tmp_path: Path) -> DatasetCard:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    return DatasetCard.load(tmp_path / "README.md")


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


def outside(source: str, hash_: str | None = None) -> dict[str, StageRecord]:
    """The small run, started from a model from outside instead of `@base`."""
    start = Input("model_name_or_path", source, "weights", hash_)
    zero = replace(LEDGER["zero"], inputs=(start, *LEDGER["zero"].inputs[1:]))
    return {**LEDGER, "zero": zero}


def write_base(folder: Path, header: str) -> str:
    folder.mkdir()
    (folder / "README.md").write_text(f"---\n{header}\n---\n# A base\n", encoding="utf-8")
    return str(folder)


def test_the_licence_is_that_of_the_folder_at_the_end_of_the_chain(
    run_dir: Path, tmp_path: Path
) -> None:
    header = "license: other\nlicense_name: a-licence\nlicense_link: LICENSE\nlanguage: [de, en]"
    base = write_base(tmp_path / "base", header)
    ledger = outside(base, "ee" * 16)
    card = load_model_card(model_card(subject(run_dir, ledger, "zero")), tmp_path)
    assert card.data.license == "other"
    assert card.data.license_name == "a-licence"
    assert card.data.license_link is None, "a file that does not lie in this repository"
    assert card.data.language == ["de", "en"]
    assert card.data.base_model is None, "a folder is no model of the Hub"
    assert "a-licence, that of `base`, which the weights come from." in card.text
    # The sampled data carries no licence of its own, as one of its sources has another.
    data = load_dataset_card(dataset_card(subject(run_dir, ledger, "picked", "dataset")), tmp_path)
    assert data.data.license is None
    assert "`digit_sums`: apache-2.0" in data.text


def test_an_unknown_licence_is_said_to_be_unknown(run_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "README.md").write_text("---\nlicense: [a\n---\n")
    silent = write_base(tmp_path / "silent", "tags: [x]")
    for source in (str(broken), silent, str(tmp_path / "gone"), "Qwen/Qwen2.5-0.5B"):
        text = model_card(subject(run_dir, outside(source), "zero"))
        assert load_model_card(text, tmp_path).data.license is None
        assert "Not known: the weights come from" in section(text, "Licence")


def test_the_licence_and_the_base_of_a_hub_id_are_those_of_its_repository(
    run_dir: Path, tmp_path: Path, fake_hub: FakeHub
) -> None:
    fake_hub.api.create_repo("me/wide")
    readme = b"---\nlicense: gemma\nlicense_link: LICENSE\nlanguage: fr\n---\n"
    fake_hub.api.upload_file(path_or_fileobj=readme, path_in_repo="README.md", repo_id="me/wide")
    card = load_model_card(model_card(subject(run_dir, outside("me/wide"), "zero")), tmp_path)
    assert (card.data.license, card.data.base_model) == ("gemma", "me/wide")
    assert str(card.data.license_link).endswith("/me/wide/blob/main/LICENSE")
    assert card.data.language == ["fr"]


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
    told = section(model_card(subject(run_dir, LEDGER, "zero")), "How it was made")
    assert "| starts from | `@base` |" in told
    assert "| data | `digit_sums`, num_rows 64 |" in told
    assert "| reward | `math_answer`, weight 1.0, on `digit_sums` |" in told
    assert "| optimizer steps | 120 |" in told
    assert "| alarms | kl_runaway: 2 |" in told
    assert "`learning_rate` 0.0003" in told
    assert "| wall time | 1 min 1 s |" in told
    assert "trl 1.16.0" in told
    assert "<summary>The whole recipe of this stage</summary>" in told
    assert "preset: zero\nlearning_rate: 0.0003\n" in told


def test_a_data_set_tells_rows_columns_reasons_and_a_row(run_dir: Path, tmp_path: Path) -> None:
    text = dataset_card(subject(run_dir, LEDGER, "picked", "dataset", LINKS))
    card = load_dataset_card(text, tmp_path)
    assert card.data.size_categories == ["n<1K"]
    assert card.data.task_categories == ["text-generation"]
    assert card.data.license == "apache-2.0"
    assert card.data.get("configs") == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "*.parquet"}]}
    ]
    assert "2 rows: what was kept of a model's samples, for SFT. The model is `@zero`." in text
    assert "| `prompt` | `messages` | messages up to the answer |" in text
    told = section(text, "What was kept")
    assert "Of 1,200 samples of 600 prompts:" in told
    assert "| **kept** | 300 | 25.0% |" in told
    assert "| wrong | 600 | 50.0% | a reward was below the limit |" in told
    row = json.loads(section(text, "A row").partition("```json\n")[2].partition("\n```")[0])
    assert row["prompt"] == [{"role": "user", "content": "0+1=?"}]
    assert "Weights of the model that wrote it: from `base`, `zero`." in text


def test_the_samples_of_an_evaluation_tell_its_scores(run_dir: Path) -> None:
    told = section(dataset_card(subject(run_dir, LEDGER, "exam", "samples")), "Scores")
    assert "| right answers (pass@1) | 0.125 (0.100 to 0.150) |" in told
    assert "`gsm8k` (test). 8 samples each, temperature 0.6, top-p 0.95" in told


def test_the_steps_of_a_folder_s_own_card_are_kept_for_the_next_command(
    run_dir: Path, tmp_path: Path
) -> None:
    log = DataLog()
    with log.step("dedup", 10, {"near": 0.8, "file": "/home/alice/rows.jsonl"}) as step:
        step.rows_after, step.text = 8, "2 | near duplicates"
    about = subject(run_dir, LEDGER, "picked", "dataset")
    readme = about.folder / "README.md"
    readme.write_text(card_text("Picked", log, {}), encoding="utf-8")
    try:
        text = dataset_card(about)
    finally:
        readme.unlink()
    assert "| dedup | 10 → 8 | 2 &#124; near duplicates |" in section(text, "Steps")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    (again,) = DataLog.of_folder(tmp_path).records
    assert (again.step, again.rows_before, again.rows_after) == ("dedup", 10, 8)
    assert again.settings == {"near": 0.8, "file": "rows.jsonl"}


def test_the_card_of_a_run_links_to_all_that_it_left(tmp_path: Path) -> None:
    links: dict[tuple[str, str], Link] = {k: v for k, v in LINKS.items() if k[0] != "exam"}
    text = run_card("small", "A small run", LEDGER, links, "stage  pass@1\nzero   0.75", "me/small")
    card = load_dataset_card(text, tmp_path)
    assert card.data.get("viewer") is False
    assert "```text\nstage  pass@1\nzero   0.75\n```" in section(text, "Stages")
    told = section(text, "Models and data")
    assert all(link.url in told for link in links.values())
    (exam,) = [line for line in told.splitlines() if line.startswith("| `exam`")]
    assert "not pushed" in exam
    assert "trl-r1 pull me/small" in text
