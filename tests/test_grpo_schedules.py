"""Temperature and length limit by step: read, refused, and really applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser

from trl_r1.pipeline.check import check_pipeline
from trl_r1.pipeline.reading import read_pipeline
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.grpo.schedules import Schedule, read_schedule

FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 3,
    "learning_rate": 1e-2,
    "save_strategy": "no",
}


def even_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


def make_trainer(model: Path, out: Path, kind: type = R1GRPOTrainer, **settings: Any) -> Any:
    rows = [{"prompt": row["prompt"][0]["content"]} for row in make_rows()]
    args = R1GRPOConfig(output_dir=str(out), **{**FAST, **settings})
    return kind(
        str(model), reward_funcs=[even_reward], args=args, train_dataset=Dataset.from_list(rows)
    )


def test_a_schedule_holds_its_value_until_the_next_step() -> None:
    schedule = Schedule(1.0, ((3, 0.7), (5, 0.5)))
    assert [schedule.at(step) for step in range(7)] == [1.0, 1.0, 1.0, 0.7, 0.7, 0.5, 0.5]
    assert read_schedule("temperature", 1.0, [{"from_step": 0, "value": 0.9}]).at(0) == 0.9


BAD = {
    "no mapping": ([0.7], "should look like {from_step: 100, value: 1.0}"),
    "a wrong key": ([{"step": 3, "value": 0.7}], "should look like"),
    "no value": ([{"from_step": 3}], "should look like"),
    "half a step": ([{"from_step": 1.5, "value": 0.7}], "a whole number from 0, not 1.5"),
    "a step before 0": ([{"from_step": -1, "value": 0.7}], "a whole number from 0, not -1"),
    "text": ([{"from_step": 1, "value": "hot"}], "should be a number, not 'hot'"),
    "zero": ([{"from_step": 1, "value": 0}], "should be over 0, not 0"),
    "no order": (
        [{"from_step": 5, "value": 0.7}, {"from_step": 5, "value": 0.5}],
        "from_step 5 is not after 5",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_schedule_is_one_clear_error(name: str, tmp_path: Path) -> None:
    entries, message = BAD[name]
    with pytest.raises(ValueError, match="temperature_schedule") as error:
        R1GRPOConfig(output_dir=str(tmp_path), temperature_schedule=entries, use_cpu=True)
    assert message in str(error.value)


def test_a_length_is_a_whole_number_and_fits_the_window_of_vllm(tmp_path: Path) -> None:
    out: dict[str, Any] = {"output_dir": str(tmp_path), "use_cpu": True}
    with pytest.raises(ValueError, match=r"whole number from 1, not 10\.5"):
        R1GRPOConfig(max_completion_length_schedule=[{"from_step": 1, "value": 10.5}], **out)
    longer = {"max_completion_length_schedule": [{"from_step": 1, "value": 4096}]}
    with pytest.raises(ValueError, match="raise vllm_max_model_length"):
        R1GRPOConfig(vllm_max_model_length=4096, max_completion_length=64, **longer, **out)
    with pytest.raises(
        ValueError, match="no effect beside generation_kwargs with 'max_new_tokens'"
    ):
        R1GRPOConfig(generation_kwargs={"max_new_tokens": 5}, **longer, **out)


def test_check_names_the_file_of_a_bad_schedule(tmp_path: Path, tiny_model_dir: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("name: p\n")
    recipe = f"""stage: grpo
model_name_or_path: {tiny_model_dir}
datasets: [{{task: digit_sums, num_rows: 64}}]
rewards: [{{use: math_answer}}]
temperature_schedule: [{{from_step: 9, value: 0.7}}, {{from_step: 4, value: 0.5}}]
max_steps: 10
"""
    (tmp_path / "01_zero.yaml").write_text(recipe)
    pipeline, mistakes = read_pipeline(tmp_path, (), None, "p")
    found = [*map(str, mistakes), *map(str, check_pipeline(pipeline).mistakes)]
    assert len(found) == 1, found
    assert "01_zero.yaml: " in found[0]
    assert "temperature_schedule [1]: from_step 4 is not after 9" in found[0]
    good = recipe.replace("from_step: 4", "from_step: 14")
    (tmp_path / "01_zero.yaml").write_text(good)
    pipeline, mistakes = read_pipeline(tmp_path, (), None, "p")
    assert not mistakes
    assert not check_pipeline(pipeline).mistakes


def test_trls_own_parser_reads_them_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\n"
        "temperature_schedule:\n- {from_step: 8200, value: 0.7}\n"
        "monitors:\n  dead_groups: {action: stop, above: 0.95}\n  truncation: off\n"
    )
    (args,) = TrlParser(R1GRPOConfig).parse_args_and_config(["--config", str(path)])
    assert args.temperature_schedule == [{"from_step": 8200, "value": 0.7}]
    assert args.monitors["truncation"] is False


def recorded(kind: type, seen: list[dict[str, Any]]) -> type:
    """A trainer that notes how it generates and scores."""

    class Recorded(kind):  # type: ignore[misc, valid-type]
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            config = self.generation_config
            seen.append({"config": (config.temperature, config.max_new_tokens)})
            result = super()._generate_single_turn(*args, **kwargs)
            seen[-1]["longest"] = max(map(len, result[0]))
            return result

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            if "kept" not in seen[-1]:
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
                mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
                width = inputs["completion_ids"].size(1)
                with torch.no_grad():
                    logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
                    logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
                seen[-1]["kept"] = (ids[:, -width:], inputs["completion_mask"], logps, logits)
            return super()._compute_loss(model, inputs)

    return Recorded


def scored_temperature(entry: dict[str, Any]) -> float:
    """The temperature that a step's log-probabilities were computed with."""
    ids, mask, logps, logits = entry["kept"]

    def gap(temperature: float) -> float:
        wanted = (logits / temperature).log_softmax(-1).gather(2, ids[..., None])[..., 0]
        return float(((wanted - logps) * mask).abs().max())

    return min((0.5, 0.7, 1.0, 1.4), key=gap) if min(map(gap, (0.5, 0.7, 1.0, 1.4))) < 1e-3 else 0.0


SCHEDULES: dict[str, Any] = {
    "temperature": 1.0,
    "temperature_schedule": [{"from_step": 1, "value": 0.5}, {"from_step": 3, "value": 1.4}],
    "max_completion_length_schedule": [{"from_step": 2, "value": 7}],
}


@pytest.mark.parametrize("lora", [False, True])
def test_generation_and_log_probabilities_follow_the_schedule(
    tiny_model_dir: Path, tmp_path: Path, lora: bool
) -> None:
    seen: list[dict[str, Any]] = []
    trainer = make_trainer(
        tiny_model_dir, tmp_path, recorded(R1GRPOTrainer, seen), max_steps=4, beta=0.1, **SCHEDULES
    )
    if lora:
        from peft import LoraConfig

        trainer = recorded(R1GRPOTrainer, seen)(
            str(tiny_model_dir),
            reward_funcs=[even_reward],
            args=trainer.args,
            train_dataset=trainer.train_dataset,
            peft_config=LoraConfig(r=2, target_modules="all-linear"),
        )
    trainer.train()
    assert [entry["config"] for entry in seen] == [(1.0, 3), (0.5, 3), (0.5, 7), (1.4, 7)]
    assert [entry["longest"] for entry in seen] == [3, 3, 7, 7]
    assert [scored_temperature(entry) for entry in seen] == [1.0, 0.5, 0.5, 1.4]
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert [log["temperature"] for log in logs] == [1.0, 0.5, 0.5, 1.4]
    assert [log["max_completion_length"] for log in logs] == [3, 3, 7, 7]
    # Policy and reference are one before the first update, so their passes have one temperature.
    assert abs(logs[0]["kl"]) < 1e-6


def test_the_reference_pass_follows_the_schedule(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = make_trainer(
        tiny_model_dir,
        tmp_path,
        max_steps=2,
        beta=0.1,
        **{"learning_rate": 0.0},
        temperature_schedule=[{"from_step": 1, "value": 0.5}],
    )
    trainer.train()
    kl = [log["kl"] for log in trainer.state.log_history if "kl" in log]
    assert max(map(abs, kl)) < 1e-6, "without an update the two stay one at every temperature"


def test_under_mixed_precision_the_temperature_is_found_too(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []
    trainer = make_trainer(
        tiny_model_dir,
        tmp_path,
        max_steps=2,
        bf16=True,
        beta=0.1,
        temperature_schedule=[{"from_step": 1, "value": 0.5}],
    )
    del seen
    trainer.train()
    assert len(trainer.schedules._cells or []) == 2  # the policy's and the reference's
    assert {cell.cell_contents for cell in trainer.schedules._cells or []} == {0.5}


def test_a_batch_keeps_the_temperature_it_was_sampled_with(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tiny_model_dir,
        tmp_path,
        max_steps=4,
        mini_batches_per_rollout=2,
        gradient_accumulation_steps=1,
        temperature_schedule=[{"from_step": 1, "value": 0.5}],
    )
    used: list[float] = []
    inner = trainer._compute_loss

    def noting(model: Any, inputs: Any) -> Any:
        used.append(trainer.temperature)
        return inner(model, inputs)

    trainer._compute_loss = noting
    trainer.train()
    assert used == [1.0, 1.0, 0.5, 0.5]


def test_a_resumed_run_has_the_temperature_of_its_step(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    settings = {**SCHEDULES, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(tiny_model_dir, tmp_path / "whole", max_steps=4, **settings)
    whole.train()
    cut = make_trainer(tiny_model_dir, tmp_path / "cut", max_steps=4, **settings)
    cut.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-2"))
    last = [log for log in cut.state.log_history if "reward" in log][-2:]
    assert [log["temperature"] for log in last] == [0.5, 1.4]
    ours, wanted = cut.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)


def test_trls_plain_config_has_no_schedule(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = R1GRPOTrainer(
        str(tiny_model_dir),
        reward_funcs=[even_reward],
        args=GRPOConfig(output_dir=str(tmp_path), bf16=False, max_steps=1, **FAST),
        train_dataset=Dataset.from_list([{"prompt": "1+1="}] * 4),
    )
    trainer.train()
    assert trainer.schedules.apply(trainer) == {}
    assert isinstance(trainer, GRPOTrainer)
