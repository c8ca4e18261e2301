"""The filters against traces labelled by hand, and the policies that choose among samples.

A second set was written and labelled without a look at the filters. They then took 6 of its clean
traces for mixed languages (quotations, terms and names in another script; 10 of 16 found were
right) and missed none; a trace that names a foreign word without any mark is rejected still. Of a
third set, written the same way, every fault was found, and 3 of 11 taken for repetitive were cases
worked through in the same words; all else was right. Of the fourth (133 traces) 3 of 13 long
paragraphs, in languages of long words, were missed, and 4 of 18 mixtures were none; of the fifth
(62) 5 of 12, nearly all formulas, names and units in Chinese, Korean and Russian; all else was
right. The sixth (37, clean traces and mixtures only) came after the rules for those: 2 of 14.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trl_r1.reasoning_format import get_format
from trl_r1.sampling import Sample
from trl_r1.sampling.filters import SampleFilters
from trl_r1.sampling.judging import KEPT, REASONS, Check, SampleJudge
from trl_r1.sampling.mentions import without_mentions
from trl_r1.sampling.readability import has_code_block, is_repetitive, longest_paragraph
from trl_r1.sampling.selection import rank_samples
from trl_r1.sampling.tidying import tidy
from trl_r1.verification.loading import load_reward

TRACES = (
    "labelled_traces.jsonl",
    "labelled_traces_held_out.jsonl",
    "labelled_traces_third.jsonl",
    "labelled_traces_fourth.jsonl",
    "labelled_traces_fifth.jsonl",
    "labelled_traces_sixth.jsonl",
    "labelled_traces_seventh.jsonl",
)
FAULTS = (
    "truncated",
    "malformed",
    "repetitive",
    "long_paragraph",
    "code_block",
    "mixed_language",
)
SWITCHES: dict[str, dict[str, Any]] = {
    "malformed": {"require_format": False},
    "repetitive": {"reject_repetition": False},
    "long_paragraph": {"max_paragraph_words": None},
    "code_block": {"reject_code": False},
    "mixed_language": {"language": None},
}


def traces() -> list[dict[str, Any]]:
    texts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in TRACES]
    return [json.loads(line) for line in "".join(texts).splitlines()]


def verdict(trace: dict[str, Any], fault: str | None = None) -> str:
    """The verdict with all filters, or with that of one fault alone."""
    off = [] if fault is None else [name for name in SWITCHES if name != fault]
    filters = SampleFilters(**{k: v for name in off for k, v in SWITCHES[name].items()})
    language = load_reward("language_consistency")
    judge = SampleJudge(get_format(trace["format"]), [], filters, language)
    row = {"prompt": "?", "language": trace["language"]}
    if trace["has_tests"]:
        row["tests"] = ["f() == 1"]
    is_truncated = trace["is_truncated"] and fault in (None, "truncated")
    (judgement,) = judge.judge([row], [[Sample(trace["text"], [1], is_truncated)]])[0]
    return judgement.verdict


def test_there_are_traces_with_every_fault_and_many_languages() -> None:
    counts = Counter(fault for trace in traces() for fault in trace["faults"])
    assert len(traces()) == 558
    assert set(counts) == set(FAULTS)
    assert sum(not trace["faults"] for trace in traces()) >= 60
    assert len({trace["language"] for trace in traces()}) >= 10


@pytest.mark.parametrize("fault", FAULTS)
def test_each_filter_finds_its_fault_and_nothing_else(fault: str) -> None:
    found = {t["id"] for t in traces() if verdict(t, fault) == fault}
    labelled = {t["id"] for t in traces() if fault in t["faults"]}
    assert len(found & labelled) / len(found) >= 0.95, f"wrongly found: {found - labelled}"
    assert len(found & labelled) / len(labelled) >= 0.95, f"missed: {labelled - found}"


def test_all_filters_together_keep_the_clean_traces_and_name_a_fault_of_the_others() -> None:
    wrong = [
        (trace["id"], verdict(trace), trace["faults"])
        for trace in traces()
        if verdict(trace) not in (trace["faults"] or [KEPT])
    ]
    assert len(wrong) <= 5, wrong
    assert set(FAULTS) <= set(REASONS)


def test_mathematics_and_lists_are_no_programs() -> None:
    for text in (
        "x = 3\ny = 4\nz = x + y;\n",
        "for every x in S: it holds\nwhile x > 0: too",
        "- import duties are 3%\n- print runs of 5",
        "  indented prose\n  goes on like this\n  for a while",
        "f(x) = g(2)\nreturn to the start.",
    ):
        assert not has_code_block(text), text
    assert has_code_block("import math\n\nprint(math.pi)\nso 3")


def test_units_operators_and_a_single_term_are_no_words_of_another_language() -> None:
    for clean in ("Длина 5 xyz/s.", "Здесь log x и max f.", "Это слово seven, и снова seven."):
        left = without_mentions(clean, "ru")
        assert not any(word in left for word in ("xyz", "log", "max", "seven")), left
    for mixed in ("Ответ 5 so we add.", "Это max value of them.", "Это word, это other."):
        left = without_mentions(mixed, "ru")
        assert any(word in left for word in ("so we", "max value", "word")), left
    assert without_mentions("<think> Это seven. </think>", "ru").split() == [
        "<think>", "Это", ".", "</think>",
    ]  # fmt: skip


def test_what_is_only_mentioned_is_no_mixture() -> None:
    kept = 'The words "carpe diem" and the number seven (\u4e03) are foreign.'
    assert "carpe" not in without_mentions(kept, "en")
    assert "\u4e03" not in without_mentions(kept, "en")
    assert "Vieta" not in without_mentions(
        "\u8fd9\u91cc\u7528 Vieta \u5b9a\u7406\u6765\u6c42\u89e3", "zh"
    )
    said = 'He said "dann rechnen wir alles noch einmal von vorne nach" and \u6240\u4ee5 x = 3.'
    assert without_mentions(said, "en") == said
    mixed = "我们先计算总数。 So the total is 36. 然后除以4"
    assert "So the total is" in without_mentions(mixed, "zh")


def test_formulas_names_units_and_programs_are_no_mixture() -> None:
    kept = "\u8bbe ab = 12, pH \u4e3a 7, Leonardo da Vinci \u8d70\u4e86 3 km\u3002len(set(a))"
    left = without_mentions(kept, "zh")
    assert not any(word in left for word in ("ab", "pH", "Vinci", "km", "len", "set"))
    assert "okay so" in without_mentions("\u6211\u4eec okay so \u7b97\u51fa 12", "zh")
    assert "import" not in without_mentions("Mira:\n\nimport math\nx = 3\nprint(x)\n\nSon 3.", "es")
    assert "\u6728" not in without_mentions("It is \u6728, a tree.", "en")
    assert "\u6240\u4ee5" in without_mentions("It is 3, \u6240\u4ee5 done.", "en")
    assert "\u03bb\u03cc\u03b3\u03bf\u03c2" not in without_mentions(
        "the Greek \u03bb\u03cc\u03b3\u03bf\u03c2", "en"
    )


def test_words_of_other_languages_count_by_their_letters() -> None:
    assert longest_paragraph("zweihundertsechsundfunfzig " * 10) == 52
    assert longest_paragraph("ab " * 10) == 10
    assert longest_paragraph("\uac00\uac00\uac00\uac00 " * 10) == 20
    assert longest_paragraph("\u0643\u062a\u0627\u0628\u0643\u0645\u0627\u0646 " * 10) == 20


def test_numbers_of_a_long_sum_are_no_loop_and_numbers_without_end_are() -> None:
    assert not is_repetitive("1+" + "+".join("0" * 18) + "+6 = 7")
    assert is_repetitive(" ".join("7" * 40))
    assert is_repetitive("no, " * 14)


def test_a_wrapped_line_is_one_paragraph_and_a_list_is_none() -> None:
    line = "the sum of these two numbers is what we were looking for all along,"
    assert longest_paragraph("\n".join([line] * 3)) == 3 * len(line.split())
    assert longest_paragraph("\n".join([f"{line[:-1]}."] * 3)) == len(line.split())
    assert longest_paragraph("n = 1\nso is m\nso is k") == 3


def test_scripts_without_spaces_count_by_their_characters() -> None:
    assert longest_paragraph("一二三四五六") == 4
    assert longest_paragraph("one two 三四五") == 4
    assert is_repetitive("我们再检查一遍这个答案是不是对的" * 6)
    assert not is_repetitive("面积等于长乘以宽。" * 1 + "周长等于长加宽乘以二。")


def ranked(policy: Any, targets: list[str], **kwargs: Any) -> list[int]:
    scores = kwargs.pop("scores", [{}] * len(targets))
    return rank_samples(policy, targets, scores, "prompt", **kwargs)


def test_the_diverse_policy_takes_the_least_alike_first() -> None:
    targets = [
        "add two and three to get five",
        "add two and three to get five now",
        "count on from two: three, four, five",
        "add two and three to get five then",
    ]
    assert ranked("diverse", targets)[:2] == [0, 2]
    assert sorted(ranked("diverse", targets)) == [0, 1, 2, 3]
    assert ranked("diverse", []) == []
    assert ranked("diverse", ["", "a", "a"]) == [0, 1, 2]


def test_the_best_of_a_reward_is_kept_first() -> None:
    scores = [{"a": 1.0, "b": 0.1}, {"a": 1.0, "b": None}, {"a": 0.5, "b": 0.9}]
    assert ranked("best_reward", ["x", "y", "z"], scores=scores, best_by="b") == [2, 0, 1]
    assert ranked("best_reward", ["x", "y", "z"], scores=scores) == [2, 0, 1]


def test_a_reward_to_go_by_has_to_be_there() -> None:
    filters = SampleFilters(policy="best_reward", best_by="other")
    with pytest.raises(ValueError, match=r"best_by is 'other'; the rewards are \['mine'\]"):
        SampleJudge(get_format("r1"), [Check("mine", lambda **_: [])], filters)
    with pytest.raises(ValueError, match="best_by is for `policy: best_reward`"):
        SampleFilters(best_by="mine")


def test_tidying_changes_no_word() -> None:
    text = "\ufeffOne\u200b two  \r\n\r\n\r\n\r\n    indented\x07 line\t \n- e\u0301nd"
    assert tidy(text) == "One two\n\n    indented line\n- \u00e9nd"
    assert tidy("नमस्\u200dते می\u200cروم") == "नमस्\u200dते می\u200cروم"
    for trace in traces():
        assert tidy(tidy(trace["text"])) == tidy(trace["text"])
