"""Fixtures that several tests share: a tiny model folder made on the spot, and rows for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SPECIAL_TOKENS = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]


def make_tiny_model(folder: Path, seed: int = 0, hidden_size: int = 32) -> Path:
    """A random Qwen2 of two layers with a byte-level tokenizer and the compact chat template."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    from trl_r1.reasoning_format import chat_template, get_format

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL_TOKENS)
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    template, end_token = chat_template("compact", get_format("zero_bare"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=end_token, pad_token="<|pad|>"
    )
    tokenizer.chat_template = template
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_rows(num_rows: int = 16) -> list[dict[str, Any]]:
    """Sums of two digits with a response in the format `zero_bare`."""
    rows = []
    for i in range(num_rows):
        a, b = i % 9 + 1, i * 7 % 9 + 1
        response = f"<think>{a}+{b}={a + b}</think><answer>{a + b}</answer>"
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"{a}+{b}=?"}],
                "completion": [{"role": "assistant", "content": response}],
                "solution": str(a + b),
                "task": "sums",
            }
        )
    return rows


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny Qwen2 model and tokenizer with the compact template."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny_task_rows() -> list[dict[str, Any]]:
    """Sixteen rows with `prompt`, `completion`, `solution` and `task`."""
    return make_rows()
