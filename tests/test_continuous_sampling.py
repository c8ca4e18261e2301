"""Continuous batching draws what its arguments say, whatever else was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.reasoning_format import get_format
from trl_r1.sampling import NO_ROOM
from trl_r1.sampling.continuous_sampler import ContinuousSampler
from trl_r1.sampling.engines import EngineArguments, open_sampler
from trl_r1.sampling.transformers_sampler import TransformersSampler
from trl_r1.training.arguments import ModelArguments

PROMPTS = [[{"role": "user", "content": f"{i}+{'1' * (i % 5)}=?"}] for i in range(9)]


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.fixture
def model(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir)


def draw(sampler: TransformersSampler, prompts: Any = PROMPTS, **kwargs: Any) -> Any:
    return sampler.sample(prompts, **{"num_samples": 2, "max_new_tokens": 10, "seed": 1, **kwargs})


def tokens(drawn: Any) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in group] for group in drawn]


def test_equal_arguments_give_equal_samples_whatever_was_drawn_before(
    model: Any, tokenizer: Any
) -> None:
    first = draw(ContinuousSampler(model, tokenizer, 4))
    sampler = ContinuousSampler(model, tokenizer, 4)
    draw(sampler, PROMPTS[:3], num_samples=5, seed=7)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert draw(sampler) == first
    assert torch.equal(torch.rand(3), expected)
    assert draw(sampler, seed=2) != first
    assert [len(group) for group in first] == [2] * 9


def test_greedy_completions_are_those_of_plain_generation(model: Any, tokenizer: Any) -> None:
    settings = {"num_samples": 1, "temperature": 0.0}
    plain = draw(TransformersSampler(model, tokenizer, 3), **settings)
    continuous = draw(ContinuousSampler(model, tokenizer, 3), **settings)
    shown = [
        [[(s.text, s.token_ids, s.is_truncated, s.finish_reason) for s in group] for group in drawn]
        for drawn in (plain, continuous)
    ]
    assert shown[0] == shown[1]


def test_plain_generation_and_adapters_are_as_before_after_it(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(0)
    tuned = get_peft_model(model, LoraConfig(r=16, lora_alpha=64, init_lora_weights=False))
    tuned.train()
    settings = {"num_samples": 1, "temperature": 0.0}
    plain = draw(TransformersSampler(tuned, tokenizer, 3), **settings)
    continuous = draw(ContinuousSampler(tuned, tokenizer, 3), **settings)
    with tuned.disable_adapter():
        without = draw(TransformersSampler(tuned, tokenizer, 3), **settings)
        assert without != plain
        assert tokens(draw(ContinuousSampler(tuned, tokenizer, 3), **settings)) == tokens(without)
    assert tuned.training
    assert draw(TransformersSampler(tuned, tokenizer, 3), **settings) == plain
    assert tokens(continuous) == tokens(plain)


def test_each_prompt_has_its_own_room(model: Any, tokenizer: Any) -> None:
    context = model.config.max_position_embeddings
    sampler = ContinuousSampler(model, tokenizer, 3)
    prompts = ["x" * 600, "x" * (context - 20), "x"]
    tokens = [len(sampler.encode(prompt)) for prompt in prompts]
    long, tight, free = draw(sampler, prompts, max_new_tokens=32)
    assert {sample.finish_reason for sample in long} == {NO_ROOM}
    assert all(sample.length <= context - tokens[1] for sample in tight)
    assert all(0 < sample.length <= 32 for sample in free)


def test_a_recipe_asks_for_it(tiny_model_dir: Path) -> None:
    arguments = EngineArguments(continuous_batching=True)
    model_args = ModelArguments(str(tiny_model_dir))
    sampler = open_sampler(arguments, str(tiny_model_dir), model_args, get_format("zero"), 2)
    assert isinstance(sampler, ContinuousSampler)
    assert arguments.record() != EngineArguments().record()
    with pytest.raises(ValueError, match="continuous_batching is for `engine: transformers`"):
        EngineArguments("vllm", continuous_batching=True)
