"""The launch examples: what they start on each machine, with doubles of srun and ssh."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

from trl_r1.cli import _parser

SCRIPTS = Path(__file__).parents[1] / "scripts"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "c.yaml",
          "--num_processes", "4", "-m", "trl_r1", "run-stage"]  # fmt: skip

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def doubles(tmp_path: Path) -> Path:
    """A folder for PATH: programs that note what they are started with, and what they are fed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    notes = tmp_path / "notes"
    notes.mkdir()
    for name, output in (("ssh", ""), ("trl-r1", ""), ("scontrol", "one\\ntwo")):
        program = folder / name
        program.write_text(
            "#!/bin/bash\n"
            f'note="{notes}/{name}-$$"\n'
            'for part in "$@"; do printf "%s\\n" "$part" >>"$note"; done\n'
            + ('cat >"$note.fed"; exit "${SSH_STATUS:-0}"\n' if name == "ssh" else "")
            + (f'printf "{output}\\n"\n' if output else "")
        )
        program.chmod(0o755)
    return folder


def started(doubles: Path, name: str) -> list[list[str]]:
    notes = sorted((doubles.parent / "notes").glob(f"{name}-*[0-9]"))
    return sorted(note.read_text().splitlines() for note in notes)


def run(doubles: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{doubles}:{os.environ['PATH']}", **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def placed(arguments: list[str]) -> tuple[int, int, str, list[str]]:
    """Rank, machines and head that accelerate reads, and what it is to start."""
    assert arguments[:3] == LAUNCH[:3]
    read = launch_command_parser().parse_args(arguments[3:])
    head = f"{read.main_process_ip}:{read.main_process_port}"
    return read.machine_rank, read.num_machines, head, [read.training_script]


def test_over_ssh_every_machine_gets_its_place_and_the_job_by_standard_input(
    doubles: Path,
) -> None:
    done = run(
        doubles, "bash", str(SCRIPTS / "launch_node"), *LAUNCH,
        R1_HOSTS="one two", TRL_R1_JOB='{"a": "secret \'quoted\'"}', R1_PORT="1234",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = {}
    for arguments in started(doubles, "ssh"):
        host, command = arguments[2], arguments[3]
        assert "secret" not in command
        seen[host] = placed(shlex.split(command.partition("&& exec ")[2]))
    assert seen == {
        "one": (0, 2, "one:1234", ["trl_r1"]),
        "two": (1, 2, "one:1234", ["trl_r1"]),
    }
    fed = [path.read_text() for path in (doubles.parent / "notes").glob("ssh-*.fed")]
    assert fed == ['{"a": "secret \'quoted\'"}'] * 2


def test_a_machine_that_fails_fails_the_stage(doubles: Path) -> None:
    done = run(
        doubles, "bash", str(SCRIPTS / "launch_node"), *LAUNCH,
        R1_HOSTS="one two", TRL_R1_JOB="{}", SSH_STATUS="3",
    )  # fmt: skip
    assert done.returncode == 3


def test_under_slurm_a_node_takes_its_place_from_slurm(doubles: Path, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python-double"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    done = run(
        doubles, "bash", str(SCRIPTS / "launch_node"), str(python), *LAUNCH[1:],
        SLURM_NODEID="1", SLURM_NNODES="2", R1_HEAD="one",
    )  # fmt: skip
    arguments = [sys.executable, *done.stdout.splitlines()]
    assert placed(arguments) == (1, 2, "one:29500", ["trl_r1"])


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("launch_ssh", {"R1_HOSTS": "one two", "R1_CARDS": "2"}),
        (
            "launch_slurm",
            {
                "SLURM_SUBMIT_DIR": str(SCRIPTS.parent),
                "SLURM_JOB_NODELIST": "x",
                "SLURM_NNODES": "2",
                "SLURM_GPUS_ON_NODE": "2",
            },
        ),
    ],
)
def test_the_examples_start_a_command_that_there_is(
    script: str, environment: dict[str, str], doubles: Path, tmp_path: Path
) -> None:
    # A copy, so that an environment beside the scripts does not hide the double of `trl-r1`.
    copy = tmp_path / "clone" / "scripts"
    shutil.copytree(SCRIPTS, copy)
    if "SLURM_SUBMIT_DIR" in environment:
        environment = {**environment, "SLURM_SUBMIT_DIR": str(copy.parent)}
    done = run(doubles, "bash", str(copy / script), "my-recipes", "--from", "zero", **environment)
    assert done.returncode == 0, done.stderr
    (arguments,) = started(doubles, "trl-r1")
    read = _parser().parse_args(arguments)
    assert (read.accelerate_config, read.num_processes, read.first) == ("fsdp2", 4, "zero")
    assert read.launcher.endswith("bash scripts/launch_node")


def test_all_scripts_are_sound_bash() -> None:
    for path in SCRIPTS.iterdir():
        if path.is_file() and path.read_text(errors="replace").startswith("#!/usr/bin/env bash"):
            subprocess.run(["bash", "-n", str(path)], check=True)
