"""The accuracy reward by kind of answer: right and wrong ones next to each other, and labelled
pairs whose sources disagree."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from must_end import must_end

from trl_r1.rewards.math_answer import EXTRACTIONS, math_answer_reward

CASES = Path(__file__).with_name("math_answer_cases.txt")
PAIRS = Path(__file__).parents[2] / "shared" / "data" / "labelled" / "grader_unit_pairs.jsonl"
CONTRADICTED = Path(__file__).parents[1] / "scripts" / "grader_unit_pairs_contradicted.jsonl"


def score(gold: str, completion: str, **settings: object) -> float | None:
    return math_answer_reward([completion], solution=[gold], **settings)[0]


def read_cases() -> list[tuple[str, str, list[str], list[str]]]:
    """Kind, gold answer, right answers, wrong answers of each line."""
    cases, kind = [], ""
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = line[2:]
            continue
        right, _, wrong = line.partition(" !! ")
        gold, *rights = right.split(" || ")
        cases.append((kind, gold, rights, wrong.split(" || ")))
    return cases


@pytest.mark.parametrize(
    ("gold", "rights", "wrongs"), [pytest.param(*c[1:], id=f"{c[0]}: {c[1]}") for c in read_cases()]
)
def test_every_spelling_of_an_answer_is_told_from_its_neighbours(
    gold: str, rights: list[str], wrongs: list[str]
) -> None:
    for boxed_gold in (gold, rf"so \boxed{{{gold}}}."):
        missed = [a for a in [gold, *rights] if score(boxed_gold, rf"\boxed{{{a}}}") != 1.0]
        taken = [a for a in wrongs if score(boxed_gold, rf"So it is \boxed{{{a}}}.") != 0.0]
        assert (missed, taken) == ([], [])


EXTRACTED = [
    (r"\boxed{4} or \boxed{5}", "5", 0.0),
    (r"\boxed{4} or \boxed{5}", "4, 5", 1.0),
    (r"$\boxed{4}$ and $\boxed{5}$", "4, 5", 1.0),
    (r"$\boxed{k = 45} \quad \text{and} \quad \boxed{n = 2}$", "k = 45, n = 2", 1.0),
    (r"\boxed{1.5} or \boxed{\frac{3}{2}}", "1.5", 1.0),
    (r"\boxed{4}, no, \boxed{5}", "5", 1.0),
    (r"\boxed{4}. So \boxed{5}", "5", 1.0),
    (r"\boxed{3} \boxed{4} \boxed{5}", "5", 1.0),
    (r"\boxed{5}} and so on", "5", 1.0),
    (r"\fbox{5}", "5", 1.0),
    (r"\boxed{\boxed{5}}", "5", 1.0),
    (r"\boxed{200}. Final Answer: The final answer is $10,455$. I hope it is correct.", "10455", 1),
    (r"\boxed{5} is wrong; final answer: \boxed{6}", "5", 0.0),
    (r"\boxed{5}. The answer is checked.", "5", 1.0),
    ("**Final Answer:** The volume of the box is 120.", "120", 1.0),
    ("The answer is 5 apples.", "5", 1.0),
    ("The answer is not 5.", "5", 0.0),
    ("The answer is $x<3$.", "x<3", 1.0),
    ("Answer $$\n 9 \n$$", "9", 1.0),
    ("<answer>The answer is 5.</answer>", "5", 1.0),
    ("<answer>**5**</answer>", "5", 1.0),
    ("Answer: (B) 42", "B", 1.0),
    ("### Final Answer\n\n5", "5", 1.0),
    ("Therefore, the correct option is (B).", "B", 1.0),
    ("The answer is 5, since 2+3=5.", "5", 1.0),
    ("The answer to the question is 5.", "5", 1.0),
    ("The answer is $(3, 4)$ and we are done.", "(3,4)", 1.0),
    ("The answer is $3$ and $4$.", "3", 0.0),
    ("The answer is 3/4 of a cup.", "3/4", 1.0),
    ("The answer is 5.<|im_end|>", "5", 1.0),
    ("The answer is:\n- x = 5", "5", 1.0),
    ("Answer: `5`", "5", 1.0),
    ("Is the answer 5? No. The answer is 6.", "5", 0.0),
    ("The answer is 6, not 5.", "5", 0.0),
    ("<answer>Step 1: 2+3. Step 2: 5</answer>", "5", 0.0),
    ("#### 5\n#### 6", "5", 0.0),
    ("Answer: B or C", "B", 0.0),
    (r"\\boxed{\\frac{1}{2}}", r"\frac{1}{2}", 1.0),
    (r"The answer is not \boxed{5}.", "5", 0.0),
    (r"It is \boxed{5}, not \boxed{6}.", "5", 1.0),
    (r"It is \boxed{5}, not \boxed{6}.", "6", 0.0),
    (r"$x \neq \boxed{5}$", "5", 0.0),
    ("The answer is 5? No. I can't tell.", "5", 0.0),
    ("The answer is 5. Is the answer 6?", "5", 1.0),
    ("\u7b54\u6848\u662f 5\u3002", "5", 1.0),
    ("\u7b54\u6848\uff1a5", "5", 1.0),
    ("\u7b54\u6848\uff1a6", "5", 0.0),
    ("Respuesta final: 5", "5", 1.0),
    ("La r\u00e9ponse est 5.", "5", 1.0),
    ("\u041e\u0442\u0432\u0435\u0442: 5", "5", 1.0),
    ("Answer\uff1a5", "5", 1.0),
]


@pytest.mark.parametrize(("completion", "gold", "expected"), EXTRACTED)
def test_the_answer_is_found_where_models_put_it(
    completion: str, gold: str, expected: float
) -> None:
    assert score(gold, completion) == expected


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("We find that $x < 3$.", "x<3"),
        ("28 pct", r"28\%"),
        (r"\frac{1}{2}", "0.5"),
        ("odd", r"\text{odd}"),
        ("there are 12 of them in all", "12"),
        (r"$n=1, 2, 3$", "n=1, 2, 3"),
    ],
)
def test_lenient_takes_what_stands_last(completion: str, gold: str) -> None:
    assert score(gold, completion, extraction="lenient") == 1.0
    assert score(gold, completion) == 0.0


def test_pairs_of_other_graders_are_graded_as_labelled_where_their_sources_agree() -> None:
    """232 pairs from the tests of seven graders, less those whose label another pair, or a rule
    of this grader that its own labelled sets demand, contradicts. The file says which, and why."""
    if not PAIRS.is_file():
        pytest.skip("no labelled/grader_unit_pairs.jsonl in shared/data beside the repository")
    rows = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    excused = [json.loads(line) for line in CONTRADICTED.read_text(encoding="utf-8").splitlines()]
    keys = [(row["gold"], row["pred"], row["label"]) for row in rows]
    left_out = [(row["gold"], row["pred"], row["label"]) for row in excused]
    assert [key for key in left_out if key not in keys] == []
    assert all(len(row["why"]) > 20 for row in excused)
    settings = {"extraction": "lenient", "accept_unevaluated": True}
    wrong = {key for key in keys if (score(key[0], key[1], **settings) == 1.0) != key[2]}
    # None is left out that is graded as labelled.
    assert wrong >= set(left_out)
    # What remains: a gold answer whose \boxed is cut off is not gradable here.
    assert [gold for gold, _, _ in wrong - set(left_out)] == [
        r"\\boxed{W(n) = 1 \\text{ and } W(n) = -1"
    ]


def test_the_script_reports_the_agreement_without_contradicted_rows_too(tmp_path: Path) -> None:
    rows = [
        {"gold": "1/2", "pred": "50%", "label": False},
        {"gold": "0.1", "pred": "10%", "label": True},
        {"gold": "5", "pred": "6", "label": False},
    ]
    data, excused = tmp_path / "data.jsonl", tmp_path / "contradicted.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    excused.write_text(json.dumps({**rows[0], "why": "the second row has 0.1 equal 10%"}))
    script = CONTRADICTED.with_name("grade.py")
    command = [sys.executable, script, data, "--box", "--contradicted", excused]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "3 rows: 1 false positives, 0 false negatives, agreement 0.6667" in run.stdout
    assert "is contradicted: 2 rows, 0 wrong, agreement 1.0000" in run.stdout


PIECES = [
    *("\\frac", "\\sqrt", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "\\text{", "1", "23", "0."),
    *("^", "_", "\\pm", "\\cup ", "\\infty", "\\le ", "<", "=", "\\ne ", "\\in ", ",", ";", ":"),
    *("/", "+", "-", "*", "!", "%", "$", "x", "i", "\\pi", "\\sin", "\\log", "\\lfloor ", "\\gcd"),
    *("\\binom", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", " ", "\\,", " and ", " or "),
    *("\\mathbf{i}", "km", "m/s", "hours ", "minutes", "March ", "pm", "twelve", "hundred", "|"),
    *("\\mathbb{R}", "\\setminus", "\u00bd", "\u00b2", "\u2088", "\u03c0", "\u221a", "\u0663"),
    *("\u20ac", "\x00", "\ud800", "\U0001d7d9", "\\approx ", "e5", "9" * 50, "A", "B)", "\\circ"),
]
GOLDS = [
    *("5", r"\{1,2,3\}", "(0,1)", "3:4", "x=5", "2024-03-05", "B", "yes", "5 km", "1,2,3", "12:30"),
    *(r"\begin{pmatrix}1\\2\end{pmatrix}", r"3\mathbf{i}+4\mathbf{j}", r"2\pm\sqrt{3}", "x^2+1"),
    *(r"(-\infty,2)\cup(3,\infty)", "52_8", r"\sqrt2\approx1.4", r"\text{blue, red}", r"50\%"),
]


def test_no_soup_of_symbols_makes_the_grader_raise() -> None:
    dice = random.Random(0)
    with must_end(120):
        for _ in range(4000):
            soup = "".join(dice.choices(PIECES, k=dice.choice((1, 2, 3, 5, 8, 20))))
            gold = dice.choice(GOLDS) if dice.random() < 0.8 else soup[::-1]
            form = dice.choice((r"\boxed{%s}", "<answer>%s</answer>", "the answer is %s", "%s"))
            given = score(
                gold,
                form % soup,
                extraction=dice.choice(EXTRACTIONS),
                accept_unevaluated=dice.random() < 0.5,
            )
            assert given in (0.0, 1.0, None)
