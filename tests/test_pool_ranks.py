"""A pool in each rank of `accelerate`, and the word said where there can be none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trl_r1.verification.pool import RewardPool, container_cores, default_num_workers

FILE = Path(__file__).with_name("pool_rewards.py")

_RANK = """
import os, sys
import torch.distributed as dist
from trl_r1.verification.pooled_reward import pooled, shared_pool

dist.init_process_group("gloo")
rank = dist.get_rank()
reward = pooled({file!r} + ":length", timeout=600)
for step in range(5):
    texts = ["x" * (10 * rank + n) for n in range(8)]
    rewards = reward(texts)
    assert rewards == [float(len(text)) for text in texts], rewards
    # As TRL does: rewards of all ranks together, after each batch.
    everywhere = [None, None]
    dist.all_gather_object(everywhere, (rewards, shared_pool().worker_pids))
workers = [set(pids) for _, pids in everywhere]
assert not workers[0] & workers[1]
assert everywhere[1 - rank][0] == [float(10 * (1 - rank) + n) for n in range(8)]
alone = {alone}
assert shared_pool().num_workers == max(1, alone // 2), alone
if rank == 1:
    reward(["<exit>"], log_metric=lambda *_: None)  # a death in one rank is no death in the other
assert reward(["abc"]) == [3.0]
dist.barrier()
print("rank", rank, "is done", flush=True)
"""


def test_two_gloo_ranks_have_a_pool_each_and_divide_the_cores(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(_RANK.format(file=str(FILE), alone=default_num_workers()))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script],
            env={**os.environ, **shared, "RANK": n, "LOCAL_RANK": n, "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in ("0", "1")
    ]
    ended = [rank.communicate(timeout=120) for rank in ranks]
    for number, (out, errors) in enumerate(ended):
        assert out == f"rank {number} is done\n", errors


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({}, float("inf")),
        ({"cpu.max": "what is this"}, float("inf")),
    ],
)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, files: dict[str, str], cores: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert container_cores(tmp_path) == cores


def test_a_system_without_posix_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ValueError, match="needs Linux or macOS; call the reward without a pool"):
        RewardPool(1)
