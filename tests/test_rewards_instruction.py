"""The instruction reward: each kind of constraint, IFEval's columns, and what is no constraint."""
# ruff: noqa: RUF001 - letters of many languages

from __future__ import annotations

import json
from typing import Any

import pytest
from must_end import must_end

from trl_r1.rewards.instruction import (
    _IFEVAL,
    KINDS,
    LANGUAGES,
    count_sentences,
    instruction_reward,
)


def keeps(text: Any, kind: str, **arguments: Any) -> float | None:
    return instruction_reward([text], require=[{"kind": kind, **arguments}])[0]


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    # kind, arguments, a text that keeps it, one that does not
    ("num_words", {"min": 3, "max": 4}, "one two, three", "one two"),
    ("num_words", {"exactly": 2}, "one two", "one two three"),
    ("num_sentences", {"exactly": 2}, "Dr. No came. He left!", "Dr. No came and left."),
    ("num_characters", {"max": 5}, "12345", "123456"),
    ("num_paragraphs", {"exactly": 2}, "a\n\n\n\nb", "a\nb"),
    ("num_paragraphs", {"exactly": 2, "separator": "***"}, "a\n***\nb", "a\n******\nb"),
    ("nth_paragraph", {"nth": 2, "first_word": "So"}, "a\n\n'so, it is", "so\n\na"),
    ("keywords", {"include": ["cat", "dog"]}, "Dog and cat.", "Dogs and concat."),
    ("keywords", {"include": "cat", "whole_words": False}, "concat", "dog"),
    ("keywords", {"include": "c++"}, "I like C++!", "I like cc"),
    ("keywords", {"include": "猫"}, "我有猫呢", "我有狗"),
    ("forbidden_words", {"words": ["cat"]}, "concatenate", "a Cat"),
    ("keyword_frequency", {"keyword": "a", "min": 2}, "a b A", "a b ab"),
    ("letter_frequency", {"letter": "e", "max": 2}, "Eel", "Eele"),
    ("capital_words", {"min": 2}, "GO NOW please", "GO now"),
    ("casing", {"case": "upper"}, "ALL 3 OF IT", "All"),
    ("casing", {"case": "lower"}, "all of it", "All"),
    ("casing", {"case": "lower", "english": True}, "all of it", "das ist nicht die frage"),
    ("json", {}, '{"a": 1}', "{a: 1}"),
    ("json", {}, "```json\n[1, 2]\n```", "It is [1, 2]"),
    ("json", {}, "[1]", "1"),
    ("json", {"scalar": True}, "1", "NaN"),
    ("json", {"keys": ["a", "b"]}, '{"b": 1, "a": 2, "c": 3}', '[{"a": 1, "b": 2}]'),
    ("bullets", {"exactly": 2}, "* a\n- b\n**c**", "* a"),
    ("highlights", {"min": 2}, "*a* and *b c*", "*a* and ** **"),
    ("sections", {"exactly": 2}, "Section 1\na\nSection 2\nb", "Section\n"),
    ("sections", {"min": 1, "marker": "PART"}, "PART 1", "Part 1"),
    ("placeholders", {"min": 2}, "[name] of [place]", "[name of place"),
    ("title", {}, "<<A day>>\nIt was", "<< >>\n<a>"),
    ("postscript", {}, "Yours\nP. S. more", "Yours"),
    ("postscript", {"marker": "P.P.S"}, "p.p.s more", "P.S. more"),
    ("start", {"phrase": "Dear"}, " dear Ada", "Oh dear"),
    ("end", {"phrase": "Is that all?"}, '"So. is that all?"', "Is that all? No."),
    ("quotation", {}, '"so"', '"so" it is'),
    ("no_comma", {}, "a b", "a, b"),
    ("repeat_prompt", {"prompt": "Say hi"}, "say hi\nhi", "hi"),
    ("two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("one_of", {"phrases": ["yes", "no"]}, "yes!", "maybe"),
    ("language", {"code": "de"}, "Das ist nicht die Frage.", "This is not the question."),
]


@pytest.mark.parametrize(("kind", "arguments", "kept", "broken"), CASES)
def test_a_constraint_tells_what_keeps_it_from_what_does_not(
    kind: str, arguments: dict[str, Any], kept: str, broken: str
) -> None:
    assert keeps(kept, kind, **arguments) == 1.0
    assert keeps([{"role": "assistant", "content": kept}], kind, **arguments) == 1.0
    assert keeps(broken, kind, **arguments) == 0.0


def test_every_kind_has_a_case_and_none_is_kept_by_nothing() -> None:
    assert {case[0] for case in CASES} == set(KINDS)
    for kind, arguments, _, _ in CASES:
        for empty in ("", "  \n", None, [], "<think>x</think>", "<think>only thought"):
            assert keeps(empty, kind, **arguments) == 0.0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("en", "The answer is that it was for you."),
        ("de", "Die Antwort ist, dass es nicht für dich war."),
        ("fr", "La réponse est que ce n'est pas pour vous."),
        ("es", "La respuesta es que no era para los dos."),
        ("pt", "A resposta é que não era para você."),
        ("it", "La risposta è che non era per gli amici."),
        ("nl", "Het antwoord is dat het niet voor een kind was."),
        ("pl", "To nie jest dla mnie, ale że tak się dzieje."),
        ("sv", "Det är inte för att jag är här."),
        ("fi", "Se ei ole niin, mutta minä olen myös."),
        ("tr", "Bu çok güzel bir şey ve ben de öyle."),
        ("vi", "Đó là một điều của các bạn."),
        ("sw", "Hii ni habari ya watu wa hapa na kwa wote."),
        ("ru", "Это не ответ, потому что он был для вас."),
        ("uk", "Це не відповідь, тому що він був для вас і з ними."),
        ("bg", "Това не е отговор, защото той се каза да бъде."),
        ("el", "Η απάντηση είναι αυτή."),
        ("ar", "هذا هو الجواب الذي كان في الكتاب."),
        ("fa", "این را برای شما آورده است که بود."),
        ("ur", "یہ اس کتاب میں ہے اور وہ نہیں۔"),
        ("he", "זאת התשובה."),
        ("hi", "यह मेरी किताब है और वह नहीं है।"),
        ("mr", "हे माझे पुस्तक आहे आणि ते नाही."),
        ("ne", "यो मेरो किताब हो र म पनि छु, छैन।"),
        ("bn", "এটি আমার বই।"),
        ("pa", "ਇਹ ਮੇਰੀ ਕਿਤਾਬ ਹੈ।"),
        ("gu", "આ મારું પુસ્તક છે."),
        ("ta", "இது என் புத்தகம்."),
        ("te", "ఇది నా పుస్తకం."),
        ("kn", "ಇದು ನನ್ನ ಪುಸ್ತಕ."),
        ("ml", "ഇത് എന്റെ പുസ്തകമാണ്."),
        ("th", "นี่คือหนังสือของฉัน"),
        ("ko", "이것은 제 책입니다."),
        ("ja", "これは私の本です。"),
        ("zh", "这是我的书。"),
    ],
)
def test_a_language_is_told_from_all_others(code: str, text: str) -> None:
    assert [other for other in LANGUAGES if keeps(text, "language", code=other)] == [code]


def test_gibberish_is_no_language_and_an_unknown_code_is_an_error() -> None:
    assert keeps("asdf qwer zxcv", "language", code="en") == 0.0
    with pytest.raises(ValueError, match="unknown language 'tlh'; known: ar, bg"):
        keeps("a", "language", code="tlh")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four", 4),
        ("It costs 3.50 dollars. Yes.", 2),
        ("Mr. and Mrs. J. K. Smith met, e.g. in the U.S. army. They did.", 2),
        ("Wait... what?! So.", 2),
        ("1. First.\n2. Second.", 2),
        ("他来了。她走了！真的？", 3),
        ("", 0),
        ("...", 0),
    ],
)
def test_sentences_are_counted_by_their_ends(text: str, count: int) -> None:
    assert count_sentences(text) == count


IDS = [
    ("keywords:existence", {"keywords": ["cat"]}, "concat", "dog"),
    ("keywords:frequency", {"keyword": "a", "relation": "at least", "frequency": 2}, "aa", "a"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "concat", "a cat"),
    (
        "keywords:letter_frequency",
        {"letter": "e", "let_relation": "less than", "let_frequency": 2},
        "e",
        "ee",
    ),
    ("language:response_language", {"language": "hi"}, "यह किताब है", "it is the book"),
    (
        "length_constraints:number_sentences",
        {"relation": "less than", "num_sentences": 2},
        "A.",
        "A b. B c.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n\n***\n\nb", "a\n\nb"),
    (
        "length_constraints:number_words",
        {"relation": "at least", "num_words": 2},
        "a b",
        "a",
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "b"},
        "a\n\nB c",
        "a\n\nB c\n\nd",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[a] [b]", "a"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\nP.S. b", "a"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* a", "* a\n* b"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "*a*", "a"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a\nSection 2 b",
        "Section 1 a",
    ),
    ("detectable_format:json_format", {}, "```json\n{}\n```", "{"),
    ("detectable_format:title", {}, "<<a>>", "a"),
    ("combination:two_responses", {}, "a******b", "a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Hi you"}, "hi you. so", "so"),
    ("startend:end_checker", {"end_phrase": "The end."}, "So. the end.", "So."),
    ("startend:quotation", {}, '"a"', "a"),
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "less than", "capital_frequency": 2},
        "GO now",
        "GO NOW",
    ),
    ("change_case:english_capital", {}, "THE END", "The end"),
    ("change_case:english_lowercase", {}, "the end", "The end"),
    ("punctuation:no_comma", {}, "a", "a,"),
]


@pytest.mark.parametrize(("name", "arguments", "kept", "broken"), IDS)
def test_ids_of_ifeval_are_taken_in_its_own_columns(
    name: str, arguments: dict[str, Any], kept: str, broken: str
) -> None:
    # A data set fills what an id does not have with nulls, and makes floats of whole numbers.
    filled = {"num_highlights": None, "relation": None, **arguments}
    as_floats = {k: float(v) if isinstance(v, int) else v for k, v in filled.items()}
    for given in (filled, as_floats):
        columns = {"instruction_id_list": [[name]] * 2, "kwargs": [[given]] * 2}
        assert instruction_reward([kept, broken], **columns) == [1.0, 0.0]
        as_json: Any = {key: [json.dumps(row) for row in rows] for key, rows in columns.items()}
        assert instruction_reward([kept, broken], **as_json) == [1.0, 0.0]
        together = {"instruction_id_list": [name], "kwargs": [given]}
        assert instruction_reward([kept, broken], constraints=[together] * 2) == [1.0, 0.0]


def test_every_id_of_ifeval_has_a_case() -> None:
    assert {case[0] for case in IDS} == set(_IFEVAL)
    assert len(_IFEVAL) == 25


def test_all_constraints_or_the_share_of_them() -> None:
    require: Any = ["no_comma", {"kind": "num_words", "max": 2}]
    assert instruction_reward(["a b c"], require=require) == [0.0]
    assert instruction_reward(["a b c"], require=require, score="share") == [0.5]
    own = [["title"]]
    assert instruction_reward(["<<a>> b c"], own, require=require, score="share") == [2 / 3]


def test_a_row_without_constraints_is_not_gradable() -> None:
    assert instruction_reward(["a", "a"], constraints=[None, '["no_comma"]']) == [None, 1.0]


def test_only_the_final_answer_counts() -> None:
    text = "<think>a, b</think> <answer>c</answer>"
    assert keeps(text, "no_comma") == 1.0
    assert keeps("<think>a</think> <answer>c, d</answer>", "no_comma") == 0.0
    assert keeps("<think><<a>></think> b", "title") == 0.0
    assert instruction_reward(["a, b</think>c"], require=["no_comma"], prefilled=True) == [1.0]
    assert instruction_reward(["still thinking"], require=["no_comma"], prefilled=True) == [0.0]


def test_loose_forgives_an_opening_line_and_asterisks() -> None:
    text = "Sure, here it is:\n**so**"
    require: Any = [{"kind": "start", "phrase": "so"}]
    assert instruction_reward([text], require=require) == [0.0]
    assert instruction_reward([text], require=require, mode="loose") == [1.0]
    assert instruction_reward(["Sure:"], require=["no_comma"], mode="loose") == [1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"require": ["num_word"]}, "unknown constraint 'num_word'; did you mean 'num_words'"),
        ({"require": ["haiku"]}, "known: num_words, num_sentences.*IFEval's ids are known too"),
        ({"require": [{"kind": "num_words", "mi": 3}]}, "it takes min, max, exactly"),
        ({"require": ["num_words"]}, "'num_words': it needs min, max or exactly"),
        ({"require": [{"kind": "num_words", "min": "3"}]}, "are whole numbers"),
        ({"require": [{"min": 3}]}, "is no constraint; write its kind"),
        ({"require": [{"kind": "keywords", "include": []}]}, "a text or a list of texts"),
        ({"require": [{"kind": "casing", "case": "title"}]}, "use upper or lower"),
        ({"constraints": [{"kind": "no_comma"}]}, "go to require"),
        ({"constraints": ["no comma"]}, "row 0: 'no comma' is neither a kind nor JSON"),
        ({"instruction_id_list": [["a:b"]]}, "row 0: unknown constraint 'a:b'; known: keywords:"),
        (
            {"instruction_id_list": [["keywords:existence"]]},
            "row 0: constraint 'keywords:existence' lacks its argument 'keywords'",
        ),
        (
            {
                "instruction_id_list": [["length_constraints:number_words"]],
                "kwargs": [[{"relation": "about", "num_words": 3}]],
            },
            "unknown relation 'about'; known: at least",
        ),
        ({"score": "most"}, "score is 'most'; use all or share"),
        ({"mode": "lax"}, "mode is 'lax'; use strict or loose"),
    ],
)
def test_mistakes_are_one_clear_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        instruction_reward(["a"], **settings)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        "[]" * 50_000,
        "<<" * 50_000,
        "*" * 10**5,
        "* " * 50_000,
        "\n" * 10**5 + "a",
        " " * 10**5 + "a",
        ". " * 50_000,
        "a." * 50_000,
        "p." * 50_000,
        "Section " * 10_000,
        "*** " * 25_000,
        "{" * 10**5,
        "7" * 10**5,
        "\ud800",
    ],
    ids=lambda text: text[:8].encode("unicode_escape").decode(),
)
def test_hostile_answers_are_checked_in_linear_time(text: str) -> None:
    require = [{"kind": kind, **arguments} for kind, arguments, _, _ in CASES]
    with must_end(30):
        assert instruction_reward([text], require=require, mode="loose") == [0.0]


def test_no_constraints_at_all_is_a_mistake_not_a_batch_without_rewards() -> None:
    with pytest.raises(ValueError, match="column 'constraints' or 'instruction_id_list'"):
        instruction_reward(["a"])
    assert instruction_reward(["a"], constraints=[None]) == [None]
