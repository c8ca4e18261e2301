"""The language reward: words of the wanted language / words, of the reasoning only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from must_end import must_end

from trl_r1.rewards.language_consistency import (
    WORDS,
    language_consistency_reward,
    language_share,
)

DATA = Path(__file__).parents[2] / "shared" / "data"


def score(completion: Any, language: Any = "en", **settings: Any) -> float | None:
    return language_consistency_reward([completion], language=[language], **settings)[0]


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("We add two and three.", "en", 1.0),
        ("We add 两个 numbers here", "en", 4 / 6),
        ("First we add, dann addieren wir", "en", 4 / 6),  # dann, wir
        ("Zuerst addieren wir, then we add", "de", 3 / 6),
        ("Wir rechnen mit Gut und Tag und die war rot", "de", 1.0),
        ("on ajoute deux et trois", "fr", 1.0),
        ("on ajoute zwei und trois", "fr", 3 / 5),
        ("sumamos dos y tres porque el total", "es", 1.0),
        ("somamos dois e três porque isto", "pt", 1.0),
        ("poi abbiamo sette che sono", "it", 1.0),
        ("daarom zijn we samen zeven", "nl", 1.0),
        ("我们先算", "zh", 1.0),
        ("我们先算 the rest", "zh", 4 / 6),
        ("これは日本です", "ja", 1.0),
        ("これは日本です", "zh", 2 / 7),
        ("дважды два four", "ru", 2 / 3),
        ("اثنان زائد two", "ar", 2 / 3),
        ("둘 더하기 셋은", "ko", 1.0),
        ("de Moivre and von Neumann met in Los Angeles", "en", 1.0),
    ],
)
def test_the_share_is_words_of_the_language_over_words(
    text: str, language: str, expected: float
) -> None:
    assert language_share(text, language) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "We run `für = und` here",
        "We run\n```\nfür und dann\n```\nhere",
        r"We see $\alpha + und$ here",
        r"We see \(und\) and \[dann\] here",
        r"We see $$und$$ and \frac{3}{4} here",
        "We see x, y and z, 3 and 4",
        "We run\n~~~\nfür und dann\n~~~\nhere",
        r"We see \begin{align} und &= \text{für} \\ dann \end{align} here",
        "We run\n```\n# für alle\nprint(und, dann)\n# 计算总和\n```\nhere",
    ],
)
def test_code_and_formulas_are_left_out(text: str) -> None:
    assert language_share(text, "en") == 1.0


def test_names_of_functions_are_formulas_in_any_language() -> None:
    assert language_share("我们算 sin(x) + log(y) mod max(a, b)", "zh") == 1.0
    assert language_share("я считаю sin(x)", "ru") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "ok\n```\nund dann haben wir alle zusammen nicht mehr\n```",
        "ok $und dann haben wir alle zusammen nicht mehr$",
        "ok `und dann haben wir alle zusammen nicht mehr`",
        "ok ``` und dann haben wir alle zusammen nicht mehr",
        "we pay $5 und dann haben wir alle zusammen nicht $3",
        "ok\n```python\n# 我们先把两个数字加起来然后再乘以三\n```",
    ],
)
def test_a_sentence_does_not_hide_in_code_or_a_formula(text: str) -> None:
    assert language_share(text, "en") < 0.5


def test_without_a_column_or_a_setting_there_is_no_silent_reward() -> None:
    with pytest.raises(ValueError, match="give the data set a column 'language', or set"):
        language_consistency_reward(["<think>a</think>"])


def test_a_mark_that_is_never_closed_hides_nothing_but_a_code_fence() -> None:
    assert language_share("costs $5 und dann we", "en") == pytest.approx(2 / 4)
    assert language_share(r"open \( und we", "en") == pytest.approx(2 / 3)
    assert language_share("we ``` und dann", "en") == 1.0


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>We add two.</think> Und dann die Antwort.", 1.0),
        ("<think>Und dann wir</think> We add two.", 0.0),
        ("<think>We add two", 1.0),
        ("We add two</think> Und", 1.0),
        ("<think>1+2=3</think> 3", 1.0),
        ("<think></think> We add two.", 0.0),
        ("<think> \n </think> We add two.", 0.0),
        ("We add two.", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_only_the_reasoning_counts_and_there_has_to_be_some(
    completion: Any, expected: float
) -> None:
    assert score(completion) == expected
    assert score([{"role": "assistant", "content": completion}]) == expected


def test_with_a_prefilled_opener_open_reasoning_is_all_of_it() -> None:
    assert score("We add two") == 0.0
    assert score("We add two", prefilled=True) == 1.0


def test_each_row_has_its_own_language_and_one_without_is_not_gradable() -> None:
    completions = ["<think>We add und</think>"] * 3
    assert language_consistency_reward(completions, language=["en", "de", None]) == [
        pytest.approx(2 / 3),
        pytest.approx(1 / 3),
        None,
    ]
    assert language_consistency_reward(completions, language=[None] * 3) == [None, None, None]
    assert language_consistency_reward(completions, language="en-US") == [pytest.approx(2 / 3)] * 3


def test_given_words_replace_the_lists() -> None:
    words = {"en": ["carry", "then"], "de": ["dann", "übertrag"]}
    text = "<think>then carry ÜBERTRAG und</think>"
    assert score(text, "en", words=words) == pytest.approx(3 / 4)
    assert score(text, "de", words=words) == pytest.approx(2 / 4)
    assert score("<think>bla foo</think>", "xx", words={"xx": ["bla"], "yy": ["foo"]}) == 0.5


def test_an_unknown_language_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown language 'klingon'; known: ar"):
        score("<think>a</think>", "klingon")


def test_real_english_solutions_are_english() -> None:
    path = DATA / "gsm8k" / "test.jsonl"
    if not path.is_file():
        pytest.skip("no gsm8k/test.jsonl in shared/data beside the repository")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mixed = [r for r in rows if language_share(f"{r['question']} {r['answer']}", "en") < 1]
    assert len(rows) == 1319
    assert len(mixed) <= 1


def test_no_list_holds_a_word_of_the_english_one() -> None:
    shared = {code: words & WORDS["en"] for code, words in WORDS.items() if code != "en"}
    assert shared.pop("nl") == {"we"}
    assert set(shared.values()) == {frozenset()}


@pytest.mark.parametrize(
    "unit",
    [
        "$",
        "`",
        "```",
        "\\[",
        "\\(",
        "$$",
        "$a ",
        "<",
        "\\",
        "a ",
        "é",
        "aa ",
        "~~~",
        "\\begin",
        "aa,",
        "中",
    ],
)
def test_a_million_characters_are_read_in_linear_time(unit: str) -> None:
    with must_end(60):
        language_share(unit * (1_000_000 // len(unit)), "en")
