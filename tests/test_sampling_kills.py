"""A sampling job that is killed twenty times ends with what an undisturbed one has."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import make_tiny_model
from sampling_kill_driver import NUM_KILLS, NUM_SAMPLES, NUM_SHARDS, SHARD_SIZE

HERE = Path(__file__).parent


def killed_job(engine: str, folder: Path, source: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "sampling_kill_driver.py"), engine, str(folder), source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["num_killed"] == NUM_KILLS, seen
    assert seen["statuses"] == [0, 0]
    assert 0 < seen["made_before"] < NUM_SHARDS
    return seen


def check_same_rows(folder: Path) -> None:
    killed, calm = (
        pq.read_table(folder / name / "samples").to_pylist() for name in ("killed", "calm")
    )
    places = [(row["prompt_index"], row["sample_index"]) for row in killed]
    assert places == [(p, n) for p in range(NUM_SHARDS * SHARD_SIZE) for n in range(NUM_SAMPLES)]
    assert killed == calm
    names = [{path.name for path in (folder / n / "samples").iterdir()} for n in ("killed", "calm")]
    assert names[0] == names[1]


def check_no_shard_twice_but_in_flight(seen: dict[str, Any]) -> None:
    assert NUM_SHARDS <= seen["num_calls"] <= NUM_SHARDS + NUM_KILLS


def test_kills_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    check_no_shard_twice_but_in_flight(killed_job("seeded", tmp_path, "-"))
    check_same_rows(tmp_path)


def test_a_kill_at_any_step_in_the_file_system_leaves_what_ends_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "sampling_kill_driver.py"), "STEPS", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    num_steps = json.loads(done.stdout.splitlines()[-1])["num_steps"]
    assert num_steps > 20
    for part in ("samples", "dataset"):
        calm = pq.read_table(tmp_path / "calm" / part).to_pylist()
        assert calm
        for step in range(num_steps):
            found = tmp_path / f"killed-{step}"
            assert pq.read_table(found / part).to_pylist() == calm, step
            assert {path.name for path in found.iterdir()} <= {
                "samples", "dataset", ".assembling.lock"
            }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "continuous"])
def test_kills_lose_and_duplicate_nothing_with_transformers(
    tmp_path: Path, tiny_model_dir: Path, engine: str
) -> None:
    seen = killed_job(engine, tmp_path, str(tiny_model_dir))
    check_no_shard_twice_but_in_flight(seen)
    check_same_rows(tmp_path)


@pytest.mark.vllm
def test_kills_lose_and_duplicate_nothing_with_vllm(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    # Its kernels want attention heads of 64.
    model = make_tiny_model(tmp_path / "model", hidden_size=128)
    seen = killed_job("vllm", tmp_path, str(model))
    check_no_shard_twice_but_in_flight(seen)
    check_same_rows(tmp_path)


@pytest.fixture
def fake_server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(HERE / "fake_server.py"), str(port), "--seconds", "0.003"]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{url}/count", timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
    yield url
    server.kill()
    server.wait()


def test_kills_lose_nothing_and_pay_for_nothing_twice_with_servers(
    tmp_path: Path, fake_server: str
) -> None:
    killed_job("server", tmp_path, f"{fake_server}/v1")
    check_same_rows(tmp_path)
    with urllib.request.urlopen(f"{fake_server}/count") as answer:
        counts = json.load(answer)
    num_samples = NUM_SHARDS * SHARD_SIZE * NUM_SAMPLES
    assert len(counts) == num_samples
    # Once for each of the two jobs, and for what was on its way at a kill: two requests at most.
    assert sum(counts.values()) <= 2 * num_samples + 2 * NUM_KILLS


def test_kills_while_a_judge_is_asked_lose_no_verdict_and_pay_for_none_twice(
    tmp_path: Path, fake_server: str
) -> None:
    killed_job("judge", tmp_path, f"{fake_server}/v1")
    check_same_rows(tmp_path)
    verdicts = pq.read_table(tmp_path / "killed" / "samples")["reward_judge"].to_pylist()
    assert set(verdicts) == {0.0, 1.0}
    with urllib.request.urlopen(f"{fake_server}/count") as answer:
        counts = json.load(answer)
    num_samples = NUM_SHARDS * SHARD_SIZE * NUM_SAMPLES
    assert len(counts) == num_samples
    # As above: what was on its way at a kill is all that is asked again.
    assert 2 * num_samples <= sum(counts.values()) <= 2 * num_samples + 2 * NUM_KILLS
    assert not list(tmp_path.glob("**/.answers*"))
