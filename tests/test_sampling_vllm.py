"""vLLM in this process says what transformers says. Run in an environment with vLLM:
`pytest -m vllm tests/test_sampling_vllm.py`; SMOLLM2 names a model folder other than that of
`scripts/get_smollm2`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

MODEL = Path(
    os.environ.get("SMOLLM2", Path(__file__).parents[1] / "models" / "smollm2-135m-instruct")
)
OPTIONS = {"dtype": "float32", "max_model_len": 512, "enforce_eager": True}
GREEDY = {"num_samples": 1, "temperature": 0.0, "max_new_tokens": 24}
TOPICS = ("a river", "the moon", "bread", "a lost key", "chess", "winter", "bees", "a bridge",
          "music", "two friends")  # fmt: skip
QUESTIONS = ("Tell me a fact about {}.", "Write one sentence about {}.", "What rhymes with {}?",
             "Why do people like {}?", "Describe {} to a child.")  # fmt: skip
PROMPTS = [[{"role": "user", "content": q.format(t)}] for t in TOPICS for q in QUESTIONS]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    if not MODEL.is_dir():
        pytest.skip(f"{MODEL} is missing; bash scripts/get_smollm2 makes it")
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]
    config = LoraConfig(r=8, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    peft_model = get_peft_model(model, config)
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    folder = tmp_path_factory.mktemp("adapter")
    peft_model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def engine(adapter: Path, tokenizer: Any) -> Any:
    pytest.importorskip("vllm")
    from trl_r1.sampling.vllm_sampler import VllmSampler

    return VllmSampler.from_pretrained(str(MODEL), tokenizer, OPTIONS, str(adapter))


def plain(tokenizer: Any, adapter: Path | None) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trl_r1.sampling.transformers_sampler import TransformersSampler

    model = AutoModelForCausalLM.from_pretrained(MODEL)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    return TransformersSampler(model, tokenizer, 25)


def ids(sampler: Any) -> list[list[int]]:
    return [group[0].token_ids for group in sampler.sample(PROMPTS, **GREEDY)]


def test_an_adapter_loaded_by_request_says_what_it_says_in_transformers(
    engine: Any, tokenizer: Any, adapter: Path
) -> None:
    assert len(PROMPTS) == 50
    expected, seen = ids(plain(tokenizer, adapter)), ids(engine)
    same = sum(a == b for a, b in zip(expected, seen, strict=True))
    bare_expected, bare = ids(plain(tokenizer, None)), ids(engine.with_adapter(None))
    same_bare = sum(a == b for a, b in zip(bare_expected, bare, strict=True))
    moved = sum(a != b for a, b in zip(expected, bare_expected, strict=True))
    summary = f"adapter {same}/50, bare {same_bare}/50, changed by the adapter {moved}/50"
    (Path(os.environ.get("VLLM_REPORT", os.devnull))).write_text(summary)
    assert same >= 48, summary
    assert same_bare >= 48, summary
    assert moved >= 25, summary


def test_seeds_reasons_and_ends_are_kept(engine: Any) -> None:
    settings = {"num_samples": 3, "temperature": 1.0, "max_new_tokens": 6}
    first = engine.sample(PROMPTS[:4], **settings, seed=1)
    assert engine.sample(PROMPTS[:4], **settings, seed=1) == first
    assert engine.sample(PROMPTS[:4], **settings, seed=2) != first
    assert len({sample.text for sample in first[0]}) > 1
    for group in first:
        for sample in group:
            assert sample.is_truncated == (sample.finish_reason == "length")
            assert sample.is_truncated == (len(sample.token_ids) == 6)
