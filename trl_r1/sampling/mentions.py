"""Foreign words that a text names and does not speak: quotations, terms given in two languages,
names of another script.

The language reward counts every foreign word; a trace that quotes a Latin motto or names Vieta in
Chinese keeps to its language all the same. Left out: words that are named without any mark, which
no rule tells from mixing.
"""

from __future__ import annotations

import re

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
_LATIN_WORD = re.compile(f"[{_LATIN}]+")
# One to three words with capitals that stand alone in a text of another script.
_NAME = re.compile(
    rf"(?<![{_LATIN}])(?<![{_LATIN}] )[A-Z][{_LATIN}]*(?:[- ][A-Z][{_LATIN}]*){{0,2}}"
    rf"(?![{_LATIN}])(?! [{_LATIN}])"
)
_LETTER = re.compile(r"[^\W\d_]")


def without_mentions(text: str) -> str:
    """The text without foreign words that are only mentioned.

    Short quotations and terms with a gloss go, and names in capitals where most letters are of
    another script. Sentences stay, in quotation marks or not.
    """
    text = _QUOTED.sub(lambda match: " " if _is_short(match.group()) else match.group(), text)
    text = _GLOSSED.sub(" ", text)
    num_latin = sum(len(word) for word in _LATIN_WORD.findall(text))
    if 2 * num_latin < len(_LETTER.findall(text)):
        text = _NAME.sub(" ", text)
    return text


def _is_short(quotation: str) -> bool:
    num_words = len(_CHARACTER.sub(" ", quotation).split())
    return num_words <= _MAX_WORDS and len(_CHARACTER.findall(quotation)) <= _MAX_CHARACTERS
