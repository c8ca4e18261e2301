"""What the README says to type works, and what it shows is there."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import trl_r1
from trl_r1 import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.M | re.S)
COMMANDS = [
    line.split("#")[0].strip()
    for language, text in BLOCKS
    if not language
    for line in text.splitlines()
    if line.startswith(("bash ", "trl-r1 "))
]


def block(language: str, marker: str) -> str:
    (found,) = [text for name, text in BLOCKS if name == language and marker in text]
    return found


def test_the_two_commands_are_the_first_thing_to_type() -> None:
    assert COMMANDS[:2] == ["bash scripts/demo", "bash scripts/check"]


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c.startswith("bash ")}))
def test_scripts_that_the_readme_names_exist_and_parse(command: str) -> None:
    script = ROOT / shlex.split(command)[1]
    first_line = script.read_text(encoding="utf-8").splitlines()[0]
    assert first_line == "#!/usr/bin/env bash"
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c.startswith("trl-r1 ")}))
def test_commands_of_the_readme_are_understood(command: str) -> None:
    options = cli._parser().parse_args(shlex.split(command)[1:])
    assert callable(options.run)


def test_the_stage_file_and_the_reward_of_the_readme_pass_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["copy", "tiny-cpu", "my-recipes"]) == 0
    (tmp_path / "my-recipes" / "02_zero.yaml").write_text(block("yaml", "stage: grpo"))
    (tmp_path / "my-recipes" / "my_reward.py").write_text(block("python", "# my_reward.py"))
    status = cli.main(["check", "my-recipes"])
    assert status == 0, capsys.readouterr().out


def test_further_keys_of_a_stage_and_the_task_file_pass_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["copy", "tiny-cpu", "mine"]) == 0
    keys = block("yaml", "reference_replacement_steps").replace("8200", "20")
    task = "  - {task: my_exam.yaml, num_rows: 1}\n"
    stage = block("yaml", "stage: grpo").replace("datasets:\n", "datasets:\n" + task)
    stage = "".join(line for line in stage.splitlines(True) if "my_reward" not in line)
    (tmp_path / "mine" / "02_zero.yaml").write_text(stage + keys)
    (tmp_path / "mine" / "my_exam.yaml").write_text(block("yaml", "name: my_exam"))
    rows = '{"passage": "Two and two.", "question": "Sum?", "answer": "4"}\n'
    (tmp_path / "mine" / "exam.jsonl").write_text(rows)
    status = cli.main(["check", "mine"])
    assert status == 0, capsys.readouterr().out


def test_the_reward_of_the_readme_falls_with_length() -> None:
    names: dict[str, object] = {}
    exec(compile(block("python", "# my_reward.py"), "my_reward.py", "exec"), names)
    reward = names["brevity_reward"]
    assert callable(reward)
    ids = [[], [1] * 128, [1] * 256, [1] * 999]
    assert reward(completions=[""] * 4, completion_ids=ids, prompts=[""] * 4) == [1, 0.5, 0, 0]


def test_python_blocks_import_what_exists() -> None:
    imports = [
        node
        for language, text in BLOCKS
        if language == "python"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
    ]
    assert len(imports) >= 4
    for node in imports:
        exec(compile(ast.Module([node], []), "README.md", "exec"), {})


def test_every_trainer_that_the_readme_names_is_exported() -> None:
    named = set(re.findall(r"`(\w+(?:Trainer|Sampler))`", README))
    ours = {name for name in named if not hasattr(__import__("trl"), name)}
    assert len(ours) >= 4
    for name in ours:
        assert getattr(trl_r1, name).__name__ == name


def test_the_map_lists_what_is_there() -> None:
    lines = block("", "trl_r1/\n  cli.py").splitlines()
    listed: set[str] = set()
    parent = ""
    for line in filter(None, lines):
        name = line.split()[0]
        if not line.startswith(" "):
            parent = name
        path = name if not line.startswith(" ") else parent + name
        assert (ROOT / path).exists(), f"the README lists {path}"
        listed.add(path.rstrip("/"))
    modules = {
        f"trl_r1/{path.name}"
        for path in (ROOT / "trl_r1").iterdir()
        if path.name[0] not in "_." and path.suffix in ("", ".py")
    }
    assert modules <= listed, "the README's map misses a file"


def test_links_lead_to_files() -> None:
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", README) if not t.startswith("http")]
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), f"the README links to {target}"
