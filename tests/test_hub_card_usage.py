"""The code on a card runs as it stands, against a Hub that holds what the card is about."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub
from hub_runs import hash_for, small_run, subject, weights, write_folders
from huggingface_hub import ModelCard
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from trl_r1.hub.cards import Link, Subject, dataset_card, model_card
from trl_r1.pipeline.ledger import Input, StageRecord

LEDGER = small_run()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_folders(tmp_path / "small", LEDGER)
    return tmp_path / "small"


def push(hub: FakeHub, about: Subject, card: str, repo_type: str = "model") -> Link:
    """Put an artifact with its card on the Hub."""
    (about.folder / "README.md").write_text(card, encoding="utf-8")
    hub.api.create_repo(about.repo_id, repo_type=repo_type)
    done = hub.api.upload_folder(
        repo_id=about.repo_id, folder_path=about.folder, repo_type=repo_type
    )
    return Link(about.repo_id, repo_type, done.oid)


def run_code(card: str) -> list[str]:
    """Run the Python on a card; returns the lines it printed."""
    (code,) = re.findall(r"^```python\n(.*?)^```", card, flags=re.M | re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "card", "exec"), {})
    return out.getvalue().splitlines()


def save_adapter(base: Path, folder: Path, task: TaskType = TaskType.CAUSAL_LM) -> None:
    """An adapter of a model, as a stage with `adapter_output: adapter` leaves it."""
    auto: Any = AutoModelForCausalLM
    kwargs: dict[str, Any] = {}
    if task == TaskType.SEQ_CLS:
        auto, kwargs = AutoModelForSequenceClassification, {"num_labels": 1}
    model = get_peft_model(auto.from_pretrained(base, **kwargs), LoraConfig(r=2, task_type=task))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


def copy_model(source: Path, target: Path) -> None:
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())


def test_a_model_writes_an_answer_to_a_problem_of_its_evaluation(
    run_dir: Path, fake_hub: FakeHub, tiny_model_dir: Path
) -> None:
    about = subject(run_dir, LEDGER, "zero")
    copy_model(tiny_model_dir, about.folder)
    card = model_card(about)
    assert "max_new_tokens=40, do_sample=True, temperature=1.0, top_p=1.0" in card
    push(fake_hub, about, card)
    run_code(card)
    fetched = [r.path for r in fake_hub.requests if "small-zero/resolve" in r.path]
    assert any("safetensors" in path for path in fetched)


def test_an_adapter_stands_on_its_base_at_the_commit_that_it_was_trained_on(
    run_dir: Path, fake_hub: FakeHub, tiny_model_dir: Path
) -> None:
    base = subject(run_dir, LEDGER, "base")
    copy_model(tiny_model_dir, base.folder)
    pushed = push(fake_hub, base, model_card(base))
    about = subject(run_dir, LEDGER, "zero", links={("base", "model"): pushed})
    save_adapter(base.folder, about.folder)
    card = model_card(about)
    push(fake_hub, about, card)
    # A later push of the base must not change what the adapter is put on.
    fake_hub.api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json",
                             repo_id=base.repo_id)  # fmt: skip
    run_code(card)
    data = ModelCard(card).data
    assert (data.base_model, data.get("base_model_relation")) == ("me/small-base", "adapter")
    assert data.library_name == "peft"
    assert data.tags is not None
    assert "lora" in data.tags
    assert str(run_dir) not in card, "where the base lies on this machine"


def test_an_adapter_that_was_trained_on_stands_on_what_the_first_stage_started_from(
    run_dir: Path, tiny_model_dir: Path
) -> None:
    copy_model(tiny_model_dir, run_dir / "base" / "model")
    for stage in ("zero", "cold"):
        save_adapter(run_dir / "base" / "model", run_dir / stage / "model")
    ledger = {**LEDGER, "cold": replace(LEDGER["cold"], inputs=(weights("zero"),))}
    links = {("base", "model"): Link("me/small-base", "model", "1" * 40),
             ("zero", "model"): Link("me/small-zero", "model", "2" * 40)}  # fmt: skip
    card = model_card(subject(run_dir, ledger, "cold", links=links))
    assert ModelCard(card).data.base_model == "me/small-base"
    assert f'"me/small-base", revision="{"1" * 40}"' in card


def test_an_adapter_of_a_model_that_is_nowhere_on_the_hub_says_so(
    run_dir: Path, tiny_model_dir: Path
) -> None:
    copy_model(tiny_model_dir, run_dir / "base" / "model")
    save_adapter(run_dir / "base" / "model", run_dir / "zero" / "model")
    card = model_card(subject(run_dir, LEDGER, "zero"))
    assert "This is an adapter of a model that is not on the Hub (`model`)." in card
    assert "```python" not in card
    assert ModelCard(card).data.base_model is None
    assert ModelCard(card).data.get("base_model_relation") is None


def test_a_reward_model_scores_two_answers(
    run_dir: Path, fake_hub: FakeHub, tiny_model_dir: Path
) -> None:
    about = subject(run_dir, LEDGER, "pref", "reward_model")
    scorer = AutoModelForSequenceClassification.from_pretrained(tiny_model_dir, num_labels=1)
    scorer.save_pretrained(about.folder)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(about.folder)
    card = model_card(about)
    push(fake_hub, about, card)
    lines = run_code(card)
    assert len(lines) == 2
    assert all(re.match(r"-?\d+\.\d+", line) for line in lines)
    assert 'use: preference_model, args: {model: "@hub:me/small-pref"}' in card


def test_an_adapter_of_a_reward_model_is_put_on_a_scorer(
    run_dir: Path, fake_hub: FakeHub, tiny_model_dir: Path
) -> None:
    base = subject(run_dir, LEDGER, "cold")
    copy_model(tiny_model_dir, base.folder)
    pushed = push(fake_hub, base, model_card(base))
    about = subject(run_dir, LEDGER, "pref", "reward_model", {("cold", "model"): pushed})
    save_adapter(base.folder, about.folder, TaskType.SEQ_CLS)
    card = model_card(about)
    push(fake_hub, about, card)
    assert len(run_code(card)) == 2


def test_a_data_set_loads_whole_by_its_name(
    run_dir: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = subject(run_dir, LEDGER, "picked", "dataset")
    card = dataset_card(about)
    push(fake_hub, about, card, "dataset")
    printed = "\n".join(run_code(card))
    assert "num_rows: 2" in printed
    assert "0+1=?" in printed


def sampling(run_dir: Path, ledger: Mapping[str, StageRecord]) -> str:
    card = model_card(subject(run_dir, ledger, "zero"))
    return card.partition("generate(**inputs, ")[2].partition(")\n")[0]


def test_the_model_s_own_sampling_comes_before_that_of_its_scores_and_the_paper_s(
    run_dir: Path,
) -> None:
    unscored = {**LEDGER, "zero": replace(LEDGER["zero"], scored_on={})}
    paper = "max_new_tokens=2048, do_sample=True, temperature=0.6, top_p=0.95"
    assert sampling(run_dir, unscored) == paper
    scored = "max_new_tokens=40, do_sample=True, temperature=1.0, top_p=1.0"
    assert sampling(run_dir, LEDGER) == scored
    config = run_dir / "zero" / "model" / "generation_config.json"
    config.write_text('{"temperature": 0.7, "top_p": 0.8}')
    assert sampling(run_dir, LEDGER).endswith("temperature=0.7, top_p=0.8")
    config.unlink()
    settings = {**LEDGER["zero"].scored_on, "temperature": 0.0}
    greedy = {**LEDGER, "zero": replace(LEDGER["zero"], scored_on=settings)}
    assert sampling(run_dir, greedy) == "max_new_tokens=40, do_sample=False"


def test_a_base_on_the_hub_is_named_with_its_revision(run_dir: Path, tiny_model_dir: Path) -> None:
    save_adapter(tiny_model_dir, run_dir / "zero" / "model")
    start = Input("model_name_or_path", "lab/base", "weights")
    recipe = {**LEDGER["zero"].recipe, "model_revision": "v2"}
    ledger = {**LEDGER, "zero": replace(LEDGER["zero"], inputs=(start,), recipe=recipe)}
    card = model_card(subject(run_dir, ledger, "zero"))
    assert '"lab/base", revision="v2"' in card
    assert hash_for("base", "model") not in card
