"""The accuracy reward: what it takes for an answer, what it calls equal, what can't stall it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from must_end import must_end

from trl_r1.rewards.math_answer import (
    answers_match,
    final_answer,
    gold_fault,
    math_answer_reward,
)

DATA = Path(__file__).parents[2] / "shared" / "data"


def read_rows(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"no {name} in shared/data beside the repository")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def score(gold: Any, completion: Any, **settings: Any) -> float | None:
    return math_answer_reward([completion], solution=[gold], **settings)[0]


def count_mistakes(rows: list[dict[str, Any]], **settings: Any) -> tuple[int, int]:
    """False positives and false negatives on labelled rows."""
    scores = math_answer_reward([r["pred"] for r in rows], [r["gold"] for r in rows], **settings)
    assert None not in scores
    pairs = [(s == 1.0, row["label"]) for s, row in zip(scores, rows, strict=True)]
    return pairs.count((True, False)), pairs.count((False, True))


# Gold and boxed answer that graders in use get wrong, and what is right.
MEASURED_FAILURES = [
    ("3x+2", "3", 0.0),
    (r"(3,\pi/2)", "3", 0.0),
    ("1,-2", "1", 0.0),
    (r"288 \pi", "288", 0.0),
    (r"\frac 59", "59", 0.0),
    ("-2,1", "-2.1", 0.0),
    (r"\frac43", r"\frac43", 1.0),
    ("35", r"35.0\%", 1.0),
    ("50", r"5000\%", 0.0),
    (r"1.6\times10^{-19}", r"5\times10^{-30}", 0.0),
    (r"\frac1{2004!}", r"\frac1{2006!}", 0.0),
    ("4.5e33", r"4.5\times10^{33}", 1.0),
    ("4", "5=4", 0.0),
    ("5", "x=4=5", 0.0),
    ("(1,2)", r"\{1,2\}", 0.0),
    ("5 km", "5 miles", 0.0),
    ("2024-03-05", "2016", 0.0),
    ("3", "3 hours 20 minutes", 0.0),
    (r"\emptyset", r"\varnothing", 1.0),
    ("x∈[-2,7]", "-2≤x≤7", 1.0),
    ("1000000", "1 000 000", 1.0),
    ("52_8", "42", 1.0),
    (r"\frac73", "2 1/3", 1.0),
    ("18", "１８", 1.0),  # noqa: RUF001 - full-width digits on purpose
    ("B", "B. 42", 1.0),
]


@pytest.mark.parametrize(("gold", "answer", "expected"), MEASURED_FAILURES)
def test_what_other_graders_get_wrong_is_graded_right(
    gold: str, answer: str, expected: float
) -> None:
    assert score(gold, rf"So it is \boxed{{{answer}}}.") == expected


RIGHT = [
    ("0.5", r"\frac{1}{2}"),
    ("1234", "1,234"),
    ("1234", r"1{,}234"),
    ("$18", "18.00"),
    ("18.90", r"\$18.90"),
    ("50\\%", "0.5"),
    ("50\\%", "50"),
    ("5", "x = 5"),
    ("x=5", "5"),
    ("5", "5 apples"),
    ("5 m", "500 cm"),
    ("90^\\circ", "90"),
    ("864 \\mbox{ inches}^2", "864 square inches"),
    ("\\text{Evelyn}", "evelyn"),
    ("(B)", "b"),
    ("1,2,3", "3, 1 and 2"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\pm 2", "-2, 2"),
    ("(0,1)", "0<x<1"),
    ("(-\\infty,2)", "x<2"),
    ("x\\neq 0", "(-\\infty,0)\\cup(0,\\infty)"),
    ("3\\sqrt{13}", "3*sqrt(13)"),
    ("\\ln 8", "3\\ln 2"),
    ("x^2+2x+1", "(x+1)^2"),
    ("y=2x+3", "y-2x=3"),
    ("\\begin{pmatrix}1/3\\\\2\\end{pmatrix}", "\\begin{bmatrix}\\frac{1}{3}\\\\2\\end{bmatrix}"),
    ("3:4", "6:8"),
    ("6-5i", "-5i+6"),
    ("0.\\overline{3}", "1/3"),
    ("1\\text{ million}", "1000000"),
    ("10^{-3}", "0.001"),
]
WRONG = [
    ("5", "6"),
    ("5", "-5"),
    ("\\frac{1}{3}", "0.333333"),
    ("100", "100.0000001"),
    ("5", "0.05"),
    ("5 \\text{ m}", "5\\text{ kg}"),
    ("x=5", "y=5"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "1,2"),
    ("[0,1)", "[0,1]"),
    ("\\pm 2", "2"),
    ("5", "5 or 6"),
    ("5", "5 or six"),
    ("5", "5 six"),
    ("5", "5 dozen"),
    ("B", "A or B"),
    ("B", "A, B, C, D"),
    ("1234", "1,23,4"),
    ("\\text{abc}", "bca"),
    ("\\text{Evelyn}", "Not Evelyn"),
    ("3:4", "4:3"),
    ("\\frac{11+9a}{20}", "11+9a/20"),
    ("(x+y)^{100}", "(x+y)^{100}+1"),
    ("52_8", "52"),
    ("x+1", "x+y"),
    ("2", "2x"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)"),
    ("5", ""),
    ("1,2", "1,2,3"),
    ("1,2", "1"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_equal_answers_match(gold: str, answer: str) -> None:
    assert score(gold, rf"\boxed{{{answer}}}") == 1.0


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_unequal_answers_do_not_match(gold: str, answer: str) -> None:
    assert score(gold, rf"\boxed{{{answer}}}") == 0.0


GAMES = [
    ("the answer only inside the reasoning", "6", r"<think>\boxed{6}</think> I don't know"),
    ("reasoning that is never closed", "6", r"<think> it is \boxed{6}"),
    ("a second, open reasoning", "6", r"<think>a</think><think>\boxed{6}"),
    ("an extra closing tag", "6", r"<think>a</think> \boxed{6} </think> 7"),
    ("nested reasoning", "6", r"<think><think>a</think>\boxed{6}</think>"),
    ("several boxes", "4", r"\boxed{4} \boxed{5} \boxed{6}"),
    ("several answers", "4", "<answer>4</answer><answer>5</answer>"),
    ("two answers in one", "4", r"\boxed{4, 5}"),
    ("trailing junk", "4", r"\boxed{4 or 5 or 6}"),
    ("two letters", "B", r"\boxed{(B) or (C)}"),
    ("two letters without a word", "B", r"\boxed{(B)(C)}"),
    ("a letter taken back", "B", r"\boxed{B. no, C.}"),
    ("an expression instead of an answer", "56088", r"\boxed{123\times456}"),
    ("the same in tags", "24", "<answer>4+7+5+8</answer>"),
    ("a quotient instead of an answer", "617", r"\boxed{1,234/2}"),
    ("an expression in a tuple", "(2,3)", r"\boxed{(1+1,3)}"),
    ("a contradiction", "4", r"\boxed{5=4}"),
    ("a tiny number", "10^{-20}", r"\boxed{0}"),
    ("code", "2", r"\boxed{__import__('os').getpid()}"),
    ("a hedge between boxes", "5", r"\boxed{4} or \boxed{5}"),
    ("the same with a doubt", "4", r"\boxed{4} or maybe \boxed{5}"),
    ("another final answer after the box", "5", r"\boxed{5}. The final answer is 6."),
    ("all letters", "B", r"\boxed{A, B, C, D}"),
    ("a letter denied", "B", r"\boxed{not B}"),
    ("a letter between slashes", "B", r"\boxed{B/C}"),
    ("a rounding that is none", "5", r"\boxed{4 \approx 5}"),
    ("an exact value that is another", "4", r"\boxed{4 \approx 5}"),
    ("a sentence that denies", "5", r"\boxed{The answer is not 5}"),
    ("a sentence that leaves it open", "5", "The answer is at least 5."),
    ("a range", "5", r"\boxed{4-6}"),
    ("an interval that holds it", "5", r"\boxed{[4,6]}"),
    ("a bound", "5", r"\boxed{x \ge 5}"),
    ("both signs", "5", r"\boxed{\pm 5}"),
    ("any number", "5", r"\boxed{x}"),
    ("any number, named", "5", r"\boxed{5 = x = 6}"),
    ("two intervals", "(0,1)", r"\boxed{(0,1) \text{ or } (0,2)}"),
    ("a larger set", r"\{1,2\}", r"\boxed{\{1,2,3,4\}}"),
    ("every line", "x=1", r"\boxed{0=0}"),
    ("yes and no", "yes", r"\boxed{yes and no}"),
    ("all colours", r"\text{blue}", r"\boxed{blue, red, green}"),
    ("two dates", "2024-03-05", r"\boxed{2024-03-05 or 2024-03-06}"),
    ("a word that multiplies", "5", r"\boxed{5 \text{ dozen}}"),
    ("a word that halves", "5", r"\boxed{half of 5}"),
    ("a percentage that fits another way", "50", r"\boxed{5000\%}"),
    ("a smaller tiny number", "10^{-20}", r"\boxed{10^{-21}}"),
    ("the start of the gold answer", "3x+2", r"\boxed{3}"),
    ("the same in a tuple", r"(3,\pi/2)", r"\boxed{3}"),
    ("a division by zero", r"\infty", r"\boxed{\frac{1}{0}}"),
    ("the placeholder of the prompt", "5", r"\boxed{ANSWER}"),
    ("dots", "5", r"\boxed{...}"),
    ("an answer in code only", "5", "```\nprint('\\boxed{6}')\n```"),
]


@pytest.mark.parametrize(("gold", "completion"), [game[1:] for game in GAMES])
def test_games_score_zero(gold: str, completion: str) -> None:
    assert score(gold, completion) == 0.0
    assert score(gold, [{"role": "assistant", "content": completion}]) == 0.0


def test_an_expression_counts_only_where_that_is_asked_for() -> None:
    assert score("5", r"\boxed{2+3}") == 0.0
    assert score("5", r"\boxed{2+3}", accept_unevaluated=True) == 1.0
    assert score("6", r"\boxed{2+3}", accept_unevaluated=True) == 0.0


@pytest.mark.parametrize(
    ("completion", "strict", "marked", "lenient"),
    [
        (r"\boxed{4}. Wait. \boxed{5}", 1.0, 1.0, 1.0),
        ("<think>4</think><answer>5</answer>", 1.0, 1.0, 1.0),
        (r"<answer>It is \boxed{5}</answer>", 1.0, 1.0, 1.0),
        (r"\boxed 5", 1.0, 1.0, 1.0),
        (r"\boxed{\text{5}}", 1.0, 1.0, 1.0),
        ("```python\nprint('\\boxed{7}')\n```\nso \\boxed{5}", 1.0, 1.0, 1.0),
        ("\\boxed{5}\n```python\nprint('\\boxed{7}')\n```", 1.0, 1.0, 1.0),
        (r"so \boxed{5", 0.0, 1.0, 1.0),
        ("2+3=5\n#### 5", 0.0, 1.0, 1.0),
        ("Answer: 5", 0.0, 1.0, 1.0),
        ("The final answer is $5$. I hope it helps.", 0.0, 1.0, 1.0),
        ("**Answer:** 5", 0.0, 1.0, 1.0),
        ("2 and 3 make 5.", 0.0, 0.0, 1.0),
        ("5 is more than 2.", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
        (r"\boxed{}", 0.0, 0.0, 0.0),
        (None, 0.0, 0.0, 0.0),
        ([], 0.0, 0.0, 0.0),
        ([{"role": "assistant", "content": None}], 0.0, 0.0, 0.0),
        ([{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{5}"}]}], 1, 1, 1),
    ],
)
def test_extraction_decides_where_an_answer_may_stand(
    completion: Any, strict: float, marked: float, lenient: float
) -> None:
    assert score("5", completion, extraction="strict") == strict
    assert score("5", completion, extraction="marked") == marked
    assert score("5", completion, extraction="lenient") == lenient


def test_a_prefilled_response_has_no_answer_before_its_reasoning_is_closed() -> None:
    assert score("5", r"it is \boxed{5}", prefilled=True) == 0.0
    assert score("5", r"it is 5</think> \boxed{5}", prefilled=True) == 1.0


def test_an_unknown_extraction_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown extraction 'loose'; known: strict"):
        score("5", "5", extraction="loose")


@pytest.mark.parametrize(
    "gold", [None, "", "  ", float("nan"), "nan", r"\boxed{5", r"\frac{1}{3", "word " * 1000]
)
def test_a_gold_that_can_not_be_graded_says_why_and_scores_none(gold: Any) -> None:
    fault = gold_fault(gold)
    assert fault is not None
    assert fault.startswith("not gradable because ")
    assert score(gold, r"\boxed{5}") is None


@pytest.mark.parametrize("gold", ["5", 5, 5.0, "$5$", r"so \boxed{5}.", "2+3=<<2+3=5>>5\n#### 5"])
def test_a_gold_may_be_bare_or_inside_a_solution(gold: Any) -> None:
    assert gold_fault(gold) is None
    assert score(gold, r"\boxed{5}") == 1.0
    assert score(gold, r"\boxed{6}") == 0.0


def test_rows_are_graded_each_on_its_own() -> None:
    completions = [r"\boxed{1}", r"\boxed{1}", "x", r"\boxed{1}"]
    scores = math_answer_reward(completions, ["1", "2", "3", None], task=["a"] * 4)
    assert scores == [1.0, 0.0, 0.0, None]


def test_gsm8k_solutions_of_four_models_are_graded_without_a_mistake() -> None:
    rows = read_rows("labelled/gsm8k_model_solutions.jsonl")
    assert len(rows) == 5276
    assert count_mistakes(rows) == (0, 0)
    assert count_mistakes(rows, extraction="lenient") == (0, 0)


def test_answers_of_a_language_model_to_math500_are_graded_without_a_mistake() -> None:
    rows = read_rows("labelled/math500_llm_answers.jsonl")
    assert len(rows) == 479
    assert count_mistakes(rows, extraction="strict") == (0, 0)


def test_every_math500_answer_matches_itself_and_its_solution() -> None:
    rows = read_rows("math500/test.jsonl")
    golds = [row["answer"] for row in rows]
    assert len(golds) == 500
    assert [gold for gold in golds if gold_fault(gold)] == []
    assert math_answer_reward([rf"\boxed{{{gold}}}" for gold in golds], golds) == [1.0] * 500
    assert math_answer_reward([row["solution"] for row in rows], golds) == [1.0] * 500


# Different spellings in MATH-500 that stand for the same: checked by hand, all of them.
SAME_IN_MATH500 = [
    ("-2,1", "1,-2"),
    (r"10,\!080", "10080"),
    ("120", r"120^\circ"),
    ("15", r"15\mbox{ cm}^2"),
    (r"2 \sqrt{5}", r"2\sqrt{5}"),
    ("204_5", "54"),
    ("30", r"30^\circ"),
    ("36", r"36^\circ"),
    ("36", "40_9"),
    (r"36^\circ", "40_9"),
    ("40_9", r"\$36"),
    ("36", r"\$36"),
    ("42", "52_8"),
    ("5", "x=5"),
    ("90", r"90^\circ"),
    (r"\frac14", r"\frac{1}{4}"),
    (r"180^\circ", r"\pi"),
]


def test_no_two_math500_answers_match_but_those_that_are_equal() -> None:
    golds = sorted({row["answer"] for row in read_rows("math500/test.jsonl")})
    assert len(golds) == 301
    found = {
        frozenset((gold, other))
        for i, gold in enumerate(golds)
        for other in golds[i + 1 :]
        if answers_match(gold, other) or answers_match(other, gold)
    }
    assert found == {frozenset(pair) for pair in SAME_IN_MATH500}


def test_gsm8k_golds_are_gradable_and_match_their_solutions() -> None:
    rows = read_rows("gsm8k/test.jsonl")
    answers = [row["answer"] for row in rows]
    assert [answer for answer in answers if gold_fault(answer)] == []
    assert math_answer_reward(answers, answers) == [1.0] * len(rows)


def test_hand_written_cases_have_no_false_positive() -> None:
    rows = read_rows("labelled/semantic_cases.jsonl")
    false_positives, false_negatives = count_mistakes(
        rows, extraction="lenient", accept_unevaluated=True
    )
    # Missed: an integral.
    assert (false_positives, false_negatives) == (0, 1)


def test_hostile_answers_neither_stall_nor_crash_the_grader() -> None:
    rows = read_rows("labelled/hostile_cases.jsonl")
    assert len(rows) == 58
    for row in rows:
        pred = row["pred"]
        completion = [{"content": pred}] if isinstance(pred, list) else pred
        for accept in (False, True):
            with must_end(20):
                score(row["gold"], completion, extraction="lenient", accept_unevaluated=accept)


HOSTILE = [
    "9^{9^9}",
    r"\binom{10^9}{5\cdot10^8}",
    "{" * 50 + "2" + "}" * 50,
    "(" * 300 + "2" + ")" * 300,
    "+".join(f"x_{{{i}}}" for i in range(2000)),
    "2^{10^9}",
    r"\cup".join(f"({i},{i + 1})" for i in range(200)),
    "5^{5^{5^{5^5}}}",
    r"\frac{1}{1+" * 24 + "1" + "}" * 24,
    r"\sqrt" * 150 + "2",
    "-" * 390 + "2",
    "2" + "!" * 300,
    "2000!" * 70,
    "|" * 300,
    r"\sin" * 100 + "x",
    "x^" * 190 + "2",
    "1 " * 190,
    "1e999",
    "10^{400}!",
]


@pytest.mark.parametrize("answer", HOSTILE)
def test_expressions_that_bloat_a_grader_do_not_stall_or_crash_this_one(answer: str) -> None:
    for gold in ("2", "x", r"\sqrt{2}", r"\{1,2\}", "(0,1)"):
        for accept in (False, True):
            with must_end(20):
                score(gold, rf"\boxed{{{answer}}}", accept_unevaluated=accept)


@pytest.mark.parametrize(
    "unit",
    ["<think>", "</think>", "<answer>", "</answer>", "```", "$", "####", "1,111,", "\\boxed{"],
)
def test_a_million_characters_are_searched_in_linear_time(unit: str) -> None:
    """Ten times what takes a backtracking expression seconds: quadratic time would be minutes."""
    text = unit * (1_520_000 // len(unit))
    for extraction in ("strict", "lenient"):
        with must_end(60):
            final_answer(text, extraction)
