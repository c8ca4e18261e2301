"""The ledger: what is written survives a kill, and lineage tells weights from data."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trl_r1.pipeline.hashing import FileHashes, hash_data
from trl_r1.pipeline.ledger import (
    Input,
    StageFolder,
    StageRecord,
    data_ancestors,
    read_record,
    weight_ancestors,
    write_record,
    write_text,
)
from trl_r1.pipeline.lock import RunLock
from trl_r1.pipeline.mistakes import PipelineError


def put(folder: Path, status: str, value: str) -> None:
    """A stage's result with one artifact."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "value").write_text(value)
    write_record(folder, StageRecord(folder.name, "grpo", status, details={"value": value}))


def add(run_dir: Path, name: str, weights: str | None = None, data: tuple[str, ...] = (),
        rewards: tuple[str, ...] = ()) -> None:  # fmt: skip
    """A finished stage with these inputs."""
    (run_dir / name).mkdir(parents=True)
    roles = [("weights", weights)] if weights else []
    roles += [("data", stage) for stage in data] + [("reward", stage) for stage in rewards]
    inputs = tuple(Input("key", f"@{stage}", role, "h", stage, "model") for role, stage in roles)
    write_record(run_dir / name, StageRecord(name, "any", "finished", inputs=inputs))


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = StageRecord(
        name="zero",
        stage="grpo",
        status="finished",
        inputs=(Input("model_name_or_path", "@base", "weights", "h", "base", "model", "f"),),
        recipe={"beta": 0.001},
        seed=3,
        versions={"trl": "1.16.0"},
        scores={"before": {"pass@1": 0.3}, "after": {"pass@1": 0.8}},
        seconds=1.5,
        artifacts={"model": {"hash": "h", "kind": "model"}},
        fingerprint={"stage": "f", "scores": "s"},
        details={"steps": 4},
    )
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


def test_a_record_that_is_not_ours_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text('{"name": "zero"}')
    with pytest.raises(PipelineError, match=r"move the folder .* away"):
        read_record(tmp_path)


def test_a_file_keeps_its_old_text_when_writing_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stage.json"
    write_text(path, "old")

    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"


@pytest.mark.parametrize("kill_at", range(5))
def test_a_promotion_killed_at_any_operation_is_finished_by_the_next_settle(
    kill_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "zero", "finished", "old")
    put(tmp_path / ".zero.next", "finished", "new")
    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == kill_at:
                raise KeyboardInterrupt
            count += 1
            return operation(*args, **kwargs)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            StageFolder(tmp_path, "zero").settle()
            was_killed = False
        except KeyboardInterrupt:
            was_killed = True
    assert was_killed == (kill_at < 3), "settle makes three changes here"
    folder = StageFolder(tmp_path, "zero")
    folder.settle()
    folder.settle()
    record = folder.finished()
    assert record is not None
    assert record.details["value"] == "new"
    assert (folder.place / "model" / "value").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["zero"]


def test_an_unfinished_successor_leaves_the_finished_result_in_its_place(tmp_path: Path) -> None:
    put(tmp_path / "zero", "finished", "old")
    put(tmp_path / ".zero.next", "trained", "new")
    folder = StageFolder(tmp_path, "zero")
    folder.settle()
    assert (folder.place / "model" / "value").read_text() == "old"
    unfinished = folder.unfinished()
    assert unfinished is not None
    assert unfinished.details["value"] == "new"


def test_starting_afresh_drops_the_attempt_and_never_the_finished_result(tmp_path: Path) -> None:
    put(tmp_path / "zero", "finished", "old")
    put(tmp_path / ".zero.next", "running", "new")
    folder = StageFolder(tmp_path, "zero")
    folder.start_afresh()
    assert list(folder.work_dir().iterdir()) == []
    assert (folder.place / "model" / "value").read_text() == "old"


def test_weights_and_data_are_told_apart_over_the_whole_recipe(tmp_path: Path) -> None:
    add(tmp_path, "base")
    add(tmp_path, "zero", "base")
    add(tmp_path, "cold_data", "zero")
    add(tmp_path, "cold_start", "base", data=("cold_data",))
    add(tmp_path, "reasoning_rl", "cold_start")
    add(tmp_path, "reasoning_data", "reasoning_rl")
    add(tmp_path, "mixed_sft", "base", data=("reasoning_data",))
    add(tmp_path, "preference", "mixed_sft")
    add(tmp_path, "general_rl", "mixed_sft", rewards=("preference",))
    assert weight_ancestors(tmp_path, "base") == set()
    assert weight_ancestors(tmp_path, "reasoning_rl") == {"cold_start", "base"}
    assert weight_ancestors(tmp_path, "general_rl") == {"mixed_sft", "base"}
    # R1-Zero reaches R1 as data only.
    assert "zero" not in weight_ancestors(tmp_path, "general_rl")
    assert data_ancestors(tmp_path, "cold_start") == {"cold_data", "zero", "base"}
    assert data_ancestors(tmp_path, "reasoning_rl") == {"cold_data", "zero", "base"}
    assert {"zero", "reasoning_data", "preference"} <= data_ancestors(tmp_path, "general_rl")
    assert data_ancestors(tmp_path, "zero") == set()
    with pytest.raises(KeyError):
        weight_ancestors(tmp_path, "nobody")


def test_a_hash_follows_content_and_names_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("1\n")
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "x.pyc").write_text("x")
    hashes = FileHashes()
    assert hashes.path(tmp_path / "a") == hashes.path(tmp_path / "b")
    (tmp_path / "b" / "rows.jsonl").write_text("22\n")
    assert hashes.path(tmp_path / "a") != hashes.path(tmp_path / "b")
    assert hash_data({"a": 1, "b": 2}) == hash_data({"b": 2, "a": 1}) != hash_data({"a": 2, "b": 1})


HOLDER = """
import sys, time
from pathlib import Path
from trl_r1.pipeline.lock import RunLock
import os
with RunLock(Path(sys.argv[1])):
    if sys.argv[2] == "child" and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("leaves", ["nothing", "child"])
def test_a_lock_stops_a_second_run_and_dies_with_its_process(leaves: str, tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock), leaves],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(PipelineError, match=rf"in use by another run \(process {holder.pid}\)"):
            RunLock(lock).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        # A child that it forked may live on; the lock must not.
        with RunLock(lock):
            assert lock.read_text() == str(os.getpid())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        if holder.stdout is not None:
            holder.stdout.close()
