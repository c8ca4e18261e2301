"""Instruction reward: does the answer keep the constraints that can be checked by rule?

Constraints as in IFEval (arXiv 2311.07911): lengths, keywords, letters, casing, language, JSON,
bullets, sections, how it starts and ends. A row's come from IFEval's own columns
(`instruction_id_list`, `kwargs`) or from a `constraints` column; those of every row from the
argument `require`, as a recipe would have it:

    rewards:
      - use: instruction
        args:
          require: [no_comma, {kind: num_words, min: 50, max: 100}, {kind: json, keys: [name]}]

Only the final answer is looked at, without the reasoning and without answer tags; an empty answer
keeps no constraint. `KINDS` has every kind with its arguments. This file stands alone: it imports
neither a sibling nor `trl_r1`, so it can be copied next to any script and passed to
`trl.GRPOTrainer(reward_funcs=...)`.

Left out: what an answer says. A policy keeps all of these in an empty phrase, so add a reward that
judges content. Other than Google's code, keywords are plain text, never patterns, and sentences and
languages are told by rules here (abbreviations; scripts and common words), without NLTK and
langdetect, so that a reward does not depend on what is installed.
"""
# ruff: noqa: RUF001 - the letters and marks of many languages

from __future__ import annotations

import difflib
import inspect
import json as json_module
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_Kind = Callable[..., bool]
KINDS: dict[str, _Kind] = {}


@dataclass(frozen=True)
class Constraint:
    """One constraint: the name of its kind, or IFEval's id, and a check of a text."""

    name: str
    holds: Callable[[str], bool]


def instruction_reward(
    completions: list[Any],
    constraints: list[Any] | None = None,
    instruction_id_list: list[Any] | None = None,
    kwargs: list[Any] | None = None,
    require: Sequence[str | Mapping[str, Any]] = (),
    score: Literal["all", "share"] = "all",
    mode: Literal["strict", "loose"] = "strict",
    prefilled: bool = False,
    **columns: Any,
) -> list[float | None]:
    """Score which constraints the final answers keep.

    Args:
        completions: B completions, plain text or lists of messages.
        constraints: of each of B rows: a list as in `require`, a mapping with `instruction_id_list`
            and `kwargs`, or JSON of one of these; None for a row without.
        instruction_id_list: of each of B rows: IFEval's ids, a list or JSON of one.
        kwargs: of each of B rows: arguments of these ids, a list of mappings or JSON of one.
        require: constraints of every row: names of `KINDS`, or mappings with `kind` and arguments.
        score: `all`: 1.0 where all are kept, else 0.0 (IFEval's prompt level); `share`: the share
            that is kept.
        mode: `loose`, as in IFEval, also tries the answer without its first or last line and
            without asterisks.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` is all reasoning.
        columns: TRL's other columns, unused.

    Returns:
        B rewards, None for a row without constraints.

    Raises:
        ValueError: for an unknown kind, id or setting, or wrong arguments of one.
    """
    for name, value, known in (("score", score, ("all", "share")), ("mode", mode, _MODES)):
        if value not in known:
            raise ValueError(f"instruction_reward: {name} is {value!r}; use {' or '.join(known)}")
    of_all = parse_constraints(require, "require")
    nothing: list[Any] = [None] * len(completions)
    rows = zip(
        completions,
        _checked_column(constraints) or nothing,
        instruction_id_list or nothing,
        kwargs or nothing,
        strict=True,
    )
    rewards: list[float | None] = []
    for row, (completion, own, ids, arguments) in enumerate(rows):
        found = of_all + parse_constraints(own, f"constraints of row {row}")
        found += parse_ifeval(ids, arguments, f"row {row}")
        answer = answer_text(completion_text(completion), prefilled)
        kept = [follows(answer, constraint, mode) for constraint in found]
        if not kept:
            rewards.append(None)
        else:
            rewards.append(sum(kept) / len(kept) if score == "share" else float(all(kept)))
    return rewards


_MODES = ("strict", "loose")


def follows(answer: str, constraint: Constraint, mode: str = "strict") -> bool:
    """Whether an answer keeps a constraint; an empty one keeps none."""
    texts = [answer]
    if mode == "loose":
        lines = answer.split("\n")
        cuts = (lines[1:], lines[:-1], lines[1:-1])
        texts += ["\n".join(cut).strip() for cut in cuts]
        texts += [text.replace("*", "") for text in texts]
    return any(bool(text.strip()) and constraint.holds(text) for text in texts)


# Reading constraints ------------------------------------------------------------------------------


def parse_constraints(given: Any, where: str) -> list[Constraint]:
    """Constraints of one row, see `instruction_reward`.

    Args:
        given: as the column or `require` has them.
        where: what error messages call it.

    Raises:
        ValueError: for what is none.
    """
    given = _from_json(given, where)
    if given is None:
        return []
    if isinstance(given, Mapping):
        if "kind" not in given:
            ids = given.get("instruction_id_list", given.get("instruction_id"))
            return parse_ifeval(ids, given.get("kwargs"), where)
        given = [given]
    if not isinstance(given, Sequence):
        raise ValueError(f"{where}: {given!r} is no list of constraints")
    return [_parse_one(each, where) for each in given]


def _parse_one(each: Any, where: str) -> Constraint:
    each = {"kind": each} if isinstance(each, str) else each
    if not isinstance(each, Mapping) or not isinstance(each.get("kind"), str):
        raise ValueError(
            f"{where}: {each!r} is no constraint; write its kind, or a mapping with 'kind' and its "
            "arguments"
        )
    name = each["kind"]
    arguments = {key: value for key, value in each.items() if key != "kind" and value is not None}
    if name in _IFEVAL:
        return parse_ifeval([name], [arguments], where)[0]
    return _constraint(name, name, arguments, where)


def parse_ifeval(ids: Any, arguments: Any, where: str) -> list[Constraint]:
    """Constraints of IFEval's two columns; arguments that are None count as not given.

    Raises:
        ValueError: for an unknown id, or arguments that lack or make no sense.
    """
    ids, arguments = _from_json(ids, where), _from_json(arguments, where)
    if ids is None:
        return []
    arguments = arguments or [{}] * len(ids)
    if len(arguments) != len(ids):
        raise ValueError(f"{where}: {len(ids)} ids in instruction_id_list, {len(arguments)} kwargs")
    found = []
    for name, given in zip(ids, arguments, strict=True):
        if name not in _IFEVAL:
            raise ValueError(f"{where}: {_unknown(str(name), _IFEVAL)}")
        given = {key: value for key, value in (given or {}).items() if value is not None}
        try:
            kind, own = _from_ifeval(name, given)
        except KeyError as error:
            raise ValueError(f"{where}: constraint {name!r} lacks its argument {error}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: constraint {name!r}: {error}") from error
        found.append(_constraint(name, kind, own, where))
    return found


def _constraint(name: str, kind: str, arguments: dict[str, Any], where: str) -> Constraint:
    """The constraint, tried once, so that wrong arguments show before a run depends on it."""
    if kind not in KINDS:
        raise ValueError(f"{where}: {_unknown(kind, KINDS)}; IFEval's ids are known too")
    check = KINDS[kind]
    try:
        inspect.signature(check).bind("", **arguments)
        check("a", **arguments)
    except (TypeError, ValueError, AttributeError) as error:
        takes = list(inspect.signature(check).parameters)[1:]
        raise ValueError(
            f"{where}: constraint {name!r}: {error}; it takes {', '.join(takes) or 'no arguments'}"
        ) from error
    return Constraint(name, lambda text: check(text, **arguments))


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown constraint {name!r}{hint}; known: {', '.join(known)}"


def _checked_column(constraints: list[Any] | None) -> list[Any] | None:
    """The column; what looks like one row's list is a mistake that is easily made in a recipe."""
    if constraints and any(isinstance(c, Mapping) and "kind" in c for c in constraints):
        raise ValueError(
            "constraints is a column, a list for each row; constraints of every row go to require"
        )
    return constraints


def _from_json(given: Any, where: str) -> Any:
    if not isinstance(given, str):
        return given
    if given in KINDS or given in _IFEVAL:
        return [given]
    try:
        return json_module.loads(given)
    except ValueError as error:
        raise ValueError(f"{where}: {given[:80]!r} is neither a kind nor JSON: {error}") from error


# Kinds --------------------------------------------------------------------------------------------


def _kind(function: _Kind) -> _Kind:
    KINDS[function.__name__.strip("_")] = function
    return function


def _within(count: int, min: int | None, max: int | None, exactly: int | None) -> bool:
    bounds = (min, max, exactly)
    if all(bound is None for bound in bounds):
        raise ValueError("it needs min, max or exactly")
    if any(bound is not None and (type(bound) is not int or bound < 0) for bound in bounds):
        raise ValueError("min, max and exactly are whole numbers from 0")
    is_enough = (min is None or count >= min) and (max is None or count <= max)
    return is_enough and (exactly is None or count == exactly)


def _texts(value: Any, name: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    is_list = isinstance(texts, Sequence) and all(isinstance(t, str) and t.strip() for t in texts)
    if not is_list or not texts:
        raise ValueError(f"{name} is a text or a list of texts, not {value!r}")
    return [text.strip() for text in texts]


_Bound = int | None


@_kind
def num_words(text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None) -> bool:
    """Words; in scripts without spaces a run of characters is one."""
    return _within(len(re.findall(r"\w+", text)), min, max, exactly)


@_kind
def num_sentences(
    text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None
) -> bool:
    return _within(count_sentences(text), min, max, exactly)


@_kind
def num_characters(
    text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None
) -> bool:
    return _within(len(text.strip()), min, max, exactly)


@_kind
def num_paragraphs(
    text: str,
    min: _Bound = None,
    max: _Bound = None,
    exactly: _Bound = None,
    separator: str = "\n\n",
) -> bool:
    """Paragraphs between separators, IFEval's being `***`; an empty one only at the ends."""
    parts = [part.strip() for part in text.strip().split(separator)]
    inner = parts[1:-1]
    if separator != "\n\n" and not all(inner):
        return False
    return _within(sum(map(bool, parts)), min, max, exactly)


@_kind
def nth_paragraph(text: str, nth: int, first_word: str, num_paragraphs: _Bound = None) -> bool:
    """The nth paragraph, between blank lines and counted from 1, begins with this word."""
    parts = [part.strip() for part in text.split("\n\n")]
    count = sum(map(bool, parts))
    if not 1 <= nth <= count or not parts[nth - 1]:
        return False
    word = re.split(r"[.,?!'\"]", parts[nth - 1].split()[0].lstrip("'\""), maxsplit=1)[0]
    is_count = num_paragraphs is None or count == num_paragraphs
    return is_count and word.casefold() == _texts(first_word, "first_word")[0].casefold()


def _count(text: str, keyword: str, whole_words: bool) -> int:
    pattern = re.escape(keyword)
    if whole_words:
        pattern = rf"(?<!\w){pattern}(?!\w)" if keyword.isascii() else pattern
    return sum(1 for _ in re.finditer(pattern, text, re.IGNORECASE))


@_kind
def keywords(text: str, include: Any, whole_words: bool = True) -> bool:
    """All of them, in any case."""
    return all(_count(text, keyword, whole_words) for keyword in _texts(include, "include"))


@_kind
def forbidden_words(text: str, words: Any, whole_words: bool = True) -> bool:
    return not any(_count(text, word, whole_words) for word in _texts(words, "words"))


@_kind
def keyword_frequency(
    text: str,
    keyword: str,
    min: _Bound = None,
    max: _Bound = None,
    exactly: _Bound = None,
    whole_words: bool = True,
) -> bool:
    count = _count(text, _texts(keyword, "keyword")[0], whole_words)
    return _within(count, min, max, exactly)


@_kind
def letter_frequency(
    text: str, letter: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None
) -> bool:
    """How often a letter stands in the answer, in either case."""
    if len(_texts(letter, "letter")[0]) != 1:
        raise ValueError(f"letter is {letter!r}; it is one character")
    return _within(text.lower().count(letter.strip().lower()), min, max, exactly)


@_kind
def capital_words(
    text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None
) -> bool:
    words = re.findall(r"\w+(?:['’-]\w+)*", text)
    return _within(sum(word.isupper() for word in words), min, max, exactly)


@_kind
def casing(text: str, case: str, english: bool = False) -> bool:
    """`upper` or `lower` throughout; `english` asks for English as well."""
    if case not in ("upper", "lower"):
        raise ValueError(f"case is {case!r}; use upper or lower")
    is_cased = text.isupper() if case == "upper" else text.islower()
    return is_cased and (not english or _is_language(text, "en", is_certain=False))


@_kind
def language(text: str, code: str) -> bool:
    """Mostly in this language, a code of `LANGUAGES`."""
    return _is_language(text, code, is_certain=True)


@_kind
def json(text: str, keys: Any = (), scalar: bool = False) -> bool:
    """Nothing but valid JSON, in a code fence or not; an object or a list unless `scalar`; with all
    of `keys` at the top level."""
    body = text.strip()
    if body.startswith("```"):
        body = re.sub(r"^```[A-Za-z]{0,10}", "", body).removesuffix("```").strip()
    wanted = _texts(keys, "keys") if keys else []
    try:
        value = json_module.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    if wanted:
        return isinstance(value, dict) and set(wanted) <= set(value)
    return scalar or isinstance(value, (dict, list))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@_kind
def bullets(text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None) -> bool:
    """Lines that begin with `-` or with one `*`."""
    lines = [line.strip() for line in text.split("\n")]
    return _within(sum(bool(re.match(r"-|\*(?!\*)", line)) for line in lines), min, max, exactly)


@_kind
def highlights(text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None) -> bool:
    """Stretches between asterisks, `*so*` or `**so**`."""
    found = [match.strip("*").strip() for match in re.findall(r"\*[^\n*]*\*", text)]
    found += [match.strip("*").strip() for match in re.findall(r"\*\*[^\n*]*\*\*", text)]
    return _within(sum(map(bool, found)), min, max, exactly)


@_kind
def sections(
    text: str,
    min: _Bound = None,
    max: _Bound = None,
    exactly: _Bound = None,
    marker: str = "Section",
) -> bool:
    """Places with the marker and a number, such as `Section 1`."""
    pattern = rf"{re.escape(_texts(marker, 'marker')[0])}\s?\d+"
    return _within(sum(1 for _ in re.finditer(pattern, text)), min, max, exactly)


@_kind
def placeholders(text: str, min: _Bound = None, max: _Bound = None, exactly: _Bound = None) -> bool:
    """Square brackets such as `[name]`."""
    count = 0
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
            start = line.find("[", end)
    return _within(count, min, max, exactly)


@_kind
def title(text: str) -> bool:
    """A line with a title in double angle brackets, `<<so>>`."""
    for line in text.split("\n"):
        _, is_open, rest = line.partition("<<")
        inside, is_closed, _ = rest.rpartition(">>")
        if is_open and is_closed and inside.strip("<> \t"):
            return True
    return False


@_kind
def postscript(text: str, marker: str = "P.S.") -> bool:
    wanted = _texts(marker, "marker")[0].lower()
    spaced = {"p.p.s": r"p\.\s?p\.\s?s", "p.s.": r"p\.\s?s\."}
    return re.search(spaced.get(wanted, re.escape(wanted)), text.lower()) is not None


@_kind
def start(text: str, phrase: str) -> bool:
    return text.strip().lower().startswith(_texts(phrase, "phrase")[0].lower())


@_kind
def end(text: str, phrase: str) -> bool:
    """Quotation marks around the answer do not count."""
    return text.strip().strip('"').lower().endswith(_texts(phrase, "phrase")[0].lower())


@_kind
def quotation(text: str) -> bool:
    """All of the answer stands in double quotation marks, with something inside."""
    body = text.strip()
    return len(body) > 2 and body[0] == body[-1] == '"'


@_kind
def no_comma(text: str) -> bool:
    return "," not in text


@_kind
def repeat_prompt(text: str, prompt: str) -> bool:
    """The answer repeats this prompt before it goes on."""
    return text.strip().lower().startswith(_texts(prompt, "prompt")[0].lower())


@_kind
def two_responses(text: str) -> bool:
    """Two different responses with `******` between them."""
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


@_kind
def one_of(text: str, phrases: Any) -> bool:
    """One of these phrases stands in the answer, as written."""
    return any(phrase in text for phrase in _texts(phrases, "phrases"))


_IFEVAL_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


# Google's ids: the kind each is here, its arguments by their names (`ours=theirs`, and
# `relation/count` for a bound), and arguments that are the same for all.
_IFEVAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "keywords:existence": ("keywords", "include=keywords", {"whole_words": False}),
    "keywords:frequency": (
        "keyword_frequency",
        "keyword=keyword relation/frequency",
        {"whole_words": False},
    ),
    "keywords:forbidden_words": ("forbidden_words", "words=forbidden_words", {}),
    "keywords:letter_frequency": (
        "letter_frequency",
        "letter=letter let_relation/let_frequency",
        {},
    ),
    "language:response_language": ("language", "code=language", {}),
    "length_constraints:number_sentences": ("num_sentences", "relation/num_sentences", {}),
    "length_constraints:number_paragraphs": (
        "num_paragraphs",
        "exactly=num_paragraphs",
        {"separator": "***"},
    ),
    "length_constraints:number_words": ("num_words", "relation/num_words", {}),
    "length_constraints:nth_paragraph_first_word": (
        "nth_paragraph",
        "nth=nth_paragraph first_word=first_word num_paragraphs=num_paragraphs",
        {},
    ),
    "detectable_content:number_placeholders": ("placeholders", "min=num_placeholders", {}),
    "detectable_content:postscript": ("postscript", "marker=postscript_marker", {}),
    "detectable_format:number_bullet_lists": ("bullets", "exactly=num_bullets", {}),
    "detectable_format:constrained_response": ("one_of", "", {"phrases": _IFEVAL_OPTIONS}),
    "detectable_format:number_highlighted_sections": ("highlights", "min=num_highlights", {}),
    "detectable_format:multiple_sections": (
        "sections",
        "min=num_sections marker=section_spliter",
        {},
    ),
    "detectable_format:json_format": ("json", "", {"scalar": True}),
    "detectable_format:title": ("title", "", {}),
    "combination:two_responses": ("two_responses", "", {}),
    "combination:repeat_prompt": ("repeat_prompt", "prompt=prompt_to_repeat", {}),
    "startend:end_checker": ("end", "phrase=end_phrase", {}),
    "startend:quotation": ("quotation", "", {}),
    "change_case:capital_word_frequency": (
        "capital_words",
        "capital_relation/capital_frequency",
        {},
    ),
    "change_case:english_capital": ("casing", "", {"case": "upper", "english": True}),
    "change_case:english_lowercase": ("casing", "", {"case": "lower", "english": True}),
    "punctuation:no_comma": ("no_comma", "", {}),
}


def _from_ifeval(name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    kind, names, arguments = _IFEVAL[name]
    found = dict(arguments)
    for pair in names.split():
        relation, is_bound, count = pair.partition("/")
        if is_bound:
            found |= _bounds(given[relation], int(given[count]))
        else:
            ours, _, theirs = pair.partition("=")
            value = given[theirs]
            # Columns that are null in some rows come back as floats.
            found[ours] = int(value) if isinstance(value, float) else value
    return kind, found


def _bounds(relation: Any, count: int) -> dict[str, int]:
    bounds = {"at least": {"min": count}, "less than": {"max": count - 1}}
    bounds |= {"at most": {"max": count}, "exactly": {"exactly": count}}
    if relation not in bounds:
        raise ValueError(f"unknown relation {relation!r}; known: {', '.join(bounds)}")
    return bounds[relation]


# Sentences and languages --------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"(?P<dot>[.!?…]+)[\"'”’)\]*_]*(?=\s|$)|[。！？]+")
_SHORT = frozenset(
    re.findall(r"\S+", "mr mrs ms dr prof st vs no fig inc ltd co jr sr e.g i.e cf al approx")
)


def count_sentences(text: str) -> int:
    """Sentences, told by their end marks; abbreviations and initials end none."""
    count, begin = 0, 0
    for match in _SENTENCE_END.finditer(text):
        before = text[max(begin, match.start() - 12) : match.start()]
        word = re.split(r"[\s(\"]", before)[-1]
        following = text[match.end() : match.end() + 3].lstrip()
        if set(match["dot"] or "!") <= {".", "…"} and following[:1].islower():
            continue
        if match["dot"] == ".":
            is_initial = len(word) == 1 and word.isupper() and word != "I"
            is_short = word.casefold() in _SHORT or is_initial or re.fullmatch(r"(\w\.)+\w", word)
            if is_short and following:
                continue
            if word.isdigit() and not text[begin : match.start() - len(word)].strip():
                continue  # the number of a list's item
        if any(map(str.isalnum, text[begin : match.start()])):
            count += 1
        begin = match.end()
    return count + any(map(str.isalnum, text[begin:]))


_SCRIPTS = {
    "latin": "A-Za-z\u00aa-\u024f\u1e00-\u1eff",
    "cyrillic": "\u0400-\u052f",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "arabic": "\u0620-\u065f\u066e-\u06d3\u0750-\u077f",
    "hebrew": "\u0591-\u05f4",
    "devanagari": "\u0900-\u0963\u0970-\u097f",
    "bn": "\u0980-\u09e3",
    "pa": "\u0a00-\u0a7f",
    "gu": "\u0a80-\u0aff",
    "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f",
    "kn": "\u0c80-\u0cff",
    "ml": "\u0d00-\u0d7f",
    "th": "\u0e01-\u0e4e",
    "ko": "\uac00-\ud7af\u1100-\u11ff",
    "zh": "\u3005\u3400-\u4dbf\u4e00-\u9fff",
    "kana": "\u3041-\u3096\u30a1-\u30fa\u30fc",
}
_SCRIPT_RUNS = {name: re.compile(f"[{chars}]+") for name, chars in _SCRIPTS.items()}
# Common words of languages that share a script: the one with the most of them has it.
_COMMON = {
    "latin": {
        "en": "the and is are was of to in that it for with you this not have be on as at by from",
        "de": "der die das und ist nicht ein eine ich wir sie zu den mit von für auf dem im es",
        "fr": "le la les et est un une des du de pas que qui dans pour vous nous je il elle sur au",
        "es": "el la los las y es un una de no que en por para con se su lo como más está del",
        "pt": "o a os as e é um uma de não que em por para com se do da no na mais está você",
        "it": "il la lo gli le e è un una di non che in per con si del della sono più ho questo",
        "nl": "de het een en is niet van ik we zijn dat op te in voor met ze aan er maar ook",
        "pl": "i w na jest nie się z że do to jak po za ale czy od są przez dla który",
        "sv": "och att det är en ett inte som på av för med jag vi den till har om men så",
        "fi": "ja on ei se että hän minä olen oli ovat kun mutta niin tämä voi kuin joka ole myös",
        "tr": "ve bir bu için ile de da ne çok var değil gibi daha ama ben sen olarak mi en olan",
        "vi": "và là của có không một được cho trong tôi người với các này những đã khi bạn để",
        "sw": "na ya wa ni kwa katika la za kuwa hii si yake huo hiyo lakini kama watu sana hapa",
    },
    "cyrillic": {
        "ru": "и в не на что я это как он с по но мы все его так для из вы был есть ты",
        "uk": "і в не на що я це як він з та але ми все його так для із ви був є ти й",
        "bg": "и в не на че аз това как той с по но ние всички го така за от вие е да са се ще",
    },
    "arabic": {
        "ar": "في من على إلى أن هذا التي الذي هو هي ما لا كان عن مع هذه لم ذلك و أو كل",
        "fa": "در از به که این را با است برای آن یک هم می ما شما بود خود تا های و بر",
        "ur": "کے کی میں ہے کا سے کو اور نے یہ ہیں پر کہ وہ نہیں بھی ایک تھا ہو اس",
    },
    "devanagari": {
        "hi": "है के की में का से को और नहीं यह हैं पर कि वह भी एक था हो इस ने",
        "mr": "आहे आणि च्या या ते तो ती नाही हे मी का होते आहेत एक पण तर असे मला आम्ही",
        "ne": "छ र को मा यो हो छन् गर्न पनि भने लागि त्यो म हामी तपाईं छैन एक गरेको थियो ले",
    },
}
_OWN_SCRIPT = {"el": "greek", "he": "hebrew", "ja": "kana"}
_OWN_SCRIPT |= {code: code for code in ("bn", "pa", "gu", "ta", "te", "kn", "ml", "th", "ko", "zh")}
_SCRIPT_OF = {code: script for script, words in _COMMON.items() for code in words} | _OWN_SCRIPT
LANGUAGES = tuple(sorted(_SCRIPT_OF))
_WORDS = {
    script: {code: frozenset(text.split()) for code, text in words.items()}
    for script, words in _COMMON.items()
}


def _is_language(text: str, code: str, is_certain: bool) -> bool:
    """Whether most letters are of its script, and no language of that script has more common words
    in it; `is_certain` asks for at least one."""
    wanted = code.replace("_", "-").partition("-")[0].casefold() if isinstance(code, str) else code
    if wanted not in _SCRIPT_OF:
        raise ValueError(f"unknown language {code!r}; known: {', '.join(LANGUAGES)}")
    sizes = {name: sum(map(len, runs.findall(text))) for name, runs in _SCRIPT_RUNS.items()}
    if wanted in ("ja", "zh"):
        both = sizes["kana"] + sizes["zh"]
        is_japanese = sizes["kana"] > 0.05 * both
        return 2 * both > sum(sizes.values()) and is_japanese == (wanted == "ja")
    script = _SCRIPT_OF[wanted]
    if 2 * sizes[script] <= sum(sizes.values()):
        return False
    if script not in _WORDS:
        return True
    words = re.findall(r"[^\W\d_]+", text.casefold())
    if script == "devanagari":  # its vowel signs are marks, which \w leaves out
        words = text.split()
    votes = {
        other: sum(map(common.__contains__, words)) for other, common in _WORDS[script].items()
    }
    return votes[wanted] == max(votes.values()) and (votes[wanted] > 0 or not is_certain)


# Responses ----------------------------------------------------------------------------------------


def answer_text(text: str, prefilled: bool = False) -> str:
    """What follows the reasoning, without answer tags; `""` where the reasoning is not closed."""
    _, is_closed, visible = text.rpartition("</think>")
    if prefilled and not is_closed:
        return ""
    visible = visible.partition("<think>")[0]
    before, has_close, _ = visible.rpartition("</answer>")
    _, has_open, inside = before.rpartition("<answer>")
    return inside.strip() if has_close and has_open else visible.strip()


def completion_text(completion: Any) -> str:
    """Text of a plain-text or conversational completion (its last message); `""` for None."""
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    # What a tool or a user said last is no answer of the model's.
    content = None if last.get("role") in ("tool", "user") else last.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content or ""
