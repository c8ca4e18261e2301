"""Whether a sampled response is fit to be learnt from (paper section 2.3.3): no repetition, no
walls of text, no code in prose, one language.

Rules only; each says what is wrong in a word that can be counted. Left out on purpose: rewriting,
which is `tidying`'s, and the language, which is a reward.
"""

from __future__ import annotations

import re
from collections import Counter

# A word, or one character of a script that is written without spaces.
_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+")
_CHARACTER = re.compile(f"[{_SPACELESS}]")
# Three such characters say about as much as two words.
_CHARACTERS_A_WORD = 1.5
# Letters that say as much as an English word does; scripts of consonants take fewer, and a syllable
# of Hangul is two to three letters.
_LETTERS_A_WORD = 5.0
_CONSONANT, _CONSONANTS_A_WORD = re.compile("[\u05d0-\u05ea\u0620-\u064a\u0671-\u06d3]"), 4.0
_SYLLABLE, _SYLLABLES_A_WORD = re.compile("[\uac00-\ud7af]"), 2.0
_LETTER = re.compile(r"[^\W\d_]")
_COMMAND = re.compile(r"\\[a-zA-Z]+")  # of LaTeX
# One to four characters, over and over: loops that have no words.
_CHARACTER_LOOP = re.compile(r"(\S{1,4}?)\1{39,}")

# Cases worked through in the same words may be so many times as many as plain repetitions.
_CASES = 10

# A break in mid-sentence, as after 80 characters: a long line that ends in a word or comma, and
# goes on in small letters.
_WRAP = re.compile(
    r"([^\n]{50,}(?:[^\W\d_]|,))[^\S\n]*\n(?=[^\S\n]*[a-z\u00df-\u00ff\u0430-\u044f])"
)

_FENCE = re.compile(r"```|^\s*~~~", re.MULTILINE)
# Lines that are hardly prose or mathematics, and lines that go with them in a program.
_SURE_CODE = re.compile(
    r"\s*(def \w+\(.*\).*:|class \w+.*:|import \w[\w., ]*|from [\w.]+ import .+|print\(.*\)"
    r"|#include\b.*|(public |static |void |int )+\w+\(.*\)\s*\{?|console\.log\(.*|function \w+\(.*"
    r"|SELECT\b.+\bFROM\b.*)\s*$"
)
_LIKE_CODE = re.compile(
    r"(\s+\S.*|\s*(for|while|if|elif) .+:|\s*(else|try):|\s*return\b.*|\s*[\w.\[\]]+ [-+*/]?= .+"
    r"|.*[;{}])\s*$"
)


def is_repetitive(text: str, ngram: int = 10, max_repeats: int = 3) -> bool:
    """Whether some run of `ngram` words occurs more than `max_repeats` times, or a few characters
    loop.

    Where a number comes in between that was not there before, the run is the wording of the next
    row or case and not a repetition, up to ten times as often. Punctuation does not count, so that
    formulas that share their notation are not taken for loops. Runs of nothing but numbers (1 + 0 +
    0 + ...) count only where they do not overlap.
    """
    if _CHARACTER_LOOP.search(text):
        return True
    words = _WORD.findall(text.lower())
    if 2 * sum(_CHARACTER.match(word) is not None for word in words) > len(words):
        ngram = round(ngram * _CHARACTERS_A_WORD)
    numbers_before = _distinct_numbers(words)
    last: dict[tuple[str, ...], int] = {}
    stale: Counter[tuple[str, ...]] = Counter()
    runs: Counter[tuple[str, ...]] = Counter()
    for place in range(len(words) - ngram + 1):
        run = tuple(words[place : place + ngram])
        before = last.get(run)
        overlaps = before is not None and place < before + ngram
        if overlaps and all(word.isdigit() for word in run):
            continue
        last[run] = place
        runs[run] += 1
        has_new = before is not None and numbers_before[place] > numbers_before[before + ngram]
        stale[run] += not has_new
    return any(count > max_repeats for count in stale.values()) or any(
        count > _CASES * max_repeats for count in runs.values()
    )


def _distinct_numbers(words: list[str]) -> list[int]:
    """How many different numbers stand before each word, and before the end."""
    seen: set[str] = set()
    counts = [0]
    for word in words:
        if word.isdigit():
            seen.add(word)
        counts.append(len(seen))
    return counts


def longest_paragraph(text: str) -> int:
    """Words of the longest stretch without a line break; one that only wraps a line is none."""
    return max((_num_words(line) for line in _WRAP.sub(r"\1 ", text).splitlines()), default=0)


def has_code_block(text: str) -> bool:
    """Whether there is a block of code: a fenced one, or lines in a row that are a program."""
    return bool(_FENCE.search(text) or _program_lines(text.splitlines()))


def without_programs(text: str) -> str:
    """The text without lines in a row that are a program; fenced blocks stay."""
    lines = text.splitlines()
    programs = _program_lines(lines)
    return "\n".join(line for place, line in enumerate(lines) if place not in programs)


def _program_lines(lines: list[str]) -> set[int]:
    """Places of lines that are a program: two or more in a row, one of them surely code."""
    found: set[int] = set()
    places: list[int] = []
    is_sure = False
    for place, line in enumerate([*lines, "."]):
        if not line.strip():
            continue
        if is_code := _SURE_CODE.match(line) is not None:
            is_sure = True
        if is_code or _LIKE_CODE.match(line):
            places.append(place)
            continue
        if len(places) > 1 and is_sure:
            found.update(places)
        places, is_sure = [], False
    return found


def _num_words(line: str) -> int:
    """Words of a line; where they are long, as many as English ones of so many letters."""
    num_characters = len(_CHARACTER.findall(line)) / _CHARACTERS_A_WORD
    spaced = _CHARACTER.sub(" ", line) if num_characters else line
    letters = "".join(_LETTER.findall(_COMMAND.sub(" ", spaced)))
    num_syllables, num_consonants = (len(p.findall(letters)) for p in (_SYLLABLE, _CONSONANT))
    by_letters = (
        (len(letters) - num_syllables - num_consonants) / _LETTERS_A_WORD
        + num_syllables / _SYLLABLES_A_WORD
        + num_consonants / _CONSONANTS_A_WORD
    )
    return round(max(len(spaced.split()), by_letters) + num_characters)
