"""vLLM samples with the adapter in training; its base is never written to.

Run with vLLM by `pytest -m vllm tests/test_grpo_adapter_sync.py`; SMOLLM2 names the model's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import stage_context
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.stages import RewardSpec, grpo
from trl_r1.stages.grpo import adapter_sync
from trl_r1.stages.grpo.adapter_sync import AdapterVLLMGeneration, LoraEngine, adapter_fault

SMOLLM2 = Path(
    os.environ.get("SMOLLM2", Path(__file__).parents[1] / "models" / "smollm2-135m-instruct")
)

QLORA = {"use_peft": True, "load_in_4bit": True}


def peft_model(folder: Path, **settings: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    given = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", **settings}
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **given))


def generation_of(model: Any, folder: Path, llm: Any) -> AdapterVLLMGeneration:
    """As TRL builds it, without an engine."""
    made = AdapterVLLMGeneration.__new__(AdapterVLLMGeneration)
    made.model, made.mode, made.llm, made.enable_sleep_mode = model, "colocate", llm, False
    made.accelerator = SimpleNamespace(is_main_process=True, wait_for_everyone=lambda: None)
    made.num_syncs, made._folder = 0, folder
    return made


def test_each_sync_writes_the_adapter_as_it_is_and_few_stay(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = peft_model(tiny_model_dir)
    told: list[tuple[int, Path]] = []
    engine = SimpleNamespace(use=lambda number, folder: told.append((number, folder)))
    (tmp_path / "adapters").mkdir()
    generation = generation_of(model, tmp_path / "adapters", engine)
    for number in range(1, 6):
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(parameter, number / 100)
        generation.sync_weights()
        assert told[-1][0] == number
        weights = load_file(told[-1][1] / "adapter_model.safetensors")
        written = {round(v.max().item(), 4) for k, v in weights.items() if "lora_B" in k}
        assert written == {number / 100}
    assert len({folder for _, folder in told}) == 5
    left = sorted(path.name for path in (tmp_path / "adapters").iterdir())
    assert left == ["000004", "000005"]


def test_an_adapter_of_another_name_lies_where_vllm_looks(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = peft_model(tiny_model_dir)
    model.add_adapter("policy", LoraConfig(r=4, target_modules="all-linear"))
    model.set_adapter("policy")
    engine = SimpleNamespace(use=lambda number, folder: None)
    (tmp_path / "adapters").mkdir()
    generation = generation_of(model, tmp_path / "adapters", engine)
    generation.sync_weights()
    names = {path.name for path in (tmp_path / "adapters" / "000001").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, None),
        ({"use_rslora": True}, None),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "lora_modules_to_save"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_adapters_that_vllm_can_not_serve_are_known(
    settings: dict[str, Any], fault: str | None, tiny_model_dir: Path
) -> None:
    found = adapter_fault(peft_model(tiny_model_dir, **settings))
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_nothing_is_merged_into_quantised_weights(tiny_model_dir: Path) -> None:
    model = peft_model(tiny_model_dir)
    assert adapter_sync._is_merged(model, "merged")
    assert not adapter_sync._is_merged(model, "auto")
    model.base_model.model.is_loaded_in_4bit = True
    assert not adapter_sync._is_merged(model, "auto")
    with pytest.raises(ValueError, match="round them anew"):
        adapter_sync._is_merged(model, "merged")
    dora = peft_model(tiny_model_dir, use_dora=True)
    assert adapter_sync._is_merged(dora, "auto")
    dora.base_model.model.is_loaded_in_4bit = True
    with pytest.raises(ValueError, match=r"use_dora: true\)"):
        adapter_sync._is_merged(dora, "auto")
    with pytest.raises(ValueError, match="needs LoRA"):
        adapter_sync._is_merged(AutoModelForCausalLM.from_pretrained(tiny_model_dir), "adapter")


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ({"vllm_weight_sync": "adapter"}, "vllm_weight_sync"),
        (
            {"use_peft": True, "load_in_4bit": True, "vllm_weight_sync": "merged"},
            "vllm_weight_sync",
        ),
        ({**QLORA, "use_dora": True}, "use_dora"),
        ({"use_peft": True, "use_dora": True}, None),
        (QLORA, None),
    ],
)
def test_what_can_not_be_sent_is_told_by_the_check(recipe: dict[str, Any], key: str | None) -> None:
    from trl_r1.stages.grpo.stage import check

    faults = check({"use_vllm": True, "datasets": [{"task": "gsm8k"}], **recipe})
    assert [fault[0] for fault in faults] == ([key] if key else [])
    assert check({**recipe, "datasets": [{"task": "gsm8k"}]}) == []


def test_weights_in_shards_are_sent_by_trls_way(tiny_model_dir: Path) -> None:
    fsdp = SimpleNamespace(distributed_type="DistributedType.FSDP")
    plugin = SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3))
    zero3 = SimpleNamespace(distributed_type="DEEPSPEED", state=plugin)
    assert adapter_sync._is_in_shards(fsdp)
    assert adapter_sync._is_in_shards(zero3)
    assert not adapter_sync._is_in_shards(SimpleNamespace(distributed_type="MULTI_GPU"))
    assert adapter_sync._is_merged(peft_model(tiny_model_dir), "auto", in_shards=True)


def test_an_engine_that_sleeps_keeps_its_base() -> None:
    levels: list[int] = []
    engine = LoraEngine(SimpleNamespace(sleep=lambda level: levels.append(level)))
    engine.sleep(level=2)
    assert levels == [1]


# With vLLM.


@pytest.fixture(scope="module")
def smollm2() -> Path:
    pytest.importorskip("vllm")
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is missing; bash scripts/get_smollm2 makes it")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    return SMOLLM2


def _hash(weights: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].detach().contiguous().float().numpy().tobytes())
    return digest.hexdigest()


def _base_of(engine: Any) -> str:
    runner = engine.llm_engine.model_executor.driver_worker.model_runner
    kept = {n: p for n, p in runner.model.named_parameters() if "lora" not in n}
    return _hash(kept)


@pytest.mark.vllm
def test_after_each_of_ten_syncs_vllm_says_what_transformers_says(
    smollm2: Path, tmp_path: Path
) -> None:
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = peft_model(smollm2)
    engine = LoraEngine(
        LLM(model=str(smollm2), dtype="float32", max_model_len=256, enforce_eager=True,
            enable_lora=True, max_lora_rank=8, max_loras=1)
    )  # fmt: skip
    (tmp_path / "adapters").mkdir()
    generation = generation_of(model, tmp_path / "adapters", engine)
    things = ("a river", "the moon", "bread", "a key", "chess", "winter", "bees", "a bridge",
              "music", "friends")  # fmt: skip
    asks = ("Tell me of {}.", "What rhymes with {}?")
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": ask.format(thing)}], add_generation_prompt=True,
            return_dict=False,
        )
        for thing in things for ask in asks
    ]  # fmt: skip
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    target = tokenizer("I am a pirate, and the sea is my home, arr.", return_tensors="pt")
    before = (_base_of(engine), _hash(model.get_base_model().state_dict()))
    shares, seen = [], set()
    for _ in range(10):
        model.train()
        model(**target, labels=target["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        generation.sync_weights()
        outputs = engine.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False,
        )  # fmt: skip
        same = 0
        for ids, output in zip(prompts, outputs, strict=True):
            with torch.no_grad():
                ours = model.generate(
                    input_ids=torch.tensor([ids]), max_new_tokens=12, do_sample=False
                )
            text = list(output.outputs[0].token_ids)
            seen.add(tuple(text))
            same += ours[0, len(ids) :].tolist()[: len(text)] == text
        shares.append(same / len(prompts))
    Path(os.environ.get("VLLM_REPORT", os.devnull)).write_text(f"same greedy tokens: {shares}\n")
    assert min(shares) >= 0.95, shares
    assert len(seen) > len(prompts), "the adapter has to change what is said"
    assert _base_of(engine) == before[0]
    bases = {n: p for n, p in model.get_base_model().state_dict().items() if "lora" not in n}
    fresh = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).state_dict()
    assert all(
        torch.equal(fresh[name], value)
        for key, value in bases.items()
        if (name := key.replace(".base_layer", "")) in fresh
    )


@pytest.mark.vllm
@pytest.mark.parametrize("sleeps", [False])
def test_the_grpo_stage_runs_with_adapters_by_request(
    smollm2: Path, tmp_path: Path, rows_file: Path, even_reward: str, sleeps: bool
) -> None:
    from trl_r1.stages.grpo import stage

    engines: list[Any] = []
    initial = AdapterVLLMGeneration._init_vllm

    def init(self: Any) -> None:
        initial(self)
        engines.append((self, _base_of(self.llm)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdapterVLLMGeneration, "_init_vllm", init)
        context = stage_context(
            tmp_path / "out", grpo, smollm2, [{"dataset_name": str(rows_file)}],
            {"use_peft": True, "lora_r": 8, "lora_target_modules": ["all-linear"],
             "dtype": "float32", "chat_template": "chatml"},
            (RewardSpec(even_reward),), per_device_train_batch_size=4, num_generations=4,
            max_completion_length=8, max_steps=5, learning_rate=1e-3, use_vllm=True,
            vllm_mode="colocate", vllm_max_model_length=256, vllm_enable_sleep_mode=sleeps,
            vllm_gpu_memory_utilization=0.1,
        )  # fmt: skip
        stage.run(context)
    ((generation, base),) = engines
    assert generation.num_syncs == 5
    assert _base_of(generation.llm) == base
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    metrics = (tmp_path / "out" / "metrics.jsonl").read_text()
    assert "sampling/sampling_logp_difference" in metrics
    Path(os.environ.get("VLLM_REPORT", os.devnull)).with_suffix(".metrics").write_text(metrics)


@pytest.mark.vllm
def test_a_server_is_sent_adapters_and_grpo_runs_with_it(
    smollm2: Path, tmp_path: Path, rows_file: Path, even_reward: str
) -> None:
    from real_servers import running

    from trl_r1.stages.grpo import stage
    from trl_r1.stages.grpo.adapter_sync import LoraClient

    used: list[int] = []
    use = LoraClient.use

    def noted(self: Any, number: int, folder: Path) -> None:
        use(self, number, folder)
        used.append(number)

    with running(smollm2, "vllm_lora") as (server,), pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoraClient, "use", noted)
        context = stage_context(
            tmp_path / "out", grpo, smollm2, [{"dataset_name": str(rows_file)}],
            {"use_peft": True, "lora_r": 8, "lora_target_modules": ["all-linear"],
             "dtype": "float32", "chat_template": "chatml"},
            (RewardSpec(even_reward),), per_device_train_batch_size=4, num_generations=4,
            max_completion_length=8, max_steps=3, learning_rate=1e-3, use_vllm=True,
            vllm_mode="server", vllm_server_base_url=server.url.removesuffix("/v1"),
        )  # fmt: skip
        stage.run(context)
    assert used == [1, 2, 3]
    metrics = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    differences = [
        line["sampling/sampling_logp_difference/mean"]
        for line in metrics
        if "sampling/sampling_logp_difference/mean" in line
    ]
    assert len(differences) == 3
    assert max(differences) < 0.05, "the server samples from the policy in training"
