"""Foreign words that a text names and does not speak: quotations, terms given in two languages,
names, units and identifiers in a text of another script, lines of a program.

The language reward counts every foreign word; a trace that quotes a Latin motto or names Vieta in
Chinese keeps to its language all the same. Left out: words that are named without any mark, which
no rule tells from mixing.
"""

from __future__ import annotations

import re

from trl_r1.rewards.language_consistency import language_share
from trl_r1.sampling.readability import without_programs

_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f"
_CHARACTER = re.compile(f"[{_SPACELESS}]")
_MAX_WORDS, _MAX_CHARACTERS = 8, 16

_QUOTED = re.compile(
    '"[^"\n<>]{1,80}"|\u201c[^\u201d\n<>]{1,80}\u201d|\u201e[^\u201c\u201d\n<>]{1,80}[\u201c\u201d]'
    "|\u00ab[^\u00bb\n<>]{1,80}\u00bb|\u300c[^\u300d\n<>]{1,80}\u300d"
    "|\u300e[^\u300f\n<>]{1,80}\u300f|\u300a[^\u300b\n<>]{1,80}\u300b"
)
# `seven (qi)`: a term and, in brackets, the same in another language.
_GLOSSED = re.compile(
    rf"(?:[{_SPACELESS}]{{1,4}}|[^\W{_SPACELESS}]{{1,20}}) ?"
    rf"[(\uff08](?:[{_SPACELESS}]{{1,4}}|[^\W\d_{_SPACELESS}]{{1,20}}(?: [^\W\d_]{{1,20}}){{0,2}})"
    "[)\uff09]"
)
_LATIN = "A-Za-z\u00c0-\u024f"
# One to three words with capitals that stand alone in a text of another script; `pH` and `da Vinci`
# are such, too.
_CAPITAL = rf"[a-z]{{0,2}}[A-Z][{_LATIN}]*"
_NAME = re.compile(
    rf"(?<![{_LATIN}])(?<![{_LATIN}] ){_CAPITAL}"
    rf"(?:[- ](?:(?:da|de|del|der|di|du|la|le|of|van|von) )*{_CAPITAL}){{0,2}}"
    rf"(?![{_LATIN}])(?! [{_LATIN}])"
)
# `the Greek ...`, `the character ...`: what comes next in another script is spoken of.
_CUES = (
    "word|character|letter|symbol|kanji|radical|greek|russian|chinese|japanese|korean|arabic"
    "|hebrew|hindi|wort|zeichen|buchstabe|griechische?|russische?|chinesische?|japanische?|mot"
    "|caract\u00e8re|lettre|grec|russe|chinois|japonais|palabra|car\u00e1cter|letra|griego|ruso"
    "|chino|japon\u00e9s"
)
# One alone is a sign that is named, as one letter is a variable.
_LONE_CHARACTER = re.compile(rf"(?<![{_SPACELESS}])[{_SPACELESS}](?![{_SPACELESS}])")
_OTHER_WORD = rf"[^\W\d_{_LATIN}{_SPACELESS}]+"
_SPOKEN_OF = re.compile(
    rf"\b(?:{_CUES})[ns]?:? (?:[{_SPACELESS}]{{1,4}}(?![{_SPACELESS}])"
    rf"|{_OTHER_WORD}(?: {_OTHER_WORD}){{0,2}}(?! ?{_OTHER_WORD}))",
    re.IGNORECASE,
)
# Not the tags, and no command of LaTeX.
_WORD = re.compile(rf"(?<![{_LATIN}</\\])[{_LATIN}]{{2,}}")
# What is called, as in `len(set(a))`.
_CALLED = re.compile(rf"(?<![{_LATIN}])[A-Za-z_]\w*(?=\()", re.ASCII)
_UNIT = re.compile(
    rf"(?<![{_LATIN}])(?:[nµmcdk]m|[mk]g|[mcdh]l|[mc]L|ms|[kMGT]?Hz|[kMG]?Wh?|[kM]?J|kcal|[hk]?Pa|mol"
    rf"|[mk][VAN]|[kMG]B|km/h|mph|m/s|rad|eV)(?![{_LATIN}])"
)
# What stands behind a number and is short, alone or by a slash, is a unit, whatever it measures.
_MEASURED = re.compile(
    rf"(?<=\d) ?[{_LATIN}\u00b5\u03bc]{{1,4}}(?:[/\u00b7][{_LATIN}]{{1,4}})*(?![{_LATIN}])"
    rf"(?! [{_LATIN}]{{2}})"
)
# Operators that mathematics writes in letters: those of LaTeX, and of number theory and statistics.
_OPERATORS = (
    "arccos|arcsin|arctan|arg|cos|cosh|cot|coth|csc|deg|det|dim|exp|gcd|hom|inf|ker|lg|lim|liminf"
    "|limsup|ln|log|max|min|sec|sin|sinh|sup|tan|tanh|mod|lcm|rank|tr|sgn|var|cov|div|curl|grad"
)
# `sin x`, `max f`, `n mod 3`: a word of three letters or more beside them is of a sentence.
_OPERATOR = re.compile(
    rf"(?<![{_LATIN}])(?<![{_LATIN}]{{3}} )(?:{_OPERATORS})(?![{_LATIN}])"
    rf"(?! (?!(?:{_OPERATORS})(?![{_LATIN}]))[{_LATIN}]{{3}})"
)
# Products of variables, as in `2ab = 12`: a few letters beside a sign or a digit, and no word.
_SIGN = r"[=+*/^<>\u00b7\u00d7\u2212\u2264\u2265-]"
_FORMULA = re.compile(
    rf"(?<![{_LATIN}])(?<![{_LATIN}] )"
    rf"(?:(?<={_SIGN})|(?<={_SIGN} )|(?<=\d)|(?=[a-z]{{2,3}} ?{_SIGN}))"
    rf"[a-z]{{2,3}}(?![{_LATIN}])(?! [{_LATIN}])"
)


def without_mentions(text: str, language: str) -> str:
    """The text without foreign words that are only mentioned.

    Short quotations, terms with a gloss, what follows `the Greek` or `the character`, lone
    characters and lines of a program go; in a language of another script than the Latin one also
    names in capitals, units, operators, variables, what is called, and a Latin word that is the
    only one, however often it comes. Sentences stay, in quotation marks or not.

    Args:
        text: of a sample.
        language: that it should keep to, a code of the language reward.
    """
    text = without_programs(text)
    text = _QUOTED.sub(lambda match: " " if _is_short(match.group()) else match.group(), text)
    text = _SPOKEN_OF.sub(" ", _GLOSSED.sub(" ", text))
    if language_share("\u4e00", language) < 1.0:
        text = _LONE_CHARACTER.sub(" ", text)
    # A word that no language lists is of this one, where its script is.
    if language_share("xyz", language) < 1.0:
        for pattern in (_CALLED, _MEASURED, _UNIT, _OPERATOR, _FORMULA, _NAME):
            text = pattern.sub(" ", text)
        # One word, however often it comes, is a term; who mixes languages needs more of them.
        if len({word.casefold() for word in _WORD.findall(text)}) == 1:
            text = _WORD.sub(" ", text)
    return text


def _is_short(quotation: str) -> bool:
    num_words = len(_CHARACTER.sub(" ", quotation).split())
    return num_words <= _MAX_WORDS and len(_CHARACTER.findall(quotation)) <= _MAX_CHARACTERS
