"""The preference reward: what it shows to the reward model, and how it scores batches."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from trl_r1.rewards.preference_model import (
    PreferenceModelReward,
    _load,
    answer_text,
    preference_model_reward,
)
from trl_r1.stages import RewardSpec
from trl_r1.verification.loading import build_reward

PROMPT = [{"role": "user", "content": "greet Ada"}]
ANSWERS = [
    "hi Ada.",
    "hello Ada, how nice to see you!",
    "<think>long thoughts</think> hi Ada.",
    "oh",
]


@pytest.fixture(scope="module")
def scorer_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny reward model with random weights."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path_factory.mktemp("scorer")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model_dir, num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)
    return folder


def messages(texts: list[str]) -> list[Any]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def score_by_hand(folder: Path, text: str) -> float:
    """Logit of one rendered conversation, without this package."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return float(model(input_ids=ids).logits[0, 0])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_answer_alone_is_judged_in_the_chat_template(scorer_dir: Path) -> None:
    scores = preference_model_reward([PROMPT] * 4, messages(ANSWERS), model=str(scorer_dir))
    expected = sigmoid(score_by_hand(scorer_dir, "<|user|>greet Ada<|assistant|>hi Ada.<|end|>"))
    assert scores[0] == pytest.approx(expected, abs=1e-5)
    assert scores[2] == pytest.approx(expected, abs=1e-5)  # the thoughts make no difference
    assert scores[1] != pytest.approx(expected, abs=1e-5)


def test_the_whole_response_is_judged_where_that_is_asked_for(scorer_dir: Path) -> None:
    rendered = f"<|user|>greet Ada<|assistant|>{ANSWERS[2]}<|end|>"
    (score,) = preference_model_reward(
        [PROMPT], messages(ANSWERS[2:3]), str(scorer_dir), scope="response"
    )
    assert score == pytest.approx(sigmoid(score_by_hand(scorer_dir, rendered)), abs=1e-5)


def test_plain_text_is_joined_with_an_end_token(scorer_dir: Path) -> None:
    prompt = "<|user|>greet Ada<|assistant|>"
    (plain,) = preference_model_reward([prompt], ["hi Ada."], str(scorer_dir))
    (conversational,) = preference_model_reward([PROMPT], messages(["hi Ada."]), str(scorer_dir))
    assert plain == pytest.approx(conversational, abs=1e-6)


def test_the_batch_size_makes_no_difference(scorer_dir: Path) -> None:
    by_size = [
        PreferenceModelReward(str(scorer_dir), scale="raw", no_answer=-9, batch_size=n)(
            [PROMPT] * 4, messages(ANSWERS)
        )
        for n in (1, 3, 16)
    ]
    assert by_size[0] == pytest.approx(by_size[1], abs=1e-4)
    assert by_size[0] == pytest.approx(by_size[2], abs=1e-4)
    assert by_size[0][0] == pytest.approx(
        score_by_hand(scorer_dir, "<|user|>greet Ada<|assistant|>hi Ada.<|end|>"), abs=1e-4
    )


def test_no_answer_scores_below_any_answer(scorer_dir: Path) -> None:
    texts = ["", "<think>never closed", "<think>a</think>", "<think>a</think><answer> </answer>"]
    assert preference_model_reward([PROMPT] * 4, messages(texts), str(scorer_dir)) == [0.0] * 4
    scores = preference_model_reward([PROMPT] * 2, messages(["", "x"]), str(scorer_dir))
    assert scores[0] == 0.0 < scores[1]


def test_with_a_prefilled_opener_open_reasoning_is_no_answer(scorer_dir: Path) -> None:
    assert answer_text("still thinking", prefilled=True) == ""
    assert answer_text("thoughts</think> hi Ada.", prefilled=True) == "hi Ada."
    texts = messages(["still thinking", "thoughts</think> hi Ada."])
    scores = preference_model_reward([PROMPT] * 2, texts, str(scorer_dir), prefilled=True)
    assert scores[0] == 0.0 < scores[1]


def test_a_long_input_is_cut_at_its_beginning(scorer_dir: Path) -> None:
    long, short = "x" * 2000 + "hi Ada.", "y" * 2000 + "hi Ada."
    reward = PreferenceModelReward(str(scorer_dir), max_length=8)
    first, second = reward([PROMPT] * 2, messages([long, short]))
    assert first == pytest.approx(second, abs=1e-6)
    assert PreferenceModelReward(str(scorer_dir))([PROMPT], messages([long]))  # 512 positions


def test_the_model_is_loaded_once_and_frozen(scorer_dir: Path) -> None:
    _load.cache_clear()
    for _ in range(3):
        preference_model_reward([PROMPT], messages(["a"]), str(scorer_dir))
    assert _load.cache_info().misses == 1
    model, _ = _load(str(scorer_dir), "auto", "cpu")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_it_pickles_as_its_settings(scorer_dir: Path) -> None:
    reward = PreferenceModelReward(str(scorer_dir), batch_size=2)
    before = reward([PROMPT], messages(["a"]))
    pickled = pickle.dumps(reward)
    assert len(pickled) < 1000
    assert pickle.loads(pickled)([PROMPT], messages(["a"])) == before


def test_a_recipe_can_bind_it(scorer_dir: Path) -> None:
    spec = RewardSpec(
        "preference_model", args={"model": str(scorer_dir)}, tasks=("small_talk",), from_step=1
    )
    scores = build_reward(spec)(
        messages(["a", "b"]), prompts=[PROMPT] * 2, task=["small_talk", "sums"]
    )
    assert scores[0] is not None
    assert scores[1] is None


def test_a_model_with_two_outputs_is_refused(scorer_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(
        scorer_dir, num_labels=2, ignore_mismatched_sizes=True
    )
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(scorer_dir).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a reward model has one output, this one has 2"):
        preference_model_reward([PROMPT], messages(["a"]), str(tmp_path))


def test_an_adapter_of_a_reward_model_scores_like_the_merged_model(
    scorer_dir: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = AutoModelForSequenceClassification.from_pretrained(scorer_dir)
    config = LoraConfig(r=2, task_type="SEQ_CLS", target_modules=["q_proj"])
    model = get_peft_model(base, config)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "adapter")
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for folder in ("adapter", "merged"):
        AutoTokenizer.from_pretrained(scorer_dir).save_pretrained(tmp_path / folder)
    by_folder = [
        preference_model_reward([PROMPT] * 4, messages(ANSWERS), str(tmp_path / folder))
        for folder in ("adapter", "merged")
    ]
    assert by_folder[0] == pytest.approx(by_folder[1], abs=1e-5)
    before = preference_model_reward([PROMPT] * 4, messages(ANSWERS), str(scorer_dir))
    assert by_folder[0] != pytest.approx(before, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scope": "summary"}, "unknown scope 'summary'; known: answer, response"),
        ({"scale": "tanh"}, "unknown scale 'tanh'; known: sigmoid, raw"),
        ({"scale": "raw"}, "scale 'raw' needs no_answer"),
        ({"batch_size": 0}, "batch_size is 0; use 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PreferenceModelReward("model", **settings)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("hi", "hi"),
        ("<think>a</think> hi ", "hi"),
        ("<think>a</think><answer>hi</answer> more", "hi"),
        ("<think>a", ""),
        ("a</think>b</think>hi", "hi"),
    ],
)
def test_the_answer_is_what_follows_the_reasoning(text: str, answer: str) -> None:
    assert answer_text(text) == answer
