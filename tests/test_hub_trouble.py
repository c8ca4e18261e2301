"""A Hub that refuses, breaks off or is away: what is said, and the next push makes it whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub
from push_runs import REPOS, tree, write_run

from trl_r1.cli import main

# By name: the fault, and what the one line has to say.
REFUSALS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "token_not_valid": (
        {"method": "POST", "path_regex": "/api/repos/create", "status": 401},
        ["pushing me/small-base", "hf auth whoami"],
    ),
    "no_right_to_write": (
        {"method": "POST", "path_regex": "/api/repos/create", "status": 403},
        ["pushing me/small-base", "may not write there", "--org"],
    ),
    "changed_by_another": (
        {"method": "POST", "path_regex": "small-zero/commit", "status": 409},
        ["pushing me/small-zero", "somebody else changed it", "same command again"],
    ),
    "moved_head": (
        {"method": "POST", "path_regex": "small-zero/commit", "status": 412},
        ["pushing me/small-zero", "somebody else changed it"],
    ),
    "too_many_requests": (
        {"method": "POST", "path_regex": "small-zero/commit", "status": 429, "retry_after": 77},
        ["pushing me/small-zero", "too many requests", "in 77 seconds"],
    ),
    "hub_has_trouble": (
        {"method": "POST", "path_regex": "small-zero/commit", "status": 500},
        ["pushing me/small-zero", "the Hub has trouble", "goes on where it was"],
    ),
    "no_space_left_for_the_account": (
        {"method": "POST", "path_regex": "small-zero/preupload", "status": 413},
        ["pushing me/small-zero", "status 413"],
    ),
    "collection_refused": (
        {"method": "POST", "path_regex": "/api/collections", "status": 403},
        ["collection", "may not write there"],
    ),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path)


def push(run: Path) -> int:
    return main(["push", str(run), "--org", "me"])


def assert_whole(hub: FakeHub, run: Path) -> None:
    """Every repository holds what the run holds."""
    assert set(hub.site.store.repos) == REPOS
    for stage, repo in (("base", "me/small-base"), ("zero", "me/small-zero")):
        files = hub.files(repo)
        for name, content in tree(run / stage / "model").items():
            assert files[name] == content
    data = {"small-zero-rollouts": "zero/rollouts", "small-picked": "picked/dataset"}
    for repo, place in data.items():
        rows = {n: c for n, c in tree(run / place).items() if n.endswith(".parquet")}
        assert rows
        assert rows.items() <= hub.files(f"me/{repo}", "dataset").items()
    (collection,) = hub.api.list_collections(owner="me")
    assert len(hub.api.get_collection(collection.slug).items) == len(REPOS)


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line_with_the_next_step_and_costs_nothing(
    fake_hub: FakeHub, run: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    settings, words = REFUSALS[case]
    before = tree(run)
    fault = fake_hub.fail(times=None, **settings)
    assert push(run) == 1
    said = capsys.readouterr()
    line = said.out.splitlines()[-1]
    assert line.startswith("trl-r1: ")
    assert [word for word in words if word not in line] == []
    assert fake_hub.token not in said.out + said.err
    assert tree(run) == before
    fault.times = 0
    assert push(run) == 0
    assert_whole(fake_hub, run)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "POST", "path_regex": "small-zero/commit"},
        {"method": "PUT", "origin": "storage", "request_bytes": 500},
        {"method": "POST", "path_regex": "small-zero/commit", "response_bytes": 0},
    ],
    ids=["before_the_commit", "in_a_large_file", "answer_lost"],
)
def test_a_dropped_connection_is_taken_up_by_the_next_push(
    fake_hub: FakeHub,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any],
) -> None:
    fault = fake_hub.drop(times=None, reset=True, **settings)
    assert push(run) == 1
    assert "no answer from http" in capsys.readouterr().out.splitlines()[-1]
    fault.times = 0
    assert push(run) == 0
    assert_whole(fake_hub, run)


def test_no_token_and_a_hub_that_is_off_are_told(
    fake_hub: FakeHub,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", str(run)]) == 1
    assert "hf auth login" in capsys.readouterr().out
    monkeypatch.setenv("HF_TOKEN", fake_hub.token)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert push(run) == 1
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().out
    assert not fake_hub.requests


# Moments of a push: which request is held while the process is killed. `skip` of those before it.
MOMENTS: dict[str, dict[str, Any]] = {
    "repository_made": {"method": "POST", "path_regex": "/api/repos/create", "response_bytes": 0},
    "files_announced": {"method": "POST", "path_regex": "small-base/preupload"},
    "large_file_half_sent": {"method": "PUT", "origin": "storage", "request_bytes": 300},
    "large_file_sent": {"method": "PUT", "origin": "storage", "response_bytes": 0},
    "before_the_first_commit": {"method": "POST", "path_regex": "small-base/commit"},
    "after_the_first_commit": {
        "method": "POST", "path_regex": "small-base/commit", "response_bytes": 0,
    },
    "in_the_rollouts": {"method": "POST", "path_regex": "small-zero-rollouts/preupload"},
    "before_the_report": {"method": "POST", "path_regex": "small-report/commit"},
    "collection_made": {"method": "POST", "path_regex": "/api/collections$", "response_bytes": 0},
    "in_the_collection": {"method": "POST", "path_regex": "/items", "skip": 2},
}  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_push_killed_at_any_moment_is_made_whole_by_the_next(
    fake_hub: FakeHub, run: Path, moment: str
) -> None:
    before = tree(run)
    held = fake_hub.stall(**MOMENTS[moment])
    command = [sys.executable, "-m", "trl_r1", "push", str(run), "--org", "me"]
    process = subprocess.Popen(
        command, env=fake_hub.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        held.wait(timeout=120)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        held.release()
    assert tree(run) == before
    sent = dict(fake_hub.uploaded)
    assert push(run) == 0
    assert_whole(fake_hub, run)
    for kind, name in REPOS:
        commits = len(fake_hub.commits(name, kind))
        assert commits == 2, f"{name} was committed {commits - 1} times"
    again = [oid for oid, count in fake_hub.uploaded.items() if oid in sent and count > sent[oid]]
    assert not [oid for oid in again if len(oid) == 64], "large files that had arrived, sent again"
