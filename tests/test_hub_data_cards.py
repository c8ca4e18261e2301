"""Cards of data sets and of whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_runs import all_links, small_run, subject, write_folders
from huggingface_hub import DatasetCard

from trl_r1.data.card import DataLog, card_text
from trl_r1.evaluation.record import OWN_COLUMNS
from trl_r1.hub.card_data import COLUMN_WORDS, REASON_WORDS
from trl_r1.hub.card_lineage import STAGE_WORDS
from trl_r1.hub.card_making import SHOWN_SETTINGS
from trl_r1.hub.cards import Link, dataset_card, run_card
from trl_r1.pipeline.keys import keys_of
from trl_r1.sampling.accepted import judged_schema
from trl_r1.sampling.judging import REASONS
from trl_r1.stages import STAGES, load_stage

LEDGER = small_run()
LINKS = all_links(LEDGER)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    write_folders(folder, LEDGER)
    return folder


def load_dataset_card(text: str, tmp_path: Path) -> DatasetCard:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    return DatasetCard.load(tmp_path / "README.md")


def section(text: str, heading: str) -> str:
    """What stands under a heading of a card."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_a_data_set_tells_rows_columns_reasons_and_a_row(run_dir: Path, tmp_path: Path) -> None:
    text = dataset_card(subject(run_dir, LEDGER, "picked", "dataset", LINKS))
    card = load_dataset_card(text, tmp_path)
    assert card.data.size_categories == ["n<1K"]
    assert card.data.task_categories == ["text-generation"]
    assert card.data.license == "apache-2.0"
    assert card.data.get("configs") == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "*.parquet"}]}
    ]
    page = f"https://huggingface.co/me/small-zero-model/tree/{LINKS['zero', 'model'].commit}"
    assert "2 rows: what was kept of a model's samples, for SFT. The model is [" in text
    assert f"]({page})." in text.partition("The model is ")[2].partition("\n")[0]
    assert "| `prompt` | `messages` | messages up to the answer |" in text
    told = section(text, "What was kept")
    assert "Of 1,200 samples of 600 prompts:" in told
    assert "| **kept** | 300 | 25.0% |" in told
    assert "| wrong | 600 | 50.0% | a reward was below the limit |" in told
    row = json.loads(section(text, "A row").partition("```json\n")[2].partition("\n```")[0])
    assert row["prompt"] == [{"role": "user", "content": "0+1=?"}]
    assert "Weights of the model that wrote it: from `base`, `zero`." in text


def test_every_column_reason_setting_and_stage_that_there_is_has_its_words() -> None:
    sampled = judged_schema([], ["x"]).names + [name for name, _ in OWN_COLUMNS]
    assert set(sampled) - set(COLUMN_WORDS) == {"reward_x"}
    assert set(REASON_WORDS) == set(REASONS)
    assert set(STAGE_WORDS) == set(STAGES)
    keys = {key for stage in STAGES for key in keys_of(*load_stage(stage).SPEC.configs)}
    assert set(SHOWN_SETTINGS) - keys == {"preset"}


def test_what_is_no_text_or_too_long_is_told_by_its_size(run_dir: Path, tmp_path: Path) -> None:
    about = subject(run_dir, LEDGER, "picked", "samples", folder=tmp_path)
    row = {"image": b"\x00" * 5000, "text": "a" * 5000, "ids": list(range(1500))}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train-0.parquet")
    told = section(dataset_card(about), "A row")
    assert '"image": "(5,000 bytes)"' in told
    assert f'"text": "{"a" * 600}… (5,000 characters)"' in told
    assert '10, 11, "… (1,488 more)"]' in told


def test_a_data_set_without_files_has_a_card(run_dir: Path, tmp_path: Path) -> None:
    text = dataset_card(subject(run_dir, LEDGER, "picked", "samples", folder=tmp_path))
    assert "0 rows: every sample of a model" in text
    assert "## A row" not in text
    assert "## Columns" not in text


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
