"""TRL's loss, with our presets and with every variant, is what objective.py says it is."""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from trl_r1 import objective
from trl_r1.objective import LOSS_TYPES, Objective, advantages, clipped_surrogate, grpo_loss, k3
from trl_r1.stages.grpo import PRESETS, R1GRPOConfig

ROWS, TOKENS, GROUP = 8, 7, 4
FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "per_device_train_batch_size": ROWS,
    "num_generations": GROUP,
    "max_completion_length": 3,
}


def ungraded(completions: list[Any], **kwargs: Any) -> list[float]:
    return [0.0] * len(completions)


@pytest.fixture(scope="module")
def make_trainer(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds TRL's own trainer with the tiny model from a config."""
    folder = str(tmp_path_factory.mktemp("objective"))
    rows = Dataset.from_dict({"prompt": ["1+1=", "1+2="]})

    def make(args_class: type = GRPOConfig, reward: Any = ungraded, **settings: Any) -> GRPOTrainer:
        args = args_class(output_dir=folder, **{**FAST, **settings})
        trainer = GRPOTrainer(
            str(tiny_model_dir), reward_funcs=reward, args=args, train_dataset=rows
        )
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        return trainer

    return make


def random_batch(seed: int = 0, *, spread: float = 0.4) -> dict[str, torch.Tensor]:
    """Log-probabilities far enough apart for every clip to act, and outputs of unequal length."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(ROWS, TOKENS, generator=generator) * 3 - 0.1
    noise = torch.randn(2, ROWS, TOKENS, generator=generator) * spread
    lengths = torch.tensor([7, 1, 3, 5, 2, 7, 4, 6])
    mask = (torch.arange(TOKENS) < lengths.unsqueeze(1)).float()
    mask[5] = 0.0  # cut off, with mask_truncated_completions
    tool_mask = torch.ones(ROWS, TOKENS)
    tool_mask[0, 2:4] = 0.0
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 0.0])
    return {
        "old": old,
        "new": old + noise[0],
        "ref": old + noise[1],
        "entropy": torch.rand(ROWS, TOKENS, generator=generator),
        "mask": mask,
        "tool_mask": tool_mask,
        "advantages": advantages(rewards, GROUP),
        "weights": 0.5 + torch.rand(ROWS, TOKENS, generator=generator),
    }


def trl_loss_and_gradient(
    trainer: GRPOTrainer, batch: dict[str, torch.Tensor], keys: dict[str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What TRL makes of the batch, with its log-probabilities in place of the model's."""
    logps = batch["new"].clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (logps, batch["entropy"], None)
    ids = torch.ones(ROWS, TOKENS, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": batch["mask"],
        "advantages": batch["advantages"],
        "num_items_in_batch": batch["mask"].sum(),
        **{key: batch[name] for key, name in keys.items()},
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    # TRL divides by the micro-batches of a step; the formulas know only one batch.
    steps = trainer.current_gradient_accumulation_steps
    scale = 1.0 if trainer.loss_type in ("dapo", "cispo", "vespo") else steps
    return loss.detach() * scale, logps.grad * scale


def our_loss_and_gradient(
    wanted: Objective, batch: dict[str, torch.Tensor], **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    logps = batch["new"].clone().requires_grad_()
    mask = kwargs.pop("mask_BT", batch["mask"])
    loss = wanted.loss(logps, batch["advantages"], mask, **kwargs)
    loss.backward()
    return loss.detach(), logps.grad


def assert_same(ours: Any, theirs: Any, case: Any = None) -> None:
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-7, msg=lambda m: f"{case}: {m}")


BRANCHES: dict[str, list[Any]] = {
    "loss_type": list(LOSS_TYPES),
    "importance_sampling_level": ["token", "sequence"],
    "beta": [0.0, 0.04],
    "use_bias_correction_kl": [False, True],
    "has_old_logps": [False, True],
    "clip": [{}, {"epsilon": 0.1, "epsilon_high": 0.3}, {"epsilon": 10.0}, {"delta": 1.4}],
}


def test_trls_loss_and_gradient_are_ours_in_every_branch(make_trainer: Any) -> None:
    batch = random_batch()
    trainers = {
        (loss_type, beta): make_trainer(loss_type=loss_type, beta=beta)
        for loss_type, beta in itertools.product(LOSS_TYPES, BRANCHES["beta"])
    }
    num_cases = 0
    for values in itertools.product(*BRANCHES.values()):
        case = dict(zip(BRANCHES, values, strict=True))
        trainer = trainers[case["loss_type"], case["beta"]]
        wanted = configure(trainer, case)
        keys = {"ref_per_token_logps": "ref"} if case["beta"] else {}
        if case["has_old_logps"]:
            keys["old_per_token_logps"] = "old"
        ours = our_loss_and_gradient(
            wanted,
            batch,
            old_logps_BT=batch["old"] if case["has_old_logps"] else None,
            ref_logps_BT=batch["ref"] if case["beta"] else None,
        )
        assert_same(ours, trl_loss_and_gradient(trainer, batch, keys), case)
        assert ours[1].abs().sum() > 0, case
        num_cases += 1
    assert num_cases == 8 * 2 * 2 * 2 * 2 * 4


def configure(trainer: GRPOTrainer, case: dict[str, Any]) -> Objective:
    """Set a trainer to a case, as its constructor would; the objective of the same settings."""
    args = trainer.args
    args.epsilon, args.epsilon_high, args.delta = 0.2, None, None
    for key, value in {**case["clip"], "loss_type": case["loss_type"]}.items():
        setattr(args, key, value)
    args.use_bias_correction_kl = case["use_bias_correction_kl"]
    args.importance_sampling_level = case["importance_sampling_level"]
    trainer.importance_sampling_level = args.importance_sampling_level
    trainer.epsilon_low = args.epsilon
    trainer.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    return Objective.from_args(args)


@pytest.mark.parametrize("name", list(PRESETS))
def test_with_our_presets_trl_computes_the_papers_objective(make_trainer: Any, name: str) -> None:
    settings = {
        **PRESETS[name],
        "per_device_train_batch_size": ROWS,
        "num_generations": GROUP,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 3,
    }
    trainer = make_trainer(R1GRPOConfig, **settings)
    batch = random_batch(spread=1.0)
    theirs = trl_loss_and_gradient(
        trainer, batch, {"old_per_token_logps": "old", "ref_per_token_logps": "ref"}
    )
    logps = batch["new"].clone().requires_grad_()
    epsilon = 0.2 if name == "zero" else 10.0
    loss = grpo_loss(
        logps,
        batch["old"],
        batch["ref"],
        batch["advantages"],
        batch["mask"],
        epsilon=epsilon,
        beta=0.001,
    )
    loss.backward()
    assert_same((loss.detach(), logps.grad), theirs, name)
    wanted = Objective.from_args(trainer.args)
    assert dataclasses.replace(Objective(epsilon=epsilon), max_completion_length=3) == wanted
    kwargs = {"old_logps_BT": batch["old"], "ref_logps_BT": batch["ref"]}
    assert_same(our_loss_and_gradient(wanted, batch, **kwargs), theirs, name)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "vespo"])
def test_weights_of_another_sampler_and_masks_are_trls(make_trainer: Any, loss_type: str) -> None:
    trainer = make_trainer(loss_type=loss_type, beta=0.04, top_entropy_quantile=0.4)
    # What a vLLM run sets; the engine itself is not needed for the loss.
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    batch = random_batch(spread=0.1)
    keys = {
        "old_per_token_logps": "old",
        "ref_per_token_logps": "ref",
        "importance_sampling_ratio": "weights",
        "tool_mask": "tool_mask",
    }
    mask = batch["mask"] * batch["tool_mask"]
    kwargs: dict[str, Any] = {
        "old_logps_BT": batch["old"],
        "ref_logps_BT": batch["ref"],
        "num_tokens": batch["mask"].sum(),
        "mask_BT": mask,
    }
    if loss_type == "vespo":  # there the weights are part of the ratio, and no mask
        trainer.top_entropy_quantile = 1.0
        weights = batch["weights"]
    else:
        cut = torch.quantile(batch["entropy"][mask.bool()], 0.6)
        weights = batch["weights"] * (batch["entropy"] >= cut)
    theirs = trl_loss_and_gradient(trainer, batch, keys)
    wanted = Objective.from_args(trainer.args)
    assert_same(our_loss_and_gradient(wanted, batch, weights=weights, **kwargs), theirs)


def test_advantages_a_token_and_off_policy_outputs_are_trls(make_trainer: Any) -> None:
    trainer = make_trainer(beta=0.0, off_policy_mask_threshold=0.05, loss_type="grpo")
    batch = random_batch()
    batch["new"][[0, 7]] = batch["old"][[0, 7]] - 0.3  # far off: a good output and a bad one
    batch["advantages"] = batch["advantages"].unsqueeze(1) * torch.linspace(0.5, 1.5, TOKENS)
    theirs = trl_loss_and_gradient(trainer, batch, {"old_per_token_logps": "old"})
    drift = ((batch["old"] - batch["new"]) * batch["mask"]).sum(1, keepdim=True)
    drift = drift / batch["mask"].sum(1, keepdim=True).clamp(min=1)
    keep = ((batch["advantages"] >= 0) | (drift <= 0.05)).float()
    assert keep[0].all()
    assert not keep[7].any()
    wanted = Objective.from_args(trainer.args)
    ours = our_loss_and_gradient(wanted, batch, old_logps_BT=batch["old"], weights=keep)
    assert_same(ours, theirs)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_trls_advantages_are_ours(make_trainer: Any, scale: str) -> None:
    given = [1.0, 1.0, 0.0, 0.0, 0.25, None, 1.0, 0.5]

    def reward(completions: list[Any], **kwargs: Any) -> list[float | None]:
        return given[: len(completions)]

    trainer = make_trainer(scale_rewards=scale, reward=reward)
    rows = [{"prompt": "1+1="}] * GROUP + [{"prompt": "1+2="}] * GROUP
    theirs = trainer._generate_and_score_completions(rows)["advantages"]
    rewards = torch.tensor([math.nan if value is None else value for value in given])
    ours = advantages(rewards, GROUP, scale)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert ours[5] == 0
    assert ours.abs().sum() > 1


def test_the_worked_example_of_two_right_and_two_wrong() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0])
    # Plain deviation: the squares 4 x 0.25 over 4, so 0.5.
    torch.testing.assert_close(advantages(rewards, 4, correction=0, epsilon=0.0), signs)
    # Bessel's: over 3.
    bessel = 0.5 / math.sqrt(1 / 3)
    torch.testing.assert_close(advantages(rewards, 4, epsilon=0.0), bessel * signs)
    trl = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    torch.testing.assert_close(advantages(rewards, 4), trl * signs)
    torch.testing.assert_close(advantages(rewards, 4, "none"), 0.5 * signs)
    assert trl == pytest.approx(0.8658754)


def test_the_docstrings_examples_hold() -> None:
    result = doctest.testmod(objective)
    assert result.attempted >= 6
    assert result.failed == 0


def test_on_policy_the_gradient_is_reinforce_with_a_baseline() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(ROWS, TOKENS, 5, generator=generator, requires_grad=True)
    tokens = torch.randint(5, (ROWS, TOKENS, 1), generator=generator)
    mask = random_batch()["mask"]
    rewards = torch.rand(ROWS, generator=generator)

    def logps() -> torch.Tensor:
        return logits.log_softmax(-1).gather(-1, tokens).squeeze(-1)

    baseline = rewards.view(-1, GROUP).mean(1).repeat_interleave(GROUP)
    per_output = (logps() * mask).sum(1) / mask.sum(1).clamp(min=1)
    (reinforce,) = torch.autograd.grad(-((rewards - baseline) * per_output).mean(), logits)
    for epsilon in (0.2, 10.0):  # at ratio 1 no clip acts
        wanted = Objective(beta=0.0, epsilon=epsilon)
        loss = wanted.loss(logps(), advantages(rewards, GROUP, "none"), mask)
        (gradient,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(gradient, reinforce)
    assert reinforce.abs().max() > 1e-3


def categorical_pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    return logits[0].requires_grad_(), logits[1].log_softmax(0)


def test_k3_is_unbiased_and_never_negative() -> None:
    logits, ref = categorical_pair()
    logps = logits.log_softmax(0)
    # The mean over what the policy draws, exactly: every token with its probability.
    estimate = (logps.exp() * k3(logps, ref)).sum()
    divergence = (logps.exp() * (logps - ref)).sum()
    torch.testing.assert_close(estimate, divergence)
    assert (k3(logps, ref) >= 0).all()
    assert (logps - ref).min() < 0, "the plain estimate is not"
    assert k3(ref, ref).abs().max() == 0


def test_the_gradient_of_k3_is_of_the_reverse_divergence_unless_it_is_weighted() -> None:
    logits, ref = categorical_pair()
    logps = logits.log_softmax(0)
    drawn = logps.exp().detach()
    ratio = (logps - logps.detach()).exp()
    for loss, divergence in (
        ((drawn * k3(logps, ref)).sum(), (ref.exp() * (ref - logps)).sum()),
        ((drawn * k3(logps, ref) * ratio).sum(), (logps.exp() * (logps - ref)).sum()),
    ):
        (got,) = torch.autograd.grad(loss, logits, retain_graph=True)
        (want,) = torch.autograd.grad(divergence, logits, retain_graph=True)
        torch.testing.assert_close(got, want)
        assert want.abs().max() > 1e-3


def test_the_clip_stops_only_a_ratio_that_went_too_far() -> None:
    for ratio, advantage, has_gradient in (
        (1.3, 1.0, False),
        (0.7, 1.0, True),
        (0.7, -1.0, False),
        (1.3, -1.0, True),
    ):
        at = torch.tensor(ratio, requires_grad=True)
        clipped_surrogate(at, torch.tensor(advantage)).backward()
        assert (at.grad != 0) == has_gradient, (ratio, advantage)
    far = torch.tensor(5.0, requires_grad=True)
    clipped_surrogate(far, torch.tensor(-1.0), delta=2.0).backward()
    assert far.grad == 0


def test_what_is_missing_or_unknown_is_said() -> None:
    batch = random_batch()
    args = (batch["new"], batch["advantages"], batch["mask"])
    with pytest.raises(ValueError, match="ref_logps_BT is needed"):
        Objective().loss(*args)
    with pytest.raises(ValueError, match="loss_type is 'ppo'"):
        Objective(loss_type="ppo", beta=0).loss(*args)
    with pytest.raises(ValueError, match="max_completion_length"):
        Objective(loss_type="dr_grpo", beta=0).loss(*args)
    with pytest.raises(ValueError, match="no groups of 3"):
        advantages(torch.ones(4), 3)
    with pytest.raises(ValueError, match="scale is 'gruop'"):
        advantages(torch.ones(4), 4, "gruop")
