"""`trl-r1 rewards check` finds the hole of every gameable reward, and none in ours."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from trl_r1.cli import main
from trl_r1.verification import check_cases, check_programs
from trl_r1.verification.check_report import FAULT, CheckReport
from trl_r1.verification.rewards_check import check_reward
from trl_r1.verification.rewards_table import print_report
from trl_r1.verification.sandbox import Sandbox, SandboxUnavailableError

FILE = Path(__file__).with_name("gameable_rewards.py")


def _faults(report: CheckReport) -> set[str]:
    return {finding.check for finding in report.findings if finding.level == FAULT}


@pytest.mark.parametrize(
    ("name", "games"),
    [
        ("absolute_tolerance", {"a tiny number for zero", "a tiny number for another"}),
        ("evaluates", {"an expression for its value", "code"}),
        ("any_box", {"many boxes, the gold not last", "answer only inside the reasoning"}),
        (
            "first_number",
            {
                *("gold cut at a sign", "gold cut at a comma", "gold cut in a fraction"),
                *("more than the gold", "another unit"),
            },
        ),
        ("last_number", {"an equation that is false", "a chain of equations", "plus or minus"}),
        (
            "lax_format",
            {
                *("empty reasoning", "nested reasoning", "two closers", "answer inside reasoning"),
                *("two answers", "junk after the answer", "other case", "swapped"),
            },
        ),
        ("judge_of_length", {"gibberish", "repetition"}),
        ("language_of_the_answer", {"another language", "two languages mixed"}),
        ("repetition_of_words", {"one sentence", "two sentences in turn"}),
        (
            "same_process",
            {
                *("a result that equals everything", "a number that equals everything"),
                *("sys.exit(0)", "sys.exit(0) when called", "walks frames to the expected output"),
            },
        ),
        (
            "exit_status",
            {
                *("success tokens, then os._exit(0)", "os._exit(0) when called", "sys.exit(0)"),
                "a result that equals everything",
            },
        ),
        ("success_token", {"success tokens, then os._exit(0)", "success tokens and nothing else"}),
        ("starts_alike", {"the first expected line only", "prints nothing"}),
    ],
)
def test_each_hole_is_found_and_the_game_named(name: str, games: set[str]) -> None:
    report = check_reward(f"{FILE}:{name}")
    assert {f"game: {game}" for game in games} <= _faults(report)
    assert "games" in _faults(report)
    assert report.exit_status == 1


def test_a_pattern_that_backtracks_is_a_fault() -> None:
    report = check_reward(f"{FILE}:slow_format", timeout=1.0)
    assert "a regex that backtracks" in _faults(report)
    assert report.exit_status == 1


@pytest.mark.parametrize("name", ["any_box", "lax_format"])
def test_the_command_ends_with_1_and_its_table_fits_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["rewards", "check", f"{FILE}:{name}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert any("FAULT" in line and "game:" in line for line in lines)
    assert lines[-1].endswith("faults")


def test_a_grader_that_runs_programs_where_they_can_do_no_harm_is_not_gamed() -> None:
    try:
        Sandbox(1).close()
    except SandboxUnavailableError as error:
        pytest.skip(f"this kernel can't isolate: {error}")
    report = check_reward("code_tests")
    assert _faults(report) == set()
    games = [finding.seen for finding in report.findings if finding.check == "games"]
    num_asserts, num_outputs = (len(task.games) for task in check_programs.TASKS)
    assert f"{num_asserts} of {num_asserts} get less than 1" in games[0]
    assert f"{num_outputs} of {num_outputs} get less than 1" in games[1]


@pytest.mark.parametrize(
    ("name", "args"),
    [("choice", {}), ("language_consistency", {"language": "en"})],
)
def test_the_games_of_a_kind_are_played_and_lost_against_ours(
    name: str, args: dict[str, Any]
) -> None:
    report = check_reward(name, args=args)
    assert report.exit_status == 0
    assert [finding.level for finding in report.findings if finding.check == "games"] == ["ok"]


def test_a_judge_that_prefers_good_answers_passes(tmp_path: Path) -> None:
    file = tmp_path / "judge.py"
    file.write_text(
        "def judge(completions, **kwargs):\n"
        '    """Words of the subject, each once."""\n'
        "    texts = [c if isinstance(c, str) else str(c[-1]['content']) for c in completions]\n"
        "    return [len({'scattered', 'waves', 'blue'} & set(t.split())) / 3 for t in texts]\n"
    )
    report = check_reward(f"{file}:judge")
    assert _faults(report) == set()
    assert report.findings[-1].seen == f"judge: {len(check_cases.JUDGE_GAMES)} of " + (
        f"{len(check_cases.JUDGE_GAMES)} get less than 1"
    )


def test_games_of_one_kind_are_all_different() -> None:
    answers = [(game.gold, game.answer or game.completion) for game in check_cases.ANSWER_GAMES]
    assert len(set(answers)) == len(answers)
    for task in check_programs.TASKS:
        programs = [*task.games.values(), task.right, task.wrong]
        assert len(set(programs)) == len(programs)
        for program in programs:
            if "assert" not in program:
                compile(program, "<game>", "exec")


def test_gold_answers_that_can_not_be_graded_are_listed_and_counted(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    golds = ["4", "", r"\boxed{5", "12", "one long text " * 300, "7"]
    data.write_text("\n".join(json.dumps({"prompt": "?", "solution": gold}) for gold in golds))
    report = check_reward("math_answer", data=data)
    seen = {finding.check: finding for finding in report.findings}
    assert seen["gold answers"].level == "note"
    text = seen["gold answers"].seen
    assert text.startswith("3 of 6 can't be graded: row 2 '' (because it is empty), row 3 ")
    assert "boxed{5'" in text
    assert "row 5 'one long text" in text
    assert seen["golds as answers"].level == "ok"
    assert report.exit_status == 0
    data.write_text(json.dumps({"solution": ""}) + "\n" + json.dumps({"solution": None}))
    assert "gold answers" in _faults(check_reward("math_answer", data=data))


def test_gold_answers_that_the_reward_itself_denies_are_listed(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    golds = ["4", "7", "1 200"]
    data.write_text("\n".join(json.dumps({"solution": gold}) for gold in golds))
    report = check_reward(f"{FILE}:last_number", data=data)
    seen = {finding.check: finding.seen for finding in report.findings}
    assert seen["gold answers"] == "3 rows, all of them can be graded"
    assert seen["golds as answers"].startswith("1 of 3 do not count as right in a box: row 3")


def test_a_reward_that_grades_no_row_of_ours_asks_for_rows(tmp_path: Path) -> None:
    file = tmp_path / "picky.py"
    file.write_text("def picky(completions, **kwargs): return [None for _ in completions]\n")
    report = check_reward(f"{file}:picky")
    seen = {finding.check: finding for finding in report.findings}
    assert seen["plain text"].level == "note"
    assert "None: 100%: little can be said of it; give rows with --data" in seen["plain text"].seen


def test_a_trial_that_breaks_a_reward_of_groups_costs_no_other_trial(tmp_path: Path) -> None:
    file = tmp_path / "groups.py"
    file.write_text(
        "def groups(completions, **kwargs):\n"
        '    """By group."""\n'
        "    texts = [c if isinstance(c, str) else str(c[-1]['content']) for c in completions]\n"
        "    return [1.0 / (len(text) != 10**6) for text in texts]\n"
        "groups.needs = 'group'\n"
    )
    assert _faults(check_reward(f"{file}:groups")) == {"one million characters"}


def test_long_names_and_long_words_stay_within_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = CheckReport("x.py:f")
    report.add("game: " + "a very long name of a game " * 3, FAULT, "word " * 60 + "x" * 200)
    report.add("short", "ok", "")
    out = io.StringIO()
    print_report(report, out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "2 checks, 1 fault"
