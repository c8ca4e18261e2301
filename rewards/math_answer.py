r"""Accuracy reward: 1.0 for the right final answer, 0.0 for a wrong one, None for no gradable gold.

The paper's rule-based accuracy reward (section 2.2.2): the final answer stands in a given form, in
a box or in tags, and rules decide whether it equals the gold answer. This file stands alone: it
imports neither a sibling nor `trl_r1`, so it can be copied next to any script and passed to
`trl.GRPOTrainer(reward_funcs=...)`. That is also why it is longer than its neighbours.

How an answer is graded. Only the part after the reasoning counts, and of that the last box (or
answer tags, or `Answer:` line). It is compared with the gold answer as text, as a number, by its
kind (letter, unit, list, tuple, set, interval, matrix, equation, ratio) and at the end by value: a
small evaluator works formulas out in exact fractions and floats at a few points. The model writes
what is graded, so nothing here can be stalled by it: no `sympy`, no recursion deeper than a cap, no
number longer than a cap, time linear in the length of the completion.

Where the gold answer is a plain number, only a number is an answer: `123 \times 456` leaves the
work to the grader and scores 0.0 (`accept_unevaluated=True` changes that). Numbers are compared
exactly, except that one written with nine decimals or more stands for what it was rounded from:
`0.333333` is not a third.

Left out: proofs, integrals, sums and limits as answers (equal only as text), words that mean the
same. Two formulas that are equal count as equal, so a question
that says "factor this" can be answered by repeating it.
"""

from __future__ import annotations

import cmath
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any

MAX_ANSWER_CHARS = 2000  # a longer answer is only compared as text
_MAX_FORMULA_CHARS = 400
_MAX_DEPTH = 40
_MAX_BITS = 40_000  # of any number the evaluator makes: 2004! fits, 9^{9^9} does not
_MAX_DIGITS = 400
_CACHED = 10_000  # texts of at most MAX_ANSWER_CHARS, so memory stays bounded
_TOLERANCE = 1e-12  # relative, of formulas that leave the fractions

EXTRACTIONS = ("strict", "marked", "lenient")


def math_answer_reward(
    completions: list[Any],
    solution: list[Any],
    extraction: str = "marked",
    prefilled: bool = False,
    accept_unevaluated: bool = False,
    **kwargs: Any,
) -> list[float | None]:
    r"""Score the final answers: 1.0 or 0.0, None where the gold answer can't be graded (paper
    section 2.2.2, accuracy rewards).

    Args:
        completions: B completions, plain text or lists of messages.
        solution: B gold answers: the answer alone, or a text with a `\boxed{}` or `####` in it.
        extraction: where a final answer may stand. `strict`: a box or `<answer>` tags. `marked`:
            also after `####`, `Answer:` or `the answer is`. `lenient`: also the last number.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` is all reasoning.
        accept_unevaluated: take `2+3` for the gold answer 5.

    Returns:
        B rewards.

    Raises:
        ValueError: for an unknown `extraction`.
    """
    if extraction not in EXTRACTIONS:
        raise ValueError(f"unknown extraction {extraction!r}; known: {', '.join(EXTRACTIONS)}")
    rewards: list[float | None] = []
    for completion, gold in zip(completions, solution, strict=True):
        if gold_fault(gold) is not None:
            rewards.append(None)
            continue
        answer = final_answer(completion_text(completion), extraction, prefilled)
        is_right = answer is not None and answers_match(
            gold_answer(gold), answer, accept_unevaluated
        )
        rewards.append(float(is_right))
    return rewards


def gold_fault(solution: Any) -> str | None:
    """Why a gold answer can't be graded, as "not gradable because ..."; None where it can."""
    if solution is None or (isinstance(solution, float) and math.isnan(solution)):
        return "not gradable because it is missing"
    if isinstance(solution, (list, tuple, dict)):
        return f"not gradable because it is a {type(solution).__name__}, not text or a number"
    text = str(solution)
    if not text.strip():
        return "not gradable because it is empty"
    if "\\boxed" in text and _last_box(text) is None:
        return "not gradable because its \\boxed is not closed"
    answer = gold_answer(solution)
    if not _canonical(answer[: MAX_ANSWER_CHARS + 1]):
        return "not gradable because there is no answer in it"
    if len(answer) > MAX_ANSWER_CHARS:
        return f"not gradable because it is a text of {len(answer)} characters, not an answer"
    if answer.casefold() in ("nan", "null", "n/a"):
        return f"not gradable because it says {answer!r}"
    if not _braces_close(answer):
        return "not gradable because its braces do not match (cut off?)"
    return None


def answers_match(gold: str, answer: str, accept_unevaluated: bool = False) -> bool:
    """Whether an answer equals the gold answer; both without the text around them."""
    gold, answer = gold.strip(), answer.strip()
    if len(gold) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
        return gold == answer
    return _match_cached(gold, answer, accept_unevaluated)


@lru_cache(maxsize=_CACHED)
def _match_cached(gold: str, answer: str, accept_unevaluated: bool) -> bool:
    return _match(_canonical(gold), _canonical(answer), accept_unevaluated, 0)


# Finding the answer -------------------------------------------------------------------------------


def completion_text(completion: Any) -> str:
    """Text of a plain-text or conversational completion (its last message); `""` for None."""
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content or ""


_MARKER = re.compile(
    r"####|\banswer\b[*_ ]{0,4}(?:is\b|:|=)[*_: ]{0,4}|^[ ]{0,4}A:", re.IGNORECASE | re.MULTILINE
)
_NUMBER_IN_TEXT = re.compile(
    r"(?<![\w.,])-?(?:\$ ?)?(?:\d{1,3}(?:,\d{3}){1,50}(?![\d,]*\d)|\d{1,400})(?:\.\d{1,400})?"
    r"(?:/\d{1,400})?%?"
)


def final_answer(text: str, extraction: str = "marked", prefilled: bool = False) -> str | None:
    """The final answer of a response, None where there is none. See `math_answer_reward`.

    What stands in the reasoning never counts: a response whose reasoning is not closed has no
    answer.
    """
    _, is_closed, visible = text.rpartition("</think>")
    if not is_closed and prefilled:
        return None
    # After the last </think>, a new <think> that is not closed is reasoning again.
    visible = visible.partition("<think>")[0]
    # A program is not the place of an answer, unless there is no other.
    prose = "".join(visible.split("```")[::2])
    answer = _find_answer(prose, extraction)
    return answer if answer is not None or prose == visible else _find_answer(visible, extraction)


def _find_answer(text: str, extraction: str) -> str | None:
    before, has_close, _ = text.rpartition("</answer>")
    _, has_open, span = before.rpartition("<answer>")
    if has_close and has_open:
        box = _last_box(span)
        if box is not None:
            return box
        marked = _after_marker(span) if extraction != "strict" else None
        return marked if marked is not None else span.strip()
    box = _last_box(text)
    if box is not None or extraction == "strict":
        return box
    marked = _unclosed_box(text)
    if marked is None:
        marked = _after_marker(text)
    if marked is not None or extraction == "marked":
        return marked
    numbers = _NUMBER_IN_TEXT.findall(text)
    return numbers[-1] if numbers else None


def gold_answer(solution: Any) -> str:
    r"""The answer in a gold text: its last box, what follows its last `####`, or all of it."""
    text = str(solution)
    box = _last_box(text)
    if box is not None:
        return box
    _, has_mark, after = text.rpartition("####")
    return (after if has_mark else text).strip()


def _last_box(text: str) -> str | None:
    r"""Content of the last closed `\boxed{...}` (or `\boxed 5`), found in one pass."""
    if "boxed" not in text and "fbox" not in text:
        return None
    closing = _matching_braces(text)
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)(?![a-zA-Z])", text))):
        end = match.end()
        while end < len(text) and text[end] == " " and end < match.end() + 8:
            end += 1
        if text[end : end + 1] == "{":
            if end in closing:
                return text[end + 1 : closing[end]].strip()
        elif end > match.end():
            token = re.match(r"[^\s$]{1,100}", text[end : end + 100])
            if token:
                return token.group().rstrip(".,;")
    return None


def _unclosed_box(text: str) -> str | None:
    r"""What follows a last `\boxed{` that ends with the text instead of a brace."""
    _, has_box, rest = text.rpartition("\\boxed{")
    rest = rest.strip().rstrip("$").strip()
    return rest if has_box and rest and "\n" not in rest else None


def _after_marker(text: str) -> str | None:
    """What follows the last `####`, `Answer:` or `answer is`, to the end of its sentence."""
    last = None
    for match in _MARKER.finditer(text):
        last = match
    if last is None:
        return None
    line = text[last.end() :].lstrip().partition("\n")[0][: MAX_ANSWER_CHARS + 1]
    line = line.strip().lstrip(":").strip().strip("*_ ")
    math_part = re.match(r"\$\$?([^$]+)\$", line)
    if math_part and not re.match(r"\$ ?\d[\d,.]*\b[^$]*$", line):
        return math_part.group(1).strip()
    line = re.split(r"\.(?=\s)|[;!?](?=\s|$)", line, maxsplit=1)[0]
    return line.rstrip(".").strip().strip("*_ ") or None


def _matching_braces(text: str) -> dict[int, int]:
    """Position of each opening brace that is closed -> position of its closing brace."""
    pairs, stack, i = {}, [], 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        i = match.start()
        if match.group() == "{":
            stack.append(i)
        elif match.group() == "}" and stack:
            pairs[stack.pop()] = i
    return pairs


def _braces_close(text: str) -> bool:
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


# One spelling for what means the same -------------------------------------------------------------

_SET_OPEN, _SET_CLOSE = "\u2983", "\u2984"  # literal braces, so that { } are only grouping
_CHARACTERS = str.maketrans(
    {
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # full-width forms
        **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u2007\u3000\t\r\n", " "),
        "\u00d7": "\\times ",
        "\u00b7": "\\cdot ",
        "\u22c5": "\\cdot ",
        "\u00f7": "/",
        "\u03c0": "\\pi ",
        "\u221a": "\\sqrt ",
        "\u00b0": "^\\circ ",
        "\u221e": "\\infty ",
        "\u2264": "\\le ",
        "\u2265": "\\ge ",
        "\u2260": "\\ne ",
        "\u2208": "\\in ",
        "\u222a": "\\cup ",
        "\u2205": "\\emptyset ",
        "\u00b1": "\\pm ",
        "\u2248": "\\approx ",
        "\u00b2": "^2",
        "\u00b3": "^3",
        "\u00bd": "\\frac{1}{2}",
        "\u00bc": "\\frac{1}{4}",
        "\u00be": "\\frac{3}{4}",
    }
)
_DROPPED = (
    *("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "limits"),
    *("displaystyle", "textstyle", "!", ",", "(", ")", "[", "]", "rm", "bf", "it", "mathstrut"),
)
_SAME: dict[str, str] = {
    **dict.fromkeys(_DROPPED, ""),
    **dict.fromkeys((";", ":", " ", "quad", "qquad", "enspace", "thinspace"), " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("mbox", "textrm", "textnormal", "mathrm", "operatorname"), "\\text"),
    **dict.fromkeys(("textbf", "mathbf", "boldsymbol", "bm", "textit", "mathit"), "\\text"),
    **dict.fromkeys(("{", "lbrace"), _SET_OPEN),
    **dict.fromkeys(("}", "rbrace"), _SET_CLOSE),
    **dict.fromkeys(("leq", "leqslant"), "\\le "),
    **dict.fromkeys(("geq", "geqslant"), "\\ge "),
    **dict.fromkeys(("mathsf", "texttt", "mathcal"), "\\text"),
    **{"neq": "\\ne ", "lt": "<", "gt": ">", "varnothing": "\\emptyset ", "degree": "^\\circ "},
    **{"%": "%", "$": "$", "&": "&", "_": "_", "#": "#", "dbinom": "\\binom", "tbinom": "\\binom"},
    **{"lvert": "|", "rvert": "|", "vert": "|", "lparen": "(", "rparen": ")"},
}


@lru_cache(maxsize=_CACHED)
def _canonical(text: str) -> str:
    """One spelling of an answer: no markup, plain characters, braces round every LaTeX argument."""
    text = text.translate(_CHARACTERS).replace("{,}", "").strip()
    wrapped = re.fullmatch(r"(\$\$?)((?:\\.|[^$\\])*)\1", text)
    text = wrapped.group(2) if wrapped else text
    text = re.sub(r",\s?\\!\s?", "", text)

    def command(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "\\":
            return "\\\\ "
        new = _SAME.get(name, match.group())
        return new + " " if name.isalpha() and new == match.group() else new

    text = re.sub(r"\\([a-zA-Z]+|.)", command, text)
    text = re.sub(r"\$+(?=\s*[^\s\d.\-])|(?<=[^\s])\$+|\$\$", "", text)
    text = text.replace("<=", "\\le ").replace(">=", "\\ge ").replace("!=", "\\ne ")
    text = text.replace("**", "^") if re.search(r"\w\*\*\w", text) else text.strip("* ")
    text = re.sub(r"\^\s?\{?\s?\\circ\s?\}?", " degrees ", text)
    text = re.sub(r"\^\s?\{?\s?\\text\s?\{\s?(?:st|nd|rd|th)\s?\}\s?\}?", " ", text)
    text = re.sub(r"\\(frac|sqrt|binom)\s+(?=[\d{\[\\])", r"\\\1", text)
    text = re.sub(r"\\(frac|binom)(\d)\s?(\d)", r"\\\1{\2}{\3}", text)
    text = re.sub(r"\\(frac|binom)(\d|[a-z])\s?\{", r"\\\1{\2}{", text)
    text = re.sub(r"(\\(?:frac|binom)\{[^{}]{1,60}\})\s?(\d|[a-z])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt(\d|[a-z])(?![a-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\text\s+\{", r"\\text{", text)
    text = re.sub(r"[ ]{2,}", " ", text).strip(" ")
    while text[:1] == "{" and (group := _brackets(text)) and group[1]:
        text = group[1]
    text = re.sub(r"^\\text\{([^{}]*)\}$", r"\1", text).strip()
    return text[:-1].rstrip() if text.endswith((".", ",")) and len(text) > 1 else text


# Numbers with units -------------------------------------------------------------------------------

_DIGITS = (
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?: \d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)"
)
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s?(?P<money>[$€£¥]?)\s?(?P<sign2>[+-]?)\s?
    (?:(?P<whole>\d+)?\s?\\frac\{{\s?(?P<num>-?{_DIGITS})\s?\}}\{{\s?(?P<den>{_DIGITS})\s?\}}
    |(?P<whole2>\d+)\s(?P<num2>\d+)\s?/\s?(?P<den2>\d+)
    |(?P<num3>{_DIGITS})\s?/\s?(?P<den3>{_DIGITS})
    |(?P<repeat0>\d*\.\d*)\\overline\s?\{{(?P<repeat>\d+)\}}
    |(?P<mantissa>{_DIGITS})(?:\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?\{{?\s?(?P<exp>[+-]?\d{{1,3}})\s?\}}?
      |[eE](?P<exp2>[+-]?\d{{1,3}})(?!\d))?
      (?:_\s?\{{?(?P<base>\d{{1,2}})\}}?)?)
    (?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7},
    **{"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13},
    **{"fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18},
    **{"nineteen": 19, "twenty": 20},
}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Words that say more about a number than what it counts.
_NOT_UNITS = re.compile(
    r"or|and|not|to|through|times|plus|minus|over|divided|by|squared|cubed|dozen|half|halves|more|"
    r"less|than|about|between|either|maybe|except|but|pi|sqrt|sin|cos|tan|log|ln|exp"
)
# Unit -> (what it measures, how many of the first one of that kind).
_UNITS: dict[str, tuple[str, Fraction]] = {
    **{"mm": ("length", Fraction(1, 1000)), "cm": ("length", Fraction(1, 100))},
    **{"m": ("length", Fraction(1))},
    **{"km": ("length", Fraction(1000)), "in": ("length", Fraction("0.0254"))},
    **{"ft": ("length", Fraction("0.3048")), "yd": ("length", Fraction("0.9144"))},
    **{"mile": ("length", Fraction("1609.344"))},
    **{
        "mg": ("mass", Fraction(1, 1000)),
        "g": ("mass", Fraction(1)),
        "kg": ("mass", Fraction(1000)),
    },
    **{"s": ("time", Fraction(1)), "min": ("time", Fraction(60)), "h": ("time", Fraction(3600))},
    **{"day": ("time", Fraction(86400)), "week": ("time", Fraction(604800))},
    **{"ml": ("volume", Fraction(1, 1000)), "l": ("volume", Fraction(1))},
    **{"cent": ("money", Fraction(1, 100)), "dollar": ("money", Fraction(1))},
    **{"euro": ("euro", Fraction(1)), "pound": ("pound", Fraction(1)), "yen": ("yen", Fraction(1))},
}
_UNIT_NAMES = {
    **{"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "usd": "dollar", "eur": "euro"},
    **{"millimeter": "mm", "centimeter": "cm", "meter": "m", "metre": "m", "kilometer": "km"},
    **{"kilometre": "km", "inch": "in", "inche": "in", "foot": "ft", "feet": "ft", "yard": "yd"},
    **{"mi": "mile", "milligram": "mg", "gram": "g", "kilogram": "kg", "second": "s", "sec": "s"},
    **{"minute": "min", "hour": "h", "hr": "h", "hrs": "h", "liter": "l", "litre": "l", "ft": "ft"},
    **{"milliliter": "ml", "deg": "degree", "pct": "%", "percent": "%"},
}


@dataclass(frozen=True)
class _Number:
    """A number as written: its value, unit, and whether a decimal point or percent sign shows."""

    value: Fraction
    unit: str = ""
    is_percent: bool = False
    is_ratio: bool = False


def _fraction(digits: str) -> Fraction:
    digits = digits.replace(",", "").replace(" ", "")
    return Fraction(digits.rstrip(".") or "0")


@lru_cache(maxsize=_CACHED)
def _number(text: str) -> _Number | None:
    """A canonical text as a number with an optional unit, None where it is anything else."""
    if len(text) > _MAX_DIGITS:
        return None
    if text.casefold() in _WORDS:
        return _Number(Fraction(_WORDS[text.casefold()]))
    if re.fullmatch(r"\((.*)\)", text):
        text = text[1:-1].strip()
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = _value(match)
    rest = match["rest"].strip()
    is_percent = rest.startswith("%") or bool(
        re.fullmatch(r"(?:\\text\{)?\s?(?:percent|pct)\s?\}?", rest)
    )
    unit = (
        ""
        if is_percent and len(rest.strip("% ")) == 0
        else _unit(rest, bool(match["rest"][:1].isspace()))
    )
    if value is None or unit is None:
        return None
    first, _, others = unit.partition(" ")
    if first in _SCALES:
        value, unit = value * 10 ** _SCALES[first], others
    if match["money"]:
        if unit and unit not in ("dollar", "usd"):
            return None
        unit = _UNIT_NAMES[match["money"]]
    if is_percent:
        unit = ""
    negative = (match["sign"] == "-") != (match["sign2"] == "-")
    is_ratio = bool(match["num"] or match["num2"] or match["num3"])
    return _Number(-value if negative else value, unit, is_percent, is_ratio)


def _value(match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    for whole, num, den in (
        ("whole", "num", "den"),
        ("whole2", "num2", "den2"),
        ("", "num3", "den3"),
    ):
        if part[num] is not None:
            bottom = _fraction(part[den])
            if bottom == 0:
                return None
            return _fraction(part.get(whole) or "0") + _fraction(part[num]) / bottom
    if part["repeat"] is not None:
        head, tail = part["repeat0"], part["repeat"]
        scale = 10 ** len(head.partition(".")[2])
        return _fraction(head) + Fraction(int(tail), (10 ** len(tail) - 1) * scale)
    if part["base"] is not None:
        digits, base = part["mantissa"], int(part["base"])
        is_valid = digits.isdigit() and 2 <= base <= 36 and all(int(d) < base for d in digits)
        return Fraction(int(digits, base)) if is_valid else None
    exponent = part["exp"] or part["exp2"]
    return _fraction(part["mantissa"]) * Fraction(10) ** int(exponent or 0)


def _unit(rest: str, has_space: bool) -> str | None:
    r"""The unit that follows a number, in one spelling; `""` for none, None where it is not one."""
    if not rest:
        return ""
    if rest in "$€£¥":
        return _UNIT_NAMES[rest]
    is_text = rest.startswith("\\text{")
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", rest)
    plain = re.sub(r"\^\s?\{?\s?([23])\s?\}?", r" ^\1 ", plain)
    if not re.fullmatch(r"[A-Za-z%/.\-' ^23()]{1,80}", plain) or re.search(r"(?<!\^)[23]", plain):
        return None
    words = [w for w in re.split(r"[\s.()]+", plain.casefold()) if w]
    if not words or any(word in _WORDS or _NOT_UNITS.fullmatch(word) for word in words):
        return None
    names = [_unit_name(word) for word in words]
    known = names[0] in _UNITS or names[0] in ("degree", "mph")
    if not is_text and not (known or (has_space and len(words[0]) > 2)) and words[0] not in _SCALES:
        return None
    if names[0] in ("square", "sq") and len(names) > 1:
        names = [names[1], "^2", *names[2:]]
    if names[0] in ("cubic", "cu") and len(names) > 1:
        names = [names[1], "^3", *names[2:]]
    return " ".join(names)


def _unit_name(word: str) -> str:
    singular = word[:-1] if len(word) > 3 and word.endswith("s") else word
    return _UNIT_NAMES.get(word) or _UNIT_NAMES.get(singular) or singular


def _numbers_match(gold: _Number, answer: _Number) -> bool:
    if gold.is_percent and not answer.is_percent:
        return answer.value in (gold.value, gold.value / 100)
    scale = Fraction(1)
    if gold.unit and answer.unit and gold.unit != answer.unit:
        kind, size = _UNITS.get(gold.unit, ("", scale))
        other_kind, other_size = _UNITS.get(answer.unit, ("", scale))
        if kind or other_kind:
            if kind != other_kind:
                return False
            scale = other_size / size
        elif not _same_words(gold.unit, answer.unit):
            return False
    value = answer.value * scale
    return gold.value == value or _is_rounded_to(gold.value, value)


def _same_words(gold: str, answer: str) -> bool:
    gold_words, answer_words = set(gold.split()), set(answer.split())
    return gold_words <= answer_words or answer_words <= gold_words


def _close(a: Fraction | complex, b: Fraction | complex) -> bool:
    """Two fractions exactly, anything else to a relative 1e-12."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    try:
        x, y = complex(a), complex(b)
    except OverflowError:
        return False
    if not (cmath.isfinite(x) and cmath.isfinite(y)):
        return False
    return abs(x - y) <= _TOLERANCE * max(abs(x), abs(y))


def _is_rounded_to(a: Fraction, b: Fraction) -> bool:
    """Equal to a relative 1e-9, where one has the many digits of a rounded number."""
    return max(a.denominator, b.denominator) >= 10**9 and abs(a - b) * 10**9 <= abs(a)


# Comparing by kind --------------------------------------------------------------------------------

_RELATION = re.compile(r"(\\le |\\ge |\\ne |\\in |<|>|=)")
_FLIPPED = {"<": ">", ">": "<", "\\le ": "\\ge ", "\\ge ": "\\le ", "=": "=", "\\ne ": "\\ne "}
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}")
_CHOICE = re.compile(
    r"\(?(?:\\text\{)?\s?\(?([A-Z])\)?\s?\}?\)?|(?:\\text\{)?\(?([A-J])[.)]\}?\s[^,]*"
)
_CHOSEN = re.compile(
    r"(?:\\text\{)?(?:\((?P<bracketed>[A-Za-z])\)|(?P<bare>[A-Za-z])(?=[.:)}]|$))\)?[}.:]*(?P<rest>.*)",
    re.DOTALL,
)
# What follows the letter may be the text of the choice, but not another choice.
_OTHER_CHOICE = re.compile(
    r"\([A-Za-z]\)|\b[A-Z](?:[.):]|$)|(?:\b(?:or|and|not)\b|[,/&;])\s*\(?[A-Z]\b"
)
_BRACKETS = {"(": ")", "[": "]", _SET_OPEN: _SET_CLOSE, "{": "}"}


def _match(gold: str, answer: str, accept: bool, depth: int) -> bool:
    """Whether two canonical texts are the same answer."""
    if gold == answer or gold.replace(" ", "") == answer.replace(" ", ""):
        return True
    if depth > 6 or not answer or _DATE.fullmatch(gold):
        return False
    gold = re.split(r"\\approx", gold)[0].strip() or gold
    gold_number = _number(gold)
    if gold_number is not None:
        return _match_number(gold, gold_number, answer, accept)
    choice = _CHOICE.fullmatch(gold)
    if choice:
        chosen = _CHOSEN.fullmatch(answer)
        if chosen is None or _OTHER_CHOICE.search(chosen["rest"]):
            return False
        letter: str = chosen["bracketed"] or chosen["bare"]
        return letter.upper() == (choice[1] or choice[2])
    if _is_words(gold):
        return _plain_words(gold) == _plain_words(answer)
    for compare in (_match_matrices, _match_ratios, _match_relations, _match_collections):
        verdict = compare(gold, answer, accept, depth)
        if verdict is not None:
            return verdict
    return _match_formulas(gold, _last_value(answer) or answer)


def _match_number(gold: str, gold_number: _Number, answer: str, accept: bool) -> bool:
    value = _last_value(answer)
    number = _number(value) if value is not None else None
    if number is not None:
        is_unevaluated = number.is_ratio and number.value.denominator == 1
        if is_unevaluated and not gold_number.is_ratio and not accept:
            return False
        return _numbers_match(gold_number, number)
    if value is None or not accept:
        return False
    return _match_formulas(gold, value)


def _last_value(answer: str) -> str | None:
    r"""What an answer like `x = 2+3 = 5` or `x \approx 5` says in the end: `5`.

    None where it says nothing, or contradicts itself: `5 = 4`.
    """
    answer = re.sub(r"\\approx", "=", answer) if answer.count("=") == 0 else answer
    if "=" not in answer:
        return answer
    parts = [part.strip() for part in answer.split("=")]
    if len(parts) > 8:
        return None
    parts = [part for part in parts if not _is_name(part)]
    if not parts or not parts[-1]:
        return None
    if any(not _match_formulas(parts[-1], part) for part in parts[:-1]):
        return None
    return parts[-1]


def _is_name(text: str) -> bool:
    r"""A variable, perhaps with index or argument: `x`, `a_n`, `f(x)`, `\angle ABC`."""
    text = re.sub(r"\\(?:angle|text|triangle)\s?", "", text).replace(" ", "")
    name = r"\{?[A-Za-z]{1,12}'?\}?(?:_\{?\w{1,6}\}?)?(?:\([a-z]\))?"
    return bool(re.fullmatch(rf"{name}|\({name}(?:,{name}){{1,9}}\)", text))


def _is_words(text: str) -> bool:
    plain = text.replace("\\text{", "").replace("}", "")
    return bool(re.fullmatch(r"[^\W\d_][^\d\\=<>^_{}()+*/]*", plain)) and bool(
        re.search(r"[^\W\d_]{3}", plain)
    )


def _plain_words(text: str) -> str:
    text = text.replace("\\text{", "").replace("}", "").casefold()
    return " ".join(re.sub(r"[\"'`.]", "", text).split())


def _split(text: str, separators: str) -> list[str]:
    """Split at separators that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in _BRACKETS:
            depth += 1
        elif char in ")]}" + _SET_CLOSE:
            depth -= 1
        elif depth == 0 and char in separators:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _brackets(text: str) -> tuple[str, str, str] | None:
    """Opening bracket, inside, closing bracket of a text that is one bracketed thing."""
    if len(text) < 2 or text[0] not in _BRACKETS or text[-1] not in ")]}" + _SET_CLOSE:
        return None
    depth = 0
    for i, char in enumerate(text):
        depth += (char in _BRACKETS) - (char in ")]}" + _SET_CLOSE)
        if depth == 0:
            return (text[0], text[1:-1].strip(), text[-1]) if i == len(text) - 1 else None
    return None


def _match_matrices(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    gold_rows, answer_rows = _matrix(gold), _matrix(answer)
    if gold_rows is None or answer_rows is None:
        return False if gold_rows is not None else None
    if [len(row) for row in gold_rows] != [len(row) for row in answer_rows]:
        return False
    pairs = zip(chain(*gold_rows), chain(*answer_rows), strict=True)
    return all(_match(g, a, accept, depth + 1) for g, a in pairs)


def _matrix(text: str) -> list[list[str]] | None:
    inside = _brackets(text)
    if inside and inside[0] == "(" and inside[1].startswith("\\begin"):
        text = inside[1]
    match = re.fullmatch(r"\\begin \{([a-zA-Z]?matrix|array)\}(.*)\\end \{\1\}", text, re.DOTALL)
    if match is None or len(text) > MAX_ANSWER_CHARS:
        return None
    body = re.sub(r"^\{[lcr| ]+\}", "", match.group(2).strip())
    rows = [row for row in body.split("\\\\") if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]


def _match_ratios(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    if ":" not in gold:
        return None
    sides = [side.split("=")[-1].split(":") for side in (gold, answer)]
    values = [[v for part in side if (v := _evaluate(part, 1))] for side in sides]
    gold_values, answer_values = values
    if [len(side) for side in sides] != [len(gold_values), len(answer_values)]:
        return False  # some part is zero, or no formula
    if len(answer_values) == 1 and len(gold_values) == 2:
        return _close(gold_values[0] / gold_values[1], answer_values[0])
    pairs = list(zip(gold_values, answer_values, strict=False))
    first_gold, first_answer = pairs[0]
    return len(gold_values) == len(answer_values) and all(
        _close(g * first_answer, a * first_gold) for g, a in pairs
    )


def _match_relations(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    """Inequalities, intervals written as inequalities, equations."""
    gold_parts, answer_parts = _relation(gold), _relation(answer)
    if gold_parts is None and answer_parts is None:
        return None
    gold_set = _as_set(gold_parts) if gold_parts else ("", gold)
    answer_set = _as_set(answer_parts) if answer_parts else ("", answer)
    if gold_set and answer_set and (gold_parts is None or "=" not in gold_parts):
        names = {name for name in (gold_set[0], answer_set[0]) if name}
        if len(names) > 1 or (answer_parts is not None and "=" in answer_parts):
            return None if gold_parts is None else False
        if gold_parts is None and not _brackets(gold) and "\\cup" not in gold:
            return None
        return _match(gold_set[1], answer_set[1], accept, depth + 1)
    if gold_parts is None:
        return None
    if len(gold_parts) != 3:
        return False
    left, sign, right = gold_parts
    if answer_parts is None:
        return sign == "=" and _is_name(left) and _match(right, answer, accept, depth + 1)
    if len(answer_parts) != 3:
        value = _last_value(answer)
        return bool(_is_name(left) and answer_parts[0] == left and value) and _match(
            right, value or "", False, depth + 1
        )
    if sign == "=" and _is_name(left) and answer_parts[0].replace(" ", "") == left.replace(" ", ""):
        return answer_parts[1] == "=" and _match(right, answer_parts[2], accept, depth + 1)
    return _match_sides(gold_parts, answer_parts)


def _relation(text: str) -> list[str] | None:
    if len(_split(text, ",;")) > 1:
        return None
    parts = [part.strip() if i % 2 == 0 else part for i, part in enumerate(_RELATION.split(text))]
    return parts if 3 <= len(parts) <= 5 else None


def _as_set(parts: list[str]) -> tuple[str, str] | None:
    r"""`-2 \le x < 7` as (`x`, `[-2,7)`), None where it is no statement about one variable."""
    if len(parts) == 3:
        left, sign, right = parts
        if sign != "\\in " and _is_name(right) and not _is_name(left):
            left, sign, right = right, _FLIPPED[sign], left
        if not _is_name(left):
            return None
        forms = {
            "\\in ": f"{right}",
            "<": f"(-\\infty,{right})",
            "\\le ": f"(-\\infty,{right}]",
            ">": f"({right},\\infty)",
            "\\ge ": f"[{right},\\infty)",
            "\\ne ": f"(-\\infty,{right})\\cup({right},\\infty)",
        }
        return (left, forms[sign]) if sign in forms else None
    low, sign, name, sign2, high = parts
    if sign[0] == ">" or sign == "\\ge ":
        if sign2 not in (">", "\\ge "):
            return None
        low, sign, sign2, high = high, _FLIPPED[sign2], _FLIPPED[sign], low
    if not _is_name(name) or sign not in ("<", "\\le ") or sign2 not in ("<", "\\le "):
        return None
    return name, ("(" if sign == "<" else "[") + f"{low},{high}" + (")" if sign2 == "<" else "]")


def _match_sides(gold: list[str], answer: list[str]) -> bool:
    """Whether two equations or inequalities differ by a constant factor only."""
    same, flipped = gold[1] == answer[1], _FLIPPED.get(gold[1]) == answer[1]
    if not (same or flipped):
        return False
    ratio: Any = None
    for point in _POINTS:
        sides = (gold[0], gold[2], answer[0], answer[2])
        values = [v for side in sides if (v := _evaluate(side, point)) is not None]
        if len(values) < 4:
            return False
        a, b = values[0] - values[1], values[2] - values[3]
        if a == 0 or b == 0 or (ratio is not None and not _close(ratio, a / b)):
            return False
        ratio = a / b
    is_positive = complex(ratio).real > 0
    return gold[1] in ("=", "\\ne ") or (is_positive if same else not is_positive)


def _match_collections(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    """Unions, lists, tuples, sets, intervals."""
    if "\\cup" in gold or "\\cup" in answer:
        parts = [[p.strip() for p in side.split("\\cup")] for side in (gold, answer)]
        return _match_unordered(parts[0], parts[1], accept, depth)
    gold_group, answer_group = _brackets(gold), _brackets(answer)
    if gold_group and (gold_group[0] == _SET_OPEN or len(_split(gold_group[1], ",;")) > 1):
        if not answer_group or (gold_group[0], gold_group[2]) != (answer_group[0], answer_group[2]):
            return False
        gold_items, answer_items = _items(gold_group[1]), _items(answer_group[1])
        if gold[0] == _SET_OPEN:
            return _match_unordered(gold_items, answer_items, accept, depth, is_set=True)
        if len(gold_items) != len(answer_items):
            return False
        pairs = zip(gold_items, answer_items, strict=True)
        return all(_match(g, a, accept, depth + 1) for g, a in pairs)
    gold_items, answer_items = _items(gold), _items(answer)
    if len(gold_items) > 1 or len(answer_items) > 1:
        if answer_group and answer_group[0] == _SET_OPEN:
            answer_items = _items(answer_group[1])
        return _match_unordered(gold_items, answer_items, accept, depth)
    return None


def _items(text: str) -> list[str]:
    r"""Items of a list; `\pm` is two of them, `or` and `and` are commas."""
    text = re.sub(r"\\text\{\s?(?:or|and)\s?\}|\b(?:or|and)\b", ",", text)
    items = []
    for item in _split(text, ",;"):
        if item.count("\\pm") == 1:
            items += [item.replace("\\pm", "+").lstrip("+ "), item.replace("\\pm", "-")]
        elif item:
            items.append(item)
    return items


def _match_unordered(
    gold: list[str], answer: list[str], accept: bool, depth: int, is_set: bool = False
) -> bool:
    if len(gold) > 50 or len(answer) > 50 or (len(gold) != len(answer) and not is_set):
        return False
    left = list(answer)
    for item in gold:
        found = [i for i, other in enumerate(left) if _match(item, other, accept, depth + 1)]
        if not found:
            return False
        for i in reversed(found if is_set else found[:1]):
            del left[i]
    return not left


# Formulas by value --------------------------------------------------------------------------------


def _match_formulas(gold: str, answer: str) -> bool:
    """Whether two formulas have the same value, at a few points where they have variables."""
    gold, gold_unit = _without_unit(gold)
    answer, answer_unit = _without_unit(answer)
    if gold_unit and answer_unit and not _same_words(gold_unit, answer_unit):
        return False
    num_compared = 0
    for point in _POINTS:
        a, b = _evaluate(gold, point), _evaluate(answer, point)
        if a is None and b is None and num_compared:
            continue  # outside the domain of both
        if a is None or b is None or not _close(a, b):
            return False
        num_compared += 1
    return num_compared > 0


def _without_unit(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.*\S)\s?\\text\{([^{}]*)\}\s?(\^\s?\{?[23]\}?)?", text, re.DOTALL)
    if match is None or re.search(r"[_^=]\s?\{?$", match[1]):
        return text, ""
    return match[1], _unit(f"\\text{{{match[2]}}}{match[3] or ''}", True) or ""


# Two positive points and a negative one for the variables of a formula.
_POINTS = (1, 2, -3)
_TOKEN = re.compile(r"(\d+\.?\d*|\.\d+)|\\([a-zA-Z]+)|([a-zA-Z]+)|(\S)")
_CONSTANTS: dict[str, complex] = {"pi": math.pi, "e": math.e, "i": 1j}
_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{"ln": cmath.log, "log": cmath.log10, "lg": cmath.log10},
    **{"sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x)},
    **{"cot": lambda x: cmath.cos(x) / cmath.sin(x)},
    **{f"arc{name}": getattr(cmath, f"a{name}") for name in ("sin", "cos", "tan")},
}
_SYMBOLS = re.compile(
    r"alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|theta|lambda|mu|nu|xi|rho|sigma|tau|"
    r"(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell|infty"
)


class _CannotEvaluateError(ValueError):
    """The text is not a formula this file understands, or too large a one."""


def _evaluate(text: str, point: int) -> Fraction | complex | None:
    """Value of a formula with its variables set to values that depend on their names and `point`;
    None where it has none or is too much."""
    if len(text) > _MAX_FORMULA_CHARS:
        return None
    try:
        return _Evaluator(text, point).value()
    except (_CannotEvaluateError, ArithmeticError, ValueError):
        return None


class _Evaluator:
    """Recursive descent over a canonical formula; exact fractions as long as they stay fractions.

    Every step is bounded: nesting by `_MAX_DEPTH`, numbers by `_MAX_BITS`.
    """

    def __init__(self, text: str, point: int) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0
        self._point = point

    def value(self) -> Fraction | complex:
        value = self._sum()
        if self._at < len(self._tokens):
            raise _CannotEvaluateError(self._peek())
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> bool:
        if self._peek() in expected and self._at < len(self._tokens):
            self._at += 1
            return True
        return False

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise _CannotEvaluateError(f"{token!r} is missing")

    def _sum(self) -> Fraction | complex:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _CannotEvaluateError("nested too deeply")
        value = self._product()
        while self._peek() in ("+", "-"):
            sign = -1 if self._take("-") else 1
            if sign == 1:
                self._take("+")
            value = _bounded(value + sign * self._product())
        self._depth -= 1
        return value

    def _product(self, stops: tuple[str, ...] = ()) -> Fraction | complex:
        value = self._signed()
        while True:
            token = self._peek()
            if self._take("*", "\\cdot", "\\times"):
                value = _bounded(value * self._signed())
            elif self._take("/", "\\div"):
                value = _bounded(value / self._signed())
            elif token and token not in "+-)]}|,=<>:;!" and token not in stops:
                if token[0] == "\\" and not self._starts_factor(token):
                    raise _CannotEvaluateError(token)
                value = _bounded(value * self._power())
            else:
                return value

    @staticmethod
    def _starts_factor(token: str) -> bool:
        name = token[1:]
        is_known = name in ("frac", "sqrt", "binom") or name in _CONSTANTS or name in _FUNCTIONS
        return is_known or _SYMBOLS.fullmatch(name) is not None

    def _signed(self) -> Fraction | complex:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._take("-")
            self._take("+")
        value = self._power()
        return -value if negative else value

    def _power(self) -> Fraction | complex:
        value = self._atom()
        while self._peek() in ("!", "%", "degrees"):
            if self._take("!"):
                value = _factorial(value)
            elif self._take("%"):
                value = value / 100
            else:
                self._take("degrees")
                value = complex(value) * math.pi / 180
        if self._take("^"):
            value = _raise(value, self._argument())
        return value

    def _argument(self) -> Fraction | complex:
        """What follows `^`, or a command: a group in braces, or one digit or name."""
        if self._take("{"):
            value = self._sum()
            self._need("}")
            return value
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _CannotEvaluateError("nested too deeply")
        negative = self._take("-")
        value = self._atom()
        self._depth -= 1
        return -value if negative else value

    def _atom(self) -> Fraction | complex:
        token = self._peek()
        for opening, closing in (("(", ")"), ("{", "}"), ("[", "]"), ("|", "|")):
            if self._take(opening):
                value = self._sum()
                self._need(closing)
                if opening != "|":
                    return value
                return abs(value) if isinstance(value, Fraction) else complex(abs(value))
        self._at += 1
        if token[:1].isdigit() or token[:1] == ".":
            return self._number_or_mixed(token)
        name = token.lstrip("\\")
        if name == "frac":
            top = self._argument()
            return _bounded(top / self._argument())
        if name == "binom":
            return _binomial(self._argument(), self._argument())
        if name == "sqrt":
            return self._root()
        if name in _FUNCTIONS and len(name) > 1:
            return self._function(name)
        if not name.isalpha() or (token[0] == "\\" and not self._starts_factor(token)):
            raise _CannotEvaluateError(token)
        return self._variable(name)

    def _number_or_mixed(self, token: str) -> Fraction | complex:
        if len(token) > _MAX_DIGITS:
            raise _CannotEvaluateError("a number of too many digits")
        value: Fraction | complex = Fraction(token.rstrip(".") if token != "." else "x")
        following = self._tokens[self._at : self._at + 7]
        if token.isdigit() and re.fullmatch(
            r"\\frac \{ \d{1,9} \} \{ \d{1,9} \}", " ".join(following)
        ):
            self._at += 7
            value += Fraction(int(following[2]), int(following[5]))
        return value

    def _root(self) -> Fraction | complex:
        degree: Fraction | complex = Fraction(2)
        if self._take("["):
            degree = self._sum()
            self._need("]")
        value = self._argument()
        if degree == 2 and isinstance(value, Fraction) and value >= 0:
            root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
            if root * root == value:
                return root
        is_odd = isinstance(degree, Fraction) and degree.denominator == 1 and degree % 2 == 1
        if is_odd and isinstance(value, Fraction) and value < 0:
            return -_raise(-value, 1 / degree)
        return _raise(value, 1 / degree)

    def _function(self, name: str) -> Fraction | complex:
        function = _FUNCTIONS[name]
        if name == "log" and self._take("_"):
            base = self._argument()
            function = lambda x: cmath.log(x) / cmath.log(complex(base))  # noqa: E731
        exponent = self._argument() if self._take("^") else None
        if self._peek() in ("(", "{", "["):
            argument = self._atom()
        else:
            # `\sin 2x \cos x`: the argument ends where the next function begins.
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise _CannotEvaluateError("nested too deeply")
            stops = tuple(f"\\{f}" for f in _FUNCTIONS) + tuple(_FUNCTIONS)
            argument = self._product(stops)
            self._depth -= 1
        if exponent == -1:
            raise _CannotEvaluateError("an inverse function")
        value: complex = function(complex(argument))
        return value if exponent is None else _raise(value, exponent)

    def _variable(self, name: str) -> Fraction | complex:
        if self._take("_"):
            start = self._at
            depth = 0
            while self._at < len(self._tokens):
                depth += (self._peek() == "{") - (self._peek() == "}")
                self._at += 1
                if depth == 0:
                    break
            name += "_" + "".join(self._tokens[start : self._at]).strip("{}")
        elif name in _CONSTANTS:
            return _CONSTANTS[name]
        spread = zlib.crc32(f"{name} {abs(self._point)}".encode()) % 797
        return Fraction(101 + spread, 211) * (1 if self._point > 0 else -1)


def _tokens(text: str) -> Iterator[str]:
    for number, command, letters, other in _TOKEN.findall(text):
        if number or other:
            yield number or other
        elif command:
            yield f"\\{command}"
        elif letters in _FUNCTIONS or letters in ("sqrt", "pi", "degrees"):
            yield letters if letters == "degrees" else f"\\{letters}"
        else:
            yield from letters


def _bounded(value: Fraction | complex) -> Fraction | complex:
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() > _MAX_BITS:
            raise _CannotEvaluateError("a number of too many digits")
    elif not cmath.isfinite(value):
        raise _CannotEvaluateError("not a finite number")
    return value


def _raise(base: Fraction | complex, exponent: Fraction | complex) -> Fraction | complex:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = base.numerator.bit_length() + base.denominator.bit_length()
        if abs(base) != 1 and abs(exponent.numerator) * bits > _MAX_BITS:
            raise _CannotEvaluateError("a number of too many digits")
        return base ** (exponent.numerator if abs(base) != 1 else exponent.numerator % 2)
    if base == 0:
        raise _CannotEvaluateError("a root or power of zero")
    return _bounded(complex(base) ** complex(exponent))


def _factorial(value: Fraction | complex) -> Fraction:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 3000:
        raise _CannotEvaluateError("a factorial of that")
    return Fraction(math.factorial(value.numerator))


def _binomial(n: Fraction | complex, k: Fraction | complex) -> Fraction:
    if not (isinstance(n, Fraction) and isinstance(k, Fraction)):
        raise _CannotEvaluateError("a binomial of that")
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= 3000:
        raise _CannotEvaluateError("a binomial of that")
    return Fraction(math.comb(n.numerator, k.numerator))
