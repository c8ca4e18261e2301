"""A stage's rewards run where, and within what limits, its grading settings say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import stage_context

from trl_r1.stages import RewardSpec, StageContext, grpo
from trl_r1.training.arguments import GradingArguments
from trl_r1.verification.bound_reward import BoundReward, RewardError
from trl_r1.verification.pooled_reward import PooledReward
from trl_r1.verification.stage_rewards import build_stage_reward

# A reward that misbehaves on some rows, by their gold answer.
_TRAPS = """
import ctypes
import time


def trap_reward(completions, solution, how, **kwargs):
    if int(solution[0]) % 4 == 0:
        if how == "hang":
            time.sleep(3600)
        if how == "segfault":
            ctypes.string_at(0)
        if how == "grow":
            hoard = [bytearray(b"x") * (1 << 20) for _ in range(1 << 20)]
        if how == "wrong length":
            return [0.0] * (len(completions) + 1)
        if how == "raise":
            raise KeyError("lost")
    return [float(len(str(completion))) for completion in completions]


def stays_reward(completions, **kwargs):
    return [0.0 for _ in completions]


stays_reward.runs_in_trainer = True
"""


@pytest.fixture
def traps(tmp_path: Path) -> str:
    path = tmp_path / "traps.py"
    path.write_text(_TRAPS)
    return str(path)


def _context(tmp_path: Path, model: Path, rows: str, spec: RewardSpec, **grading: Any) -> Any:
    context = stage_context(
        tmp_path / "out",
        grpo,
        model,
        [{"dataset_name": str(rows)}],
        {},
        (spec,),
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=4,
        max_steps=3,
    )
    settings = GradingArguments(reward_workers=1, reward_timeout=1.0, **grading)
    configs = tuple(
        settings if isinstance(config, GradingArguments) else config for config in context.configs
    )
    return StageContext("stage", context.output_dir, configs, context.rewards)


@pytest.mark.parametrize(
    ("how", "metric"),
    [("hang", "timed_out"), ("segfault", "crashed"), ("grow", "crashed")],
)
def test_a_reward_that_hangs_crashes_or_bloats_costs_rows_and_the_run_goes_on(
    tiny_model_dir: Path, tmp_path: Path, rows_file: str, traps: str, how: str, metric: str
) -> None:
    # On a slow machine a call may need long until it has grown to its limit.
    timeout = 1.0 if how == "hang" else 120.0
    spec = RewardSpec(f"{traps}:trap_reward", args={"how": how}, timeout=timeout)
    grpo.run(_context(tmp_path, tiny_model_dir, rows_file, spec))
    logs = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").open()]
    shares = [log[f"rewards/trap_reward/{metric}"] for log in logs if "reward" in log]
    assert len(shares) == 3
    assert max(shares) > 0
    assert (tmp_path / "out/model/model.safetensors").exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("hang", "timed out"),
        ("segfault", "crashed|signal"),
        ("wrong length", r"returned 2 rewards for 1"),
        ("raise", r"KeyError.*lost"),
    ],
)
def test_a_reward_that_fails_stops_the_run_with_its_name_where_that_is_set(
    tiny_model_dir: Path, tmp_path: Path, rows_file: str, traps: str, how: str, message: str
) -> None:
    spec = RewardSpec(f"{traps}:trap_reward", args={"how": how})
    context = _context(tmp_path, tiny_model_dir, rows_file, spec, on_reward_kill="raise")
    with pytest.raises(RewardError, match=rf"(?s)trap_reward.*({message})"):
        grpo.run(context)


def test_rewards_run_in_the_pool_unless_they_stay_or_there_is_none(traps: str) -> None:
    grading = GradingArguments(reward_workers=1, reward_timeout=3.0, reward_memory_mb=512)
    made = build_stage_reward(RewardSpec("math_answer", timeout=9.0), grading)
    assert isinstance(made, PooledReward)
    assert (made.limits.timeout, made.limits.memory_mb) == (9.0, 512)
    made = build_stage_reward(RewardSpec("math_answer"), grading)
    assert isinstance(made, PooledReward)
    assert made.limits.timeout == 3.0
    assert isinstance(build_stage_reward(RewardSpec(f"{traps}:stays_reward"), grading), BoundReward)
    alone = GradingArguments(reward_workers=0)
    assert isinstance(build_stage_reward(RewardSpec("math_answer"), alone), BoundReward)


def test_programs_are_tested_while_the_caller_goes_on() -> None:
    made = build_stage_reward(RewardSpec("code_tests"), GradingArguments())
    assert made.__name__ == "code_tests_reward"
    programs = ["def f(x):\n    return x + 1", "def f(x):\n    return x"]
    completions = [f"```python\n{program}\n```" for program in programs]
    pending = made.submit(completions, tests=[["assert f(1) == 2"]] * 2, entry_point=["f"] * 2)
    assert pending.result() == [1.0, 0.0]
    assert made(completions, tests=[["assert f(1) == 2"]] * 2) == [1.0, 0.0]
    with pytest.raises(RewardError, match=r"code_tests_reward.*tests"):
        made.submit(completions).result()


@pytest.mark.parametrize(
    "settings",
    [{"reward_workers": -1}, {"reward_timeout": 0.0}, {"reward_memory_mb": 3}],
)
def test_grading_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GradingArguments(**settings)


_TWO_RANKS = """
import sys
from types import SimpleNamespace

from accelerate import PartialState

from trl_r1.stages import RewardSpec
from trl_r1.training.arguments import GradingArguments
from trl_r1.verification.stage_rewards import build_stage_reward

state = PartialState(cpu=True)
assert state.num_processes == 2, "the launcher made one process of two"
rank, (file,) = state.process_index, sys.argv[1:]
# Three prompts of four completions on two ranks: the second group lies on both.
prompts = [["a"] * 4 + ["b"] * 2, ["b"] * 2 + ["c"] * 4][rank]
completions = [f"{rank}{i}" for i in range(6)]
logged = {}
for workers in (0, 1):
    grading = GradingArguments(reward_workers=workers)
    for name, expected in (("group", [4.0] * 6), ("batch", [12.0] * 6)):
        reward = build_stage_reward(RewardSpec(f"{file}:{name}"), grading)
        seen = reward(
            prompts=prompts, completions=completions, trainer_state=SimpleNamespace(global_step=3),
            log_extra=lambda column, values: logged.update({column: values}),
        )
        assert seen == expected, (workers, name, seen)
        assert logged == {name: completions}, (workers, name, logged)
        logged.clear()
        # Outside a trainer ranks need not be in step, and see their own rows.
        alone = reward(prompts=prompts, completions=completions)
        assert len(alone) == 6 and max(alone) <= 6, alone
state.destroy_process_group()
print("both ranks agree")
"""
_WHOLE = """
def group(completions, prompts, log_extra=None, **kwargs):
    if log_extra is not None:
        log_extra("group", list(completions))
    return [float(prompts.count(prompt)) for prompt in prompts]


def batch(completions, log_extra=None, **kwargs):
    if log_extra is not None:
        log_extra("batch", list(completions))
    return [float(len(completions)) for _ in completions]


group.needs = "group"
batch.needs = "batch"
"""


def test_a_group_that_lies_on_two_ranks_is_graded_whole(tmp_path: Path) -> None:
    script, rewards = tmp_path / "script.py", tmp_path / "whole.py"
    script.write_text(_TWO_RANKS)
    rewards.write_text(_WHOLE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_port=29617", str(script), str(rewards)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("both ranks agree") == 2
