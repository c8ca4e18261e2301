"""`trl-r1 push` and `trl-r1 pull` through the real client, against a Hub on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from fake_hub import FakeHub
from huggingface_hub import DatasetCard, ModelCard
from push_runs import REPOS, finish, tree, write_parquet, write_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.cli import main
from trl_r1.pipeline.ledger import read_record
from trl_r1.pipeline.run_file import read_run_file


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path)


def push(run: Path, *options: str) -> int:
    return main(["push", str(run), "--org", "me", *options])


def heads(hub: FakeHub) -> dict[tuple[str, str], int]:
    """How many commits each repository has; the first is the Hub's own."""
    return {key: len(hub.commits(key[1], key[0])) for key in hub.site.store.repos}


def test_every_artifact_gets_a_repository_and_the_run_one_of_its_own(
    fake_hub: FakeHub, run: Path
) -> None:
    assert push(run) == 0
    assert set(fake_hub.site.store.repos) == REPOS
    assert set(heads(fake_hub).values()) == {2}, "one commit each, after the Hub's own"
    files = fake_hub.files("me/small-zero")
    for name, content in tree(run / "zero" / "model").items():
        assert files[name] == content
    own = fake_hub.files("me/small", "dataset")
    assert {"hub.json", "run.json", "report.html", "stages/zero/metrics.jsonl"} <= set(own)
    assert own["recipes/pipeline.yaml"] == (run.parents[1] / "recipes/pipeline.yaml").read_bytes()
    assert "recipes/exam.jsonl" not in own, "data beside the recipes may be private"
    assert not [name for name in own if name.endswith("log.txt")], "logs name folders of a machine"
    assert fake_hub.files("me/small-report", "space")["index.html"] == own["report.html"]


def test_the_collection_holds_everything(fake_hub: FakeHub, run: Path) -> None:
    push(run)
    push(run)
    (collection,) = fake_hub.api.list_collections(owner="me")
    items = fake_hub.api.get_collection(collection.slug).items
    assert {(item.item_type, item.item_id) for item in items} == REPOS
    assert len(items) == len(REPOS), "a second push adds nothing twice"


def test_cards_link_what_an_artifact_came_from_at_its_commit(
    fake_hub: FakeHub, run: Path, tmp_path: Path
) -> None:
    push(run)
    commit = fake_hub.commits("me/small-base")[0].id
    card = fake_hub.files("me/small-zero")["README.md"].decode()
    assert f"me/small-base/tree/{commit}" in card
    ModelCard(card).validate()
    DatasetCard(fake_hub.files("me/small-picked", "dataset")["README.md"].decode()).validate()


def test_pushing_again_changes_only_what_changed(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    before, sent = heads(fake_hub), dict(fake_hub.uploaded)
    capsys.readouterr()
    assert push(run) == 0
    assert heads(fake_hub) == before
    assert fake_hub.uploaded == sent
    assert capsys.readouterr().out.count("unchanged") == len(REPOS)

    write_parquet(run / "picked" / "dataset" / "train-00000-of-00001.parquet", 6)
    finish(run, "picked", "rejection_sampling", start=("zero", "model"))
    push(run)
    changed = {key for key, count in heads(fake_hub).items() if count != before[key]}
    assert ("dataset", "me/small-picked") in changed
    assert not {key for key in changed if key[0] == "model"}, "no model has changed"


def test_what_a_rerun_no_longer_has_goes_and_what_others_added_stays(
    fake_hub: FakeHub, run: Path
) -> None:
    push(run)
    fake_hub.api.upload_file(
        path_or_fileobj=b"hello",
        path_in_repo="theirs.txt",
        repo_id="me/small-zero-rollouts",
        repo_type="dataset",
    )
    (run / "zero" / "rollouts" / "step-0000001.parquet").unlink()
    finish(run, "zero", "grpo", start=("base", "model"))
    push(run)
    files = fake_hub.files("me/small-zero-rollouts", "dataset")
    assert "step-0000001.parquet" not in files
    assert {"step-0000000.parquet", "theirs.txt"} <= set(files)


def test_a_card_edited_on_the_hub_is_kept_unless_told(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    mine = b"---\nlicense: mit\n---\n\nmy words\n"
    fake_hub.api.upload_file(
        path_or_fileobj=mine, path_in_repo="README.md", repo_id="me/small-zero"
    )
    assert push(run) == 0
    assert fake_hub.files("me/small-zero")["README.md"] == mine
    assert "--overwrite_cards" in capsys.readouterr().out
    push(run)
    assert fake_hub.files("me/small-zero")["README.md"] == mine, "nor by a third push"
    push(run, "--overwrite_cards")
    assert b"my words" not in fake_hub.files("me/small-zero")["README.md"]


def test_everything_loads_from_the_hub_by_name(fake_hub: FakeHub, run: Path) -> None:
    push(run)
    model = AutoModelForCausalLM.from_pretrained("me/small-zero")
    tokenizer = AutoTokenizer.from_pretrained("me/small-zero")
    assert tokenizer.chat_template
    assert model.num_parameters() > 0
    assert len(load_dataset("me/small-picked", split="train")) == 4
    assert len(load_dataset("me/small-zero-rollouts", split="train")) == 8


def test_private_repositories_are_not_for_strangers(fake_hub: FakeHub, run: Path) -> None:
    from huggingface_hub.errors import RepositoryNotFoundError

    assert push(run, "--private") == 0
    assert all(fake_hub.repo(name, kind).private for kind, name in REPOS)
    with pytest.raises(RepositoryNotFoundError):
        fake_hub.api_of(fake_hub.stranger_token).model_info("me/small-zero")


def test_repositories_that_are_public_become_private_when_told(
    fake_hub: FakeHub, run: Path
) -> None:
    push(run)
    push(run, "--private")
    assert all(fake_hub.repo(name, kind).private for kind, name in REPOS)


def test_another_run_of_the_same_name_is_refused(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    other = write_run(tmp_path / "elsewhere")
    before = heads(fake_hub)
    assert push(other) == 1
    assert "another run's; push this one with a --name" in capsys.readouterr().out
    assert heads(fake_hub) == before
    assert push(other, "--name", "small-2") == 0


def test_stages_can_be_chosen_and_misspelt(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(run, "--stages", "zeero") == 1
    assert "did you mean 'zero'?" in capsys.readouterr().out
    assert not fake_hub.requests, "nothing was asked before that was told"
    assert push(run, "--stages", "base") == 0
    assert ("model", "me/small-zero") not in fake_hub.site.store.repos


def test_a_token_in_a_file_stops_the_push(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "hf_" + "aB3" * 12
    (run.parents[1] / "recipes" / "01_base.yaml").write_text(f"stage: x\nhub_token: {token}\n")
    assert push(run) == 1
    said = capsys.readouterr()
    assert "01_base.yaml, line 2 holds what looks like a token" in said.out
    assert token not in said.out + said.err
    assert ("dataset", "me/small") not in fake_hub.site.store.repos


def test_a_sample_that_looks_like_a_token_is_no_leak_and_the_users_own_is(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = run / "zero" / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"sample": "hf_' + "xY7" * 12 + '"}\n')
    assert push(run) == 0
    metrics.write_text(metrics.read_text() + json.dumps({"header": fake_hub.token}) + "\n")
    assert push(run) == 1
    said = capsys.readouterr()
    assert "metrics.jsonl, line 3" in said.out
    assert fake_hub.token not in said.out + said.err


def test_a_run_comes_back_as_it_was(fake_hub: FakeHub, run: Path, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    push(run)
    clean = tmp_path / "clean"
    clean.mkdir()
    monkeypatch.chdir(clean)
    assert main(["pull", "me/small"]) == 0
    assert tree(clean / "runs" / "small") == tree(run), "the data's own card among it"
    assert (clean / "small" / "brevity.py").is_file()
    assert read_run_file(clean / "runs" / "small").id == read_run_file(run).id
    before = heads(fake_hub)
    assert main(["push", "runs/small", "--org", "me"]) == 0
    models = {key for key, count in heads(fake_hub).items() if count != before[key]}
    assert not models - {("dataset", "me/small"), ("space", "me/small-report")}


def test_a_pull_says_that_recipes_bring_code(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    target = tmp_path / "there"
    options = ["--output_dir", str(target), "--recipes", str(tmp_path / "r")]
    assert main(["pull", "me/small", *options]) == 0
    said = capsys.readouterr().out
    assert "code of its own (brevity.py)" in said
    assert "check --untrusted" in said
    assert f"--output_dir {target}" in said


def test_a_pull_overwrites_nothing(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    target = tmp_path / "there"
    options = ["pull", "me/small", "--output_dir", str(target), "--recipes", str(tmp_path / "r")]
    assert main(options) == 0
    assert main(options) == 0, "what is there already is no fault"
    record = read_record(target / "zero")
    assert record is not None
    (target / "zero" / "stage.json").write_text(
        (target / "zero" / "stage.json").read_text().replace('"seed": 0', '"seed": 1')
    )
    before = tree(target)
    capsys.readouterr()
    assert main(options) == 1
    assert "zero is in the way" in capsys.readouterr().out
    assert tree(target) == before


def test_artifacts_that_are_not_what_the_record_tells_are_refused(
    fake_hub: FakeHub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run)
    hub_file = json.loads(fake_hub.files("me/small", "dataset")["hub.json"])
    entry = hub_file["repos"]["model me/small-zero"]
    entry["commit"] = fake_hub.api.upload_file(
        path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="me/small-zero"
    ).oid
    fake_hub.api.upload_file(
        path_or_fileobj=json.dumps(hub_file).encode(),
        path_in_repo="hub.json",
        repo_id="me/small",
        repo_type="dataset",
    )
    target = tmp_path / "there"
    assert main(["pull", "me/small", "--output_dir", str(target), "--recipes", "r"]) == 1
    assert "is not the model that the record of zero tells" in capsys.readouterr().out
    assert not (target / "zero").exists()


@pytest.mark.parametrize("name", ["../../evil", ".hidden", "a/b", ""])
def test_names_in_a_strangers_run_lead_nowhere(
    fake_hub: FakeHub, run: Path, tmp_path: Path, name: str
) -> None:
    push(run)
    text = fake_hub.files("me/small", "dataset")["stages/zero/stage.json"].decode()
    document = json.loads(text)
    document["artifacts"][name] = document["artifacts"].pop("rollouts")
    fake_hub.api.upload_file(
        path_or_fileobj=json.dumps(document).encode(),
        path_in_repo="stages/zero/stage.json",
        repo_id="me/small",
        repo_type="dataset",
    )
    target = tmp_path / "a" / "b" / "there"
    assert main(["pull", "me/small", "--output_dir", str(target), "--recipes", "r"]) == 1
    assert not (target / "zero").exists()
    assert not list(tmp_path.rglob("evil*"))


def test_what_is_no_run_is_told(
    fake_hub: FakeHub, tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "me/nothing"]) == 1
    assert "me/nothing" in capsys.readouterr().out
    fake_hub.api.create_repo("me/plain", repo_type="dataset")
    assert main(["pull", "me/plain"]) == 1
    assert "holds no run" in capsys.readouterr().out
    assert main(["push", str(tmp_path)]) == 1
    assert "nothing to push" in capsys.readouterr().out
