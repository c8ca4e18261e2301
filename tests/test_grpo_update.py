"""The update is TRL's, whatever the loss, and so are the figures in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import bench_grpo  # noqa: E402
from bench_grpo import LOSS_TYPES, SGD, SMALL, TINY, Case, compare, make_trainer  # noqa: E402

from trl_r1.stages.grpo import R1GRPOTrainer  # noqa: E402

# What only ours has, or what takes time.
OWN = ("update/", "train_", "step_time")


def check(case: Case) -> list[Any]:
    """Assert that update and log are TRL's; the trainers, TRL's first."""
    difference, trainers = compare(case)
    assert difference < 1e-4
    for theirs, ours in zip(*(t.state.log_history for t in trainers), strict=True):
        wanted = {k: v for k, v in theirs.items() if not k.startswith(OWN)}
        # Losses and KL are sums that nearly cancel out; the entropy of skipped rows is sampled.
        assert {k: ours[k] for k in wanted} == pytest.approx(wanted, rel=2e-3, abs=1e-6)
    return trainers


def case(lora: bool = False, vllm_noise: float = 0.0, **settings: Any) -> Case:
    return Case({**SGD, **settings}, SMALL, TINY, lora=lora, vllm_noise=vllm_noise)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "grpo", "num_iterations": 2},
        {"loss_type": "grpo", "beta": 0.04, "lora": True},
        {"loss_type": "bnpo", "mask_truncated_completions": True},
        {"loss_type": "dapo", "generation_batch_size": 16},
        {"loss_type": "dr_grpo", "generation_batch_size": 64, "beta": 0.04},
        {"loss_type": "vespo", "gradient_checkpointing": True},
        {"loss_type": "grpo", "vllm_noise": 0.02},
    ],
    ids=str,
)
def test_update_and_log_are_those_of_trl(settings: dict[str, Any]) -> None:
    check(case(**settings))


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_gives_the_update_of_trl(
    loss_type: str, beta: float, lora: bool, iterations: int
) -> None:
    check(case(lora, loss_type=loss_type, beta=beta, num_iterations=iterations))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"steps_per_generation": 3, "gradient_accumulation_steps": 2, "loss_type": "dapo"},
        {"max_steps": -1, "num_train_epochs": 1, "gradient_accumulation_steps": 3}
        | {"generation_batch_size": 16, "loss_type": "dapo"},
        {"off_policy_mask_threshold": 1e-7, "num_iterations": 2},
        {"delta": 1.5, "num_iterations": 2},
        {"importance_sampling_level": "sequence", "loss_type": "luspo", "num_iterations": 2},
        {"importance_sampling_level": "sequence", "mask_truncated_completions": True},
        {"beta": 0.04, "use_bias_correction_kl": True, "num_iterations": 2},
        {"optim": "adamw_torch", "learning_rate": 1e-3, "max_grad_norm": 1.0, "weight_decay": 0.1},
        {"pad_to_multiple_of": 16, "scale_rewards": "none", "temperature": 0.7},
        {"vllm_noise": 0.02, "vllm_importance_sampling_mode": "sequence_mask"},
        {"vllm_noise": 0.02, "loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"},
    ],
    ids=str,
)
def test_every_setting_gives_the_update_of_trl(settings: dict[str, Any]) -> None:
    check(case(**settings))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"entropy_coef": 0.1}, "the entropy bonus"),
        ({"use_adaptive_entropy": True, "entropy_coef": 0.1}, "the entropy bonus"),
        ({"top_entropy_quantile": 0.3}, "top_entropy_quantile"),
    ],
)
def test_where_rows_act_on_each_other_trls_groups_stay_and_the_log_says_so(
    settings: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainers = check(case(max_steps=1, **settings))
    assert [record.message for record in caplog.records if reason in record.message]
    assert "update/micro_batches" not in trainers[1].state.log_history[0]


def test_rows_without_advantage_are_skipped_only_without_kl() -> None:
    shares = []
    for beta in (0.0, 0.04):
        trainer = make_trainer(R1GRPOTrainer, case(beta=beta, max_steps=1))
        trainer.train()
        shares.append(trainer.state.log_history[0]["update/skipped_rows"])
    assert shares[0] >= 0.5
    assert shares[1] == 0


def test_a_step_without_signal_leaves_the_weights(tmp_path: Path) -> None:
    def constant(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    trainer = make_trainer(R1GRPOTrainer, replace(case(max_steps=2), rewards=constant))
    before = bench_grpo.weights_of(trainer)
    trainer.train()
    assert torch.equal(before, bench_grpo.weights_of(trainer))
    assert trainer.state.log_history[0]["update/micro_batches"] == 1


def test_rounded_advantages_are_trained_on_unless_told_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def constant(completions: list[str], **_: Any) -> list[float]:
        return [1.2] * len(completions)  # the mean of eight of them is not 1.2 in float32

    skipped = []
    for tolerance in (0.0, 0.01):
        trainer = make_trainer(R1GRPOTrainer, replace(case(max_steps=1), rewards=constant))
        trainer._tolerance = tolerance
        trainer.train()
        skipped.append(trainer.state.log_history[0]["update/skipped_rows"])
    assert skipped[0] == 0
    assert skipped[1] > 0.9
    assert sum("zero_advantage_tolerance" in record.message for record in caplog.records) == 1


def test_a_limit_of_tokens_makes_smaller_micro_batches() -> None:
    counts = []
    for max_tokens in (None, 80):
        trainer = make_trainer(R1GRPOTrainer, case(max_steps=1, beta=0.04))
        trainer._max_tokens = max_tokens
        trainer.train()
        counts.append(trainer.state.log_history[0]["update/micro_batches"])
    assert counts[1] > 2 * counts[0]


def test_learned_positions_keep_the_padding_of_trl() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from trl_r1.stages.grpo.exactness import reasons_to_keep_padding

    class Stub:
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16))
        top_entropy_quantile = 1.0

    assert reasons_to_keep_padding(Stub()) == ["positions of gpt2 that are not rotary"]
    Stub.model = TINY.make()
    assert reasons_to_keep_padding(Stub()) == []
    Stub.model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4}
    assert "dynamic" in reasons_to_keep_padding(Stub())[0]


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_four_bit_weights_give_the_update_of_trl(beta: float, tmp_path: Path) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    TINY.make().save_pretrained(tmp_path)
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )

    class FourBit(bench_grpo.Model):
        def make(self) -> Any:
            model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)
            for module in model.modules():
                if isinstance(module, bnb.nn.Linear4bit):
                    module.support_avx512bf16_for_cpu = False  # its kernel has no gradient
            return model

    quantized = replace(
        case(lora=True, beta=beta, num_iterations=2, gradient_checkpointing=True), model=FourBit()
    )
    updates = []
    for trainer_class in bench_grpo.TRAINERS:
        trainer = make_trainer(trainer_class, quantized)
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:  # TRL has them in bfloat16, which would hide differences
                parameter.data = parameter.data.float()
        before = bench_grpo.weights_of(trainer)
        trainer.train()
        updates.append(bench_grpo.weights_of(trainer) - before)
    theirs, ours = updates
    assert theirs.norm() > 0
    assert (theirs - ours).norm() < 1e-4 * theirs.norm()


_TWO = """
import sys
sys.path[:0] = [{tests!r}, {scripts!r}]
import torch.distributed as dist
from test_grpo_update import case, check

for settings in (
    {{"num_iterations": 2}},
    {{"loss_type": "dapo", "generation_batch_size": 32, "lora": True}},
    {{"loss_type": "bnpo", "beta": 0.04, "mask_truncated_completions": True}},
    {{"gradient_accumulation_steps": 1, "lora": True}},  # one rank has no row with a signal
):
    trainers = check(case(**settings))
    assert dist.get_world_size() == 2, "the launcher made one process of two"
dist.destroy_process_group()
print("equal")
"""


@pytest.mark.slow
def test_two_processes_make_the_update_of_trl(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(_TWO.format(tests=str(Path(__file__).parent), scripts=str(SCRIPTS)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, "--master_port=29641", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
