"""Groups without signal make way for groups of further prompts, alike in every process."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from conftest import Killed, make_rows, stage_context
from datasets import Dataset
from safetensors.torch import load_file
from transformers import Trainer
from trl import GRPOTrainer

from trl_r1.objective import advantages
from trl_r1.stages import RewardSpec, grpo
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.grpo.dynamic_sampling import phase_starts
from trl_r1.training.data import RolloutPlan

GROUP = 4
FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "per_device_train_batch_size": 16,
    "num_generations": GROUP,
    "max_completion_length": 6,
    "beta": 0.1,
}


def share_of_even(ids: list[int]) -> float:
    return sum(i % 2 == 0 for i in ids) / len(ids)


def picky_reward(
    completion_ids: list[list[int]], solution: list[str], **kwargs: Any
) -> list[float | None]:
    """Only prompts with an even solution can be told apart; every seventh has no grade at all."""
    return [
        None if int(s) % 7 == 0 else share_of_even(ids) if int(s) % 2 == 0 else 1.0
        for ids, s in zip(completion_ids, solution, strict=True)
    ]


def length_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [float(sum(ids)) for ids in completion_ids]


def make_trainer(
    model: Path, out: Path, trainer_class: Any = R1GRPOTrainer, **settings: Any
) -> Any:
    rows = [{"prompt": f"{i}+{i % 3}=", "solution": str(i)} for i in range(24)]
    rewards = settings.pop("rewards", picky_reward)
    kwargs = {key: settings.pop(key) for key in ("rollouts_dir",) if key in settings}
    return trainer_class(
        str(model),
        reward_funcs=rewards,
        args=R1GRPOConfig(output_dir=str(out), **{**FAST, "max_steps": 3, **settings}),
        train_dataset=Dataset.from_list(rows),
        **kwargs,
    )


class CheckedTrainer(R1GRPOTrainer):
    """Holds every batch to what its own tokens say, over all processes."""

    num_checked = 0

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        before = len(inputs)
        output = super()._generate_and_score_completions(inputs)
        assert len(output["advantages"]) == before, "the batch keeps its size"
        self.check_scores(output)
        whole = {}
        for key in ("completion_ids", "completion_mask", "prompt_ids", "advantages"):
            part = output[key].contiguous()
            if part.dim() > 1:
                part = self.accelerator.pad_across_processes(part, dim=1)
            whole[key] = self.accelerator.gather(part)
        ids = zip(whole["completion_ids"], whole["completion_mask"].bool(), strict=True)
        rewards = torch.tensor([share_of_even(row[mask].tolist()) for row, mask in ids])
        is_dead = (whole["advantages"].view(-1, self.num_generations) == 0).all(1)
        expected = advantages(rewards, self.num_generations)
        expected = torch.where(is_dead.repeat_interleave(self.num_generations), 0.0, expected)
        torch.testing.assert_close(whole["advantages"], expected, rtol=1e-3, atol=1e-3)
        lacking = self._metrics["train"]["dynamic_sampling/groups_without_signal"][-1]
        assert float(is_dead.float().mean()) == pytest.approx(lacking)
        count = self.accelerator.gather(output["completion_mask"].sum()).sum()
        assert output["num_items_in_batch"] == count
        CheckedTrainer.num_checked += 1
        return output

    def check_scores(self, output: dict[str, Any]) -> None:
        """The reference's scores belong to the rows they are with."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        with torch.no_grad():
            logps, _, _ = self._get_per_token_logps_and_entropies(
                self.ref_model, ids, mask, output["completion_ids"].size(1), batch_size=len(ids)
            )
        is_token = output["completion_mask"].bool()
        torch.testing.assert_close(
            logps[is_token], output["ref_per_token_logps"][is_token], rtol=1e-4, atol=1e-4
        )


def logs(trainer: Any) -> list[dict[str, Any]]:
    return [log for log in trainer.state.log_history if "dynamic_sampling/rounds" in log]


def test_the_batch_is_filled_with_groups_that_have_signal(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    CheckedTrainer.num_checked = 0
    trainer = make_trainer(tiny_model_dir, tmp_path, CheckedTrainer, dynamic_sampling_max_rounds=5)
    trainer.train()
    assert CheckedTrainer.num_checked == 3
    lines = logs(trainer)
    assert all(line["dynamic_sampling/groups_without_signal"] == 0 for line in lines)
    assert any(line["dynamic_sampling/rounds"] > 0 for line in lines)
    for line in lines:
        assert (line["dynamic_sampling/rounds"] > 0) == (
            line["dynamic_sampling/further_prompts"] > 0
        )


def test_at_the_cap_groups_without_signal_stay(tiny_model_dir: Path, tmp_path: Path) -> None:
    def same_for_all(completions: list[Any], **kwargs: Any) -> list[float]:
        return [1.0] * len(completions)

    trainer = make_trainer(
        tiny_model_dir, tmp_path, rewards=same_for_all, dynamic_sampling_max_rounds=2, max_steps=1
    )
    trainer.train()
    (line,) = logs(trainer)
    assert line["dynamic_sampling/rounds"] == 2
    assert line["dynamic_sampling/further_prompts"] == 8  # none of 4 had signal: 4 more, twice
    assert line["dynamic_sampling/groups_without_signal"] == 1


def test_a_data_set_that_is_used_up_ends_it(tiny_model_dir: Path, tmp_path: Path) -> None:
    def same_for_all(completions: list[Any], **kwargs: Any) -> list[float]:
        return [1.0] * len(completions)

    trainer = make_trainer(
        tiny_model_dir, tmp_path, rewards=same_for_all, dynamic_sampling_max_rounds=50, max_steps=1
    )
    trainer.train()
    (line,) = logs(trainer)
    assert line["dynamic_sampling/further_prompts"] == 20  # all 24 prompts but the batch's 4


def test_it_filters_on_a_named_reward(tiny_model_dir: Path, tmp_path: Path) -> None:
    both = [picky_reward, length_reward]  # the sum always has signal, the first one has not
    for name, is_drawn in ((None, False), ("picky_reward", True)):
        trainer = make_trainer(
            tiny_model_dir,
            tmp_path,
            rewards=both,
            dynamic_sampling_max_rounds=4,
            dynamic_sampling_reward=name,
            max_steps=2,
        )
        trainer.train()
        rounds = [line["dynamic_sampling/rounds"] for line in logs(trainer)]
        assert any(rounds) == is_drawn, (name, rounds)


def test_every_completion_is_kept_and_those_trained_on_are_marked(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tiny_model_dir, tmp_path, dynamic_sampling_max_rounds=5, rollouts_dir=tmp_path / "rollouts"
    )
    trainer.train()
    kept = rollouts(tmp_path / "rollouts")
    drawn = sum(line["dynamic_sampling/further_prompts"] for line in logs(trainer))
    assert len(kept) == 3 * 16 + drawn * GROUP
    for step in range(3):
        batch = [row for row in kept if row["step"] == step]
        used = [row for row in batch if row["is_used"]]
        assert len(used) == 16
        assert any(row["advantage"] for row in used)
        prompts = [row["prompt"] for row in batch]
        assert all(prompts.count(prompt) == GROUP for prompt in prompts), "none is drawn twice"
        dead = [row for row in batch if not row["is_used"] and row["round"] == 0]
        assert all(int(row["solution"]) % 2 or int(row["solution"]) % 7 == 0 for row in dead)


def test_without_it_nothing_is_different(tiny_model_dir: Path, tmp_path: Path) -> None:
    weights = []
    for rounds in (0, 3):
        trainer = make_trainer(
            tiny_model_dir,
            tmp_path,
            rewards=length_reward,  # always with signal: there is nothing to draw for
            dynamic_sampling_max_rounds=rounds,
            learning_rate=1e-2,
        )
        trainer.train()
        weights.append(trainer.model.state_dict())
        assert bool(logs(trainer)) == bool(rounds)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_settings_in_which_it_cannot_work_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"dynamic_sampling_reward": "no"}, "'no' is no reward"),
        ({"scale_rewards": "batch"}, "of the group alone"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "of the group alone"),
        ({"dynamic_sampling_max_rounds": -1}, "must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(tiny_model_dir, tmp_path, **{"dynamic_sampling_max_rounds": 1, **settings})


def test_a_phase_begins_with_the_batch_of_its_step() -> None:
    plan = RolloutPlan(
        prompts_per_generation=4, micro_steps_per_generation=2, micro_steps_per_update=1
    )
    # A batch of completions for two steps: batch 1 comes at step 2, and step 3 is in its middle.
    assert phase_starts([0, 2], plan) == [0, 4]
    assert phase_starts([0, 3, 0], plan) == [0, 8]


def test_what_is_drawn_is_of_the_phase_of_the_batch(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model_dir, tmp_path, dynamic_sampling_max_rounds=1)
    sampling = trainer.dynamic_sampling
    sampling.phase_starts = [0, 8]
    batch = [trainer.train_dataset[i] for i in range(4)]
    early = [int(row["solution"]) for row in sampling._further_prompts(batch)]
    assert sorted(early) == [4, 5, 6, 7]
    trainer.state.global_step = 2
    late = [int(row["solution"]) for row in sampling._further_prompts(batch)]
    assert sorted(late) == list(range(8, 24))
    assert late == [int(row["solution"]) for row in sampling._further_prompts(batch)]
    trainer.state.global_step = 3
    assert late != [int(row["solution"]) for row in sampling._further_prompts(batch)]


def rollouts(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]


def run_stage(out: Path, model: Path, rows: Path, reward: str, **settings: Any) -> None:
    defaults = {
        "per_device_train_batch_size": 16,
        "num_generations": GROUP,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "save_steps": 1,
        "beta": 0.1,
        "dynamic_sampling_max_rounds": 3,
    }
    datasets = [{"dataset_name": str(rows)}]
    context = stage_context(
        out, grpo, model, datasets, {}, (RewardSpec(reward),), **defaults | settings
    )
    grpo.run(context)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Rows and a reward that is blind for a part of them."""
    folder = tmp_path_factory.mktemp("picky")
    Dataset.from_list(make_rows(40)).to_parquet(folder / "rows.parquet")
    source = "\n\n".join(map(inspect.getsource, (share_of_even, picky_reward)))
    text = f"from __future__ import annotations\n\nfrom typing import Any\n\n\n{source}"
    (folder / "picky.py").write_text(text)
    return folder / "rows.parquet", f"{folder / 'picky.py'}:picky_reward"


def test_killed_after_any_step_it_draws_the_same(
    tmp_path: Path, tiny_model_dir: Path, files: tuple[Path, str]
) -> None:
    run_stage(tmp_path / "whole", tiny_model_dir, *files)
    for stop_at in (2, 3, 4):
        with pytest.raises(Killed):
            run_stage(tmp_path / "cut", tiny_model_dir, *files, stop_at=stop_at)
    run_stage(tmp_path / "cut", tiny_model_dir, *files)
    left, right = (load_file(tmp_path / n / "model/model.safetensors") for n in ("whole", "cut"))
    assert all(torch.equal(left[name], right[name]) for name in left)
    whole, cut = (rollouts(tmp_path / name / "rollouts") for name in ("whole", "cut"))
    assert whole == cut
    assert any(row["round"] for row in whole)


_SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, {tests!r})
import test_dynamic_sampling as here
import torch.distributed as dist

model, out = map(Path, sys.argv[1:])
# Three groups of eight over two processes of twelve rows: the second lies across both.
trainer = here.make_trainer(
    model, out, here.CheckedTrainer, per_device_train_batch_size=12, num_generations=8,
    dynamic_sampling_max_rounds=4, rollouts_dir=out / "rollouts",
)
assert trainer.accelerator.num_processes == 2, "the launcher made one process of two"
trainer.train()
assert here.CheckedTrainer.num_checked == 3
if trainer.accelerator.is_main_process:
    print("LOGS", here.json.dumps(here.logs(trainer)))
dist.destroy_process_group()
"""


def test_two_processes_draw_alike(tmp_path: Path, tiny_model_dir: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(tests=str(Path(__file__).parent)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_port=29651", str(script), str(tiny_model_dir), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (text,) = [line[5:] for line in done.stdout.splitlines() if line.startswith("LOGS ")]
    lines = json.loads(text)
    assert any(line["dynamic_sampling/rounds"] > 0 for line in lines)
    assert all(line["dynamic_sampling/groups_without_signal"] == 0 for line in lines)
    kept = rollouts(tmp_path / "rollouts")
    for step in range(3):
        used = [row for row in kept if row["step"] == step and row["is_used"]]
        assert len(used) == 24
        assert all(int(row["solution"]) % 2 == 0 for row in used)


# What this and the replacement of the reference extend, and how it has to look.
EXTENDED = {
    (GRPOTrainer, "_generate_and_score_completions"): ["self", "inputs"],
    (GRPOTrainer, "_save_checkpoint"): ["self", "model", "trial"],
    (Trainer, "_load_from_checkpoint"): ["self", "resume_from_checkpoint", "model"],
}


@pytest.mark.parametrize(("owner", "name"), list(EXTENDED))
def test_what_we_extend_looks_as_we_extend_it(owner: type, name: str) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == EXTENDED[owner, name]
