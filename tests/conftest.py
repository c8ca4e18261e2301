"""Fixtures that several tests share: a tiny model folder made on the spot, and rows for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub

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


SettingsMap = dict[str, Any]


def stage_context(
    output_dir: Path,
    module: Any,
    model: Path,
    datasets: list[dict[str, Any]],
    model_settings: SettingsMap | None = None,
    rewards: tuple[Any, ...] = (),
    stop_at: int | None = None,
    **settings: Any,
) -> Any:
    """The context that a runner would hand to a training stage.

    `stop_at` raises `Killed` at the log of that step, before its checkpoint: what a kill does.
    """
    from trl_r1.stages import StageContext
    from trl_r1.training.arguments import DatasetArguments, GradingArguments, ModelArguments

    def on_progress(step: int, max_steps: int, metrics: Any) -> None:
        if stop_at is not None and step >= stop_at:
            raise Killed

    output_dir.mkdir(parents=True, exist_ok=True)
    fast = {
        "report_to": "none",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "logging_steps": 1,
        "use_cpu": True,
    }
    args = module.SPEC.configs[-1](
        output_dir=str(output_dir / "checkpoints"), **{**fast, **settings}
    )
    model_args = ModelArguments(
        model_name_or_path=str(model), reasoning_format="zero_bare", **(model_settings or {})
    )
    grading = GradingArguments(reward_workers=1)
    given = (DatasetArguments(datasets), model_args, grading)
    others = [kind for kind in module.SPEC.configs[:-1] if kind not in map(type, given)]
    configs = (*given, *(kind() for kind in others), args)
    return StageContext("stage", output_dir, configs, rewards, on_progress)


class Killed(BaseException):
    """Stands in for a kill: nothing in the stage catches it."""


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of `tiny_task_rows` as a file."""
    from datasets import Dataset

    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    Dataset.from_list(make_rows()).to_parquet(path)
    return path


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Preference pairs as a file: the response of a row against a bare "no"."""
    from datasets import Dataset

    path = tmp_path_factory.mktemp("pairs") / "pairs.parquet"
    refusal = [{"role": "assistant", "content": "no"}]
    pairs = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": refusal}
        for row in make_rows()
    ]
    Dataset.from_list(pairs).to_parquet(path)
    return path


@pytest.fixture(scope="session")
def even_reward(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Reference of a reward that even a random model gets some of: the share of even token ids."""
    path = tmp_path_factory.mktemp("rewards") / "even.py"
    path.write_text(
        "def even_reward(completions, completion_ids, **kwargs):\n"
        "    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]\n"
    )
    return f"{path}:even_reward"


@pytest.fixture
def tiny_task_rows() -> list[dict[str, Any]]:
    """Sixteen rows with `prompt`, `completion`, `solution` and `task`."""
    return make_rows()


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub on this machine for the real client, here and, by its `env`, in subprocesses."""
    yield from serve_hub(FakeHub(tmp_path / "hf_home"), monkeypatch)


@pytest.fixture
def fake_xet_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The same with large files by Xet, as the client does it where `hf_xet` is installed."""
    pytest.importorskip("hf_xet")
    hub = FakeHub(tmp_path / "hf_home")
    hub.offer_xet()
    yield from serve_hub(hub, monkeypatch)


def serve_hub(hub: FakeHub, patch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Let a test use a Hub. A fault that it asked for and that befell nothing fails the test."""
    hub.connect(patch)
    yield hub
    hub.close()
    assert hub.unmet_faults() == []
