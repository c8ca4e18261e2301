"""The report: what it holds, that texts of models stay texts, and runs that are not whole."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from report_runs import HOSTILE, metrics, report, write_run

from trl_r1 import cli
from trl_r1.pipeline.ledger import Input, StageRecord, read_record
from trl_r1.reasoning_format import get_format
from trl_r1.report import plots, sample_cards, samples
from trl_r1.report.curves import thin
from trl_r1.report.lineage import BOX, draw_lineage
from trl_r1.report.page import collect
from trl_r1.report.reading import Run, Stage, read_run, read_runs, visible
from trl_r1.report.stage_table import interval, stage_roles, table_rows
from trl_r1.report.verdicts_explained import reward_weights

ROLES = {
    "base": "Base",
    "zero": "R1-Zero",
    "cold_start_data": "",
    "cold_start": "R1 Dev1: cold start",
    "reasoning_rl": "R1 Dev2: reasoning RL",
    "mixed_sft": "R1 Dev3: mixed SFT",
    "general_rl": "R1: RL for all scenarios",
    "distill": "Distilled student",
    "student_rl": "Student by RL alone (control)",
}


class Elements(HTMLParser):
    """The elements of a document with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.inside.append((self.found[-1][0], data))


def data_of(text: str) -> dict[str, Any]:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert block is not None
    found: dict[str, Any] = json.loads(block[1])
    return found


def test_a_report_shows_scores_curves_outcomes_lineage_alarms_and_samples(tmp_path: Path) -> None:
    text = report(write_run(tmp_path / "small"))
    for shown in ("R1-Zero", "0.750", "0.700 to 0.800", "kl runaway", "beta 0.01", "50.0%"):
        assert shown in text
    data = data_of(text)
    (run,) = data["runs"]
    panels = {panel["id"]: panel for panel in run["curves"]["zero"]["panels"]}
    assert {"accuracy", "length", "rewards", "kl", "entropy", "clip", "dead"} <= set(panels)
    assert panels["kl"]["series"][0]["y"][6] == 9.0
    assert [s["label"] for s in panels["rewards"]["series"]] == ["math_answer", "think_format"]
    assert {box["name"] for box in run["boxes"]} == {"base", "zero", "picked"}
    sources = [(s["kind"], s["shown"], s["total"]) for s in data["samples"]["sources"]]
    assert sources == [
        ("held-out, before the stage", 4, 4),
        ("held-out, after the stage", 4, 4),
        ("rollouts", 96, 96),
    ]


def test_several_runs_are_in_one_report_and_their_names_differ(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "a" / "same"), write_run(tmp_path / "b" / "same", steps=3)
    labels = [run["label"] for run in data_of(report(one, two, one))["runs"]]
    assert labels == ["a/same", "b/same", "a/same (2)"]


def test_the_page_asks_for_nothing_and_allows_only_its_own_script_and_style(tmp_path: Path) -> None:
    text = report(write_run(tmp_path / "small", text=HOSTILE))
    elements = Elements(text)
    assert {tag for tag, _ in elements.found} & {"link", "img", "iframe", "object", "base"} == set()
    for _, attributes in elements.found:
        assert not {"src", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = (a["content"] for t, a in elements.found if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    scripts = [part for tag, part in elements.inside if tag == "script"]
    styles = [part for tag, part in elements.inside if tag == "style"]
    assert (len(scripts), len(styles)) == (2, 1)
    for directive, part in (("script-src", scripts[1]), ("style-src", styles[0])):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "url(" not in styles[0].replace("url(#", "")
    assert "@import" not in styles[0]


def test_texts_of_models_stay_texts(tmp_path: Path) -> None:
    text = report(write_run(tmp_path / "small", text=HOSTILE))
    assert "alert(1)" in text
    assert "<img" not in text
    assert "<script>alert" not in text
    for sign in "\u2028\u2029\x00\x1b\u202e\u202c":
        assert sign not in text
    rows = data_of(text)["samples"]["rows"]
    shown = next(row for row in rows if row["r"] is not None)
    assert visible(HOSTILE) in shown["r"]
    assert "</script>" in shown["r"]
    assert "\u27e8U+202E\u27e9evil" in shown["r"]


def test_megabytes_of_hostile_text_take_little_room_and_stay_texts(tmp_path: Path) -> None:
    huge = HOSTILE * 10_000
    text = report(write_run(tmp_path / "small", steps=1, rows=4, text=huge))
    assert len(huge) > 1_000_000
    assert len(text) < 1_000_000
    assert "<img" not in text
    rows = data_of(text)["samples"]["rows"]
    assert len(rows) == 12
    parts = [part for row in rows for part in (row["r"] or "", row["a"], row["p"][0][1])]
    # What can't be seen is written out, eight characters for one.
    assert max(map(len, parts)) < 8 * sample_cards.MAX_TEXT
    assert sum("characters are left out here" in part for part in parts) >= 12


def test_names_in_the_ledger_are_escaped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    record = json.loads((run / "zero" / "stage.json").read_text())
    record["name"] = "<b onclick=alert(1)>\u202ezero"
    record["inputs"][0]["source"] = '"><script>alert(1)</script>'
    (run / "zero" / "stage.json").write_text(json.dumps(record))
    text = report(run)
    assert "<b onclick" not in text
    assert "<script>alert" not in text
    assert "\u202e" not in text


def test_a_long_text_loses_its_middle() -> None:
    text = sample_cards.shorten("a" * 600_000 + "b" * 400_000)
    assert len(text) < sample_cards.MAX_TEXT + 100
    assert "994,000 characters are left out here" in text
    assert text.endswith("b")


def test_a_large_run_gives_a_bounded_page_that_says_how_much_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "large", steps=2, rows=20)
    logs = "".join(json.dumps(metrics(step)) + "\n" for step in range(1, 2001))
    (run / "zero" / "metrics.jsonl").write_text(logs)
    table = pq.read_table(next((run / "zero" / "rollouts").glob("*.parquet")))
    for path in (run / "zero" / "rollouts").glob("*.parquet"):
        path.unlink()
    for path in (run / "zero" / "evaluation").iterdir():
        pq.write_table(pq.read_table(path).take(list(range(4)) * 100), path)
    many = table.take(list(range(20)) * 250)
    for step in range(20):
        pq.write_table(many, run / "zero" / "rollouts" / f"step-{step:07d}-0000-rank-000.parquet")
    text = report(run)
    assert len(text.encode()) < 20e6
    data = data_of(text)
    *scored, source = data["samples"]["sources"]
    assert source["total"] == 100_000
    assert len(data["samples"]["rows"]) <= samples.MAX_SAMPLES
    assert source["shown"] == samples.MAX_SAMPLES - sum(own["shown"] for own in scored)
    assert f"{source['shown']:,} of 100,000" in text
    assert f"{samples.MAX_SAMPLES:,} of 100,800 samples" in capsys.readouterr().out
    series = data["runs"][0]["curves"]["zero"]["panels"][5]["series"][0]
    assert (series["n"], max(series["y"]), series["x"][-1]) == (2000, 9.0, 2000)
    assert len(series["x"]) <= 400


def test_the_samples_are_cut_at_a_number_of_bytes_evenly(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", steps=40, text="<" * 2000)
    chosen = samples.choose_samples(read_runs([run]), max_bytes=400_000)
    steps = {row["t"] for row in chosen["rows"] if row["t"] is not None}
    assert len(json.dumps(chosen["rows"])) < 400_000
    assert len(chosen["rows"]) < 40
    assert min(steps) < 8
    assert max(steps) > 32


def test_rare_tasks_and_outcomes_are_among_the_samples(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", steps=1, rows=400)
    shutil.rmtree(run / "zero" / "evaluation")
    chosen = samples.choose_samples(read_runs([run]), max_samples=8)
    tasks = {chosen["texts"][row["k"]] for row in chosen["rows"]}
    assert tasks == {"sums", "rare"}
    assert {row["o"] for row in chosen["rows"]} == {"right", "wrong"}


def test_every_verdict_says_which_reward_gave_what_and_why(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", steps=1, rows=4)
    chosen = samples.choose_samples(read_runs([run]))
    texts = chosen["texts"]

    def said(row: dict[str, Any]) -> list[tuple[str, float, float, str]]:
        return [(texts[n], value, weight, texts[why]) for n, value, weight, _, why, _ in row["w"]]

    rows = {row["p"][0][1].strip(): row for row in chosen["rows"] if row["t"] is not None}
    assert said(rows["0+2=?"]) == [
        ("math_answer_reward", 1.0, 1.0, "the answer “2” agrees with the expected “2”"),
        ("think_format_reward", 1.0, 0.2, "the response is well-formed"),
    ]
    wrong = said(rows["0+1=?"])[0]
    assert wrong[3] == "the answer “-1” does not agree with the expected “1”"
    assert rows["0+1=?"]["o"] == "wrong"
    math, form = said(rows["0+3=?"])
    assert math[3].startswith("there is nothing to grade in the text: ")
    assert form[3].startswith("not well-formed: ")


def test_what_an_evaluation_says_of_a_sample_is_explained(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", steps=1, rows=4)
    chosen = samples.choose_samples(read_runs([run]))
    texts = chosen["texts"]
    rows = sorted((row for row in chosen["rows"] if row["s"] == 0), key=lambda row: row["a"])
    said = [[(texts[w[0]], w[1], w[2], texts[w[4]]) for w in row["w"]] for row in rows]
    language = ("language", 0.25, None, "share of the reasoning's words in the problem's language")
    assert [row["o"] for row in rows] == ["right", "not graded", "wrong", "wrong"]
    assert said[0] == [
        ("math_answer_reward", 1.0, None, "the answer “7” agrees with the expected “7”"),
        ("format", 1.0, None, "the response is well-formed"),
        language,
    ]
    why = "it could not be graded, which counts as wrong"
    assert said[1][0] == ("math_answer_reward", None, None, why)
    assert said[2] == [
        ("math_answer_reward", 0.0, None, "the answer “8” does not agree with the expected “7”"),
        ("format", 0.0, None, "not well-formed: no closed <think>"),
        language,
    ]
    assert said[3] == [
        ("grader", 0.5, None, "counts as wrong, as anything below 1 does"),
        ("preference", 0.75, None, "by the preference model; it says nothing of right or wrong"),
    ]


def test_a_source_s_samples_that_are_few_leave_their_room_to_others() -> None:
    assert samples._shares([4, 1000, 90], 300) == [4, 206, 90]
    assert samples._shares([500, 500, 500], 300) == [100, 100, 100]
    assert samples._shares([1, 2], 300) == [1, 2]
    assert samples._shares([], 300) == []


def test_figure_1_holds_the_held_out_scores_with_their_intervals(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    panels = data_of(report(run))["runs"][0]["curves"]["zero"]["panels"]
    accuracy, length = (panel["series"][-1] for panel in panels[:2])
    assert accuracy == {
        **{"label": "held-out", "x": [0, 12], "y": [0.25, 0.75], "n": 0},
        **{"low": [None, 0.7], "high": [None, 0.8]},
    }
    assert (length["x"], length["y"], length["low"]) == ([0, 12], [10, 20], [None, None])


def test_a_model_s_row_has_what_later_stages_scored_of_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    record = json.loads((run / "zero" / "stage.json").read_text())
    record["scores"]["before"].update({"preference": 0.4, "pass@1": 0.9})
    (run / "zero" / "stage.json").write_text(json.dumps(record))
    base, zero = table_rows(read_run(run, "small"))
    assert [cell["text"] for cell in base["cells"]] == ["0.250", "0.500", "10.0", "", "0.40"]
    assert [cell["text"] for cell in zero["cells"]] == ["0.750", "1.000", "20.0", "", ""]


def test_reasoning_is_told_from_the_answer_and_nothing_is_lost() -> None:
    fmt = get_format("zero_bare")
    prefilled = get_format("r1_prefilled")
    assert sample_cards.split_shown("<think>a\n</think><answer>2</answer>", fmt) == (
        "a",
        "<answer>2</answer>",
    )
    assert sample_cards.split_shown("only text", fmt) == (None, "only text")
    assert sample_cards.split_shown("<think>cut", fmt) == ("cut", "")
    assert sample_cards.split_shown("a</think>2", prefilled) == ("a", "2")
    reasoning, answer = sample_cards.split_shown("before <think>a</think>b", fmt)
    assert reasoning == "before <think>a"
    assert answer == "b"


def test_thinned_curves_keep_ends_lowest_and_highest() -> None:
    points = [(float(i), float(i % 7)) for i in range(5000)]
    points[1234], points[3210] = (1234.0, 99.0), (3210.0, -99.0)
    kept = thin(points, 100)
    assert len(kept) <= 100
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert {points[1234], points[3210]} <= set(kept)
    assert kept == sorted(kept)
    assert thin(points[:100], 100) == points[:100]


def test_steps_that_were_trained_again_replace_those_before(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    logs = [{"step": s, "reward": v} for s, v in ((1, 1), (2, 2), (3, 3), (2, 20), (3, 30))]
    text = "".join(json.dumps(log) + "\n" for log in logs)
    (run / "zero" / "metrics.jsonl").write_text(text)
    panel = data_of(report(run))["runs"][0]["curves"]["zero"]["panels"][0]
    assert panel["series"][0]["y"] == [1, 20, 30]


def test_stored_intervals_are_found_in_any_of_their_forms() -> None:
    for scores in (
        {"pass@1_interval": [0.1, 0.2]},
        {"pass@1_ci": {"low": 0.1, "high": 0.2}},
        {"intervals": {"pass@1": [0.1, 0.2]}},
        {"pass@1_low": 0.1, "pass@1_high": 0.2},
    ):
        assert interval(scores, "pass@1") == (0.1, 0.2)
    assert interval({"pass@1": 0.1}, "pass@1") is None


def whole_run(folder: Path) -> Run:
    """The stages of the recipe, as the ledger knows them."""

    def item(source: str, role: str = "weights", artifact: str = "model") -> Input:
        return Input("x", f"@{source}", role, f"{source}/{artifact}", source, artifact)

    flow: dict[str, tuple[str, list[Input]]] = {
        "base": ("tiny_base", []),
        "zero": ("grpo", [item("base")]),
        "cold_start_data": ("rejection_sampling", [item("zero")]),
        "cold_start": ("cold_start", [item("base"), item("cold_start_data", "data", "dataset")]),
        "reasoning_rl": ("grpo", [item("cold_start")]),
        "mixed_sft": ("mixed_sft", [item("base"), item("cold_start_data", "data", "dataset")]),
        "general_rl": ("grpo", [item("mixed_sft")]),
        "distill": ("distillation", [item("base", artifact="student")]),
        "student_rl": ("grpo", [item("base", artifact="student")]),
    }
    stages = [
        Stage(name, folder, StageRecord(name, kind, "finished", inputs=tuple(inputs)))
        for name, (kind, inputs) in flow.items()
    ]
    return Run("run", folder, "run", tuple(stages))


def test_stages_have_the_names_of_the_paper(tmp_path: Path) -> None:
    assert stage_roles(whole_run(tmp_path)) == ROLES


def test_models_that_stages_start_from_have_a_row_where_no_stage_scored_them(
    tmp_path: Path,
) -> None:
    run = read_run(write_run(tmp_path / "small"), "small")
    assert [row["role"] for row in table_rows(run)] == ["Base", "R1-Zero"]
    shutil.rmtree(run.folder / "base")
    rows = table_rows(read_run(run.folder, "small"))
    assert [row["role"] for row in rows] == ["Base, as it is", "R1-Zero"]
    assert rows[0]["cells"][0]["text"] == "0.250"


def test_boxes_of_the_lineage_do_not_overlap_and_every_input_has_a_line(tmp_path: Path) -> None:
    drawing = draw_lineage(whole_run(tmp_path))
    assert drawing is not None
    assert len(drawing["lines"]) == 10
    boxes = drawing["boxes"]
    assert all(0 <= box["x"] <= drawing["width"] - BOX for box in boxes)
    for i, one in enumerate(boxes):
        for two in boxes[i + 1 :]:
            assert one["y"] != two["y"] or abs(one["x"] - two["x"]) >= BOX


def test_weights_come_from_the_recipe() -> None:
    rewards = [{"use": "think_format", "weight": 0.2}, {"use": "my.py:brevity", "weight": 3}]
    record = StageRecord("zero", "grpo", "running", recipe={"rewards": rewards})
    found = reward_weights(record, ["brevity", "think_format_reward", "other"])
    assert found == {"brevity": 3.0, "think_format_reward": 0.2, "other": 1.0}


def test_the_report_lies_in_the_run_by_default_and_changes_no_stage(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small")
    before = read_record(run / "zero")
    assert cli.main(["report", str(run)]) == 0
    assert (run / "report.html").is_file()
    assert read_record(run / "zero") == before
    assert not list(run.glob(".*partial"))


def test_curves_are_drawn_as_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one, two = write_run(tmp_path / "one_$x^"), write_run(tmp_path / "_two")
    report(one, two, options=("--png", str(tmp_path / "png")))
    names = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert names == ["zero-curves.png", "zero-figure-1.png"]
    for path in (tmp_path / "png").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_panel_as_png_has_the_lines_bands_intervals_and_alarms_of_the_page(
    tmp_path: Path,
) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", steps=9)]
    shown = collect(read_runs(runs))["runs"]
    curves = [(run["label"], run["curves"]["zero"]) for run in shown]
    for place, ident in enumerate(("accuracy", "length", "kl")):
        axis = figure.add_subplot(1, 3, place + 1)
        plots._draw_panel(axis, curves, ident)
        drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]
        panels = [next(p for p in own["panels"] if p["id"] == ident) for _, own in curves]
        for series in (series for panel in panels for series in panel["series"]):
            assert (series["x"], series["y"]) in drawn
        assert ([5, 5], [0, 1]) in drawn  # the alarm at step 5
        bands = [path for path in axis.collections if path.get_alpha() == 0.15]
        assert len(bands) == (2 if ident == "length" else 0)
        ends = [s.get_segments() for s in axis.collections if hasattr(s, "get_segments")]
        if ident == "accuracy":
            whisker = [[round(float(y), 3) for _, y in own[1]] for own in ends]
            assert whisker == [[0.7, 0.8], [0.7, 0.8]]
        assert axis.get_ylabel() == panels[0]["unit"]
        assert axis.get_ylim()[0] == 0


def test_without_matplotlib_png_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    run = write_run(tmp_path / "small")
    assert cli.main(["report", str(run), "--png", str(tmp_path / "png")]) == 1
    assert "pip install 'trl-r1[report]'" in capsys.readouterr().out
    assert not (run / "report.html").exists()
