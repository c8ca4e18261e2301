"""The format reward: 1.0 for a response that thinks and then answers, 0.0 for anything else."""

from __future__ import annotations

from typing import Any

import pytest
from must_end import must_end

from trl_r1.rewards.think_format import split_response, think_format_reward

GOOD = "<think>\n2+2 is 4.\n</think>\n<answer>4</answer>"


def score(completion: Any, **settings: Any) -> float:
    return think_format_reward([completion], **settings)[0]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "<think>2+2=4</think><answer>4</answer>",
        "  <think>a b</think> \n\n <answer>\nfour\n</answer>\n",
        "<think>a\n\nb < c > d\n</think>\n<answer>\n\\boxed{4}\n</answer>",
    ],
)
def test_a_well_formed_response_scores_one(text: str) -> None:
    assert score(text) == 1.0
    assert score([{"role": "assistant", "content": text}]) == 1.0


GAMES = [
    ("nothing", ""),
    ("no tags", "4"),
    ("no reasoning", "<answer>4</answer>"),
    ("no answer", "<think>2+2=4</think>"),
    ("plain answer", "<think>2+2=4</think> 4"),
    ("empty reasoning", "<think></think><answer>4</answer>"),
    ("blank reasoning", "<think> \n\t </think><answer>4</answer>"),
    ("dots for reasoning", "<think>...</think><answer>4</answer>"),
    ("invisible reasoning", "<think>\u200b\u2060</think><answer>4</answer>"),
    ("empty answer", "<think>2+2=4</think><answer> </answer>"),
    ("invisible answer", "<think>2+2=4</think><answer>\u200b\u2060</answer>"),
    ("answer only inside the reasoning", "<think>2+2=4 <answer>4</answer></think>"),
    ("answer inside and outside", "<think><answer>4</answer></think><answer>4</answer>"),
    ("extra closing tag", "<think>a</think></think><answer>4</answer>"),
    ("extra closing tag at the end", "<think>a</think><answer>4</answer></think>"),
    ("extra opening tag", "<think><think>a</think><answer>4</answer>"),
    ("nested reasoning", "<think>a<think>b</think>c</think><answer>4</answer>"),
    ("reasoning twice", "<think>a</think><think>b</think><answer>4</answer>"),
    ("reasoning in the answer", "<think>a</think><answer><think>b</think>4</answer>"),
    ("two answers", "<think>a</think><answer>4</answer><answer>5</answer>"),
    ("nested answers", "<think>a</think><answer><answer>4</answer></answer>"),
    ("text before", "Sure! <think>a</think><answer>4</answer>"),
    ("text between", "<think>a</think> so <answer>4</answer>"),
    ("trailing junk", "<think>a</think><answer>4</answer> and 5"),
    ("never closed reasoning", "<think>a <answer>4</answer>"),
    ("never closed answer", "<think>a</think><answer>4"),
    ("wrong order", "<answer>4</answer><think>a</think>"),
    ("closing before opening", "</think>a<think><answer>4</answer>"),
    ("other case", "<THINK>a</THINK><ANSWER>4</ANSWER>"),
    ("tags with spaces", "< think >a</ think ><answer>4</answer>"),
]


@pytest.mark.parametrize("text", [game[1] for game in GAMES])
def test_games_with_the_format_score_zero(text: str) -> None:
    assert score(text) == 0.0
    assert score([{"role": "assistant", "content": text}]) == 0.0


@pytest.mark.parametrize("completion", [None, [], [{"role": "assistant", "content": None}]])
def test_a_completion_without_text_scores_zero(completion: Any) -> None:
    assert score(completion) == 0.0


def test_parts_of_content_are_joined() -> None:
    parts = [{"type": "text", "text": GOOD[:20]}, {"type": "image"}, {"text": GOOD[20:]}]
    assert score([{"role": "assistant", "content": parts}]) == 1.0


def test_only_the_last_message_counts() -> None:
    assert score([{"content": "x"}, {"content": GOOD}]) == 1.0
    assert score([{"content": GOOD}, {"content": "x"}]) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think> The answer is \\boxed{4}.", 1.0),
        ("<think>a</think>", 0.0),
        ("<think>a</think> \n ", 0.0),
        ("<think>a</think> \u200b", 0.0),
        ("<think>a</think> \u2205", 1.0),
        ("<think></think> 4", 0.0),
        ("<think>a</think> 4 </think> 5", 0.0),
        ("<think>a</think> 4 <think>b", 0.0),
        ("a</think> 4", 0.0),
        ("4", 0.0),
    ],
)
def test_the_plain_text_profile_wants_text_after_the_reasoning(text: str, expected: float) -> None:
    assert score(text, profile="think_then_text") == expected


def test_a_prefilled_opener_may_be_left_out_or_repeated() -> None:
    continuation = GOOD.removeprefix("<think>")
    assert score(continuation) == 0.0
    assert score(continuation, prefilled=True) == 1.0
    assert score(GOOD, prefilled=True) == 1.0
    assert score("<think>" + GOOD, prefilled=True) == 0.0
    assert score("</think><answer>4</answer>", prefilled=True) == 0.0
    assert score("4", prefilled=True) == 0.0


def test_an_answer_inside_open_reasoning_is_no_answer() -> None:
    assert split_response("<think>so <answer>4</answer>").answer is None
    assert split_response("so <answer>4</answer>", prefilled=True).answer is None
    assert split_response("so <answer>4</answer>").answer == "4"


def test_parts_are_the_texts_between_the_tags() -> None:
    parts = split_response(GOOD)
    assert (parts.reasoning, parts.answer, parts.fault) == ("2+2 is 4.", "4", None)


def test_the_fault_says_what_is_wrong() -> None:
    assert split_response("<think>a</think>").fault == "no closed <answer>"
    assert split_response("4").fault == "no closed <think>"
    assert split_response("x" + GOOD).fault == "text before <think>"


def test_an_unknown_profile_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown format profile 'tags'; known: answer_tags"):
        score(GOOD, profile="tags")


@pytest.mark.parametrize(
    "unit",
    ["<think>", "</think>", "<answer>", "</answer>", "<think>\n", "<", "<answer></think>", "a"],
)
def test_a_million_characters_are_split_in_linear_time(unit: str) -> None:
    """Ten times what takes a backtracking expression seconds: quadratic time would be minutes."""
    text = unit * (1_520_000 // len(unit))
    with must_end(60):
        for profile in ("answer_tags", "think_then_text"):
            assert score(text, profile=profile) == 0.0
    with must_end(60):
        assert score(f"<think>{'a' * 1_520_000}</think><answer>4</answer>") == 1.0
