"""Whether a sampled response is fit to be learnt from (paper section 2.3.3): no repetition, no
walls of text, no code in prose, one language.

Rules only; each says what is wrong in a word that can be counted. Left out on purpose: rewriting by
a model.
"""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"\w+")
# One to four characters, over and over: loops that have no words.
_CHARACTER_LOOP = re.compile(r"(\S{1,4}?)\1{39,}")
_CODE_FENCE = "```"


def is_repetitive(text: str, ngram: int = 10, max_repeats: int = 3) -> bool:
    """Whether some run of `ngram` words occurs more than `max_repeats` times, or a few characters
    loop.

    Punctuation does not count, so that formulas that share their notation are not taken for loops.
    """
    if _CHARACTER_LOOP.search(text):
        return True
    words = _WORD.findall(text.lower())
    runs = Counter(tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1))
    return any(count > max_repeats for count in runs.values())


def longest_paragraph(text: str) -> int:
    """Words of the longest stretch without a line break."""
    return max((len(line.split()) for line in text.splitlines()), default=0)


def has_code_block(text: str) -> bool:
    """Whether there is a fenced block of code."""
    return _CODE_FENCE in text
