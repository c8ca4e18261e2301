"""Decontamination finds every planted evaluation problem and drops nothing that shares no run."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from trl_r1.data.card import DataLog
from trl_r1.data.decontamination import decontaminate, report_lines
from trl_r1.data.texts import operators, words

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (DATA / "math500").is_dir(), reason="needs shared/data beside the repository"
)


def lines_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / path).read_text(encoding="utf-8").splitlines()]


def chat(text: str, answer: str = "<think>so</think>1") -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": text}],
        "completion": [{"role": "assistant", "content": answer}],
    }


def spaced(text: str, rng: random.Random) -> str:
    """Other white space, also where LaTeX takes none to count."""
    text = "".join(rng.choice(("  ", "\n", "\t", " \n ")) if c == " " else c for c in text)
    return re.sub(r"([=+,])", r" \1 ", text)


def unpunctuated(text: str, rng: random.Random) -> str:
    return re.sub(r"[.,;:!?$'\"]", "", text)


def repunctuated(text: str, rng: random.Random) -> str:
    return re.sub(r"[.?]", lambda _: rng.choice(("!", ";", " ...", "")), text.replace("$", " "))


PARAPHRASES = {
    "as it is": lambda text, rng: text,
    "white space": spaced,
    "upper case": lambda text, rng: text.upper(),
    "swapped case": lambda text, rng: text.swapcase(),
    "no punctuation": unpunctuated,
    "other punctuation": repunctuated,
    "LaTeX layout": lambda text, rng: (
        text.replace("\\frac", "\\dfrac").replace("(", "\\left(").replace(")", "\\right)")
    ),
    "all at once": lambda text, rng: spaced(unpunctuated(text.upper(), rng), rng),
}


@needs_data
@pytest.mark.parametrize("name", list(PARAPHRASES))
def test_every_planted_problem_is_found_whatever_its_white_space_case_and_punctuation(
    name: str,
) -> None:
    rng = random.Random(0)
    problems = {
        "math_500": [row["problem"] for row in lines_of("math500/test.jsonl")],
        "gsm8k": [row["question"] for row in lines_of("gsm8k/test.jsonl")],
    }
    planted = [PARAPHRASES[name](text, rng) for texts in problems.values() for text in texts]
    result = decontaminate(Dataset.from_list([chat(text) for text in planted]), problems)
    missed = sorted(set(range(len(planted))) - {hit.row for hit in result.hits})
    assert [planted[i] for i in missed] == []
    assert len(result.rows) == 0


@needs_data
def test_problems_of_ten_words_are_found_inside_of_other_text_and_in_responses() -> None:
    problems = [row["question"] for row in lines_of("gsm8k/test.jsonl")][::10]
    rows = [chat(f"Some words before. {text} And some after it.") for text in problems]
    rows += [chat("Tell me a riddle.", f"<think>{text}</think>7") for text in problems]
    result = decontaminate(Dataset.from_list(rows), {"gsm8k": problems})
    assert len(result.hits) == len(rows)


@needs_data
def test_real_training_rows_go_only_where_they_share_ten_words_in_a_row() -> None:
    train = lines_of("gsm8k/train.jsonl")
    problems = {
        "gsm8k": [row["question"] for row in lines_of("gsm8k/test.jsonl")],
        "math_500": [row["problem"] for row in lines_of("math500/test.jsonl")],
    }
    rows = Dataset.from_list([{"question": row["question"]} for row in train])
    result = decontaminate(rows, problems)
    runs = {
        tuple(tokens[i : i + 10])
        for texts in problems.values()
        for tokens in map(words, texts)
        for i in range(len(tokens) - 9)
    }
    overlapping = set()
    for index, row in enumerate(train):
        tokens = words(row["question"])
        if any(tuple(tokens[i : i + 10]) in runs for i in range(len(tokens) - 9)):
            overlapping.add(index)
    assert {hit.row for hit in result.hits} == overlapping
    # The same sets of the same authors: eleven rows share a phrase, two of them most of a problem.
    assert result.num_dropped == len(overlapping) == 11
    assert sum(hit.coverage > 0.5 for hit in result.hits) == 2
    kept = decontaminate(rows, problems, min_coverage=0.5)
    assert kept.num_dropped == 2
    assert len(kept.hits) == 11


def test_short_problems_hit_as_a_whole_and_not_as_a_part_of_others() -> None:
    rows = [
        chat("Compute $\\dbinom{8}{4}$."),
        chat("Question: compute \\binom{8}{4}"),
        chat("Here is one.\nCompute $\\dbinom 84$\nThink well."),
        chat("Compute $\\dbinom{8}{4} + 1$."),
        chat("Compute $\\dbinom{8}{5}$."),
        chat("Say hello.", "Compute $\\dbinom{8}{4}$."),
    ]
    result = decontaminate(Dataset.from_list(rows), {"math": ["Compute $\\dbinom{8}{4}$."]})
    assert [hit.row for hit in result.hits] == [0, 1, 2]
    assert [hit.rule for hit in result.hits] == ["short", "short", "same"]


def test_system_prompts_and_examples_of_a_prompt_are_not_compared() -> None:
    text = "one two three four five six seven eight nine ten eleven"
    row = {
        "prompt": [
            {"role": "system", "content": text},
            {"role": "user", "content": text},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "and now?"},
        ]
    }
    result = decontaminate(Dataset.from_list([row]), {"set": [text]})
    assert result.hits == []


def test_a_run_does_not_reach_from_one_row_into_the_next() -> None:
    text = "one two three four five six seven eight nine ten"
    rows = [{"problem": "one two three four five"}, {"problem": "six seven eight nine ten"}]
    assert decontaminate(Dataset.from_list(rows), {"set": [text]}).hits == []


def test_the_report_says_what_hit_and_the_log_how_many() -> None:
    log = DataLog()
    text = "one two three four five six seven eight nine ten eleven twelve"
    rows = [{"problem": f"so {text}"}, {"problem": "nothing"}, {"problem": text[:52]}]
    result = decontaminate(
        Dataset.from_list(rows), {"own": ["no", text], "other": ["else"]}, log=log
    )
    first, second = result.hits
    assert (first.row, first.evaluation, first.problem, first.coverage) == (0, "own", 1, 1.0)
    assert second.coverage == pytest.approx(1 / 3, abs=1e-4)
    assert result.rows["problem"][:] == ["nothing"]
    assert "| own | 2 | 1 | 2 | 1 |" in report_lines(result)
    (record,) = log.records
    assert (record.rows_before, record.rows_after) == (3, 1)


def test_an_evaluation_set_without_problems_is_an_error() -> None:
    rows = Dataset.from_list([{"problem": "x"}])
    with pytest.raises(ValueError, match="empty: this evaluation set has no problems"):
        decontaminate(rows, {"empty": []})
    with pytest.raises(ValueError, match="odd: no column with a problem among x"):
        decontaminate(rows, {"odd": Dataset.from_list([{"x": "1"}])})
    with pytest.raises(ValueError, match="no column question; there is problem"):
        decontaminate(rows, {"set": ["a"]}, columns=["question"])


def test_words_leave_out_layout_and_keep_what_is_said() -> None:
    assert words("$\\dfrac{1}{2}$ of 1,000\\,km") == ["frac", "1", "2", "of", "1000", "km"]
    assert words("\\left(3x\\right) \\text{ is }  Bob's") == ["3", "x", "is", "bobs"]
    assert words("10{,}000 e\u0301t\u00e9") == ["10000", "\u00e9t\u00e9"]
    assert words("\u6c42\u89e3 x") == ["\u6c42", "\u89e3", "x"]


def test_other_operators_make_another_problem_and_none_are_lost_punctuation() -> None:
    from datasets import Dataset

    asked = ["What is 2-2?", "What is 2*2?", "What is 2 + 2?", "What is 2 2", "Solve: what is 2+2"]
    result = decontaminate(Dataset.from_dict({"prompt": asked}), {"test": ["What is 2+2?"]})
    assert [hit.row for hit in result.hits] == [2, 3, 4]


def test_a_dash_in_the_place_of_a_minus_hides_no_problem() -> None:
    problem = "What is the value of $513^2 - 487^2$?"
    for text in (problem.replace(" - ", " \u2013 "), problem.replace(" - ", " \u2212 ")):
        assert operators(text) == operators(problem)
        rows = Dataset.from_list([{"problem": text}])
        assert len(decontaminate(rows, {"math": [problem]}).rows) == 0
    assert operators("two numbers \u2013 both of them prime - add up to 5 + 2") == "+"
    assert operators("well-known \u2010 is n-1") == "-"


def test_characters_that_are_not_seen_hide_no_problem() -> None:
    from datasets import Dataset

    problem = "A train goes 60 miles in the first hour and 45 miles in the second. How far is it?"
    unseen = ("\u200b", "\u00ad", "\u2060", "\ufeff", "\u202a")
    rows = [f"Read this first. {mark.join(problem)} Thank you for it." for mark in unseen]
    rows.append("".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in problem))
    result = decontaminate(Dataset.from_dict({"prompt": rows}), {"test": [problem]})
    assert result.num_dropped == len(rows)
