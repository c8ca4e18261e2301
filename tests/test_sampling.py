"""Samples are the model's own, whatever batch they were drawn in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.sampling import derive_seed
from trl_r1.sampling.grading import call_reward, told_of_prefill
from trl_r1.sampling.shards import ShardFolder, read_shards
from trl_r1.sampling.transformers_sampler import TransformersSampler
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_policy

PROMPTS = [[{"role": "user", "content": text}] for text in ("1+2=?", "hello", "1+2+3+4=?", "a")]


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.fixture
def model(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir)


def draw(sampler: TransformersSampler, prompts: Any = PROMPTS, **kwargs: Any) -> Any:
    settings = {"num_samples": 2, "max_new_tokens": 8, "seed": 1, **kwargs}
    return sampler.sample(prompts, **settings)


def test_padding_and_batching_do_not_change_greedy_completions(model: Any, tokenizer: Any) -> None:
    settings = {"num_samples": 1, "temperature": 0.0}
    together = draw(TransformersSampler(model, tokenizer, 4), **settings)
    sampler = TransformersSampler(model, tokenizer, 1)
    alone = [draw(sampler, [prompt], **settings)[0] for prompt in PROMPTS]
    assert together == alone


def test_greedy_completions_are_those_of_plain_forward_passes(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler(model, tokenizer, 4)
    (sample,), *_ = draw(sampler, num_samples=1, temperature=0.0)
    ids = sampler.encode(PROMPTS[0])
    for token in sample.token_ids:
        assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_equal_seeds_give_equal_samples_and_leave_the_callers_randomness_alone(
    model: Any, tokenizer: Any
) -> None:
    sampler = TransformersSampler(model, tokenizer, 3)
    first = draw(sampler)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert draw(sampler) == first
    assert torch.equal(torch.rand(3), expected)
    assert draw(sampler, seed=2) != first


def test_samples_of_one_prompt_differ(model: Any, tokenizer: Any) -> None:
    (samples,) = draw(TransformersSampler(model, tokenizer, 8), PROMPTS[:1], num_samples=8)
    assert len({sample.text for sample in samples}) > 4


def test_what_follows_the_end_token_is_dropped(model: Any, tokenizer: Any) -> None:
    greedy = {"num_samples": 1, "temperature": 0.0}
    (uncut,), *_ = draw(TransformersSampler(model, tokenizer, 4), **greedy)
    assert uncut.is_truncated
    assert len(uncut.token_ids) == 8
    end = uncut.token_ids[2]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    (cut,), *_ = draw(TransformersSampler(model, tokenizer, 4), **greedy)
    assert cut.token_ids == uncut.token_ids[: uncut.token_ids.index(end) + 1]
    assert not cut.is_truncated


def test_the_models_own_sampling_defaults_do_not_leak_in(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler(model, tokenizer, 4)
    plain = draw(sampler)
    model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=5.0)
    assert draw(sampler) == plain


def test_a_limit_beyond_the_context_is_the_context(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler(model, tokenizer, 4)
    room = model.config.max_position_embeddings - len(sampler.encode("x" * 500))
    (sample,) = draw(sampler, ["x" * 500], num_samples=1, max_new_tokens=32768)[0]
    assert len(sample.token_ids) <= room


def test_adapters_and_training_mode_are_respected(model: Any, tokenizer: Any) -> None:
    peft_model = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.5, init_lora_weights=False))
    peft_model.train()
    sampler = TransformersSampler(peft_model, tokenizer, 4)
    with_adapter = draw(sampler, temperature=0.0)
    assert peft_model.training
    assert draw(sampler, temperature=0.0) == with_adapter
    with peft_model.disable_adapter():
        assert draw(sampler, temperature=0.0) != with_adapter


def test_four_bit_models_sample(tiny_model_dir: Path, tokenizer: Any) -> None:
    pytest.importorskip("bitsandbytes")
    model_args = ModelArguments(str(tiny_model_dir), load_in_4bit=True)
    quantised, _ = load_policy(str(tiny_model_dir), model_args, trainable=False)
    samples = draw(TransformersSampler(quantised, tokenizer, 4))
    assert [len(group) for group in samples] == [2] * 4


def test_a_model_without_an_end_token_is_refused(model: Any, tokenizer: Any) -> None:
    model.generation_config.eos_token_id = None

    class Endless:
        pad_token_id = 0
        eos_token_id = None

    with pytest.raises(ValueError, match="no end token"):
        TransformersSampler(model, Endless())


def test_parts_have_seeds_of_their_own() -> None:
    seeds = {derive_seed(seed, part) for seed in range(20) for part in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_reward_that_returns_too_few_values_is_named(model: Any, tokenizer: Any) -> None:
    def short_reward(**kwargs: Any) -> list[float]:
        return [1.0]

    samples = draw(TransformersSampler(model, tokenizer, 4), PROMPTS[:1])[0]
    with pytest.raises(ValueError, match="short_reward returned 1 values for 2 completions"):
        call_reward(short_reward, [{"prompt": PROMPTS[0]}] * 2, samples)


def test_only_rewards_that_ask_are_told_of_the_prefill() -> None:
    def asks(prefilled: bool = False, **kwargs: Any) -> bool:
        return prefilled

    def does_not(**kwargs: Any) -> bool:
        return "prefilled" in kwargs

    assert told_of_prefill(asks, True)() is True
    assert told_of_prefill(asks, False)() is False
    assert told_of_prefill(does_not, True)() is False


def test_a_folder_of_shards_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    shards = ShardFolder(folder, 2, pa.schema([("x", pa.int64())]), {"a": 1})
    shards.write(1, [{"x": 2}])
    assert shards.missing() == [0]
    with pytest.raises(FileNotFoundError, match="1 shards are missing, the first of them 0"):
        shards.finish()
    assert not folder.exists()
    shards.write(0, [])
    shards.finish()
    assert [rows for _, rows in read_shards(folder)] == [[], [{"x": 2}]]
    with pytest.raises(ValueError, match="made with other settings"):
        ShardFolder(folder, 2, shards.schema, {"a": 2})
