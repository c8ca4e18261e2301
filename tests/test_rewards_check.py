"""`trl-r1 rewards list` and `trl-r1 rewards check`: built-in rewards pass, faults are named."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trl_r1.cli import main
from trl_r1.verification.check_report import FAULT, CheckReport
from trl_r1.verification.loading import builtin_rewards
from trl_r1.verification.rewards_check import check_reward
from trl_r1.verification.rewards_table import list_rewards, print_report
from trl_r1.verification.trl_rewards import SUMMARIES

SCRIPTS = Path(__file__).parents[1] / "scripts"


def _check(tmp_path: Path, body: str, **settings: Any) -> CheckReport:
    file = tmp_path / "mine.py"
    file.write_text(f"import random, re, time\ndef mine(completions, {body}")
    return check_reward(f"{file}:mine", **settings)


def _faults(report: CheckReport) -> dict[str, str]:
    return {finding.check: finding.seen for finding in report.findings if finding.level == FAULT}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("math_answer", {}),
        ("think_format", {}),
        ("think_format", {"profile": "think_then_text"}),
        ("language_consistency", {"language": "en"}),
        ("overlong", {"max_length": 10, "soft_length": 4}),
    ],
)
def test_built_in_rewards_have_no_fault(name: str, args: dict[str, Any]) -> None:
    report = check_reward(name, args=args)
    assert _faults(report) == {}
    assert report.exit_status == 0
    assert len(report.findings) > 30


def test_a_grader_that_looks_for_the_gold_anywhere_is_gamed(tmp_path: Path) -> None:
    report = _check(
        tmp_path,
        "solution, **kwargs):\n"
        "    texts = [c if isinstance(c, str) else str(c[-1]['content']) for c in completions]\n"
        "    return [float(gold in text) for text, gold in zip(texts, solution)]\n",
    )
    faults = _faults(report)
    assert {"game: a list with the gold in it", "game: an equation that is false"} <= set(faults)
    assert "game: answer only inside the reasoning" in faults
    assert report.exit_status == 1


def test_a_lax_format_reward_is_gamed(tmp_path: Path) -> None:
    file = tmp_path / "lax.py"
    file.write_text(
        "def format_reward(completions, **kwargs):\n"
        "    texts = [c if isinstance(c, str) else str(c[-1]['content']) for c in completions]\n"
        "    return [float('<think>' in t and '<answer>' in t) for t in texts]\n"
    )
    faults = _faults(check_reward(f"{file}:format_reward"))
    assert {"game: empty reasoning", "game: nested reasoning", "game: two answers"} <= set(faults)


@pytest.mark.parametrize(
    ("body", "check", "message"),
    [
        ("**kwargs):\n    return [1.0]", "batch", "returned 1 rewards for 6 completions"),
        ("**kwargs):\n    return 1.0", "plain text", "returned a float"),
        ("**kwargs):\n    return [float('nan') for _ in completions]", "plain text", "nan"),
        ("**kwargs):\n    return ['1' for _ in completions]", "plain text", "returned '1'"),
        ("**kwargs):\n    return completions.lost", "plain text", "AttributeError"),
        (
            "**kwargs):\n    return [c * 0 + 1.0 if len(c) > 10**5 else 0.0 for c in completions]",
            "one million characters",
            "TypeError",
        ),
        (
            "**kwargs):\n"
            "    return [time.sleep(9 * ('9^{9^' in str(c))) or 0.0 for c in completions]",
            "tower of powers",
            "timed out after 1 s",
        ),
        (
            "**kwargs):\n    n = sum(map(len, map(str, completions)))\n"
            "    return [len(str(c)) / n for c in completions]",
            "rows alone",
            "needs = 'group' or 'batch'",
        ),
        (
            "**kwargs):\n    return [float(isinstance(c, str)) for c in completions]",
            "text and messages",
            "other rewards as messages",
        ),
    ],
)
def test_faults_are_named(tmp_path: Path, body: str, check: str, message: str) -> None:
    report = _check(tmp_path, body + "\n", timeout=1.0)
    assert message in _faults(report)[check]
    assert report.exit_status == 1


def test_a_reward_that_draws_at_random_is_noted_and_one_that_says_it_is_pure_is_at_fault(
    tmp_path: Path,
) -> None:
    body = "**kwargs):\n    return [random.random() for _ in completions]\n"
    levels = {f.check: f.level for f in _check(tmp_path, body).findings}
    assert levels["determinism"] == "note"
    assert "determinism" in _faults(_check(tmp_path, body + "mine.is_pure = True\n"))


def test_a_reward_for_messages_only_is_checked_with_messages(tmp_path: Path) -> None:
    report = _check(
        tmp_path, "**kwargs):\n    return [float(len(str(c[0]['content']))) for c in completions]\n"
    )
    levels = {finding.check: finding.level for finding in report.findings}
    assert levels["plain text"] == "note"
    assert levels["messages"] == levels["content is None"] == "ok"


def test_columns_we_have_no_value_for_are_asked_for(tmp_path: Path) -> None:
    body = "target, **kwargs):\n    return [t / 2 for t in target]\n"
    report = _check(tmp_path, body)
    assert report.exit_status == 0
    assert "it needs target; give rows with --data" in report.findings[-1].seen
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": "?", "completion": "x", "target": n} for n in range(10)]
    data.write_text("\n".join(map(json.dumps, rows)))
    seen = {finding.check: finding.seen for finding in _check(tmp_path, body, data=data).findings}
    assert seen["plain text"].startswith("10 rewards for 10 completions, 0 to 4.5, mean 2.25")
    data.write_text(json.dumps({"completion": "x"}))
    assert "no column target" in _faults(_check(tmp_path, body, data=data))["data"]


def test_a_reward_that_is_not_there_is_the_one_fault() -> None:
    report = check_reward("math_anser")
    assert list(_faults(report)) == ["loads"]
    out = io.StringIO()
    print_report(report, out)
    assert "did you mean 'math_answer'?" in " ".join(out.getvalue().split())
    assert out.getvalue().endswith("1 checks, 1 fault\n")


def test_the_list_has_every_built_in_reward_with_what_it_needs() -> None:
    out = io.StringIO()
    assert list_rewards(out) == 0
    lines = out.getvalue().splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert [name for name in names if ":" not in name] == builtin_rewards()
    assert [name for name in names if ":" in name] == [f"trl.rewards:{n}" for n in SUMMARIES]
    assert "needs: solution" in out.getvalue()
    assert "profile='answer_tags'" in out.getvalue()


def test_the_command_checks_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewards", "check", "think_format", "--args", "{profile: think_then_text}"]) == 0
    assert "no faults" in capsys.readouterr().out
    assert main(["rewards", "check", "think_format", "--args", "{profil: x}"]) == 1
    assert "did you mean 'profile'" in " ".join(capsys.readouterr().out.split())
    assert main(["rewards", "check", "think_format", "--args", "[x]"]) == 1
    assert main(["rewards", "check", "think_format", "--data", str(tmp_path / "none")]) == 1


def test_grade_counts_false_positives_and_negatives_of_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "labelled.jsonl"
    rows = [
        {"gold": "4", "pred": r"\boxed{4}", "label": True},
        {"gold": "4", "pred": r"\boxed{4}", "label": False},
        {"gold": "4", "pred": r"\boxed{5}", "label": True},
        {"gold": "4", "pred": "4", "label": True},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    command = [sys.executable, SCRIPTS / "grade.py", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4 rows: 1 false positives, 2 false negatives, agreement 0.2500" in done.stdout
    assert "false positive, line 2: '4' | " in done.stdout
    strict = subprocess.run(
        [*command, "--box", "--max_fn", "0"], capture_output=True, text=True, check=False
    )
    assert "1 false positives, 1 false negatives" in strict.stdout
    assert strict.returncode == 1
