"""Recipes that are more than mistaken: each ends in clear lines, never in a traceback or a wait."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from test_broken_recipes import DATA, GOOD, PIPE, REWARDS, ZERO, Changes, write_recipes

from trl_r1.cli import main

ROWS = "  - {task: digit_sums, num_rows: 32}"


def check(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: Changes, *options: str
) -> list[str]:
    """What `trl-r1 check` says of the good pipeline with changes, without the folder's name."""
    write_recipes(folder / "x", changes)
    status = main(["check", "x", *options])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert status == ("nothing was run" in out), out
    return [line.removeprefix("x/") for line in out.splitlines()]


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    return "\n".join(lines) + "\n"


YAML = [
    ("anchor_in_itself", GOOD[ZERO] + "lr_scheduler_kwargs: &a {x: *a}\n", "an anchor (&name) hol"),
    ("anchors_that_explode", bomb(7) + GOOD[ZERO], "holds 1"),
    ("ten_thousand_brackets", "stage: " + "[" * 10_000, "nested too deeply; 40"),
    ("fifty_brackets", GOOD[ZERO] + f"dtype: {'[' * 50 + ']' * 50}", "nested too deeply; 40"),
    ("no_such_day", GOOD[ZERO] + "beta: 2024-13-45\n", "not YAML in line 14: '2024-"),
    ("a_million_digits", GOOD[ZERO] + f"beta: {'9' * 5000}\n", "not YAML in line 14: '9999"),
    ("tag_that_lies", GOOD[ZERO] + '"beta": !!int "x"\n', "not YAML in line 14: 'x' can't be read"),
    ("tabs", GOOD[ZERO].replace("  - {use: math", "\t- {use: math"), "not YAML in line 7: found"),
    ("reference_without_quotes", GOOD[ZERO].replace("./model", "@base"), "not YAML in line 3: "
     "found character '@' that cannot start any token; a reference stands in quotes: \"@name\""),
    ("list_for_the_stage", GOOD[ZERO].replace("stage: grpo", "stage: [grpo]"), "unknown stage"),
    ("nothing_in_it", "", "stage is missing"),
    ("too_large", GOOD[ZERO] + "#" * (1 << 21), "is larger than 1 MiB; is it a recipe?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), [c[1:] for c in YAML], ids=[c[0] for c in YAML])
def test_a_file_that_can_not_be_read_is_one_mistake_and_no_cascade(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(tmp_path, capsys, {ZERO: text})
    assert len(lines) == 2, "what refers to the stage is not blamed for it"
    assert lines[0].startswith(f"01_zero.yaml: {line}"), lines


@pytest.mark.parametrize("name", [ZERO, PIPE])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipes(tmp_path / "x", {})
    (tmp_path / "x" / name).unlink()
    os.mkfifo(tmp_path / "x" / name)
    assert main(["check", "x"]) == 1
    assert capsys.readouterr().out.startswith(f"x/{name}: is not a file\n")


def test_anchors_and_merge_keys_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ROWS.replace("- ", "- &rows ") + "\n  - {<<: *rows, seed: 3}"
    assert check(tmp_path, capsys, {ZERO: (ROWS, rows)})[0].startswith("ok: ")


def test_keys_of_pipeline_yaml_may_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, capsys, {PIPE: "evaluation:\ndefaults:\n"})[0].startswith("ok: ")


NUMBERS = [
    ("per_device_train_batch_size", "-16", "at least 1"),
    ("gradient_accumulation_steps", "0", "at least 1"),
    ("generation_batch_size", "0", "at least 1"),
    ("num_generations", "null", "at least 2"),
    ("learning_rate", "-1.0", "at least 0"),
    ("learning_rate", ".nan", "a number"),
    ("learning_rate", ".inf", "at least 0"),
    ("max_steps", "0", "at least 1 or -1"),
    ("num_train_epochs", "0", "over 0"),
    ("top_p", "5", "over 0 and at most 1"),
    ("seed", "-1", "at least 0 and at most 4294967295"),
    ("temperature", "0", "over 0"),
    ("dtype", "float17", "one of 'auto'"),
]


@pytest.mark.parametrize(("key", "value", "words"), NUMBERS)
def test_numbers_that_nobody_can_mean_are_mistakes(
    key: str, value: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = f"zero.{key}={value}"
    lines = check(tmp_path, capsys, {}, "--set", option)
    assert len(lines) == 2, lines
    assert lines[0].startswith(f"--set {option}: {key} should be {words}"), lines


def test_a_seed_that_numpy_can_not_take_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(tmp_path, capsys, {}, "--seed", "-1")
    assert lines[0] == "--seed: should be at least 0 and at most 4294967295, not -1"


SETTINGS = [
    ("loss_type: gpro", "unknown loss_type 'gpro'; did you mean 'grpo'?"),
    ("report_to: wandbb", "unknown report_to 'wandbb'; did you mean 'wandb'?"),
    ("eval_strategy: steps", "eval_strategy: a stage has no rows to evaluate on"),
    ("load_in_4bit: true", "load_in_4bit: such weights can't be trained themselves; set use_peft"),
]


@pytest.mark.parametrize(("setting", "words"), SETTINGS)
def test_what_a_trainer_would_refuse_later_is_refused_by_the_check(
    setting: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(tmp_path, capsys, {ZERO: GOOD[ZERO] + f"{setting}\n"})
    assert lines[0].startswith(f"01_zero.yaml: {words}"), lines


NAMES = ["~nobody_of_that_name/x", "x" * 5000, "a\\0b", "naïve/模型", " "]


@pytest.mark.parametrize("name", NAMES, ids=["home", "long", "nul", "unicode", "blank"])
def test_a_model_that_can_be_no_path_and_no_id_is_a_mistake(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(tmp_path, capsys, {ZERO: ("./model", f'"{name}"')})
    assert lines[0].startswith("01_zero.yaml: model_name_or_path: "), lines
    assert len(lines[0]) < 200


FILES = [
    ("sys_exit", "import sys\nsys.exit(0)", "m.py:2: SystemExit: 0"),
    ("base_exception", "class X(BaseException): pass\nraise X('no')", "m.py:2: X: no"),
    ("asks", "input('sure?')", "m.py:1: "),
]


@pytest.mark.parametrize(("text", "words"), [c[1:] for c in FILES], ids=[c[0] for c in FILES])
def test_a_reward_file_that_ends_the_process_or_asks_is_a_mistake(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(tmp_path, capsys, {ZERO: (REWARDS, "rewards: [{use: m.py:f}]\n"), "m.py": text})
    assert words in lines[0], lines


ARGUMENTS = [
    ("{use: language_consistency, args: {language: 7}}", "language should be text or a list"),
    ("{use: overlong, args: {max_length: a, soft_length: 2}}", "max_length should be a whole num"),
    ("{use: preference_model, args: {model: ./nowhere}}", "model: ./nowhere does not exist"),
    ("{use: math_answer, weight: .nan}", "weight should be a number, not nan"),
    ("{use: math_answer, args: {extraction: lose}}", "extraction"),
]


@pytest.mark.parametrize(("entry", "words"), ARGUMENTS)
def test_arguments_of_rewards_are_checked(
    entry: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(tmp_path, capsys, {ZERO: (REWARDS, f"rewards: [{entry}]\n")})
    assert words in lines[0], lines
    assert len(lines) == 2, lines


ROW = {"prompt": "1+1=?", "solution": "2"}
DATASETS = [
    ("number", json.dumps({**ROW, "prompt": 3}), "'prompt' can't be used, first row 0: it is '3'"),
    ("blank", json.dumps({**ROW, "prompt": " "}), "first row 0: it is empty"),
    ("no_messages", json.dumps({**ROW, "prompt": []}), "it has no messages"),
    ("odd_message", json.dumps({**ROW, "prompt": [{"rol": "user"}]}), "is no message like"),
    ("silent", json.dumps({**ROW, "prompt": [{"role": "user", "content": None}]}), "is missing"),
    ("gold_list", json.dumps({**ROW, "solution": ["2"]}), "it is a list, not text or a number"),
    ("reserved", json.dumps({**ROW, "completions": "x"}), "has a column 'completions'"),
    ("empty", "", "rows2.jsonl is empty"),
    ("blank_lines", "\n\n", "rows2.jsonl is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [c[1:] for c in DATASETS], ids=[c[0] for c in DATASETS])
def test_rows_that_only_seem_to_fit_are_mistakes(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "  - {dataset_name: rows2.jsonl}"
    lines = check(tmp_path, capsys, {ZERO: (ROWS, rows), "rows2.jsonl": text})
    assert words in lines[0], lines
    assert len(lines) == 2, lines


def test_a_reference_on_the_command_line_needs_no_quotes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "data.model_name_or_path=@zeroo"
    lines = check(tmp_path, capsys, {DATA: ("@zero", "nowhere/x")}, "--set", option)
    assert "@zeroo: no stage 'zeroo'; did you mean 'zero'?" in lines[0]


@pytest.mark.parametrize("option", ["zero.stage=cold_start", "zero.datasets.².num_rows=1"])
def test_options_that_can_not_be_applied_are_mistakes(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, capsys, {}, "--set", option)[0].startswith(f"--set {option}: ")


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_found_by_the_check(
    tracker: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trl_r1.pipeline.check_settings.find_spec", lambda name: None)
    lines = check(tmp_path, capsys, {ZERO: GOOD[ZERO] + f"report_to: {tracker}\n"})
    assert f"report_to: {tracker} is not installed; pip install {tracker}" in lines[0]
