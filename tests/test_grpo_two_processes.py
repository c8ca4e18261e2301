"""GRPO runs in two processes, over gloo on one CPU, and resumes there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

_SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, {tests!r})
from conftest import Killed, stage_context

import torch.distributed as dist

from trl_r1.stages import RewardSpec, grpo

out, model, rows, reward, stop_at = sys.argv[1:]
context = stage_context(
    Path(out), grpo, Path(model), [{{"dataset_name": rows}}], {{}}, (RewardSpec(reward),),
    stop_at=int(stop_at) or None, per_device_train_batch_size=4, num_generations=8,
    max_completion_length=4, max_steps=3, save_steps=1, learning_rate=1e-2, beta=0.1,
)
assert context.configs[-1].world_size == 2, "the launcher made one process of two"
try:
    grpo.run(context)
except Killed:
    import os
    os._exit(9)
assert dist.get_world_size() == 2
dist.destroy_process_group()
"""


def _launch(tmp_path: Path, port: int, *arguments: Any) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(tests=str(Path(__file__).parent)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += [f"--master_port={port}", str(script), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_two_processes_train_share_their_groups_and_resume(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    common = (tiny_model_dir, rows_file, even_reward)
    whole = _launch(tmp_path, 29611, tmp_path / "whole", *common, 0)
    assert whole.returncode == 0, whole.stderr[-3000:]
    cut = _launch(tmp_path, 29612, tmp_path / "cut", *common, 2)
    assert cut.returncode != 0
    again = _launch(tmp_path, 29613, tmp_path / "cut", *common, 0)
    assert again.returncode == 0, again.stderr[-3000:]
    left, right = (load_file(tmp_path / n / "model/model.safetensors") for n in ("whole", "cut"))
    assert all((left[name] == right[name]).all() for name in left)
    names = sorted(path.name for path in (tmp_path / "whole/rollouts").iterdir())
    ranks = [
        f"step-{step:07d}-0000-rank-{rank:03d}.parquet" for step in range(3) for rank in (0, 1)
    ]
    assert names == ranks
    groups = _rollouts(tmp_path / "whole/rollouts")
    assert len(groups) == 3 * 8
    for step in range(3):  # a group of eight straddles the two processes
        group = [row for row in groups if row["step"] == step]
        assert len({json.dumps(row["prompt"]) for row in group}) == 1
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-4)
    steps = [json.loads(line)["step"] for line in (tmp_path / "cut/metrics.jsonl").open()]
    assert steps == [1, 2, 3, 3], "one log a step, by one process, and the summary"


def _rollouts(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]
