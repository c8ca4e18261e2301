"""The comparison with PPO estimates advantages as PPO does, and all its sides run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trl_r1.objective import advantages


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "bench_ppo.py"
    spec = importlib.util.spec_from_file_location("bench_ppo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_gae_is_what_one_works_out_by_hand(bench: ModuleType) -> None:
    # Three tokens that end in a reward of 1, and one row of two that ends in nothing.
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    values = torch.tensor([[0.5, 0.6, 0.8], [0.4, 0.2, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    # Surprises: 0.6 - 0.5, 0.8 - 0.6, 1 - 0.8; and 0.2 - 0.4, 0 - 0.2.
    gained, returns = bench.gae(rewards, values, mask, 1.0, 0.5)
    expected = torch.tensor([[0.1 + 0.5 * 0.3, 0.2 + 0.5 * 0.2, 0.2], [-0.3, -0.2, 0.0]])
    torch.testing.assert_close(gained, expected)
    torch.testing.assert_close(returns, expected + values * mask)
    # With lambda 1 it is the reward to come less the value; gamma takes a half of it a token.
    gained, returns = bench.gae(rewards, values, mask, 1.0, 1.0)
    torch.testing.assert_close(gained[0], 1 - values[0])
    torch.testing.assert_close(returns, torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    _, returns = bench.gae(rewards, values, mask, 0.5, 1.0)
    torch.testing.assert_close(returns[0], torch.tensor([0.25, 0.5, 1.0]))
    gained, _ = bench.gae(rewards, values, mask, 1.0, 0.0)
    torch.testing.assert_close(gained[0], torch.tensor([0.1, 0.2, 0.2]))


def test_the_value_loss_lets_no_value_gain_by_moving_far(bench: ModuleType) -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    new = torch.tensor([[1.0, 0.1, 5.0]])
    # Towards a return of 1 from 0: clipped at 0.2, so (0.2 - 1)^2 counts, and (0.1 - 1)^2.
    loss = bench.value_loss(new, torch.zeros(1, 3), torch.ones(1, 3), mask)
    assert loss == pytest.approx(0.5 * (0.64 + 0.81) / 2)


@pytest.fixture(scope="module")
def settings(bench: ModuleType, tiny_model_dir: Path) -> Any:
    return bench.Settings(
        model=str(tiny_model_dir), completions=16, micro_batch=8, max_length=12, learning_rate=1e-2
    )


def test_ppo_trains_a_policy_and_a_critic_and_grpo_a_policy(
    bench: ModuleType, settings: Any
) -> None:
    rollouts = bench.make_rollouts(settings, vocab_size=200, end_id=4)
    assert [len(row) for row in rollouts.completion_ids] == [
        len(row) for row in bench.make_rollouts(settings, 200, 4).completion_ids
    ]
    group = rollouts.rewards.view(-1, 8)
    assert (group.std(dim=1) > 0).all()
    for has_critic in (True, False):
        loop = bench.PlainLoop(settings, rollouts, has_critic=has_critic)
        models = [loop.policy, *([loop.critic] if has_critic else [])]
        before = [[p.detach().clone() for p in model.parameters()] for model in models]
        loop.step()
        for model, old in zip(models, before, strict=True):
            assert any((p != q).any() for p, q in zip(model.parameters(), old, strict=True))
        assert all(not p.requires_grad or p.grad is None for p in loop.policy.parameters())


def test_the_plain_loop_makes_trls_step(bench: ModuleType, settings: Any) -> None:
    """So the two sides do the same work: their weights agree after a step."""
    rollouts = bench.make_rollouts(settings, vocab_size=200, end_id=4)
    kept = []

    class Kept(bench.GRPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept.append(self.model)

    one_step = bench.Settings(**{**vars(settings), "steps": 0, "learning_rate": 1e-3})
    seconds = bench.trainer_steps(one_step, rollouts, Kept)
    assert len(seconds) == 1
    loop = bench.PlainLoop(one_step, rollouts, has_critic=False)
    start = [p.detach().clone() for p in loop.policy.parameters()]
    for group in loop.optimizers[0].param_groups:
        group["weight_decay"] = 0.0
    loop.step()
    assert advantages(rollouts.rewards, 8).abs().min() > 0
    moved, apart = 0.0, 0.0
    for ours, theirs, old in zip(
        loop.policy.parameters(), kept[0].parameters(), start, strict=True
    ):
        moved += float((ours - old).square().sum().detach())
        apart += float((ours - theirs).square().sum().detach())
    assert apart < 1e-3 * moved


def test_every_side_is_measured(bench: ModuleType, settings: Any, capsys: Any) -> None:
    result = {side: bench.measure(side, settings) for side in ("PPO", "GRPO", "R1")}
    assert all(seconds > 0 for seconds, _ in result.values())
    result["TRL"] = result["R1"]
    bench.report([result, result], settings)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == list(bench.SIDES)
    assert lines[-4].count("1.00 (1.00-1.00)") == 2
