"""The command: quick to answer, finds shipped pipelines, copies them, speaks plainly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_stages

from trl_r1.cli import main
from trl_r1.pipeline.configs import has_accelerator
from trl_r1.pipeline.execution import find_launch
from trl_r1.pipeline.mistakes import PipelineError

RECIPES = Path(__file__).parents[1] / "recipes"
SHIPPED = sorted(path.parent.name for path in RECIPES.glob("*/pipeline.yaml"))


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from trl_r1.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'yaml', 'rich', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("run", "check", "copy", "table", "rewards"):
        assert f"    {command} " in done.stdout


def test_two_pipelines_are_shipped() -> None:
    assert {"smollm2-135m-cpu", "tiny-cpu"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_pipeline_has_no_mistake(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # What scripts/get_smollm2 makes, as far as a check looks at it.
    for model in ("smollm2-135m-instruct", "smollm2-135m-instruct-24-layers"):
        (tmp_path / "models" / model).mkdir(parents=True)
        (tmp_path / "models" / model / "config.json").write_text("{}")
    status = main(["check", name])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0, lines
    assert lines[-1].startswith(f"ok: {name}, ")


def test_a_shipped_pipeline_is_copied_once_and_named_after_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["copy", "tiny-cpu", "mine"]) == 0
    source = RECIPES / "tiny-cpu"
    names = sorted(path.name for path in source.glob("*.yaml"))
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == names
    for name in names:
        text = (source / name).read_text().replace("name: tiny-cpu\n", "name: mine\n")
        assert (tmp_path / "mine" / name).read_text() == text
    assert "name: mine\n" in (tmp_path / "mine" / "pipeline.yaml").read_text()
    (tmp_path / "mine" / "pipeline.yaml").write_text("name: mine\n")
    assert main(["copy", "recipes/tiny-cpu", "mine"]) == 1
    assert "mine exists already" in capsys.readouterr().out
    assert (tmp_path / "mine" / "pipeline.yaml").read_text() == "name: mine\n"
    assert main(["copy", "tiny-gpu", "other"]) == 1
    assert "tiny-gpu: no such folder" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "nowhere"]) == 1
    assert capsys.readouterr().out.startswith("trl-r1: nowhere: no such folder; shipped are ")
    (tmp_path / "empty").mkdir()
    assert main(["run", "empty"]) == 1
    assert "empty: has no stage files (01_name.yaml)" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_all_mistakes_of_all_files_come_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_stages.register(monkeypatch.setitem)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text("sed: 1\ndefaults: {gian: 1.0}\n")
    (folder / "01_base.yaml").write_text("stage: toy_base\nnum_steps: many\n")
    (folder / "02_zero.yaml").write_text(
        'stage: toy_rl\nmodel_name_or_path: "@bse"\ngain: 1e-6\n'
        "datasets: [{task: digit_sum}]\nrewards: [{use: math_anwser}]\n"
    )
    (folder / "zero.yml").write_text("")
    assert main(["check", "r"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "8 mistakes; nothing was run"
    for file in ("pipeline.yaml", "01_base.yaml", "02_zero.yaml", "zero.yml"):
        assert any(line.startswith(f"r/{file}: ") for line in lines), file


def test_what_can_not_be_reached_is_a_note_and_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "01_zero.yaml").write_text(
        "stage: grpo\nmodel_name_or_path: nobody/no-model-of-this-name\n"
        "datasets: [{dataset_name: nobody/no-data-of-this-name}]\nrewards: [{use: math_answer}]\n"
    )
    assert main(["check", "r"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert all(note.endswith("not checked: Hub not reachable") for note in notes)


def test_the_built_in_rewards_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewards", "list"]) == 0
    out = capsys.readouterr().out
    for path in (RECIPES.parent / "rewards").glob("[a-z]*.py"):
        assert path.stem in out


def test_trl_s_accelerate_configs_are_known_by_name(tmp_path: Path) -> None:
    launch = find_launch("zero2")
    assert (launch.config.name, launch.on_cpu) == ("zero2.yaml", False)
    assert find_launch("multi_gpu").processes == 8
    (tmp_path / "two.yaml").write_text("num_processes: 2\nuse_cpu: true\n")
    assert find_launch(str(tmp_path / "two.yaml")).on_cpu
    (tmp_path / "bad.yaml").write_text("num_processes: [\n")
    with pytest.raises(PipelineError, match="not an accelerate config"):
        find_launch(str(tmp_path / "bad.yaml"))


def test_presets_are_configs_that_accelerate_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    options = {action.dest for action in launch_command_parser()._actions}
    for name in ("ddp", "fsdp2", "zero2", "zero3"):
        launch = find_launch(name, num_processes=4)
        assert launch.config.parent.parent.name == "recipes", name
        assert launch.processes == 4
        config = load_config_from_file(str(launch.config))
        given = {**config.fsdp_config, **config.deepspeed_config}
        assert not set(given) - options, name
    # Without cards, processes of `ddp` run on the CPU; shares of weights need cards.
    assert (find_launch("ddp", 2).on_cpu, find_launch("zero3", 2).on_cpu) == (
        not has_accelerator(),
        False,
    )


@pytest.mark.slow
def test_a_stage_runs_in_the_processes_of_an_accelerate_config(
    tiny_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "01_cold_start.yaml").write_text(
        f"stage: cold_start\nmodel_name_or_path: {tiny_model_dir}\n"
        "reasoning_format: zero_bare\ndatasets: [{task: small_talk, num_rows: 16}]\n"
        "max_steps: 2\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 1\n"
    )
    status = main(["run", "r", "--accelerate_config", "ddp", "--num_processes", "2"])
    assert status == 0, capsys.readouterr().out
    stage = tmp_path / "runs" / "r" / "cold_start"
    assert (stage / "model" / "config.json").exists()
    last = json.loads((stage / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["epoch"] == pytest.approx(2 * 2 * 2 / 16), "two processes share the rows"


def test_the_command_works_without_standard_streams_and_in_a_plain_locale(tmp_path: Path) -> None:
    recipes = tmp_path / "naïve → recipes"
    recipes.mkdir()
    shell = f"'{sys.executable}' -m trl_r1 check '{recipes}'"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for redirection in ("", "<&- >&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{shell} {redirection}"], env=plain, capture_output=True, check=False
        )
        assert done.returncode == 1
        assert b"Traceback" not in done.stdout + done.stderr
    assert b"has no stage files" not in done.stdout


def test_a_table_with_arrows_prints_in_a_plain_locale(tmp_path: Path) -> None:
    from trl_r1.pipeline.ledger import StageRecord, write_record

    (tmp_path / "zero").mkdir()
    scores = {"before": {"pass@1": 0.25}, "after": {"pass@1": 0.75}}
    write_record(tmp_path / "zero", StageRecord("zero", "grpo", "finished", scores=scores))
    plain = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "trl_r1", "table", str(tmp_path)]
    out = subprocess.run(command, env=plain, capture_output=True, check=True).stdout
    assert b"0.250 ? 0.750" in out
