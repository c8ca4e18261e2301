"""What TRL's users rely on in GRPO holds with R1GRPOTrainer, beside TRL's own trainer.

The kinds are those of TRL's test suite; each training is a few steps of a tiny model. Both trainers
sample the same completions from the same seed, so their weights at the end are compared.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows
from datasets import Dataset, IterableDataset, load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from trl_r1.stages.grpo import R1GRPOTrainer

FAST: dict[str, Any] = {
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 6,
    "max_steps": 2,
    "optim": "sgd",
    "learning_rate": 0.5,
}


def even(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


def prompts(num_rows: int = 16, *, plain: bool = False) -> Dataset:
    rows = [{k: row[k] for k in ("prompt", "solution", "task")} for row in make_rows(num_rows)]
    if plain:
        rows = [{**row, "prompt": row["prompt"][0]["content"]} for row in rows]
    return Dataset.from_list(rows)


def make(
    kind: type, model: Any, out: Path, rewards: Any = even, data: Any = None, **given: Any
) -> Any:
    """A trainer; what TRL's trainer takes itself is under `trainer`, the rest is settings."""
    extra = dict(given.pop("trainer", {}))
    config = given.pop("config", GRPOConfig)
    extra.setdefault("train_dataset", prompts() if data is None else data)
    if kind is R1GRPOTrainer:
        extra.setdefault("rollouts_dir", out / "rollouts")
    else:
        extra.pop("rollouts_dir", None)
    if isinstance(model, Path):
        model = str(model)
    args = config(output_dir=str(out), **{**FAST, **given})
    return kind(model, reward_funcs=rewards, args=args, **extra)


def flat(model: Any) -> torch.Tensor:
    weights = [p.detach().float().flatten() for p in model.parameters() if p.requires_grad]
    return torch.cat(weights)


def both(model: Any, out: Path, *args: Any, **given: Any) -> list[Any]:
    """Both trainers after training, TRL's first; their updates are asserted to be the same."""
    trainers, changes = [], []
    for kind in (GRPOTrainer, R1GRPOTrainer):
        start = model() if callable(model) else model
        trainer = make(kind, start, out / kind.__name__, *args, **given)
        before = flat(trainer.model)
        trainer.train()
        changes.append(flat(trainer.model) - before)
        trainers.append(trainer)
    theirs, ours = changes
    assert theirs.norm() > 0
    assert (theirs - ours).norm() < 1e-3 * theirs.norm()
    assert trainers[0].state.global_step == trainers[1].state.global_step
    return trainers


def logged(trainer: Any, name: str) -> list[Any]:
    return [log[name] for log in trainer.state.log_history if name in log]


SETTINGS: dict[str, dict[str, Any]] = {
    "several epochs": {"max_steps": -1, "num_train_epochs": 2},
    "a last accumulation that is not full": {
        "max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 3,
        "steps_per_generation": 4,
    },
    "fewer micro-steps a generation than a step": {
        "gradient_accumulation_steps": 4, "steps_per_generation": 2
    },
    "more micro-steps a generation than a step": {
        "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 3,
    },
    "neither divides the other": {
        "gradient_accumulation_steps": 2, "steps_per_generation": 3, "max_steps": 5,
    },
    "two iterations": {"num_iterations": 2, "max_steps": 3},
    "no shuffling": {"shuffle_dataset": False},
    "KL": {"beta": 0.1},
    "a reference that follows": {
        "beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "max_steps": 3
    },
    "cut-off completions masked": {"mask_truncated_completions": True, "max_completion_length": 24},
    "rewards scaled by the batch": {
        "scale_rewards": "batch", "gradient_accumulation_steps": 2
    },
    "rewards not scaled": {"scale_rewards": "none"},
    "clip-higher": {"epsilon_high": 0.28, "num_iterations": 2},
    "two-sided clipping": {"delta": 2.0, "num_iterations": 2},
    "ratios of sequences": {"importance_sampling_level": "sequence", "num_iterations": 2},
    "sampling filters": {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1},
    "generation settings": {"generation_kwargs": {"typical_p": 0.9}},
    "template settings": {"chat_template_kwargs": {"enable_thinking": False}},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "reentrant checkpointing": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "a schedule and a gradient limit": {
        "optim": "adamw_torch", "learning_rate": 1e-2, "lr_scheduler_type": "cosine",
        "warmup_steps": 1, "max_grad_norm": 0.01, "max_steps": 3,
    },
    "an entropy bonus": {"entropy_coef": 0.1},
}  # fmt: skip
SLOW = {"several epochs", "rewards not scaled", "clip-higher", "reentrant checkpointing"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SETTINGS]
)
def test_a_setting_does_what_it_does_in_trl(
    tiny_model_dir: Path, tmp_path: Path, name: str
) -> None:
    theirs, ours = both(tiny_model_dir, tmp_path, **SETTINGS[name])
    assert logged(ours, "reward") == pytest.approx(logged(theirs, "reward"), abs=1e-5)


@pytest.mark.parametrize(
    "loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
)
def test_every_loss_trains_on_partly_filled_windows(
    tiny_model_dir: Path, tmp_path: Path, loss_type: str
) -> None:
    level = {"importance_sampling_level": "sequence"} if loss_type == "luspo" else {}
    both(
        tiny_model_dir, tmp_path, loss_type=loss_type, max_steps=3, **level,
        gradient_accumulation_steps=3, steps_per_generation=2, data=prompts(10),
    )  # fmt: skip


def test_rewards_of_every_kind_count_together(tiny_model_dir: Path, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def with_columns(completions: Any, solution: Any, trainer_state: Any, **kw: Any) -> list[float]:
        seen.update(steps=trainer_state.global_step, solution=solution, keys=sorted(kw))
        return [float(len(str(c)) % 3) for c in completions]

    def of_some_rows(completions: Any, **_: Any) -> list[float | None]:
        return [None if i % 2 else 1.0 * (i % 4) for i, _ in enumerate(completions)]

    def of_no_row(completions: Any, **_: Any) -> list[None]:
        return [None] * len(completions)

    async def slow_even(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return even(completion_ids)

    torch.manual_seed(3)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    judge = AutoModelForSequenceClassification.from_pretrained(tiny_model_dir, num_labels=1)
    rewards = [with_columns, of_some_rows, of_no_row, slow_even, judge]
    theirs, ours = both(
        tiny_model_dir,
        tmp_path,
        rewards,
        reward_weights=[0.5, 1.0, 1.0, 2.0, 0.1],
        log_completions=True,
        trainer={"reward_processing_classes": [None] * 4 + [tokenizer]},
    )
    assert seen["steps"] == 1
    assert len(seen["solution"]) == 4
    for name in [key for key in theirs.state.log_history[0] if key.startswith("rewards/")]:
        assert logged(ours, name) == pytest.approx(logged(theirs, name), abs=1e-5, nan_ok=True)
    written = sorted((tmp_path / "R1GRPOTrainer" / "completions").iterdir())
    assert [path.name for path in written] == [f"completions_{i:05d}.parquet" for i in (1, 2)]
    rows = load_dataset("parquet", data_dir=str(tmp_path / "R1GRPOTrainer" / "rollouts"),
                        split="train", cache_dir=str(tmp_path / "cache"))  # fmt: skip
    assert len(rows) == 8
    assert set(rows["reward_of_no_row"]) == {None}
    assert None not in rows["reward_slow_even"]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "conversational"])
def test_evaluation_between_steps_changes_no_update(
    tiny_model_dir: Path, tmp_path: Path, plain: bool
) -> None:
    theirs, ours = both(
        tiny_model_dir, tmp_path, data=prompts(plain=plain), max_steps=4,
        gradient_accumulation_steps=2, steps_per_generation=4, eval_strategy="steps", eval_steps=1,
        num_generations_eval=2, per_device_eval_batch_size=4,
        trainer={"eval_dataset": prompts(3, plain=plain)},
    )  # fmt: skip
    assert len(logged(ours, "eval_reward")) == 4
    assert logged(ours, "eval_reward") == pytest.approx(logged(theirs, "eval_reward"), abs=1e-5)
    assert logged(ours, "eval_loss") == pytest.approx(logged(theirs, "eval_loss"), abs=1e-4)
    assert len(logged(ours, "eval_pass@2")) == 4  # of groups of evaluation's size
    assert not logged(ours, "eval_pass@4")


def test_evaluation_stands_alone(tiny_model_dir: Path, tmp_path: Path) -> None:
    values = []
    for kind in (GRPOTrainer, R1GRPOTrainer):
        trainer = make(kind, tiny_model_dir, tmp_path, trainer={"eval_dataset": prompts(4)})
        torch.manual_seed(5)
        values.append(trainer.evaluate())
    assert values[1]["eval_reward"] == pytest.approx(values[0]["eval_reward"], abs=1e-5)
    assert values[1]["eval_loss"] == pytest.approx(values[0]["eval_loss"], abs=1e-5)
    assert not list((tmp_path / "rollouts").iterdir())


@pytest.mark.parametrize("has_features", [True, False])
def test_a_stream_trains(tiny_model_dir: Path, tmp_path: Path, has_features: bool) -> None:
    rows = list(prompts())
    stream = (
        prompts().to_iterable_dataset()
        if has_features
        else IterableDataset.from_generator(lambda: iter(rows))
    )
    _, ours = both(tiny_model_dir, tmp_path, data=stream)
    kept = load_dataset("parquet", data_dir=str(tmp_path / "R1GRPOTrainer" / "rollouts"),
                        split="train", cache_dir=str(tmp_path / "cache"))  # fmt: skip
    assert len(kept) == 4 * ours.state.global_step
    assert set(kept["task"]) == {"sums"}
    assert kept[0]["prompt"][0]["role"] == "user"


def test_text_of_any_arrow_type_is_a_plain_prompt(tiny_model_dir: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"prompt": pa.array([f"{i}+1=" for i in range(8)], pa.large_string())})
    trainer = make(R1GRPOTrainer, tiny_model_dir, tmp_path, data=Dataset(table), max_steps=1)
    trainer.train()
    (path,) = (tmp_path / "rollouts").glob("*.parquet")
    rows = Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert all(isinstance(text, str) for text in rows["completion"])


def test_adapters_train_new_or_given(tiny_model_dir: Path, tmp_path: Path) -> None:
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)

    def given() -> Any:
        torch.manual_seed(1)
        base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
        return get_peft_model(base, lora)

    for beta in (0.0, 0.1):
        both(given, tmp_path / f"given-{beta}", beta=beta)
    new = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    both(tiny_model_dir, tmp_path / "new", beta=0.1, trainer={"peft_config": new})


@pytest.mark.parametrize("precision", ["bf16 weights", "bf16 autocast"])
def test_half_precision_trains(tiny_model_dir: Path, tmp_path: Path, precision: str) -> None:
    settings: dict[str, Any] = (
        {"bf16": True}
        if precision == "bf16 autocast"
        else {"model_init_kwargs": {"dtype": "bfloat16"}}
    )
    trainer = make(R1GRPOTrainer, tiny_model_dir, tmp_path, **settings)
    before = flat(trainer.model)
    trainer.train()
    assert torch.isfinite(flat(trainer.model)).all()
    assert not torch.equal(before, flat(trainer.model))
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))


def test_optimizer_and_callbacks_of_the_user_are_used(tiny_model_dir: Path, tmp_path: Path) -> None:
    events: list[str] = []

    class Listener(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            events.append("step")

        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            events.append("log" if "reward" in logs else "end")

    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5)
    trainer = make(
        R1GRPOTrainer,
        model,
        tmp_path,
        trainer={"callbacks": [Listener()], "optimizers": (optimizer, scheduler)},
    )
    trainer.train()
    assert events == ["step", "log", "step", "log", "end"]
    assert logged(trainer, "learning_rate")[0] == pytest.approx(0.05)


def test_a_resumed_run_in_epochs_of_odd_length_goes_the_same_way(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    # Three micro-steps a step, four a generation, eight an epoch: the last step of each is short.
    settings: dict[str, Any] = {
        "gradient_accumulation_steps": 3, "steps_per_generation": 4, "max_steps": -1,
        "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "data": prompts(8),
        "optim": "adamw_torch", "learning_rate": 1e-2, "save_total_limit": None,
    }  # fmt: skip
    whole = make(R1GRPOTrainer, tiny_model_dir, tmp_path, **settings)
    whole.train()
    saved = sorted(int(p.name.split("-")[1]) for p in tmp_path.glob("checkpoint-*"))
    assert len(saved) > 1
    assert saved[-1] == whole.state.global_step
    for step in saved[:-1]:
        resumed = make(
            R1GRPOTrainer, tiny_model_dir, tmp_path / "again", **{**settings, "save_strategy": "no"}
        )
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert torch.equal(flat(whole.model), flat(resumed.model)), f"resumed from {step}"


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_the_best_checkpoint_is_loaded_at_the_end(
    tiny_model_dir: Path, tmp_path: Path, strategy: str
) -> None:
    trainer = make(
        R1GRPOTrainer, tiny_model_dir, tmp_path, max_steps=6,
        steps_per_generation=2, save_strategy=strategy, save_steps=1, eval_strategy="steps",
        eval_steps=1, load_best_model_at_end=True, metric_for_best_model="reward",
        greater_is_better=True, trainer={"eval_dataset": prompts(4)},
    )  # fmt: skip
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None
    assert Path(best).is_dir()
    found = {log["step"]: log["eval_reward"] for log in trainer.state.log_history
             if "eval_reward" in log}  # fmt: skip
    assert found[int(best.rsplit("-", 1)[1])] == max(found.values())
    weights = AutoModelForCausalLM.from_pretrained(best, dtype=torch.float32)
    assert torch.equal(flat(weights), flat(trainer.model))


def test_images_are_kept_beside_the_completions(tmp_path: Path) -> None:
    from datasets import Features, Image, Value
    from PIL import Image as Picture

    from trl_r1.stages.grpo.rollouts import RolloutStore

    features = Features({"prompt": Value("string"), "image": Image()})
    picture = Picture.new("RGB", (2, 2), (255, 0, 0))
    data = Dataset.from_dict({"prompt": ["a"], "image": [picture]}, features=features)
    store = RolloutStore(tmp_path / "kept", ["right"], data.features)
    path = store.write(0, 0, [data[0]], ["b"], [[4]], {4}, [[1.0]], [1.0], [0.0])
    row = Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    back = row.cast_column("image", Image())[0]["image"]
    assert back.getpixel((0, 0)) == (255, 0, 0)
