"""Hostile text on cards: it shows as text, and nothing private is published with it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_runs import all_links, small_run, subject, write_folders
from huggingface_hub import DatasetCard, ModelCard
from markdown_it import MarkdownIt

from trl_r1.data.card import DataLog, card_text
from trl_r1.hub.card_text import code, drawn, inline, public
from trl_r1.hub.cards import dataset_card, model_card, run_card
from trl_r1.pipeline.ledger import Input, StageRecord

HOSTILE = (
    '</summary></details><script>alert(1)</script><img src=x onerror="alert(2)"> | a | b |\n'
    "---\nlicense: stolen\n---\n# A heading\n\n```\n~~~\n````mermaid\nend\n```\n"
    "[a](javascript:alert(3)) ![i](https://evil.example/x.png) https://evil.example\n"
    "www.evil.example\n"
    "| x | y |\n|---|---|\n> q\n- l\n1. n\n\t*b* __u__ `c` \\` $$x$$ &lt;b&gt; {{ 7*7 }} ${x}\r\n"
    "\u202eltr\u202c \u200b\u2028\u2029 \x00\x1b[31m ]]> <!-- -->\" 'q' : # %%{init: {}}%%"
)
HTML = "html_block", "html_inline"


@pytest.fixture
def hostile_run(tmp_path: Path) -> tuple[Path, dict[str, StageRecord]]:
    """A run with hostile text wherever a person, a file name or a data set may have put it."""
    ledger = {}
    for name, record in small_run().items():
        recipe = {**record.recipe, "run_name": HOSTILE, HOSTILE: [HOSTILE], "preset": HOSTILE}
        recipe["long"] = "/a/b-" * 20_000
        sources = [{**source, "split": HOSTILE} for source in recipe.get("datasets", ())]
        recipe["datasets"] = [*sources, {"dataset_name": HOSTILE, "task": HOSTILE}]
        recipe["rewards"] = [{"use": HOSTILE, "tasks": [HOSTILE], "args": {HOSTILE: HOSTILE}}]
        outside = (Input(HOSTILE, HOSTILE, "data"), Input("x", HOSTILE, "reward", HOSTILE))
        scored_on = dict(record.scored_on)
        if scored_on:
            scored_on["datasets"] = [{"task": HOSTILE, "split": HOSTILE}]
        details = {**record.details, "alarms": {HOSTILE: HOSTILE}, "steps": HOSTILE}
        if "rejected" in details:
            details["rejected"] = {HOSTILE: HOSTILE, "wrong": 3}
        ledger[name] = replace(
            record,
            inputs=(*record.inputs, *outside),
            recipe=recipe,
            details=details,
            versions={HOSTILE: HOSTILE, "trl-r1": HOSTILE},
            scored_on=scored_on,
        )
    write_folders(tmp_path / "small", ledger)
    rows = [{"prompt": [{"role": "user", "content": HOSTILE}], "completion": HOSTILE * 30,
             HOSTILE.replace("\n", " "): HOSTILE}]  # fmt: skip
    folder = tmp_path / "small" / "picked" / "dataset"
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    log = DataLog()
    with log.step(HOSTILE, 1, {HOSTILE: HOSTILE}) as step:
        step.text = HOSTILE
    (folder / "README.md").write_text(card_text(HOSTILE, log, {}), encoding="utf-8")
    (tmp_path / "small" / "zero" / "evaluation").mkdir()
    kept = [{"prompt": [{"role": "user", "content": HOSTILE}], "is_general": False}]
    path = tmp_path / "small" / "zero" / "evaluation" / "after.parquet"
    pq.write_table(pa.Table.from_pylist(kept), path)
    return tmp_path / "small", ledger


def pages(run: tuple[Path, dict[str, StageRecord]]) -> dict[str, str]:
    """Every card of a run."""
    run_dir, ledger = run
    links, made = all_links(ledger), {}
    for record in ledger.values():
        for name, artifact in record.artifacts.items():
            make = dataset_card if artifact["kind"] == "dataset" else model_card
            about = subject(run_dir, ledger, record.name, name, links, run=HOSTILE,
                            description=HOSTILE)  # fmt: skip
            made[f"{record.name}/{name}"] = make(about)
    made["run"] = run_card(HOSTILE, HOSTILE, ledger, links, HOSTILE, "me/small")
    return made


def parsed(text: str) -> list[Any]:
    """The tokens of a card's text, those inside of paragraphs and cells among them."""
    _, _, body = text.removeprefix("---\n").partition("\n---\n")
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def test_the_header_stays_whole_and_says_nothing_that_the_text_put_there(
    hostile_run: tuple[Path, dict[str, StageRecord]],
) -> None:
    for place, text in pages(hostile_run).items():
        card = (ModelCard if "model" in place else DatasetCard)(text)
        assert card.data.get("license") in ("apache-2.0", None), place
        assert text.removeprefix("---\n").partition("\n---\n")[0].find("\nlicense: stolen") < 0
        assert "\n# " in card.text


def test_no_html_but_our_folds_reaches_the_page(
    hostile_run: tuple[Path, dict[str, StageRecord]],
) -> None:
    ours = re.compile(r"<details>\n<summary>[A-Za-z ]+</summary>\n|</details>\n")
    seen = 0
    for place, text in pages(hostile_run).items():
        for token in parsed(text):
            if token.type in HTML:
                assert ours.fullmatch(token.content), (place, token.content)
                seen += 1
    assert seen >= 20, "each card of an artifact has a fold"


def test_no_link_or_image_but_ours_reaches_the_page(
    hostile_run: tuple[Path, dict[str, StageRecord]],
) -> None:
    seen = 0
    for place, text in pages(hostile_run).items():
        for token in parsed(text):
            assert token.type != "image", place
            if token.type == "link_open":
                seen += 1
                assert re.match(r"https://(huggingface\.co/|arxiv\.org/abs/)", token.attrs["href"])
            if token.type == "inline":
                # GitHub's Markdown makes links of bare addresses, too.
                bare = re.sub(r"`[^`]*`|\]\([^)]*\)", "", token.content)
                assert "://" not in bare, place
                assert "www." not in bare, place
    assert seen > 10


def test_headings_and_cells_are_those_of_a_harmless_run(
    hostile_run: tuple[Path, dict[str, StageRecord]], tmp_path: Path
) -> None:
    for place, text in pages(hostile_run).items():
        tokens = parsed(text)
        headings = [
            tokens[i + 1].content
            for i, token in enumerate(tokens)
            if token.type == "heading_open" and token.tag == "h2"
        ]
        assert set(headings) <= {
            "Use", "Scores", "How it was made", "Lineage", "Licence", "Limits", "The whole run",
            "Columns", "A row", "What was kept", "Steps", "Stages", "Models and data",
            "Get it back",
        }, place  # fmt: skip
        assert sum(token.type == "heading_open" and token.tag == "h1" for token in tokens) == 1
        # A row of another width than its heading is a cell that was broken open.
        for block in re.findall(r"(?:^\|.*\|\n)+", text.partition("\n---\n")[2], flags=re.M):
            lines = block.splitlines()
            if set(lines[1]) <= set("| -"):
                assert {line.count("|") for line in lines} == {lines[1].count("|")}, place


def test_a_drawing_holds_no_character_that_mermaid_reads(
    hostile_run: tuple[Path, dict[str, StageRecord]],
) -> None:
    line = re.compile(
        r'  \w+\(?\["[\w\s.,:/+()#;…-]*(?:<br/>[\w\s.,:/+()#;…-]*)?"\]\)?'
        r"|  \w+ (?:==>|-->|-\.->)\|[a-z]+\| \w+|  style \w+ stroke-width:3px|flowchart TD"
    )
    for place, text in pages(hostile_run).items():
        (drawing,) = [t.content for t in parsed(text) if t.type == "fence" and t.info == "mermaid"]
        for part in drawing.strip().splitlines():
            assert line.fullmatch(part), (place, part)


def test_nothing_invisible_and_nothing_endless_is_on_a_card(
    hostile_run: tuple[Path, dict[str, StageRecord]],
) -> None:
    for place, text in pages(hostile_run).items():
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029\u200b\x00\x1b\r]", text), (
            place
        )
        assert len(text) < 80_000, place


SECRET = "hf_" + "Ab3" * 12
PRIVATE = (
    f"/home/alice/projects/secret/rows.jsonl and ~/keys/a.pem and C:\\Users\\alice\\x.txt and "
    f"file:///home/alice/y.txt with {SECRET} at http://alice:{SECRET}@host.example/v1?token=abcdef "
    "and http://10.1.2.3:8000/v1 and http://node17:8000/v1"
)


def test_no_token_path_or_private_server_reaches_a_card(tmp_path: Path) -> None:
    ledger = {
        name: replace(
            record,
            recipe={**record.recipe, "note": PRIVATE, "logging_dir": "/home/alice/logs/tb",
                    "servers": ["http://node17:8000/v1"], "hub_token": SECRET},
            inputs=(*record.inputs, Input("x", "/home/alice/data/mine.jsonl", "data", "ab" * 16)),
            details={**record.details, "steps": PRIVATE},
        )
        for name, record in small_run().items()
    }  # fmt: skip
    write_folders(tmp_path / "small", ledger)
    rows = [{"prompt": PRIVATE, "completion": SECRET}]
    path = tmp_path / "small" / "picked" / "dataset" / "train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    for place, text in pages((tmp_path / "small", ledger)).items():
        for word in ("alice", SECRET, "abcdef", "10.1.2.3", "node17", str(tmp_path), "/keys/"):
            assert word not in text, (place, word)
        if place != "run":
            assert "rows.jsonl" in text, "the name of a file may be told"
            assert "mine.jsonl" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/home/alice/models/x", "x"),
        ("/home/alice", "~"),
        ("../../other/rows.jsonl", "rows.jsonl"),
        ("~alice/x/y", "y"),
        ("C:\\Users\\alice\\model", "model"),
        ("\\\\server\\share\\model", "model"),
        ("see /data/alice/x.py:reward", "see x.py:reward"),
        ("http://localhost:8000/v1", "(a server)"),
        ("sqlite:////home/alice/runs.db", "runs.db"),
        ("https://me:pw@api.example.org/v1", "https://(left out)"),
        ("s3://key:pw@bucket/x", "s3://(left out)"),
        (
            "https://a.example/x?Signature=abc123&y=1",
            "https://a.example/x?Signature=(left out)&y=1",
        ),
        ("https://[::1]:8000/v1", "(a server)"),
        # What only looks like one.
        ("openai/gsm8k", "openai/gsm8k"),
        ("https://huggingface.co/a/b", "https://huggingface.co/a/b"),
        ("<think>a</think> <answer>1/2/3</answer>", "<think>a</think> <answer>1/2/3</answer>"),
        ("f:\\mathbb{R}\\to\\mathbb{R}", "f:\\mathbb{R}\\to\\mathbb{R}"),
        ("about ~5/3 of it", "about ~5/3 of it"),
        ("km/h and m/s", "km/h and m/s"),
    ],
)
def test_public_keeps_what_is_no_place_of_this_machine(text: str, told: str) -> None:
    assert public(text) == told


@pytest.mark.parametrize(
    "part", ["a.", "ey-", "/", "/a", "~a", "\\", "hf_", "://", "C:\\", "-", " /"]
)
def test_a_text_of_a_megabyte_is_looked_through_at_once(part: str) -> None:
    # Of what takes its square in time this would be hours.
    assert public("x " + part * (1_000_000 // len(part))) is not None


def test_names_stay_readable_where_they_are_harmless() -> None:
    assert inline("cold_start 0.1.0, 1e-6") == "cold_start 0.1.0, 1e-6"
    assert code("@zero/rollouts") == "`@zero/rollouts`"
    assert code("a`b") == "a&#96;b"
    assert drawn('say "end" [x]') == "say #34;end#34; #91;x#93;"
