"""The demo's tasks and its base models: honest splits, right graders, ordinary folders, resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.reasoning_format import get_format
from trl_r1.rewards.language_consistency import language_consistency_reward
from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.stages import StageContext
from trl_r1.stages.tiny_base import (
    TinyBaseArguments,
    TinyBaseConfig,
    run,
    tokenise,
    train_tokenizer,
    write_corpus,
)
from trl_r1.tasks import DatasetSource, digit_sums, load_rows, small_talk

FORMAT = get_format("zero_bare")
SIZES = TinyBaseArguments(hidden_size=16, student_hidden_size=8, num_heads=2, num_documents=64)


def test_no_reordering_of_a_test_sum_is_trained_on() -> None:
    train = {tuple(sorted(terms)) for terms in digit_sums.problems("train")}
    test = {tuple(sorted(terms)) for terms in digit_sums.problems("test")}
    assert not train & test
    # Four digits of nine, order aside: C(9 + 4 - 1, 4).
    assert len(train) + len(test) == 495
    assert len(digit_sums.problems("test")) >= 400


def test_test_names_are_never_trained_on_though_their_parts_are() -> None:
    train, test = set(small_talk.names("train")), set(small_talk.names("test"))
    assert not train & test
    assert {part for name in train for part in name.split()} >= {
        part for name in test for part in name.split()
    }


def test_rows_depend_on_split_and_seed_alone_and_never_repeat() -> None:
    source = DatasetSource(task="digit_sums", split="test", num_rows=50, seed=3)
    first, again = load_rows(source, FORMAT), load_rows(source, FORMAT)
    assert first.to_list() == again.to_list()
    assert len({row["prompt"][0]["content"] for row in first}) == 50
    for row in first:
        question = row["prompt"][0]["content"]
        assert sum(map(int, question.removesuffix("=?").split("+"))) == int(row["solution"])
        assert (
            digit_sums.split_of(tuple(map(int, question.removesuffix("=?").split("+")))) == "test"
        )


@pytest.mark.parametrize("task", ["digit_sums", "small_talk"])
def test_asking_for_more_problems_than_there_are_is_an_error(task: str) -> None:
    with pytest.raises(ValueError, match="the test split has"):
        load_rows(DatasetSource(task=task, split="test", num_rows=10_000), FORMAT)
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        load_rows(DatasetSource(task=task, split="dev", num_rows=10), FORMAT)


def test_only_a_greeting_with_exactly_the_right_name_is_right() -> None:
    answers = {
        "hi Ada Cole.": 1.0,
        "hello Ada Cole, how nice to see you!": 1.0,
        "<think>Ben Moss?</think>hi Ada Cole.": 1.0,
        "hi Ada.": 0.0,
        "hi Cole Ada.": 0.0,
        "hi Ben Cole.": 0.0,
        "hi Ada Cole, Ben Moss.": 0.0,
        "<think>Ada Cole</think>hi.": 0.0,
        "": 0.0,
    }
    chats = [[{"role": "assistant", "content": text}] for text in answers]
    expected = list(answers.values())
    assert small_talk.name_reward(list(answers), ["Ada Cole"] * len(answers)) == expected
    assert small_talk.name_reward(chats, ["Ada Cole"] * len(answers)) == expected


def test_preference_pairs_put_friendly_over_curt_and_right_over_wrong_names() -> None:
    source = DatasetSource(task="small_talk_preferences", num_rows=400)
    kinds = {"friendly": 0, "name": 0}
    for row in load_rows(source, FORMAT):
        chosen, rejected = row["chosen"][0]["content"], row["rejected"][0]["content"]
        name = " ".join(row["prompt"][0]["content"].split()[-2:])
        assert name in chosen
        if name in rejected:
            assert "you" in chosen
            assert "you" not in rejected
            kinds["friendly"] += 1
        else:
            # The same words but for the name.
            assert len(chosen.split()) == len(rejected.split())
            kinds["name"] += 1
    assert min(kinds.values()) > 150


def test_the_corpus_has_training_problems_alone_and_what_base_models_do() -> None:
    sizes = TinyBaseArguments(num_documents=4000)
    sums = [d for d in write_corpus(sizes, FORMAT, seed=0) if d[0].endswith("=?")]
    train = {digit_sums.question(terms) for terms in digit_sums.problems("train")}
    assert {question for question, _ in sums} <= train
    gold = [str(sum(map(int, question[:-2].split("+")))) for question, _ in sums]
    replies = [reply for _, reply in sums]
    right = [score or 0.0 for score in math_answer_reward(replies, gold)]
    thinks = [reply.startswith("<think>") for reply in replies]
    tagged = ["<answer>" in reply for reply in replies]

    def accuracy(thinking: bool) -> float:
        scores = [r for r, t, a in zip(right, thinks, tagged, strict=True) if a and t is thinking]
        return sum(scores) / len(scores)

    # Three of four totals can slip; a later slip seldom mends an earlier one.
    assert accuracy(thinking=True) == pytest.approx((1 - sizes.slip_rate) ** 3, abs=0.05)
    assert accuracy(thinking=False) == pytest.approx(sizes.blurt_accuracy, abs=0.05)
    assert sum(thinks) / len(sums) == pytest.approx(sizes.think_share, abs=0.04)
    thoughts = [reply for reply, thinking in zip(replies, thinks, strict=True) if thinking]
    foreign = language_consistency_reward(thoughts, language="en").count(0.0) / len(thoughts)
    assert foreign == pytest.approx(sizes.foreign_share, abs=0.05)


def test_a_saved_tokenizer_splits_the_same_and_keeps_the_tags(tmp_path: Path) -> None:
    documents = write_corpus(TinyBaseArguments(num_documents=500), FORMAT, seed=0)
    tokenizer = train_tokenizer(documents, 400, FORMAT)
    new_run = train_tokenizer(documents, 400, FORMAT)
    assert new_run.get_vocab() == tokenizer.get_vocab()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for _, reply in documents:
        ids = tokenizer(reply).input_ids
        assert loaded(reply).input_ids == ids
        assert loaded.decode(ids, skip_special_tokens=True) == reply


def test_the_loss_is_on_the_reply_and_its_end_alone() -> None:
    documents = [("1+2+3+4=?", FORMAT.render("totals\n01\n03\n06\n10", "10"))] * 8
    tokenizer = train_tokenizer(documents, 400, FORMAT)
    row = tokenise(documents, tokenizer)[0]
    trained = [token for token in row["labels"] if token != -100]
    assert tokenizer.decode(trained) == documents[0][1] + "<|end|>"
    assert tokenizer.decode(row["input_ids"]) == (
        "<|user|>1+2+3+4=?<|assistant|>" + documents[0][1] + "<|end|>"
    )


def _context(
    folder: Path, on_progress: Callable[[int, int, Mapping[str, float]], None] | None = None
) -> StageContext:
    config = TinyBaseConfig(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=1,
        per_device_train_batch_size=8,
        save_steps=2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    sizes = TinyBaseArguments(**{**vars(SIZES), "student_num_train_epochs": 0.5})
    context: dict[str, Any] = {"on_progress": on_progress} if on_progress else {}
    return StageContext("base", folder, (sizes, config), **context)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_base_and_student_are_ordinary_folders(tmp_path: Path) -> None:
    result = run(_context(tmp_path))
    for part, width in (("model", 16), ("student", 8)):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / part)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / part)
        assert model.config.hidden_size == width
        eos = model.generation_config.eos_token_id
        assert tokenizer.eos_token_id in (eos if isinstance(eos, list) else [eos])
        chat = [{"role": "user", "content": "1+2+3+4=?"}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
        output = model.generate(**ids, max_new_tokens=3)
        assert output.shape[1] > ids["input_ids"].shape[1]
    assert result.details["documents"] == 64
    assert result.details["steps"] == 8
    assert run(_context(tmp_path)).details == result.details
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert set(range(1, 9)) <= set(steps)


@pytest.mark.parametrize("killed_at", [(1, 5), (2, 3)])
def test_a_killed_base_ends_as_an_undisturbed_one(
    tmp_path: Path, killed_at: tuple[int, int]
) -> None:
    class KilledError(Exception):
        pass

    starts, (model_number, step_number) = [0], killed_at

    def kill(step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        starts[0] += step == 1
        if (starts[0], step) == (model_number, step_number):
            raise KilledError

    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    run(_context(undisturbed))
    with pytest.raises(KilledError):
        run(_context(killed, kill))
    assert list((killed / "checkpoints").rglob("trainer_state.json"))
    result = run(_context(killed))
    assert result.details["steps"] == 8
    for part in ("model", "student"):
        expected, found = _weights(undisturbed / part), _weights(killed / part)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
