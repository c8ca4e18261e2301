"""Each monitor on a run that was made to fail its way, and all of them silent on a healthy one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows, stage_context
from datasets import Dataset
from transformers import AutoModelForCausalLM

from trl_r1.stages import RewardSpec, grpo
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.grpo.alarms import AlarmError, RollbackNeeded, num_rollbacks, read_records
from trl_r1.stages.grpo.history import History
from trl_r1.stages.grpo.monitors import MONITORS
from trl_r1.stages.grpo.watching import read_monitors

FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 1e-2,
}
END = 4  # token id of <|end|> in the tiny tokenizer


def judge(name: str, logs: History, **limits: float) -> Any:
    monitor = MONITORS[name]
    return monitor.judge(logs, {**monitor.limits, **limits})


def train(model: Path, out: Path, reward: Any, prepare: Any = None, **settings: Any) -> Any:
    """Trains with these rewards; the trainer, also where an alarm ended it."""
    rewards = reward if isinstance(reward, list) else [reward]
    rows = [{k: row[k] for k in ("prompt", "solution")} for row in make_rows()]
    trainer = R1GRPOTrainer(
        str(model),
        reward_funcs=rewards,
        args=R1GRPOConfig(output_dir=str(out), **{**FAST, **settings}),
        train_dataset=Dataset.from_list([{**row, "language": "en"} for row in rows]),
    )
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    return trainer


def alarms(trainer: Any) -> dict[str, dict[str, Any]]:
    """The first alarm of each monitor, by its name."""
    records = reversed(read_records(trainer.watch.file))
    return {record["monitor"]: record for record in records}


def even(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


def nothing_right(completions: list[Any], **kwargs: Any) -> list[float]:
    return [0.0] * len(completions)


def test_a_learning_rate_that_is_far_too_high_is_a_kl_runaway(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    trainer = train(tiny_model_dir, tmp_path, even, max_steps=8, learning_rate=1.0, beta=0.001)
    alarm = alarms(trainer)["kl_runaway"]
    assert alarm["since"] <= 2
    assert "nats a token (limit 1) over steps" in alarm["seen"]
    assert alarm["advice"].startswith("learning_rate: 3.3e-01, or beta: 0.01")


def test_weights_that_overflow_are_a_kl_runaway(tiny_model_dir: Path, tmp_path: Path) -> None:
    def break_weights(trainer: Any) -> None:
        inner = trainer._generate_and_score_completions

        def generate(inputs: Any) -> Any:
            output = inner(inputs)
            if trainer.state.global_step == 2:
                with torch.no_grad():
                    trainer.model.lm_head.weight.fill_(torch.inf)
            return output

        trainer._generate_and_score_completions = generate

    with pytest.raises(AlarmError, match="is no number any more since step 2"):
        train(
            tiny_model_dir, tmp_path, even, break_weights, max_steps=3, beta=0.1,
            monitors={"kl_runaway": "stop"},
        )  # fmt: skip


def test_a_temperature_near_zero_is_an_entropy_collapse(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    trainer = train(
        tiny_model_dir, tmp_path, nothing_right, max_steps=11, temperature=0.001, beta=0.0
    )
    alarm = alarms(trainer)["entropy_collapse"]
    assert alarm["figures"]["entropy"] < 0.01
    assert "accuracy stands at 0.00" in alarm["seen"]
    assert alarm["advice"].startswith("temperature: 1.0 (it is 0.001)")


def test_equal_rewards_are_dead_groups(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = train(tiny_model_dir, tmp_path, nothing_right, max_steps=7)
    alarm = alarms(trainer)["dead_groups"]
    assert alarm["seen"] == (
        "100% of the groups had equal rewards over steps 1 to 5 at accuracy 0.00"
    )
    assert "num_generations: 8" in alarm["advice"]
    assert sum(r["monitor"] == "dead_groups" for r in read_records(trainer.watch.file)) == 1


def test_a_reward_for_form_alone_is_format_without_accuracy(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    def my_format(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [sum(i < 100 for i in ids) / len(ids) for ids in completion_ids]

    trainer = train(tiny_model_dir, tmp_path, [nothing_right, my_format], max_steps=30,
                    accuracy_reward="nothing_right")  # fmt: skip
    alarm = alarms(trainer)["format_without_accuracy"]
    assert "my_format rose from" in alarm["seen"]
    assert "accuracy went from 0.00 to 0.00" in alarm["seen"]
    assert "weight of my_format" in alarm["advice"]


def make_it_stop(trainer: Any, odds: float) -> None:
    """Have policy and reference end a completion with e^odds against 1 at each token."""
    for model in (trainer.model, trainer.ref_model):
        if model is not None:
            head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
            with torch.no_grad():
                head.weight.copy_(model.lm_head.weight)
                head.bias.zero_()
                head.bias[END] = odds
            model.lm_head = head


def test_a_reward_for_length_is_a_length_explosion_and_then_truncation(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    def long_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [len(ids) / 40 for ids in completion_ids]

    trainer = train(
        tiny_model_dir,
        tmp_path,
        [nothing_right, long_reward],
        lambda trainer: make_it_stop(trainer, 4.5),
        accuracy_reward="nothing_right",
        max_completion_length=40,
        max_steps=36,
        beta=0.0,
    )
    found = alarms(trainer)
    assert "tokens over steps" in found["length_explosion"]["seen"]
    assert "max_length: 40, soft_length: 8" in found["length_explosion"]["advice"]
    assert "cut off at the limit of 40 tokens" in found["truncation"]["seen"]
    assert "max_completion_length: 80" in found["truncation"]["advice"]


def test_a_reward_that_pays_against_accuracy_is_reward_hacking(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    def high_is_right(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [float(ids[0] > 60) for ids in completion_ids]

    def low_is_nice(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [float(ids[0] <= 60) for ids in completion_ids]

    trainer = train(
        tiny_model_dir, tmp_path, [high_is_right, low_is_nice], max_steps=30, learning_rate=2e-2,
        accuracy_reward="high_is_right", reward_weights=[0.5, 1.5], beta=0.0,
    )  # fmt: skip
    alarm = alarms(trainer)["reward_hacking"]
    assert "low_is_nice rose from" in alarm["seen"]
    assert "training accuracy fell from" in alarm["seen"]
    assert "weight of low_is_nice: half of what it is" in alarm["advice"]


def test_gold_answers_that_cannot_be_read_are_ungradable_rows(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    def picky(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float | None]:
        return [None if int(gold) % 2 else 1.0 for gold in solution]

    trainer = train(tiny_model_dir, tmp_path, [even, picky], max_steps=4)
    alarm = alarms(trainer)["ungradable_rows"]
    assert alarm["seen"].startswith("picky could not grade ")
    assert "look at verdict_picky in rollouts/" in alarm["advice"]


def test_reasoning_that_leaves_its_language_is_language_drift(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    english = tokenizer("<think>the sum is that and so on</think>")["input_ids"]
    german = tokenizer("<think>und die summe ist nicht eins</think>")["input_ids"]

    def speak(trainer: Any) -> None:
        inner = trainer._generate_single_turn

        def generate(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            # More and more of the completions are German, as if that were easier.
            share = min(1.0, trainer.state.global_step / 10)
            count = round(share * len(prompt_ids))
            ids = [german] * count + [english] * (len(prompt_ids) - count)
            return [[*row, END] for row in ids], inner(prompt_ids, *args, **kwargs)[1]

        trainer._generate_single_turn = generate

    trainer = train(tiny_model_dir, tmp_path, even, speak, max_steps=12)
    alarm = alarms(trainer)["language_drift"]
    assert "of the reasoning's words are in the wanted language" in alarm["seen"]
    assert alarm["advice"] == "add {use: language_consistency, weight: 0.2} to rewards"


class StaleSampler:
    """In vLLM's place: samples from weights that are not the trainer's, as a failed sync would."""

    def __init__(self, model: Path, noise: float) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model)
        torch.manual_seed(0)
        with torch.no_grad():
            self.model.lm_head.weight.add_(noise * torch.randn_like(self.model.lm_head.weight))
        self.temperature, self.max_completion_length = 1.0, 8

    def sync_weights(self) -> None:
        """What fails."""

    def generate(self, prompts: list[list[int]], **_: Any) -> Any:
        ids, logps = [], []
        for prompt in prompts:
            row = torch.tensor([prompt])
            chosen: list[tuple[int, float]] = []
            for _ in range(self.max_completion_length):
                with torch.no_grad():
                    logits = self.model(row).logits[0, -1] / self.temperature
                scores = logits.log_softmax(-1)
                token = int(torch.multinomial(scores.exp(), 1))
                chosen.append((token, float(scores[token])))
                row = torch.cat([row, torch.tensor([[token]])], dim=1)
            ids.append([token for token, _ in chosen])
            logps.append([[logp] for _, logp in chosen])
        return prompts, ids, logps, None


@pytest.mark.parametrize(("noise", "is_alarm"), [(0.2, True), (0.0, False)])
def test_a_sampler_with_other_weights_is_a_mismatch(
    tiny_model_dir: Path, tmp_path: Path, noise: float, is_alarm: bool
) -> None:
    sampler = StaleSampler(tiny_model_dir, noise)

    def as_vllm(trainer: Any) -> None:
        trainer.use_vllm, trainer.vllm_generation = True, sampler
        trainer._last_loaded_step = -1

    trainer = train(
        tiny_model_dir, tmp_path, even, as_vllm, max_steps=4, learning_rate=1e-6,
        per_device_train_batch_size=8,
        temperature_schedule=[{"from_step": 2, "value": 0.9}],
        max_completion_length_schedule=[{"from_step": 3, "value": 5}],
    )  # fmt: skip
    found = alarms(trainer)
    assert ("sampling_mismatch" in found) is is_alarm
    if is_alarm:
        assert (
            "between vLLM and the trainer log-probabilities differ by"
            in (found["sampling_mismatch"]["seen"])
        )
    assert (sampler.temperature, sampler.max_completion_length) == (0.9, 5)


def test_a_healthy_training_is_silent(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = train(
        tiny_model_dir,
        tmp_path,
        even,
        lambda trainer: make_it_stop(trainer, 7.0),
        max_steps=30,
        learning_rate=2e-3,
        beta=0.001,
    )
    assert read_records(trainer.watch.file) == []


HEALTHY = json.loads((Path(__file__).parent / "healthy_runs.json").read_text())


@pytest.mark.parametrize("name", list(HEALTHY))
def test_all_are_silent_on_the_tiny_recipes_own_runs(name: str) -> None:
    history = History(settings={"accuracy_name": "math_answer_reward"})
    columns, rows = HEALTHY[name]["columns"], HEALTHY[name]["rows"]
    assert len(rows) >= 12
    for row in rows:
        history.add(dict(zip(columns, row, strict=True)))
        found = {monitor: judge(monitor, history) for monitor in MONITORS}
        assert not {monitor: finding for monitor, finding in found.items() if finding}


def series(**columns: list[float | None]) -> History:
    history = History()
    for step, values in enumerate(zip(*columns.values(), strict=True), start=1):
        log = {name.replace("__", "/"): v for name, v in zip(columns, values, strict=True)}
        history.add({"frac_reward_zero_std": 0.0, **log, "step": step})
    return history


def test_a_spike_of_kl_is_no_runaway_and_the_beginning_is_named() -> None:
    assert judge("kl_runaway", series(kl=[0.1, 0.1, 9.0, 0.1, 0.1])) is None
    finding = judge("kl_runaway", series(kl=[0.1, 0.2, 0.7, 1.2, 2.0, 4.0]))
    assert finding.since == 2
    assert "over steps 4 to 6" in finding.seen


def test_a_settled_policy_that_has_learnt_its_task_is_no_alarm() -> None:
    columns: dict[str, Any] = {"entropy": [0.3] * 5 + [0.001] * 10}
    assert judge("entropy_collapse", series(**columns, accuracy=[0.95] * 15)) is None
    assert judge("entropy_collapse", series(**columns, accuracy=[0.3] * 15)) is not None
    dead = series(accuracy=[0.97] * 6)
    for _ in range(6):
        dead.add({"step": dead.steps[-1] + 1, "accuracy": 0.97, "frac_reward_zero_std": 1.0})
    assert judge("dead_groups", dead) is None


def test_truncation_that_falls_is_left_in_peace() -> None:
    falling = [0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    assert judge("truncation", series(completions__clipped_ratio=falling)) is None
    assert judge("truncation", series(completions__clipped_ratio=[0.5] * 10)) is not None


def test_held_out_accuracy_is_taken_where_there_is_any() -> None:
    history = History(settings={"accuracy_name": "right"})
    for step in range(1, 21):
        history.add({"step": step, "frac_reward_zero_std": 0.0, "accuracy": 0.5,
                     "rewards/nice/mean": step / 20, "rewards/nice/std": 0.2})  # fmt: skip
        history.add({"step": step, "eval_accuracy": 0.8 - step / 40})
    finding = judge("reward_hacking", history)
    assert "while held-out accuracy fell from 0.66 to 0.41" in finding.seen


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "monitor": ({"kl_runway": "stop"}, "unknown monitor 'kl_runway'; did you mean 'kl_runaway'?"),
    "action": ({"truncation": "halt"}, "truncation should be one of warn, stop, rollback, off"),
    "limit": ({"truncation": {"abve": 1}}, "no limit 'abve'; did you mean 'above'?"),
    "number": ({"truncation": {"above": "much"}}, "above should be a number from 0, not 'much'"),
    "logs": ({"truncation": {"logs": 1}}, "logs should be a whole number from 2"),
    "all": ({"all": 3}, "all should be one of"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_setting_is_one_clear_error(name: str, tmp_path: Path) -> None:
    given, message = BAD[name]
    with pytest.raises(ValueError, match="monitors: ") as error:
        R1GRPOConfig(output_dir=str(tmp_path), use_cpu=True, monitors=given)
    assert message in str(error.value)


def test_settings_are_read() -> None:
    read = read_monitors({"all": False, "truncation": {"above": 0.5}, "kl_runaway": "rollback"})
    assert read["dead_groups"].action == "off"
    assert (read["truncation"].action, read["truncation"].limits["above"]) == ("off", 0.5)
    assert read["kl_runaway"].action == "rollback"
    assert {setting.action for setting in read_monitors({}).values()} == {"warn"}


def test_a_monitor_that_is_off_says_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = train(tiny_model_dir, tmp_path, nothing_right, max_steps=6, monitors={"all": "off"})
    assert read_records(trainer.watch.file) == []


def test_stop_ends_the_training_and_names_the_last_good_checkpoint(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": None}
    with pytest.raises(AlarmError, match=r"kl_runaway at step \d: .* resume from checkpoint-\d$"):
        train(tiny_model_dir, tmp_path, even, max_steps=9, learning_rate=1.0, beta=0.001,
              lr_scheduler_type="constant_with_warmup", warmup_steps=8,
              monitors={"kl_runaway": "stop"}, **settings)  # fmt: skip
    steps = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    assert steps[-1] < 9


def test_rollback_without_a_stage_is_an_error_of_its_own(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(RollbackNeeded, match="no checkpoint is from before it began"):
        train(tiny_model_dir, tmp_path, nothing_right, max_steps=9,
              monitors={"dead_groups": "rollback"})  # fmt: skip


STAGE: dict[str, Any] = {
    **FAST,
    "per_device_train_batch_size": 8,
    "beta": 0.001,
    "learning_rate": 1.0,
    # The rate rises to that, and the policy breaks on the way.
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 8,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 20,
    "max_steps": 8,
    "rollback_lr_factor": 1e-3,
}


def stage(out: Path, model: Path, rows: Path, reward: str, **settings: Any) -> Any:
    return stage_context(
        out, grpo, model, [{"dataset_name": str(rows)}], {}, (RewardSpec(reward),),
        **{**STAGE, **settings},
    )  # fmt: skip


def test_a_stage_goes_back_and_ends_well_with_a_lower_learning_rate(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    monitors = {"kl_runaway": "rollback"}
    result = grpo.run(stage(tmp_path, tiny_model_dir, rows_file, even_reward, monitors=monitors))
    records = read_records(tmp_path / "monitors.jsonl")
    assert [record["action"] for record in records] == ["rollback", "went back"]
    back = records[1]["to_step"]
    assert 0 < back == records[0]["since"] - 1
    assert records[1]["learning_rate"] == pytest.approx(1e-3)
    assert (result.details["rollbacks"], result.details["alarms"]) == (1, {"kl_runaway": 1})
    assert result.details["steps"] == 8
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["learning_rate"] for line in lines if "kl" in line}
    assert sorted(rates) == list(range(1, 9)), "each step is in the file once"
    assert all(rates[s] == pytest.approx((s - 1) / 8 * (1e-3 if s > back else 1)) for s in rates)
    assert [line["kl"] for line in lines if "kl" in line][-1] < 1.0
    kept = {path.name.split("-")[1] for path in (tmp_path / "rollouts").iterdir()}
    assert len(kept) == 8


def test_a_stage_that_goes_back_too_often_stops(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    context = stage(
        tmp_path, tiny_model_dir, rows_file, even_reward,
        monitors={"kl_runaway": "rollback"}, rollback_lr_factor=1.0, max_rollbacks=1,
    )  # fmt: skip
    with pytest.raises(AlarmError, match="went back 1 times already"):
        grpo.run(context)
    assert num_rollbacks(tmp_path / "monitors.jsonl") == 1
    assert not (tmp_path / "model").exists()


def test_a_stage_that_was_stopped_stops_again_until_it_is_told_otherwise(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    def run(action: str) -> Any:
        monitors = {"kl_runaway": action}
        return grpo.run(stage(tmp_path, tiny_model_dir, rows_file, even_reward, monitors=monitors))

    for _ in range(2):
        with pytest.raises(AlarmError, match=r"--set stage\.monitors\.kl_runaway=rollback it goes"):
            run("stop")
    assert run("rollback").details["rollbacks"] == 1
