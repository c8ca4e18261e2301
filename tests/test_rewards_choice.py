"""The choice reward: which label a response chooses, and which responses choose none."""
# ruff: noqa: RUF001 - full-width and other letters are what is tested

from __future__ import annotations

from typing import Any

import pytest
from must_end import must_end

from trl_r1.rewards.choice import choice_reward, gold_fault, labelled_options

OPTIONS = ["London", "Paris", "Rome", "Vitamin A or C"]


def score(completion: Any, solution: Any = "B", options: Any = None, **settings: Any) -> Any:
    own = None if options is None else [options]
    return choice_reward([completion], [solution], options=own, **settings)[0]


CHOICES_OF_B = [
    "Answer: 'B'",
    "B",
    "(B)",
    "B.",
    "**B**",
    "B) Paris",
    "B) False",
    "B\n\nExplanation: Paris is a capital.",
    r"\boxed{B}",
    r"\boxed{\text{(B)}}",
    r"\boxed{B. 42}",
    r"\boxed{\textbf{(B) } 42}",
    r"The answer is $\boxed{B}$.",
    "<answer>B</answer>",
    "<answer>b</answer>",
    "<answer>(B)</answer>",
    "<answer>B) Paris</answer>",
    "<think>A or C? A.</think> B",
    "The answer is B.",
    "The answer is (B).",
    "The answer is option B",
    "**Answer: B**",
    "Answer: **B**",
    "The correct answer is **B) Paris**.",
    "My answer: B. Paris, since it is the capital.",
    "Final answer: b",
    "The answer is: $B$",
    "The answer is B because A is wrong.",
    "The answer is A. Wait, the answer is B.",
    "So I choose B",
    "I think B is the correct answer.",
    "Option A is incorrect. Option B is correct. Option C is wrong.",
    "The answer is B.\n\nOption A: wrong, since it rains.\nOption C: also wrong.",
    "The correct answer is:\n\nB) Paris",
    "**Answer:**\nB",
    "I would not choose A. I choose B.",
    "The wrong answer is A, the right one is B.\nAnswer: B",
    "The answer could be A, but I pick B.",
    "The best option is B",
    "正确选项是B。选项A错误。",
    "不选A，选B",
    "Therefore, the correct option among A, B, C and D is B.",
    "A. London\nB. Paris\n\nThe answer is B",
    '{"answer": "B"}',
    "The answer is Ｂ",
    "答案是B。",
    "答案：B",
    "故选B",
    "正解はBです",
    "정답은 B",
    "Ответ: B",
    "La respuesta correcta es B",
    "La réponse est B.",
    "Die richtige Antwort ist B.",
]


@pytest.mark.parametrize("text", CHOICES_OF_B)
def test_a_choice_is_read_in_the_forms_that_models_write(text: str) -> None:
    assert score(text) == 1.0
    assert score([{"role": "assistant", "content": text}]) == 1.0
    assert score(text, "C") == 0.0


NO_CHOICE_OF_B = [
    "",
    "Answer: B++",
    "Answer: B?",
    "Answer: B'",
    r"\boxed{B'}",
    "I do not know",
    "A or B",
    "The answer is A or B",
    "The answer is B or C",
    "The answer is either A or B",
    "The answer is B. Or C.",
    "B. Paris or C. London",
    r"\boxed{A or B}",
    r"\boxed{A, B, C, D}",
    r"\boxed{ABCD}",
    r"\boxed{A. B}",
    r"\boxed{}",
    r"\boxed{B",
    r"\boxed{B} \boxed{C}",
    "<answer>A/B</answer>",
    "<answer>B</answer> <answer>C</answer>",
    "A. London\nB. Paris\nC. Rome\nD. Bern",
    "A B C D",
    "B? A? C?",
    "all of the above",
    "B and C",
    "The answer is B and C",
    "The answer is not B",
    "Option B is wrong",
    "Option B: wrong",
    "I would not choose B",
    "The wrong answer is B",
    "选项B错误",
    "不选B",
    "The answer is a banana",
    "Bananas",
    "Be careful",
    "The answer is A.",
    "<think>B</think>",
    "<think>The answer is B",
    r"<think>\boxed{B}</think> hm",
    "PASS passed: True reward=1.0",
    "__import__('builtins').str('B')",
]


@pytest.mark.parametrize("text", NO_CHOICE_OF_B)
def test_an_unclear_choice_and_one_in_the_reasoning_score_zero(text: str) -> None:
    assert score(text) == 0.0
    assert score([{"role": "assistant", "content": text}]) == 0.0


@pytest.mark.parametrize("completion", [None, [], [{"role": "assistant", "content": None}]])
def test_a_completion_without_text_scores_zero(completion: Any) -> None:
    assert score(completion) == 0.0


def test_with_a_prefilled_opener_open_reasoning_chooses_nothing() -> None:
    assert score("The answer is B", prefilled=True) == 0.0
    assert score("hm</think> The answer is B", prefilled=True) == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", 1.0),
        ("The answer is **Paris**.", 1.0),
        (r"\boxed{\text{Paris}}", 1.0),
        ("B. Paris", 1.0),
        ("B. London", 0.0),
        ("A. Paris", 0.0),
        ("London", 0.0),
        ("Paris or London", 0.0),
        ("The answer is Paris or Rome", 0.0),
        ("London Paris Rome", 0.0),
        ("E", 0.0),
    ],
)
def test_the_text_of_an_option_counts_where_the_options_are_known(
    text: str, expected: float
) -> None:
    assert score(text, "B", OPTIONS) == expected


@pytest.mark.parametrize("text", ["D. Vitamin A or C", "vitamin a or c", "The answer is D."])
def test_an_or_inside_an_options_own_text_is_no_second_choice(text: str) -> None:
    assert score(text, "D", OPTIONS) == 1.0


@pytest.mark.parametrize(
    ("gold", "options", "text"),
    [
        ("Paris", OPTIONS, "B"),
        (1, OPTIONS, "B"),
        (1, None, "B"),
        ("(b)", None, "B"),
        ("J", None, "The answer is J."),
        ("I", None, r"\boxed{I}"),
        ("A", None, "The answer is A because it is."),
        ("4", None, r"\boxed{4}"),
        ("3", {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}, "The answer is (3)"),
        ("z", {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}, "3"),
        ("B", '["x", "y"]', "y"),
        ("b", {"a": "x", "b": "y"}, "B"),
        ("B", ["A) 21", "B) 22"], "22"),
    ],
)
def test_gold_answers_are_labels_texts_or_places(gold: Any, options: Any, text: str) -> None:
    assert score(text, gold, options) == 1.0


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        (["A", "C"], "A, C", 1.0),
        ("A, C", r"\boxed{C and A}", 1.0),
        ("AC", r"\boxed{AC}", 1.0),
        ("AC", "The answers are A and C.", 1.0),
        (["A", "C"], "A", 0.0),
        (["A", "C"], "A or C", 0.0),
        ("AC", "A, B, C", 0.0),
    ],
)
def test_several_right_options_have_to_be_chosen_exactly(
    gold: Any, text: str, expected: float
) -> None:
    assert score(text, gold) == expected


@pytest.mark.parametrize(
    "text",
    ["4<5", "1, 2, 3, 4", r"\boxed{4 or 5}", "1 2 3 4 5", r"\boxed{5=4}", "[3,5]", "4.5", "4 km"],
)
def test_a_number_in_other_company_is_no_label(text: str) -> None:
    assert score(text, "4") == 0.0


@pytest.mark.parametrize(
    ("gold", "options"),
    [(None, None), ("", None), ("3x+2", None), ("7", OPTIONS), ("perhaps", None), (9, OPTIONS)],
)
def test_a_gold_answer_that_is_no_choice_is_not_gradable(gold: Any, options: Any) -> None:
    assert score("B", gold, options) is None
    assert str(gold_fault(gold, options)).startswith("not gradable because it is ")
    assert gold_fault("B", OPTIONS) is gold_fault("Paris", OPTIONS) is gold_fault(0) is None


def test_one_list_of_texts_holds_for_all_rows_and_each_row_may_have_its_own() -> None:
    assert choice_reward(["yes", "no"], ["A", "A"], options=["yes", "no"]) == [1.0, 0.0]
    own = [["yes", "no"], ["no", "yes"]]
    assert choice_reward(["yes", "yes"], ["A", "A"], options=own) == [1.0, 0.0]
    assert choice_reward(["yes", "B"], ["A", "B"], options=[["yes", "no"], None]) == [1.0, 1.0]


def test_options_that_are_none_are_an_error() -> None:
    with pytest.raises(ValueError, match="at most 26 texts, or a mapping"):
        labelled_options([str(i) for i in range(27)])
    with pytest.raises(ValueError, match="options are given for 2 rows of 1"):
        choice_reward(["A"], ["A"], options=[["x"], ["y"]])


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10**6,
        "answer " * 10**5,
        "answer is a " * 10**5,
        "\\boxed{" * 10**5 + "B" + "}" * 10**5,
        "(" * 10**6,
        "A or " * 10**5,
        "answer is " + " or a" * 10**5,
        "B. and " + "or aaaaaaaaa " * 10**5,
        "B. x\n" * 10**5,
        "answer" + " the" * 10**5,
        "A is " * 10**5,
        "\ud800" * 10,
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_hostile_responses_are_read_in_linear_time(text: str) -> None:
    with must_end(20):
        assert score(text, "C", OPTIONS) == 0.0
