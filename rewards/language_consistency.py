"""Language reward: the share of the reasoning's words that are in the wanted language.

The paper's reward against language mixing (section 2.3.2): words of the target language in the
chain of thought / words in the chain of thought. Only the reasoning counts; code and formulas are
left out. This file stands alone: it imports neither a sibling nor `trl_r1`, so it can be copied
next to any script and passed to `trl.GRPOTrainer(reward_funcs=...)`.

How a word is told apart. First by script: a Chinese character in English reasoning is foreign, so
is an English word in Russian. Between languages of the Latin script, by lists of common words
(`WORDS`): a word is foreign where another language lists it and the wanted one does not. A word
that nobody lists counts as the wanted language, as names and terms should; so a short foreign
remark of rare words goes unseen, and the share is an upper bound. `words` replaces the lists where
the vocabulary is known. In scripts without spaces a character counts as a word. Names of functions
(sin, log) count as formulas wherever they stand; a sentence inside a code block or a formula is no
code, so that nothing hides there, and counts.

Left out: telling apart languages of one script other than those in `WORDS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_RANGES = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "cyrillic": "\u0400-\u052f",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "arabic": "\u0620-\u065f\u066e-\u06d3\u0750-\u077f",
    "hebrew": "\u0591-\u05f4",
    "devanagari": "\u0900-\u0963\u0970-\u097f",
    "bengali": "\u0980-\u09e3",
    "hangul": "\uac00-\ud7af\u1100-\u11ff",
    "thai": "\u0e01-\u0e4e",
    "han": "\u3005\u3400-\u4dbf\u4e00-\u9fff",
    "kana": "\u3041-\u3096\u30a1-\u30fa\u30fc",
}
_CHARACTER_SCRIPTS = ("han", "kana", "thai")  # written without spaces
_LANGUAGES: dict[str, tuple[str, ...]] = {
    **{"zh": ("han",), "ja": ("han", "kana"), "ko": ("hangul",), "th": ("thai",)},
    **dict.fromkeys(("ru", "uk", "bg", "be", "mk"), ("cyrillic",)),
    **dict.fromkeys(("ar", "fa", "ur"), ("arabic",)),
    **dict.fromkeys(("hi", "mr", "ne"), ("devanagari",)),
    **{"el": ("greek",), "he": ("hebrew",), "bn": ("bengali",)},
    **dict.fromkeys(("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "tr"), ("latin",)),
    **dict.fromkeys(("sv", "da", "no", "fi", "hu", "ro", "vi", "id", "ms"), ("latin",)),
}
LANGUAGES = tuple(sorted(_LANGUAGES))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Common words of languages that share the Latin script. Not in the lists: what is also an English
# word (car, door, die), particles of names (de la, van), and words of one letter.
WORDS: dict[str, frozenset[str]] = {
    "en": _words(
        "the and that for with they this from have were been but which what when where who why "
        "how there their them then than these those would should could about because therefore "
        "thus since while after before first next each every both only into your you she his "
        "him its our not can does did get gets got now find many much add adding equals three "
        "four five seven eight nine two let we need answer left think"
    ),
    "de": _words(
        "und ist nicht ein eine einen einem einer eines ich wir sie ihr dich mich sich auf für "
        "auch nach aus wenn dann aber oder noch nur schon sehr mehr kann können wird werden "
        "wurde sind sein seine haben habe weil dass daß alles diese dieser dieses durch über "
        "unter zwischen ohne gegen jetzt immer wieder muss müssen soll sollen eins zwei drei "
        "vier fünf sechs sieben acht neun zehn gleich summe ergibt somit daher deshalb zuerst "
        "danach zusammen jeder jede jedes macht zahl zahlen"
    ),
    "fr": _words(
        "les une dans qui avec sont nous vous ils elles mais où donc cette ces cela aussi comme "
        "toute toutes être peut peuvent deux trois quatre cinq huit neuf égal égale leur leurs "
        "notre votre même très alors ainsi puis quand parce somme moins fois étape soit nombre "
        "faut chaque maintenant ensuite ajoute reste"
    ),
    "es": _words(
        "una por para pero más esto estos estas están tiene tienen puede pueden entonces porque "
        "cuando donde también muy hasta todos cada otro otra cuatro cinco seis siete ocho nueve "
        "diez igual menos veces nosotros ellos ahora luego así número suma sumamos primero "
        "después"
    ),
    "it": _words(
        "gli una più questo questa questi queste sono essere hanno può possono quindi perché "
        "quando anche molto già sopra tutto tutti ogni altro altra tre quattro cinque sette "
        "nove dieci uguale somma meno volte loro della delle nella così numero allora dopo "
        "abbiamo"
    ),
    "pt": _words(
        "uma por para não mais isto estes estas são está estão há têm pode podem então porque "
        "quando onde também muito já até todos cada outro outra dois três quatro cinco seis "
        "sete oito nove dez igual menos vezes nós eles agora depois assim número soma somamos "
        "primeiro temos"
    ),
    "nl": _words(
        "het een we niet dat zijn voor maar ook wordt worden heeft hebben hij wij naar geen deze "
        "kunnen moet moeten twee drie vier vijf zes zeven acht negen tien gelijk dus daarom "
        "omdat waar eerst samen nog aantal elke"
    ),
}

_LETTERS = "".join(_RANGES.values())
# Superscripts, fractions and the like are word characters to `re`, and numbers to a reader.
_NUMERALS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209c\u2150-\u2189\u2460-\u249b"
_WORD = re.compile(
    "|".join(
        f"(?P<{script}>[{chars}]" + (")" if script in _CHARACTER_SCRIPTS else "+)")
        for script, chars in _RANGES.items()
    )
    + rf"|(?P<other>[^\W\d_{_LETTERS}{_NUMERALS}]+)"
)
# What is not prose: code, formulas, commands and tags. A fence or bracket that is never closed
# is text, except a code fence.
_ENCLOSED = {"```": "```", "~~~": "~~~", "`": "`", "$$": "$$", "$": "$"}
_ENCLOSED |= {"\\[": "\\]", "\\(": "\\)", "\\begin": "\\end"}
_FENCES = ("```", "~~~")
_OPENERS = re.compile(r"```|~~~|`|\$\$|\$|\\\[|\\\(|\\begin\b")
_MARKUP = re.compile(
    r"\\(?:begin|end)\s?\{[^{}\n]{0,20}\}|\\[a-zA-Z]+|</?[a-z]{1,10}>"
    r"|\b(?:(?:arc)?(?:sin|cos|tan|c?tg|cot)|(?:sin|cos|tan)h|sec|csc|log|lg|ln|exp|max|min|mod|gcd|lcm|lim|sqrt|det|arg|deg|sup|inf)\b"
)
# Six words in a row, or twelve characters where a character is a word: a sentence.
_SENTENCE = re.compile(
    rf"(?<![^\W\d_])(?:[^\W\d_]{{2,}}[ ,]{{1,2}}){{5,}}[^\W\d_]{{2,}}"
    rf"|[{''.join(_RANGES[script] for script in _CHARACTER_SCRIPTS)}]{{12,}}"
)
_INSIDE_SENTENCE = re.compile(r"[^\W\d_],? \Z")


def language_consistency_reward(
    completions: list[Any],
    language: str | list[str | None] | None = None,
    words: Mapping[str, Iterable[str]] | None = None,
    prefilled: bool = False,
    **kwargs: Any,
) -> list[float | None]:
    """Share of the reasoning's words that are in the wanted language (paper section 2.3.2).

    Args:
        completions: B completions, plain text or lists of messages.
        language: wanted language, a code of `LANGUAGES`: B of them (the `language` column) or one
            for all rows. None where a row has none.
        words: lists of words by language, instead of `WORDS`.
        prefilled: the prompt ended with `<think>`, so what has no tags is all reasoning.

    Returns:
        B rewards in 0..1, None for a row without a language. Reasoning that is missing or blank is
        0.0, for it shows nothing; reasoning without any word (digits, formulas) is 1.0.

    Raises:
        ValueError: for a language that is not in `LANGUAGES` (nor in `words`), or where there is
            neither a column nor a setting.
    """
    if language is None:
        raise ValueError(
            "language_consistency_reward: no language; give the data set a column 'language', or "
            "set the argument language to one for all rows"
        )
    wanted = language if isinstance(language, list) else [language] * len(completions)
    lists = {code: frozenset(map(str.casefold, ws)) for code, ws in (words or WORDS).items()}
    rewards: list[float | None] = []
    for completion, code in zip(completions, wanted, strict=True):
        if code is None:
            rewards.append(None)
            continue
        reasoning = reasoning_text(completion_text(completion), prefilled)
        rewards.append(language_share(reasoning, code, lists) if reasoning.strip() else 0.0)
    return rewards


def language_share(text: str, language: str, lists: Mapping[str, frozenset[str]] = WORDS) -> float:
    """Words of the language / words of the text; 1.0 for a text without words.

    Raises:
        ValueError: for an unknown language.
    """
    code = language.replace("_", "-").partition("-")[0].casefold()
    if code not in _LANGUAGES and code not in lists:
        raise ValueError(f"unknown language {language!r}; known: {', '.join(LANGUAGES)}")
    scripts = _LANGUAGES.get(code, ("latin",))
    foreign = _foreign_words(code, lists)
    num_words = num_wanted = 0
    prose = _prose(text)
    for match in _WORD.finditer(prose):
        script, word = match.lastgroup, match.group()
        if len(word) == 1 and script not in _CHARACTER_SCRIPTS:
            continue  # a variable
        num_words += 1
        # A capital inside a sentence is a name (São Paulo), whatever language lists the word.
        before = prose[max(0, match.start() - 3) : match.start()]
        is_name = word.istitle() and _INSIDE_SENTENCE.search(before) is not None
        num_wanted += script in scripts and (is_name or word.casefold() not in foreign)
    return num_wanted / num_words if num_words else 1.0


def _prose(text: str) -> str:
    """The text without code and formulas, in one pass: a closing mark is looked for only as long
    as there is one."""
    parts, start = [], 0
    missing: set[str] = set()
    while match := _OPENERS.search(text, start):
        closing = _ENCLOSED[match.group()]
        end = -1 if closing in missing else text.find(closing, match.end())
        if end < 0:
            missing.add(closing)
        parts.append(text[start : match.start()])
        if end >= 0 or closing in _FENCES:
            inside = text[match.end() : end if end >= 0 else None]
            parts += [line for line in inside.split("\n") if _SENTENCE.search(line)]
        if end < 0 and closing in _FENCES:
            start = len(text)
        else:
            start = match.end() if end < 0 else end + len(closing)
    parts.append(text[start:])
    return _MARKUP.sub(" ", " ".join(parts))


def _foreign_words(code: str, lists: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if code not in lists:
        return frozenset()
    others = [words for other, words in lists.items() if other != code]
    return frozenset().union(*others) - lists[code]


def reasoning_text(text: str, prefilled: bool = False) -> str:
    """What stands between `<think>` and `</think>`; to the end where it is not closed, `""` where
    there is none."""
    before, is_closed, _ = text.partition("</think>")
    _, is_opened, inside = before.partition("<think>")
    if is_opened:
        return inside
    return before if is_closed or prefilled else ""


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
