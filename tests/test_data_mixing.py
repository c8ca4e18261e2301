"""Mixtures have the rows asked for, think where they should, and say where rows come from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from trl_r1.data.card import DataLog
from trl_r1.data.mixing import MixtureSource, fitted, mix
from trl_r1.data.templates import check_template
from trl_r1.reasoning_format import get_format
from trl_r1.tasks import DatasetSource
from trl_r1.training.data import load_mixture
from trl_r1.training.sft import TargetError

FMT = get_format("r1")


def reasoning(count: int, **extra: Any) -> Dataset:
    return Dataset.from_list(
        [
            {
                "prompt": FMT.prompt(f"question {i}"),
                "completion": [{"role": "assistant", "content": FMT.render("so", str(i))}],
                "solution": str(i),
                **extra,
            }
            for i in range(count)
        ]
    )


def general(count: int) -> Dataset:
    return Dataset.from_list(
        [
            {
                "messages": [
                    {"role": "user", "content": f"hello {i}"},
                    {"role": "assistant", "content": f"Hello to you {i}!"},
                ]
            }
            for i in range(count)
        ]
    )


def counts(rows: Dataset) -> dict[str, int]:
    return dict(Counter(rows["source"]))


def test_shares_without_a_total_give_the_largest_mixture_in_which_no_row_is_twice() -> None:
    sources = [
        MixtureSource("math", reasoning(300), share=0.75),
        MixtureSource("chat", general(50), share=0.25),
    ]
    rows = mix(sources, seed=0)
    assert counts(rows) == {"math": 150, "chat": 50}
    assert len(set(map(str, rows["messages"]))) == 200


def test_counts_caps_and_totals_are_kept_to() -> None:
    by_count = [
        MixtureSource("math", reasoning(30), num_rows=20),
        MixtureSource("chat", general(30), max_rows=5),
    ]
    assert counts(mix(by_count, seed=0)) == {"math": 20, "chat": 5}
    capped = [
        MixtureSource("math", reasoning(300), share=0.75, max_rows=60),
        MixtureSource("chat", general(300), share=0.25),
    ]
    assert counts(mix(capped, seed=0)) == {"math": 60, "chat": 20}
    total = [
        MixtureSource("math", reasoning(300), share=0.6),
        MixtureSource("chat", general(100)),
        MixtureSource("talk", general(300)),
    ]
    assert counts(mix(total, seed=0, total=100)) == {"math": 60, "chat": 10, "talk": 30}


def test_too_few_rows_are_an_error_unless_they_may_come_again() -> None:
    sources = [
        MixtureSource("math", reasoning(10), share=0.5),
        MixtureSource("chat", general(100), share=0.5),
    ]
    with pytest.raises(ValueError, match="math has 10 rows and may give 10, but 15 are asked"):
        mix(sources, seed=0, total=30)
    rows = mix(sources, seed=0, total=30, max_repeats=2)
    assert counts(rows) == {"math": 15, "chat": 15}
    uses = Counter(row["solution"] for row in rows if row["source"] == "math")
    assert sorted(uses.values()) == [1] * 5 + [2] * 5


def test_a_mixture_is_the_same_for_a_seed_and_another_for_another() -> None:
    sources = [
        MixtureSource("math", reasoning(40), num_rows=20),
        MixtureSource("chat", general(20)),
    ]
    first, again, other = (mix(sources, seed=seed).to_list() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert {row["solution"] for row in first} != {row["solution"] for row in other}


def test_reasoning_thinks_and_general_data_does_not() -> None:
    log = DataLog()
    thought = [{"role": "assistant", "content": "<think>\nhm\n</think>\nHi!"}]
    unfit = [{"role": "assistant", "content": "no thinking"}]
    rows = Dataset.from_list(
        [{"prompt": "a", "completion": thought}, {"prompt": "b", "completion": unfit}]
    )
    sources = [
        MixtureSource("math", rows, kind="reasoning"),
        MixtureSource("chat", rows, kind="general"),
    ]
    mixed = mix(sources, seed=0, log=log)
    texts = {(row["kind"], row["messages"][-1]["content"]) for row in mixed}
    assert texts == {
        ("reasoning", "<think>\nhm\n</think>\nHi!"),
        ("general", "Hi!"),
        ("general", "no thinking"),
    }
    assert "1 rows unfit for their kind" in log.records[0].text


def test_answers_that_lack_thinking_or_an_answer_do_not_fit() -> None:
    def last(text: str, kind: Any) -> str | None:
        turns = fitted([{"role": "assistant", "content": text}], kind)
        return None if turns is None else turns[-1]["content"]

    assert last("so</think>4", "reasoning") == "<think>\nso</think>4"
    assert last("<think>so</think>  ", "reasoning") is None
    assert last("<think> </think>4", "reasoning") is None
    assert last("<think>so", "reasoning") is None
    assert last("<think>so", "general") is None
    assert last("<think>so</think>", "general") is None
    assert fitted([{"role": "user", "content": "a"}], "general") is None


def test_the_kind_is_told_by_the_task_or_else_by_the_text() -> None:
    rows = mix(
        [
            MixtureSource("a", reasoning(1, task="gsm8k")),
            MixtureSource("b", reasoning(1, task="general_chat")),
            MixtureSource("c", reasoning(1)),
            MixtureSource("d", general(1)),
        ],
        seed=0,
    )
    assert dict(zip(rows["source"], rows["kind"], strict=True)) == {
        "a": "reasoning",
        "b": "general",
        "c": "reasoning",
        "d": "general",
    }


def test_a_source_of_its_own_stays_behind_the_mixtures() -> None:
    sources = [
        MixtureSource("numina", reasoning(1, source="olympiads")),
        MixtureSource("cold", reasoning(1, source="cold")),
    ]
    assert set(mix(sources, seed=0)["source"]) == {"numina/olympiads", "cold"}


def test_mistakes_in_sources_have_clear_messages() -> None:
    rows = general(2)
    with pytest.raises(ValueError, match="two sources are called 'a'"):
        mix([MixtureSource("a", rows), MixtureSource("a", rows)], seed=0)
    with pytest.raises(ValueError, match="a has both a share and a number of rows"):
        mix([MixtureSource("a", rows, share=1.0, num_rows=1)], seed=0)
    odd = Dataset.from_list([{"problem": "a", "answer": "b"}])
    with pytest.raises(ValueError, match="a needs `messages`, or `prompt` and `completion`"):
        mix([MixtureSource("a", odd)], seed=0)


def test_sft_reads_conversations_as_prompt_and_completion(tmp_path: Path) -> None:
    mixed = mix([MixtureSource("math", reasoning(4)), MixtureSource("chat", general(4))], seed=0)
    mixed.to_parquet(tmp_path / "rows.parquet")
    source = DatasetSource(dataset_name=str(tmp_path / "rows.parquet"))
    rows = load_mixture([source], FMT, seed=0)
    assert {len(row["completion"]) for row in rows} == {1}
    assert {row["completion"][0]["role"] for row in rows} == {"assistant"}
    assert {tuple(m["role"] for m in row["prompt"]) for row in rows} == {
        ("user",),
        ("system", "user"),
    }


def test_a_template_that_drops_the_reasoning_is_named_before_training(
    tiny_model_dir: Path,
) -> None:
    rows = mix([MixtureSource("math", reasoning(4)), MixtureSource("chat", general(4))], seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    assert check_template(rows, tokenizer) == 8
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message['content'] +", "message['content'].split('</think>')[-1] +"
    )
    with pytest.raises(TargetError, match="drops the reasoning"):
        check_template(rows, tokenizer)
