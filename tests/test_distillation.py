"""The student: the paper's settings, packing that keeps examples apart, and going on on-policy."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SPECIAL_TOKENS, make_tiny_model
from real_servers import running
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.stages import StageContext, distillation
from trl_r1.stages.distillation import PRESETS, OnPolicyArguments, R1DistillationConfig
from trl_r1.training.arguments import DatasetArguments, ModelArguments
from trl_r1.training.packing import PackingError, check_packing

FAST = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "gradient_checkpointing": False}


def context_of(
    folder: Path, model: Path, rows: Path, method: OnPolicyArguments, **settings: Any
) -> StageContext:
    args = R1DistillationConfig(
        output_dir=str(folder / "checkpoints"),
        **{**FAST, "max_length": 64, "gradient_accumulation_steps": 1, **settings},
    )
    model_args = ModelArguments(str(model), reasoning_format="zero_bare")
    data = DatasetArguments([{"dataset_name": str(rows)}])
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext("distill", folder, (data, model_args, method, args))


def trainer_of(folder: Path, model: Path, rows: Path, **settings: Any) -> Any:
    from datasets import Dataset

    args = R1DistillationConfig(output_dir=str(folder), **{**FAST, "max_length": 64, **settings})
    return distillation.R1DistillationTrainer(
        AutoModelForCausalLM.from_pretrained(model),
        args=args,
        train_dataset=Dataset.from_parquet(str(rows)).select_columns(["prompt", "completion"]),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def test_the_presets_are_the_papers() -> None:
    config = R1DistillationConfig(**FAST)
    batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
    assert (batch, config.max_length, config.packing) == (64, 32768, False)
    assert (config.lr_scheduler_type, config.lr_scheduler_kwargs) == (
        "cosine_with_min_lr",
        {"min_lr_rate": 0.1},
    )
    assert config.num_train_epochs in (2.0, 3.0)
    rates = {name: values["learning_rate"] for name, values in PRESETS.items()}
    assert rates == {
        "qwen-1.5b": 1e-4,
        "qwen-7b": 8e-5,
        "qwen-14b": 7e-5,
        "qwen-32b": 6e-5,
        "llama-8b": 5e-5,
        "llama-70b": 2e-5,
    }


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_logits_equal_those_of_the_examples_alone(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, attention: str
) -> None:
    settings = {"packing": True, "max_length": 128, "per_device_train_batch_size": 2}
    trainer = trainer_of(tmp_path, tiny_model_dir, rows_file, **settings)
    trainer.model.set_attn_implementation(attention)
    batch = next(iter(trainer.get_train_dataloader()))
    ids, positions, labels = batch["input_ids"][0], batch["position_ids"][0], batch["labels"][0]
    starts = [*torch.where(positions == 0)[0].tolist(), len(ids)]
    assert len(starts) > 4  # several examples in several packed rows
    model = trainer.model.eval()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with torch.no_grad():
        packed = model(**inputs, use_cache=False).logits[0]
        for start, end in pairwise(starts):
            alone = model(input_ids=ids[start:end][None]).logits[0]
            torch.testing.assert_close(packed[start:end], alone, atol=1e-5, rtol=1e-4)
    # No target crosses a border: the first label of an example belongs to its prompt.
    assert all(labels[start] == -100 for start in starts[:-1])
    expected = trainer_of(tmp_path / "plain", tiny_model_dir, rows_file).train_dataset
    seen = sorted(ids[a:b].tolist() for a, b in pairwise(starts))
    whole = sorted(row["input_ids"] for row in expected)
    assert all(example in whole for example in seen)


def test_a_model_that_lets_packed_examples_see_each_other_is_refused(tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    check_packing(model, 200)

    class Careless(torch.nn.Module):
        """Masks nothing: positions are passed on as if all were one sequence."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input_ids: Any, position_ids: Any, use_cache: bool) -> Any:
            return self.inner(input_ids=input_ids, use_cache=use_cache)

    with pytest.raises(PackingError, match="lets packed examples see each other"):
        check_packing(Careless(), 200)


@pytest.mark.parametrize("strategy", ["wrapped", "bfd_split"])
def test_packing_that_cuts_examples_is_refused(strategy: str) -> None:
    with pytest.raises(ValueError, match="cuts examples in two"):
        R1DistillationConfig(packing=True, packing_strategy=strategy, **FAST)


def run_on_policy(
    tmp_path: Path, student: Path, teacher: Path, rows: Path, method: Any, **args: Any
) -> tuple[Path, dict[str, Any]]:
    given = {"max_steps": 2, "max_completion_length": 6, "learning_rate": 1e-3, **args}
    arguments = OnPolicyArguments(method, str(teacher), on_policy_args=given)
    context = context_of(
        tmp_path / "out", student, rows, arguments, max_steps=2, per_device_train_batch_size=4
    )
    details = dict(distillation.run(context).details)
    assert distillation.run(context).details == details  # finished: nothing is trained again
    return tmp_path / "out", details


def weights(folder: Path) -> torch.Tensor:
    return AutoModelForCausalLM.from_pretrained(folder).model.layers[0].mlp.up_proj.weight


def test_the_student_goes_on_on_policy_with_a_teacher_of_its_vocabulary(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path
) -> None:
    teacher = make_tiny_model(tmp_path / "teacher", seed=7, hidden_size=48)
    out, details = run_on_policy(tmp_path, tiny_model_dir, teacher, rows_file, "distillation")
    assert details["on_policy"] == "distillation"
    assert (details["steps"], details["sft"]["steps"]) == (2, 2)
    assert not torch.equal(weights(out / "model"), weights(out / "sft" / "model"))
    assert not torch.equal(weights(out / "sft" / "model"), weights(tiny_model_dir))


def teacher_with_other_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("conftest.SPECIAL_TOKENS", ["<|x|>", "<|y|>", *SPECIAL_TOKENS[::-1]])
    return make_tiny_model(folder, seed=7, hidden_size=48)


def test_a_teacher_of_another_vocabulary_is_refused_and_gold_is_named(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = teacher_with_other_tokens(tmp_path / "teacher", monkeypatch)
    with pytest.raises(ValueError, match="or GOLD"):
        run_on_policy(tmp_path, tiny_model_dir, teacher, rows_file, "distillation")


def test_the_student_goes_on_across_tokenizers_with_gold(
    tmp_path: Path, tiny_model_dir: Path, rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = teacher_with_other_tokens(tmp_path / "teacher", monkeypatch)
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (teacher, tiny_model_dir)]
    assert tokenizers[0]("1+2")["input_ids"] != tokenizers[1]("1+2")["input_ids"]
    out, details = run_on_policy(tmp_path, tiny_model_dir, teacher, rows_file, "gold")
    assert (details["on_policy"], details["steps"]) == ("gold", 2)
    assert not torch.equal(weights(out / "model"), weights(out / "sft" / "model"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"on_policy": "gkd"}, "unknown on_policy 'gkd'"),
        ({"on_policy": "gold"}, "needs teacher_model_name_or_path"),
        ({"on_policy": "server"}, "needs teacher_server"),
        ({"on_policy_args": {"beta": 0.5}}, "is for on_policy .*, not none"),
    ],
)
def test_what_on_policy_lacks_is_told(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnPolicyArguments(**values)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"betta": 1}, r"unknown key 'betta' in on_policy_args; did you mean 'beta'.*Distill"),
        ({"max_steps": "many"}, r"on_policy_args.max_steps should be a whole number, not 'many'"),
        ({"learning_rate": "1e-6"}, r"reads as text, not as a number; write 1.0e-6"),
    ],
)
def test_a_wrong_key_or_value_of_the_trl_config_is_told_before_anything_runs(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OnPolicyArguments("distillation", "t", on_policy_args=given)


def test_a_teacher_behind_a_server_is_trls_own_trainer(tmp_path: Path, rows_file: Path) -> None:
    from trl_r1.training.on_policy import on_policy_config

    method = OnPolicyArguments("server", teacher_server="http://teacher:8000")
    config = on_policy_config(method, context_of(tmp_path, tmp_path, rows_file, method))
    assert type(config).__name__ == "ServerDistillationConfig"
    assert config.teacher_model_server_url == "http://teacher:8000"


@pytest.mark.vllm
def test_the_student_learns_from_a_teacher_behind_a_vllm_server(
    tmp_path: Path, rows_file: Path
) -> None:
    pytest.importorskip("vllm")
    if "SMOLLM2" not in os.environ:
        pytest.skip("SMOLLM2 names no folder of a model that vLLM can load")
    teacher = Path(os.environ["SMOLLM2"])
    student = teacher.with_name(f"{teacher.name}-24-layers")
    with running(teacher, "vllm") as (server,):
        url = server.url.removesuffix("/v1")
        args = {"max_steps": 2, "max_completion_length": 6, "learning_rate": 1e-4, "beta": 0.0}
        arguments = OnPolicyArguments("server", teacher_server=url, on_policy_args=args)
        context = context_of(
            tmp_path, student, rows_file, arguments, max_steps=1, per_device_train_batch_size=2
        )
        details = dict(distillation.run(context).details)
    assert (details["on_policy"], details["steps"]) == ("server", 2)
    assert not torch.equal(weights(tmp_path / "model"), weights(tmp_path / "sft" / "model"))
