"""Licences on cards: those of the bases and the data, as far as they can be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import FakeHub
from hub_runs import small_run, subject, write_folders
from huggingface_hub import DatasetCard, ModelCard

from trl_r1.hub.cards import dataset_card, model_card
from trl_r1.pipeline.ledger import Input, StageRecord

LEDGER = small_run()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    write_folders(folder, LEDGER)
    return folder


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
    card = ModelCard(model_card(subject(run_dir, ledger, "zero")))
    assert card.data.license == "other"
    assert card.data.license_name == "a-licence"
    assert card.data.license_link is None, "a file that does not lie in this repository"
    assert card.data.language == ["de", "en"]
    assert card.data.base_model is None, "a folder is no model of the Hub"
    assert "a-licence, that of `base`, which the weights come from." in card.text
    # The sampled data carries no licence of its own, as one of its sources has another.
    data = DatasetCard(dataset_card(subject(run_dir, ledger, "picked", "dataset")))
    assert data.data.license is None
    assert "`digit_sums`: apache-2.0" in data.text


def test_an_unknown_licence_is_said_to_be_unknown(run_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "README.md").write_text("---\nlicense: [a\n---\n")
    silent = write_base(tmp_path / "silent", "tags: [x]")
    for source in (str(broken), silent, str(tmp_path / "gone"), "Qwen/Qwen2.5-0.5B"):
        text = model_card(subject(run_dir, outside(source), "zero"))
        assert ModelCard(text).data.license is None
        assert "## Licence\n\nNot known: the weights come from" in text


def test_the_licence_and_the_base_of_a_hub_id_are_those_of_its_repository(
    run_dir: Path, fake_hub: FakeHub
) -> None:
    fake_hub.api.create_repo("me/wide")
    readme = b"---\nlicense: gemma\nlicense_link: LICENSE\nlanguage: fr\n---\n"
    fake_hub.api.upload_file(path_or_fileobj=readme, path_in_repo="README.md", repo_id="me/wide")
    card = ModelCard(model_card(subject(run_dir, outside("me/wide"), "zero")))
    assert (card.data.license, card.data.base_model) == ("gemma", "me/wide")
    assert str(card.data.license_link).endswith("/me/wide/blob/main/LICENSE")
    assert card.data.language == ["fr"]


def test_a_relative_base_is_looked_for_beside_the_recipes(run_dir: Path, tmp_path: Path) -> None:
    write_base(tmp_path / "base", "license: mit")
    about = subject(run_dir, outside("./base", "ee" * 16), "zero", recipes=tmp_path)
    assert ModelCard(model_card(about)).data.license == "mit"


def test_the_licence_of_data_on_the_hub_is_told_and_joins_that_of_the_model(
    run_dir: Path, fake_hub: FakeHub
) -> None:
    fake_hub.api.create_repo("lab/sums", repo_type="dataset")
    fake_hub.api.upload_file(path_or_fileobj=b"---\nlicense: [cc-by-4.0]\n---\n",
                             path_in_repo="README.md", repo_id="lab/sums",
                             repo_type="dataset")  # fmt: skip
    rows = Input("datasets[0].dataset_name", "lab/sums", "data")
    ledger = {
        **LEDGER,
        "picked": replace(LEDGER["picked"], inputs=(*LEDGER["picked"].inputs, rows)),
    }
    data = DatasetCard(dataset_card(subject(run_dir, ledger, "picked", "dataset")))
    assert "`lab/sums`: cc-by-4.0" in data.text
    assert data.data.license is None, "the model that wrote it is under another"
    model = ModelCard(model_card(subject(run_dir, ledger, "cold")))
    assert "`lab/sums`: cc-by-4.0" in model.text
    assert model.data.license == "apache-2.0", "a model has the licence of its weights"
