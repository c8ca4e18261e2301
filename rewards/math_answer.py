r"""Accuracy reward: 1.0 for the right final answer, 0.0 for a wrong one, None for no gradable gold.

The paper's rule-based accuracy reward (section 2.2.2): the final answer stands in a given form, in
a box or in tags, and rules decide whether it equals the gold answer. This file stands alone: it
imports neither a sibling nor `trl_r1`, so it can be copied next to any script and passed to
`trl.GRPOTrainer(reward_funcs=...)`. That is why it is many times longer than its neighbours; it
reads from top to bottom in the parts that the rulers mark: finding the answer, one spelling,
numbers with units, comparing by kind, and an evaluator of formulas.

How an answer is graded. Only the part after the reasoning counts, and of that the last box (or
answer tags, or `Answer:` line). It is compared with the gold answer as text, as a number, by its
kind (date, time, letter, words, matrix, vector, ratio, interval, equation, set, tuple, list) and at
the end by value: a small evaluator works formulas out in exact fractions, and in floats at a few
points. The model writes what is graded, so nothing here can be stalled by it: no `sympy`, no
recursion deeper than a cap, no number longer than a cap, time linear in the length of the
completion.

Conventions, where people disagree:

- An expression is no answer where the gold answer is a plain number: `123 \times 456`, `4+1` and
  `10/2` score 0.0 (`accept_unevaluated=True` changes that); a power, `2^{10}`, is a number.
- Numbers are compared exactly: `0.33` is not a third. One written with nine decimals or more
  stands for what it was rounded from. `a \approx b` says both, if b is what a rounds to.
- `x = 2+3 = 5` says 5; `x = 4 = 5` says nothing, it contradicts itself.
- Percent: gold `35` or `35\%` is `35\%` or `35`; gold `35\%` is also `0.35`; gold up to 1, like
  `0.2`, is a share: `20\%`, not `0.2\%`. `50` is not `5000\%`.
- Units: where both sides have one, they have to measure the same and are converted (`5 km` is
  `5000 m`, not `5` miles, not `5 kg`); a unit that only one side has is passed over. `3` is not
  `3 hours 20 minutes`. Currencies are not converted.
- Thousands: `1,000`, `1 000`, `1{,}000`, `1.000.000`. `1,23,4` and `32, 349` are lists. A decimal
  comma counts only next to a currency sign, after grouped thousands (`1.234,56`), or in an answer
  to a gold answer that is a decimal number. So `1.22` is not the gold list `1,22`.
- A tuple `(1,2)` has an order, is no set and no list; a list without brackets and a set have none.
  A list `1,2` may be written as a set and a set as a list. An answer named twice counts once.
  With two items `[1,2]` and `(1,2)` are different intervals.
- Several answers are one list: `4 or 5`, and boxes joined by `and`, `or` or a comma.
  Otherwise the last box counts. A `Final answer:` after the last box counts before it. What is
  denied (`not \boxed{5}`) or asked (`the answer is 5?`) is no answer.
- `x=5` is `5`, but not `y=5`; `n=2n-1` says nothing. An equation equals its multiples. `y=2x` is
  `2x` and `f(x)=2x`. `5 \pmod 7` names a remainder.
- `52_8` is `42`, not `52`. `2\frac13` and `2 1/3` are mixed numbers.
- `03/05/2024` is March 5 unless only the other reading is a date. `3:30` is 3:30 pm or am; gold
  `3:45` is a time, gold `3:4` or `3:40` a ratio.
- Words are compared without case, articles and full stops; letters of choices without brackets,
  the text of the choice and case. `no solution` is the empty set.
- `\lceil n/2\rceil` and other formulas that round are compared at whole numbers.
- Formulas that are equal count as equal, so a question that says "factor this" can be answered
  by repeating it.

Left out: proofs, integrals, sums and limits as answers (equal only as text), words that mean the
same, tolerances for rounded answers, inequalities that would have to be solved.
"""

from __future__ import annotations

import cmath
import math
import re
import unicodedata
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations, pairwise
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
            also after `####`, `Answer:` or `the answer is`. `lenient`: also the last formula
            or number, or a response that is nothing but an answer.
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


def has_no_answer(
    completions: list[Any], extraction: str = "marked", prefilled: bool = False, **kwargs: Any
) -> list[bool]:
    """Whether each completion has no final answer at all; logged as the share malformed."""
    texts = map(completion_text, completions)
    return [final_answer(text, extraction, prefilled) is None for text in texts]


math_answer_reward.malformed = has_no_answer  # type: ignore[attr-defined]


def row_fault(solution: Any, **columns: Any) -> str | None:
    """Why no completion of a row could be graded; asked of every row when data is loaded."""
    return gold_fault(solution)


math_answer_reward.row_fault = row_fault  # type: ignore[attr-defined]


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
    raw, gold, answer = answer, _canonical(gold), _canonical(answer)
    if _match(gold, answer, accept_unevaluated, 0):
        return True
    stated = _without_lead(answer)
    if stated != answer and _match(_without_lead(gold), stated, accept_unevaluated, 0):
        return True
    formula = _only_formula(raw)
    return formula is not None and _match(gold, _canonical(formula), accept_unevaluated, 0)


# Finding the answer -------------------------------------------------------------------------------


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


_MARKER = re.compile(
    r"####|\b(?:answer(?: to (?:the|this|your) (?:question|problem))?|"
    r"correct (?:option|choice))\b"
    r"(?:[*_ ]{0,4}(?:is\b|[:\uff1a=])[*_:\uff1a ]{0,4}|[ ]{1,4}(?=\$|\\[(\[])|"
    r"(?<=final answer)[*_ ]{0,4}\n)|"
    r"^[ ]{0,4}A:",
    re.IGNORECASE | re.MULTILINE,
)
# The same in other languages, looked for where there is none of these.
_FOREIGN_MARKER = re.compile(
    r"(?:答案|答え|正解|정답|답|答)[*_ ]{0,4}(?:是|为|為|は|은|는|[:\uff1a])[*_:\uff1a ]{0,4}|"
    r"\b(?:antwort|r[ée]ponse|respuesta|risposta|resposta|antwoord|odpowied[źz]|cevap|ответ)"
    r"(?: (?:finale?|correct[ae]|final[ea]))?[*_ ]{0,4}"
    r"(?:[:\uff1a=]|\b(?:ist|lautet|est|es|è|é|is|to)\b)[*_:\uff1a ]{0,4}",
    re.IGNORECASE,
)
_STOP_TOKEN = re.compile(r"<\|[a-zA-Z_]{1,20}\|>|</s>")
_FINAL_MARKER = re.compile(
    r"\bfinal answer\b[*_ ]{0,4}(?:is\b|:)[*_: ]{0,4}(?=[$\d-]|\\[(\[]|\\frac)", re.IGNORECASE
)
_FORMULA = re.compile(
    r"\$\$([^$]{1,1000})\$\$|\$([^$]{1,1000})\$(?!\d)|"
    r"\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\]"
)
_NUMBER_IN_TEXT = re.compile(
    r"(?<![\w.,])-?(?:\$ ?)?(?:\d{1,3}(?:,\d{3}){1,50}(?![\d,]*\d)|\d{1,400})(?:\.\d{1,400})?"
    r"(?:/\d{1,400})?%?"
)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
# What may stand between two boxes that are one answer: `\boxed{1} and \boxed{2}`.
_MAX_JOIN = 40
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot)|n['\u2019]t|\\neq?|\u2260)(?:\s(?:be|equal|equals|to)){0,3}\s?[$*]{0,2}"
    r"(?:\\[(\[])?\s?$"
)
_TAIL = 4000  # where an answer that nothing marks is looked for


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
    stop = _STOP_TOKEN.search(visible, max(0, len(visible) - 100))
    visible = visible[: stop.start()] if stop else visible
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
    if extraction == "strict":
        return box
    if box is not None:
        after = text[text.rfind("\\boxed") :] if "inal" in text else ""
        final = _FINAL_MARKER.search(after)
        return box if final is None else _after_marker(after[final.start() :]) or box
    marked = _unclosed_box(text)
    if marked is None:
        marked = _after_marker(text)
    if marked is not None or extraction == "marked":
        return marked
    return _last_statement(text)


def gold_answer(solution: Any) -> str:
    r"""The answer in a gold text: its last box, what follows its last `####`, or all of it."""
    text = str(solution)
    box = _last_box(text, is_gold=True)
    if box is not None:
        return box
    _, has_mark, after = text.rpartition("####")
    return (after if has_mark else text).strip()


def _last_box(text: str, is_gold: bool = False) -> str | None:
    r"""Content of the last closed `\boxed{...}` (or `\boxed 5`), found in one pass.

    Boxes joined by a comma, `and` or `or` are one answer, a list: `\boxed{4} or \boxed{5}` is not
    the answer 5. In a gold answer, boxes with nothing between them are one too. A box that is
    denied, `not \boxed{5}`, is none.
    """
    if "boxed" not in text and "fbox" not in text:
        return None
    closing = _matching_braces(text)
    found: list[tuple[str, int]] = []
    for match in reversed(list(_BOX.finditer(text))):
        box = _box_at(text, match.end(), closing)
        if box is None or _DENIED.search(text, max(0, match.start() - 40), match.start()):
            continue
        between = text[box[1] : found[-1][1]] if found else ""
        if found and not (_is_join(between) or (is_gold and not between.strip())):
            break
        found.append((box[0], match.start()))
        if len(found) > 50:
            return None
    contents = [content for content, _ in reversed(found)]
    if 1 < len(contents) < 5 and all(answers_match(contents[0], other) for other in contents[1:]):
        return contents[-1]  # the same twice: `\\boxed{1\frac12} or \\boxed{1.5}`
    return ", ".join(contents) if contents else None


def _box_at(text: str, start: int, closing: dict[int, int]) -> tuple[str, int] | None:
    r"""Content of the box whose `\boxed` ends at `start`, and where it ends; None if not closed."""
    end = start
    while end < len(text) and text[end] == " " and end < start + 8:
        end += 1
    if text[end : end + 1] == "{":
        return (text[end + 1 : closing[end]].strip(), closing[end] + 1) if end in closing else None
    token = re.match(r"[^\s$]{1,100}", text[end : end + 100]) if end > start else None
    return (token.group().rstrip(".,;"), end + token.end()) if token else None


def _is_join(between: str) -> bool:
    r"""Whether the text between two boxes makes them one answer: at most two words beside `and`."""
    if len(between) > _MAX_JOIN or "\n\n" in between or "boxed" in between:
        return False
    if re.search(r"[.!?:]\s|\bnot?\b|=|\bwait\b|\bboth\b", between, re.IGNORECASE):
        return False
    words = re.sub(r"\\[a-zA-Z]+", " ", between)
    if re.search(r"\b(?:and|or)\b", words, re.IGNORECASE):
        return len(re.findall(r"[A-Za-z]+", words)) <= 3
    return "," in words and not re.search(r"[A-Za-z]", words)


def _unclosed_box(text: str) -> str | None:
    r"""What follows a last `\boxed{` that ends with the text instead of a brace."""
    _, has_box, rest = text.rpartition("\\boxed{")
    rest = rest.strip().rstrip("$").strip().removesuffix("\\}")
    return rest if has_box and rest and "\n" not in rest else None


def _after_marker(text: str) -> str | None:
    """What follows the last `####`, `Answer:` or `answer is`, to the end of its sentence."""
    for pattern in (_MARKER, _FOREIGN_MARKER):
        ends = deque((match.end() for match in pattern.finditer(text)), maxlen=_MAX_MARKERS)
        for end in reversed(ends):
            statement = _statement_at(text, end)
            if statement != _QUESTION:
                return statement or None
    return None


_MAX_MARKERS = 8
_QUESTION = "?"


def _statement_at(text: str, start: int) -> str:
    """What stands from there to the end of a sentence; `?` for one that only asks."""
    rest = text[start : start + MAX_ANSWER_CHARS + 100].lstrip().lstrip("*_:").lstrip()
    formula = _FORMULA.match(rest)
    if formula and not re.match(r"\$ ?\d[\d,.]*\b[^$]*$", rest.partition("\n")[0]):
        following = rest[formula.end() :].lstrip()
        if not re.match(r"(?:(?:and|or)\b|,)\s?[$\\\d]", following):
            return str(formula[formula.lastindex or 0]).strip()
    line = rest.partition("\n")[0][: MAX_ANSWER_CHARS + 1]
    line = line.strip().lstrip(":").strip().strip("*_ ")
    line = re.sub(r"^[-*] (?=[A-Za-z$\\])", "", line)  # an item of a list
    end = _END_OF_STATEMENT.search(line)
    if end is not None and end.group() == "?":
        return _QUESTION
    line = line[: end.start()] if end else line
    return line.rstrip(".").strip().strip("*_ ")


_END_OF_STATEMENT = re.compile(r"\.(?=\s)|。|[;!?](?=\s|$)|,?\s(?:since|because|which)\b")
# A word that is no list, function or name: what has one is a sentence.
_ENGLISH = re.compile(
    r"(?!(?:and|or|text|sqrt|sin|cos|tan|log|ln|exp|pi)\b)\b[A-Za-z]*[a-z][A-Za-z]+\b"
)


def _last_statement(text: str) -> str | None:
    """The last formula or number of a text, or all of one that is an answer and nothing else."""
    whole = text.strip()
    plain = re.sub(r"\\(?:begin|end)\s?\{[a-zA-Z]{1,12}\}", " ", whole)
    if len(whole) <= 200 and "\n" not in whole and not _ENGLISH.search(_COMMAND.sub(" ", plain)):
        return whole or None
    tail = text[-_TAIL:]
    formula = None
    for match in _FORMULA.finditer(tail):
        content = str(match[match.lastindex or 0])
        if not re.search(r"\b[a-z]{2,} [a-z]{2,}", re.sub(r"\\[a-z]+(?:\{[^{}]*\})?", "", content)):
            formula = match
    number = None
    for match in _NUMBER_IN_TEXT.finditer(tail):
        number = match
    if formula is not None and (number is None or number.start() < formula.end()):
        return str(formula[formula.lastindex or 0]).strip()
    if number is not None:
        return number.group()
    return whole if len(whole) <= 200 and len(whole.split()) <= 3 else None


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
_SUPERSCRIPTS = {
    **{"\u00b9": "1", "\u00b2": "2", "\u00b3": "3", "\u207a": "+", "\u207b": "-"},
    **{chr(0x2070 + i): str(i) for i in (0, *range(4, 10))},
}
_SUBSCRIPTS = {chr(0x2080 + i): str(i) for i in range(10)}
_CHARACTERS = str.maketrans(
    {
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # full-width forms
        **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u2007\u3000\u2005\u2006\u200a", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f", None),
        **dict.fromkeys("\u2018\u2019\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u2033", '"'),
        **{"\u3001": ",", "\u3002": ".", "\u2044": "/", "\u2215": "/", "\u2236": ":"},
        "\u00f7": "/",
        **{"\u00d7": "\\times ", "\u00b7": "\\cdot ", "\u22c5": "\\cdot ", "\u2219": "\\cdot "},
        **{"\u03c0": "\\pi ", "\u221a": "\\sqrt ", "\u221b": "\\sqrt[3]", "\u00b0": "^\\circ "},
        **{"\u03b8": "\\theta ", "\u221e": "\\infty ", "\u2264": "\\le ", "\u2265": "\\ge "},
        **{"\u2260": "\\ne ", "\u2208": "\\in ", "\u222a": "\\cup ", "\u2205": "\\emptyset "},
        **{"\u2229": "\\cap ", "\u00b1": "\\pm ", "\u2248": "\\approx ", "\u211d": "\\mathbb{R}"},
        **{"\u27e8": "\\langle ", "\u27e9": "\\rangle ", "\u2223": "|", "\u00b5": "\\mu "},
        **{"\u03bc": "\\mu ", "\u03a9": "\\Omega ", "\u2103": "^\\circ \\text{C}"},
        **{"\u2109": "^\\circ \\text{F}", "\u2234": ""},
    }
)
_DROPPED = (
    *("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "limits"),
    *("displaystyle", "textstyle", "scriptstyle", "!", ",", "(", ")", "[", "]", "rm", "bf", "it"),
    *("mathstrut", "checkmark", "therefore", "ensuremath", "nonumber", "blacksquare", "square"),
)
_SAME: dict[str, str] = {
    **dict.fromkeys(_DROPPED, ""),
    **dict.fromkeys((";", ":", " ", "quad", "qquad", "enspace", "thinspace", "\n"), " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"), "\\frac"),
    **dict.fromkeys(("mbox", "textrm", "textnormal", "mathrm", "operatorname"), "\\text"),
    **dict.fromkeys(("textbf", "mathbf", "boldsymbol", "bm", "textit", "mathit"), "\\text"),
    **dict.fromkeys(("mathsf", "texttt", "mathcal", "textsf", "emph", "hbox"), "\\text"),
    **dict.fromkeys(("{", "lbrace"), _SET_OPEN),
    **dict.fromkeys(("}", "rbrace"), _SET_CLOSE),
    **dict.fromkeys(("leq", "leqslant"), "\\le "),
    **dict.fromkeys(("geq", "geqslant"), "\\ge "),
    **{"neq": "\\ne ", "lt": "<", "gt": ">", "varnothing": "\\emptyset ", "degree": "^\\circ "},
    **{"%": "%", "$": "$", "&": "&", "_": "_", "#": "#", "dbinom": "\\binom", "tbinom": "\\binom"},
    **{"lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "lparen": "(", "rparen": ")"},
    **{"langle": "(", "rangle": ")", "colon": ":", "div": "/", "simeq": "\\approx "},
    **{"asymp": "\\approx ", "rightarrow": "\\to ", "longrightarrow": "\\to ", "lbrack": "["},
    **{"rbrack": "]", "bar": "\\overline", "lor": "\\text{or}"},
    **{"vee": "\\text{or}", "land": "\\text{and}", "wedge": "\\text{and}", "R": "\\mathbb{R}"},
    **{"dots": "...", "ldots": "...", "cdots": "...", "infin": "\\infty ", "mod": "\\bmod "},
    **{"bigcup": "\\cup ", "bigcap": "\\cap ", "euro": "\u20ac", "pounds": "\u00a3"},
    **{"setminus": "\\setminus ", "backslash": "\\setminus "},
}
_TWICE_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)+[a-zA-Z({]")
_ESCAPED_ONCE = re.compile(r"(?<!\\)(?:\\\\)*\\[a-zA-Z]")
_COMMAND = re.compile(r"\\([a-zA-Z]+|.)", re.DOTALL)
_NAMED = re.compile(
    r"\\text\s?\{\s?(arc(?:sin|cos|tan)|sinh?|cosh?|tanh?|cot|sec|csc|log|ln|lg|exp|gcd|lcm)\s?\}"
)


def _command(match: re.Match[str]) -> str:
    name = match.group(1)
    if name == "\\":
        return "\\\\ "
    if name.startswith("quad") and name not in _SAME:  # `\quadx`
        return f" {name[4:]}"
    new = _SAME.get(name, match.group())
    return new + " " if name.isalpha() and new == match.group() else new


@lru_cache(maxsize=_CACHED)
def _canonical(text: str) -> str:
    """One spelling of an answer: no markup, plain characters, braces round every LaTeX argument."""
    if not text.isascii():
        text = _plain_characters(text)
    if text.isdigit() or text.isalpha():
        return text
    text = re.sub(r"[\t\r\n~]", " ", text).strip("` ")
    text = text[1:-1].strip() if len(text) > 2 and text[0] == text[-1] == '"' else text
    text = re.sub(r"(?<=\d)\s?\{,\s?\}\s?(?=\d)", "", text)
    if "\\\\" in text and _TWICE_ESCAPED.search(text) and not _ESCAPED_ONCE.search(text):
        text = text.replace("\\\\", "\\")
    wrapped = re.fullmatch(r"(\$\$?)((?:\\.|[^$\\])*)\1", text)
    text = wrapped.group(2) if wrapped else text
    if text.count("$") - text.count("\\$") > 1:
        text = re.sub(r"(?<!\\)\$\$?((?:\\.|[^$\\])+)\$\$?", r"\1", text)
    text = re.sub(r",\s?\\!\s?", "", text)
    # A thin space groups thousands; between other digits it parts two numbers.
    text = re.sub(r"(?<=\d)\\[,!;:]\s?(?=\d)(?!\d{3}(?!\d))", " ", text)
    text = _without_decoration(text) if "\\" in text else text
    text = _COMMAND.sub(_command, text)
    text = re.sub(r"\$+(?=\s*[^\s\d.\-])|(?<=[^\s])\$+|\$\$", "", text)
    text = text.replace("<=", "\\le ").replace(">=", "\\ge ").replace("!=", "\\ne ")
    text = text.replace("**", "^") if re.search(r"\w\*\*\w", text) else text.strip("* ")
    text = text.replace("&", "") if "&" in text and "\\begin" not in text else text
    if "\\" in text:
        text = _one_latex(text)
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text)
    text = re.sub(r"[ ]{2,}", " ", text).strip(" ")
    while text[:1] == "{" and (group := _brackets(text)) and group[1] and group[2] == "}":
        text = group[1]
    text = re.sub(r"^\\text\{([^{}]*)\}$", r"\1", text).strip()
    text = _open_intervals(text) if text[:1] in "[]" or "]" in text else text
    return text[:-1].rstrip() if text.endswith((".", ",")) and len(text) > 1 else text


def _plain_characters(text: str) -> str:
    """ASCII and LaTeX for what Unicode has characters for: digits of any script, fractions."""
    text = re.sub(
        r"[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+",
        lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m.group()) + "}",
        text,
    )
    text = re.sub(
        r"[\u2080-\u2089]+", lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m.group()) + "}", text
    )
    text = re.sub(r"\u221a\s?(\d+|[a-zA-Z])", r"\\sqrt{\1}", text).translate(_CHARACTERS)
    if text.isascii():
        return text
    plain = []
    for char in text:
        new = char
        if unicodedata.category(char) == "Nd":
            new = str(unicodedata.decimal(char))
        elif unicodedata.category(char) == "No" and "\u2044" in unicodedata.normalize("NFKC", char):
            top, _, bottom = unicodedata.normalize("NFKC", char).partition("\u2044")
            new = f"\\frac{{{top}}}{{{bottom}}}" if bottom else char
        elif 0x1D400 <= ord(char) <= 0x1D7CB:  # mathematical letters
            new = unicodedata.normalize("NFKC", char)
        plain.append(new)
    return "".join(plain)


def _without_decoration(text: str) -> str:
    r"""Without colours, underlines, spacing, nested boxes; `a \over b` as a fraction."""
    text = re.sub(r"(?<=[A-Za-z}])\\[,!](?=\\?[A-Za-z])", " ", text)
    text = re.sub(r"\\(?:textcolor|color)\s?\{[^{}]{1,30}\}", "", text)
    text = re.sub(r"\\(?:hspace|vspace|phantom|hphantom|tag|label)\*?\{[^{}]{0,40}\}", " ", text)
    text = re.sub(r"\\(?:underline|boxed|fbox|ensuremath)(?![a-zA-Z])\s?(?=\{)", "", text)
    text = re.sub(r"\\\\\[[^\[\]]{1,10}\]", r"\\\\", text)
    text = re.sub(r"\{([^{}]{1,80})\\over(?![a-z])([^{}]{1,80})\}", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\{([^{}]{1,80})\\choose(?![a-z])([^{}]{1,80})\}", r"\\binom{\1}{\2}", text)
    text = re.sub(r"(?:\\quad|\\qquad|\\\\|\\,|\\;|\s)+$", "", text)
    return text[:-1] if re.search(r"(?<!\\)(?:\\\\)*\\$", text) else text


def _one_latex(text: str) -> str:
    text = re.sub(r"\^\s?\{?\s?\\circ\s?\}?", " degrees ", text)
    text = re.sub(r"(\d)\s?\^?\s?\{?\s?\\text\s?\{\s?(?:st|nd|rd|th)\s?\}\s?\}?", r"\1 ", text)
    text = re.sub(r"\\(frac|sqrt|binom|overline)\s+(?=[\d{\[\\])", r"\\\1", text)
    text = re.sub(r"\\(frac|binom)(\d)\s?(\d)", r"\\\1{\2}{\3}", text)
    text = re.sub(r"\\(frac|binom)(\d|[a-z])\s?\{", r"\\\1{\2}{", text)
    text = re.sub(r"(\\(?:frac|binom)\{[^{}]{1,60}\})\s?(\d|[a-z])", r"\1{\2}", text)
    text = re.sub(r"\\(sqrt|overline)(\d|[a-z])(?![a-z])", r"\\\1{\2}", text)
    text = re.sub(r"\\text\s+\{", r"\\text{", text)
    text = _NAMED.sub(r"\\\1 ", text)
    return re.sub(r"\\text\{([^{}A-Za-z\u20ac\u00a3]*)\}", r"\1", text)


def _open_intervals(text: str) -> str:
    """`]a,b[` of some countries as `(a,b)`."""
    pair = re.fullmatch(r"([\[\]])([^\[\]{}]+[,;][^\[\]{}]+)([\[\]])", text)
    if pair is None or (pair[1] == "[" and pair[3] == "]"):
        return text
    return ("[" if pair[1] == "[" else "(") + pair[2] + ("]" if pair[3] == "]" else ")")


def _same_text(gold: str, answer: str) -> bool:
    """Equal but for spaces, where a space does not part two words or two numbers."""
    if gold == answer:
        return True
    if " " not in gold and " " not in answer:
        return False
    return _SPACE.sub("", gold) == _SPACE.sub("", answer)


_SPACE = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")


# Numbers with units -------------------------------------------------------------------------------

_DIGITS = (
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?:[ ]\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)"
)
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s?
    (?P<money>(?:US|CA|A|NZ|HK)?\$|[€£¥₹]|(?:USD|EUR|GBP|Rs\.?)\s)?\s?(?P<sign2>[+-]?)\s?
    (?:(?P<whole>\d+)?\s?\+?\s?
      \\frac\{{\s?(?P<num>-?{_DIGITS})\s?\}}\{{\s?(?P<den>-?{_DIGITS})\s?\}}
    |(?P<whole2>\d{{1,3}}(?:[ ]\d{{3}})+|\d+)\s(?P<num2>\d+)\s?/\s?(?P<den2>\d+)
    |(?P<num3>{_DIGITS})\s?/\s?(?P<den3>{_DIGITS})
    |(?P<repeat0>\d*\.\d*)\\overline\s?\{{\s?(?P<repeat>\d+)\s?\}}
    |(?P<mantissa>{_DIGITS})
      (?:\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?\{{?\s?(?P<exp>[+-]?\d{{1,3}})\s?\}}?
      |[eE](?P<exp2>[+-]?\d{{1,3}})(?!\d))?)
    (?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_BASED = re.compile(
    r"\(?(?:\\text\s?\{)?([0-9A-Za-z]{1,64})\}?\)?\s?_\s?\{?\s?"
    r"(?:\\text\s?\{)?\s?(\d{1,2}|[a-z]{3,11})\s?\}?\s?\}?"
)
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_BASE_NAMES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
_POWER = re.compile(r"(-?)(\d{1,4})\s?\^\s?\{?\s?(-?\d{1,3})\s?\}?")
_EUROPEAN = re.compile(
    r"([€£]?\s?-?)(\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:[. ]\d{3})+(?=,)|\d+(?=,\d\d\s?€)|"
    r"(?<=€)\d+|(?<=€ )\d+|0(?=,\d{3}$))"
    r"(?:,(\d{1,3}))?(\s?(?:€|\D.*)?)"
)
# Chinese measure words after a number; those that multiply it, as \u4e07, are none.
_COUNTER = re.compile(
    r"(?<=\d)\s?[\u4e2a\u500b\u5143\u4eba\u53ea\u672c\u5929\u5c81\u6b21\u4ef6\u5757\u6761\u9897\u68f5\u5934\u5f20\u4f4d\u540d\u679a\u8f86\u9875\u79cd]$"
)
_WORDS = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7},
    **{"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13},
    **{"fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18},
    **{"nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60},
    **{"seventy": 70, "eighty": 80, "ninety": 90},
}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8}
# Words that say more about a number than what it counts.
_NOT_UNITS = re.compile(
    r"or|and|not|to|through|times|plus|minus|over|divided|by|dozen|half|halves|"
    r"less|than|about|between|either|maybe|except|but|pi|sqrt|sin|cos|tan|log|ln|exp|no|mod|is|"
    r"root|factorial|choose|below|above|score|wrong|incorrect|false|tens|hundreds|thousands|"
    r"gross|lakhs?|crores?|mil|mille|mill(?:ones|ionen|[oó]n)|tausend|noon|midnight|unless|if|when|"
    r"(?:third|four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|million)ths?|thirds"
)
# Words before a number that change it, or leave it open.
_HEDGES = re.compile(
    r"or|and|not|no|nor|never|neither|either|maybe|sqrt|root|twice|half|double|triple|square|cube|"
    r"minus|negative|plus|times|least|most|more|fewer|less|than|over|under|below|above|up|between|"
    r"from|to|option|choice|sum|product|sin|cos|tan|log|ln|exp|max|min|of|mod|except|without|"
    r"\w+n't|isnt|but|wrong|greater|smaller|pi|dozen|per|until|before|after|next|"
    r"hundred|thousand|million|billion|"
    r"case|step|fig|figure|eq|equation|table|page|chapter|section|example|exercise|part|"
    r"by|every|almost|within|beyond|base"
)
# What is measured in which units, and how many of the first one each is. Dimensions: length L, mass
# M, time T, current I, temperature K, substance S; money by currency.
_DIMENSIONS: tuple[tuple[str, str], ...] = (
    (
        "L",
        "m meter metre 1 in inch inche 0.0254 ft foot feet 0.3048 yd yard 0.9144 mi mile 1609.344",
    ),
    ("M", "g gram 1 tonne 1000000 lb lbs pound 453.59237 oz ounce 28.349523125"),
    ("T", "s sec second 1 min minute 60 h hr hrs hour 3600 day 86400 week wk 604800"),
    ("month", "month 1 year yr 12 decade 120 century 1200"),
    ("L3", "l L liter litre 0.001 cc 0.000001 gal gallon 0.003785411784"),
    ("dollar", "$ usd dollar buck 1 cent 0.01"),
    ("euro", "€ eur euro 1"),
    ("sterling", "£ gbp 1"),
    ("yen", "¥ yen 1"),
    ("rupee", "₹ rs rupee 1"),
    ("degree", "degree deg 1"),
    ("radian", "rad radian 1"),
    ("I", "A amp ampere 1"),
    ("K", "K kelvin 1"),
    ("S", "mol mole 1"),
    ("M L T-2", "N newton 1000"),
    ("M L2 T-2", "J joule 1000"),
    ("M L2 T-3", "W watt 1000"),
    ("M L-1 T-2", "Pa pascal 1000"),
    ("T-1", "Hz hertz 1"),
    ("I T", "C coulomb 1"),
    ("M L2 T-3 I-1", "V volt 1000"),
    ("M L2 T-3 I-2", "ohm 1000"),
    ("L T-1", "mph 0.44704"),
)
_SHORT_PREFIXES = {"p": -12, "n": -9, "u": -6, "m": -3, "c": -2, "d": -1, "k": 3, "M": 6, "G": 9}
_LONG_PREFIXES = {"nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "kilo": 3}
_LONG_PREFIXES |= {"mega": 6, "giga": 9}
_PREFIXED = {"m", "g", "s", "l", "L", "A", "mol", "N", "J", "W", "Pa", "Hz", "C", "V", "ohm"}


def _read_units() -> dict[str, tuple[dict[str, int], Fraction]]:
    units: dict[str, tuple[dict[str, int], Fraction]] = {}
    for dimension, row in _DIMENSIONS:
        powers = {}
        for name, power in re.findall(r"([A-Za-z]+)(-?\d)?", dimension):
            powers[name] = int(power or 1)
        names: list[str] = []
        for word in row.split():
            if not word[0].isdigit():
                names.append(word)
                continue
            units.update(dict.fromkeys(names, (powers, Fraction(word))))
            names = []
    units["kph"] = units["kmh"] = units["kmph"] = (units["mph"][0], Fraction(5, 18))
    return units


_UNITS = _read_units()


@dataclass(frozen=True)
class _Unit:
    """What follows a number: its words, and where all of them are known what they measure."""

    words: frozenset[str] = frozenset()
    dimension: tuple[tuple[str, int], ...] | None = None
    size: Fraction = Fraction(1)
    is_symbol: bool = False  # one letter outside \text: it may be a variable
    is_percent: bool = False
    scale: int = 0  # of "3 million"


@dataclass(frozen=True)
class _Number:
    """A number as written: its value, unit, and whether a fraction or percent sign shows."""

    value: Fraction
    unit: _Unit | None = None
    is_percent: bool = False
    is_ratio: bool = False
    is_sum: bool = False  # 2 hours 30 minutes


def _fraction(digits: str) -> Fraction:
    digits = digits.replace(",", "").replace(" ", "")
    return Fraction(digits.rstrip(".") or "0")


@lru_cache(maxsize=_CACHED)
def _number(text: str) -> _Number | None:
    """A canonical text as a number with an optional unit, None where it is anything else."""
    if len(text) > _MAX_DIGITS:
        return None
    if not re.search(r"\d", text):
        return _number_of_words(text)
    based = _BASED.fullmatch(text) if "_" in text else None
    if based:
        return _in_base(based[1], based[2])
    text = _COUNTER.sub("", text)
    text = re.sub(r"^(-?)[({](-?\d+)[)}]\s?/\s?[({]?(\d+)[)}]?$", r"\1\2/\3", text)
    text = re.sub(r"^(-?\d+)\s?/\s?[({](\d+)[)}]$", r"\1/\2", text)
    sign = text[:1] if text[:1] in ("+", "-") else ""
    inside = _brackets(text[len(sign) :].strip()) if text.endswith((")", "}")) else None
    if inside and inside[0] == "(" and "," in inside[1]:
        return None  # a tuple, also where its parts would make a number: `(123,456)`
    if inside and inside[0] in "({" and (not sign or re.fullmatch(r"[\d.,/ ]+", inside[1])):
        number = _number(inside[1])
        return replace(number, value=-number.value) if number and sign == "-" else number
    text = re.sub(r"^\(([^()]{1,60})\)\s?(?=degrees|\\text)", r"\1 ", text)
    match = _NUMBER.fullmatch(_without_european(text))
    return _read_number(match) or _sum_of_units(text) if match else None


def _read_number(match: re.Match[str]) -> _Number | None:
    value = _value(match)
    rest = match["rest"].strip()
    aside = re.fullmatch(r"(?:\\text\{)?\s?\(([a-z\- ]{3,40})\)\s?\}?", rest, re.IGNORECASE)
    if aside and value is not None and _spelled_number(aside[1]) == value:
        rest = ""  # "12 (twelve)"
    unit = _unit(rest, match["rest"][:1].isspace()) if rest else None
    if value is None or (rest and unit is None) or (match["sign2"] and not match["money"]):
        return None
    if unit:
        value *= 10**unit.scale
        unit = unit if unit.words else replace(unit, dimension=None)
    is_percent = bool(unit and unit.is_percent)
    if match["money"]:
        money = _unit(match["money"].strip().rstrip("."), False) or _unit("$", False)
        is_rate = re.match(r"(?:\\text\s?\{)?\s?(?:per\b|/|a\b|each\b)", rest)
        if is_rate:
            unit = money
        if unit and unit.words and money and unit.dimension != money.dimension:
            return None
        unit = unit if unit and unit.words else money
    if unit and (is_percent or not unit.words):
        unit = None
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
            quotient = _fraction(part[num]) / bottom
            if part.get(whole) and not 0 <= quotient < 1:
                return None  # `2 \frac{7}{3}` is no mixed number
            return _fraction(part.get(whole) or "0") + quotient
    if part["repeat"] is not None:
        head, tail = part["repeat0"], part["repeat"]
        scale = 10 ** len(head.partition(".")[2])
        return _fraction(head) + Fraction(int(tail), (10 ** len(tail) - 1) * scale)
    exponent = part["exp"] or part["exp2"]
    return _fraction(part["mantissa"]) * Fraction(10) ** int(exponent or 0)


def _in_base(digits: str, base: str) -> _Number | None:
    number = int(base) if base.isdigit() else _BASE_NAMES.get(base, 0)
    try:
        return _Number(Fraction(int(digits, number))) if 2 <= number <= 36 else None
    except ValueError:
        return None  # a digit that this base has not


def _without_european(text: str) -> str:
    """`1.000.000`, `1.234,56` and `36,00 €` with a decimal point; other commas part a list."""
    if "," not in text and text.count(".") < 2:
        return text
    match = _EUROPEAN.fullmatch(text)
    if match is None:
        return text
    decimals = f".{match[3]}" if match[3] else ""
    return match[1] + re.sub(r"[. ]", "", match[2]) + decimals + match[4]


def _number_of_words(text: str) -> _Number | None:
    """`twelve`, `ten dollars`."""
    words = re.sub(r"\\text\s?\{|\}", " ", text).split()
    for end in range(min(len(words), 12), 0, -1):
        value = _spelled_number(" ".join(words[:end]))
        if value is not None:
            unit = _unit(" ".join(words[end:]), True) if end < len(words) else None
            is_number = end == len(words) or (unit is not None and unit.words)
            return _Number(value, unit) if is_number and words[0].casefold() not in "an" else None
    return None


@lru_cache(maxsize=_CACHED)
def _spelled_number(text: str) -> Fraction | None:
    """`one hundred and twenty-three`, `two thirds`, `minus five`; None where it is no number."""
    if len(text) > 100:
        return None
    words = re.sub(r"\\text\s?\{|\}|-", " ", text.casefold()).split()
    sign = 1
    if words and words[0] in ("minus", "negative"):
        sign, words = -1, words[1:]
    if not words or (words[0] not in _WORDS and words[0] not in ("a", "an")):
        return None
    if len(words) > 3 and words[-3:-1] == ["and", "a"] and words[-1] in _PARTS:
        whole = _spelled_number(" ".join(words[:-3]))
        return None if whole is None else sign * (whole + Fraction(1, _PARTS[words[-1]]))
    last = words[-1][:-1] if words[-1].endswith("s") else words[-1]
    if len(words) == 2 and last in _PARTS:
        return sign * Fraction(_WORDS.get(words[0], 1), _PARTS[last])
    total = _added_up(words)
    return None if total is None or words in (["a"], ["an"]) else Fraction(sign * total)


def _added_up(words: list[str]) -> int | None:
    """`one hundred and twenty three`: each word may only follow what it can add to or multiply."""
    total = group = 0
    previous = 0  # -1 after a number below 20, the exponent after a scale
    for i, word in enumerate(words):
        value = 1 if i == 0 and word in ("a", "an") else _WORDS.get(word)
        if value is not None:
            if i and previous not in _SCALES.values() and not (previous >= 20 and value < 10):
                return None  # "one two"
            group, previous = group + value, value if value >= 20 else -1
        elif word in _SCALES and group:
            group *= 10 ** _SCALES[word]
            total, group = (total, group) if word == "hundred" else (total + group, 0)
            previous = _SCALES[word]
        elif word != "and" or i in (0, len(words) - 1) or previous not in _SCALES.values():
            return None
    return total + group


@lru_cache(maxsize=_CACHED)
def _unit(rest: str, has_space: bool) -> _Unit | None:
    r"""The unit that follows a number; None where what follows is not one."""
    is_text = rest.startswith("\\text{")
    plain = re.sub(r"\\text\s?\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1 ", rest)
    plain = re.sub(r"\\frac\s?\{([^{}]*)\}\s?\{([^{}]*)\}", r"\1/\2", plain)
    plain = re.sub(r"\\(?:cdot|times)\s?|\*", " ", plain)
    plain = plain.replace("\\mu ", "u").replace("\\Omega ", "ohm")
    plain = re.sub(r"\^\s?\{?\s?(-?\d)\s?\}?", r" ^\1 ", plain)
    if not re.fullmatch(r"[A-Za-z%/.\-' ^0-9()$€£¥₹]{1,80}", plain):
        return None
    if re.search(r"(?<!\^)(?<!\^-)\d", plain):
        return None
    words = re.findall(r"[A-Za-z%'$€£¥₹]+(?:-[A-Za-z]+)*|\^-?\d|/|\(|\)", plain)
    if not words or any(
        w.casefold() in _WORDS or _NOT_UNITS.fullmatch(w.casefold()) for w in words
    ):
        return None
    if words[0].casefold() in ("squared", "cubed"):
        return None
    if words[0] == "%" or words[0].casefold() in ("percent", "percentage", "pct"):
        return (
            _Unit(frozenset(["%"]), is_percent=True) if words[0] != "%" or len(words) == 1 else None
        )
    scale = _SCALES.get(words[0].casefold(), 0)
    words = words[1:] if scale else words
    if not words:
        return _Unit(scale=scale)
    dimension, size, num_known = _measure(words)
    if words[0].casefold() in ("degree", "degrees"):
        dimension = None  # of an angle or of temperature: compared by name
    is_symbol = not is_text and len(words[0]) == 1 and words[0].isalpha()
    if is_symbol and (words[0] not in "mshgl" and not (has_space and words[0] in "LNJWVAKC")):
        return None
    if not (
        is_text or scale or num_known or (has_space and (len(words[0]) > 2 or words[0] == "of"))
    ):
        return None
    names = frozenset(_unit_name(word) for word in words if word[0] not in "^/()")
    return _Unit(names, dimension, size, is_symbol and len(words) == 1, False, scale)


def _measure(words: list[str]) -> tuple[tuple[tuple[str, int], ...] | None, Fraction, int]:
    """Dimension and size of unit words, and how many of them are known. `m/s ^2`, `square feet`.

    Unknown words at the end only say what is measured: `5 cm long`.
    """
    powers: dict[str, int] = {}
    size = Fraction(1)
    sign, is_open, times, num_known = 1, False, 1, 0
    for i, word in enumerate(words):
        lower = word.casefold()
        if lower in ("/", "per"):
            sign = -1
        elif word in "()":
            is_open = word == "("
            sign = sign if is_open else 1
        elif lower in ("square", "sq", "cubic", "cu"):
            times = 2 if lower[0] == "s" else 3
        elif lower in ("squared", "cubed") or word[0] == "^":
            continue
        else:
            known = _known_unit(word)
            if known is None:
                is_extra = num_known > 0 and sign == 1 and times == 1
                return (
                    (tuple(sorted(powers.items())), size, num_known)
                    if is_extra
                    else (None, size, 0)
                )
            following = words[i + 1] if i + 1 < len(words) else ""
            times = {"squared": 2, "cubed": 3}.get(following.casefold(), times)
            times = int(following[1:]) if following.startswith("^") else times
            for name, power in known[0].items():
                powers[name] = powers.get(name, 0) + power * sign * times
            size *= known[1] ** (sign * times)
            num_known, times = num_known + 1, 1
            sign = sign if is_open else 1
    return (tuple(sorted(powers.items())), size, num_known) if num_known else (None, size, 0)


@lru_cache(maxsize=1000)
def _known_unit(word: str) -> tuple[dict[str, int], Fraction] | None:
    lower = word.casefold()
    singular = lower[:-1] if len(lower) > 3 and lower.endswith("s") else lower
    for name in (word, lower, singular):
        if name in _UNITS and (len(name) > 1 or name == word or not name.isalpha()):
            return _UNITS[name]
    if word[:1] in _SHORT_PREFIXES and word[1:] in _PREFIXED:
        dimension, size = _UNITS[word[1:]]
        return dimension, size * Fraction(10) ** _SHORT_PREFIXES[word[0]]
    for prefix, exponent in _LONG_PREFIXES.items():
        if singular.startswith(prefix) and (base := _UNITS.get(singular[len(prefix) :])):
            return base[0], base[1] * Fraction(10) ** exponent
    if lower != word and len(word) == 2 and lower[0] in "kmc" and lower[1] in "mglsh":
        return _known_unit(lower)  # KM, ML
    return None


_NAMED_BY_SIGN = {
    "C": "celsius",
    "F": "fahrenheit",
    "\u00a3": "pound",
    "gbp": "pound",
    "GBP": "pound",
}


def _unit_name(word: str) -> str:
    if word in _NAMED_BY_SIGN:
        return _NAMED_BY_SIGN[word]
    word = word.casefold()
    return word[:-1] if len(word) > 3 and re.search(r"[^su]s$", word) else word


_QUANTITY = re.compile(
    r"\s*(?:,|\\text\s?\{?|and\b|\})*\s*"
    r"(\d+(?:\.\d+)?)\s*((?:\\text\s?\{\s*)?[A-Za-z]+\.?(?:\s*\})?)\s*(?:,|and\b|\})*"
)


def _sum_of_units(text: str) -> _Number | None:
    """`2 hours and 30 minutes`, `5 ft 3 in`: units of one kind, larger ones first."""
    if len(text) > 100:
        return None
    total, last, at = Fraction(0), None, 0
    parts = []
    while at < len(text):
        match = _QUANTITY.match(text, at)
        if match is None:
            return None
        at = match.end()
        name = re.sub(r"\\text\s?\{|[}.\s]", "", match[2])
        known = _known_unit(name)
        if known is None or (last and (known[0] != last[0] or known[1] >= last[1])):
            return None
        total, last = total + Fraction(match[1]) * known[1], known
        parts.append(known)
    if len(parts) < 2:
        return None
    dimension = tuple(sorted(parts[0][0].items()))
    return _Number(total, _Unit(frozenset(["sum"]), dimension), is_sum=True)


def _numbers_match(gold: _Number, answer: _Number) -> bool:
    if gold.is_percent and not answer.is_percent:
        return answer.unit is None and answer.value in (gold.value, gold.value / 100)
    if answer.is_percent and not gold.is_percent:
        # A gold answer of at least 1 lost its percent sign; one of at most 1 is a share.
        is_same = abs(gold.value) >= 1 and answer.value == gold.value
        is_share = abs(gold.value) <= 1 and answer.value == gold.value * 100
        return not gold.unit and (is_same or is_share)
    scale = Fraction(1)
    if gold.unit and answer.unit:
        known, other = gold.unit.dimension, answer.unit.dimension
        if known is not None and other is not None:
            if gold.unit.words == answer.unit.words == {"pound"}:
                return gold.value == answer.value  # money or mass
            if known != other:
                return False
            scale = answer.unit.size / gold.unit.size
        elif not _same_words(gold.unit.words, answer.unit.words) or (known is None) != (
            other is None
        ):
            return False
    elif (gold.is_sum or answer.is_sum) or (gold.unit and gold.unit.is_symbol):
        return False
    value = answer.value * scale
    return gold.value == value or _is_rounded_to(gold.value, value)


def _same_words(gold: frozenset[str], answer: frozenset[str]) -> bool:
    return gold <= answer or answer <= gold


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


def _is_rounded_value(rounded: str, exact: str, num_digits: int = 9) -> bool:
    """Whether a decimal number of enough digits is what a formula rounds to."""
    number = _number(rounded)
    if number is None or number.value.denominator < 10**num_digits:
        return False
    value = _evaluate(exact, 1)
    try:
        if value is None or abs(complex(value).imag) > 1e-12:
            return False
        return abs(complex(value).real - float(number.value)) <= 1e-9 * abs(complex(value).real)
    except OverflowError:
        return False


# Comparing by kind --------------------------------------------------------------------------------

_RELATION = re.compile(r"(\\le |\\ge |\\ne |\\in |<|>|=)")
_EQUALS = re.compile("=")
_FLIPPED = {"<": ">", ">": "<", "\\le ": "\\ge ", "\\ge ": "\\le ", "=": "=", "\\ne ": "\\ne "}
_CHOICE = re.compile(
    r"\(?(?:\\text\{)?\s?\(?([A-Z])\)?\s?\}?\)?|(?:\\text\{)?\(?([A-J])[.)]\}?\s[^,]*"
)
_CHOSEN = re.compile(
    r"(?:(?:option|choice|answer|graph|figure|statement|letter)\s)?(?:\\text\{)?"
    r"(?:(?:option|choice|answer|graph|figure|statement|letter)\s\}?)?"
    r"(?:\((?P<bracketed>[A-Za-z])\)|\[(?P<square>[A-Za-z])\]|"
    r"(?P<bare>[A-Za-z])(?=[.:)}]|$|\sis\s(?:correct|right|true|the)))"
    r"\)?[}.:]*(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
# What follows the letter may be the text of the choice, but not another choice.
_OTHER_CHOICE = re.compile(
    r"\([A-Za-z]\)|\b[A-Z](?:[.):]|$)|(?:\b(?:or|and|not)\b|[,/&;])\s*\(?[A-Z]\b"
)
_BRACKETS = {"(": ")", "[": "]", _SET_OPEN: _SET_CLOSE, "{": "}"}
_LEAD = re.compile(
    r"(?:\\text\{)?\s?(?:(?:so|thus|hence|therefore),?\s)?(?:(?:the|our|my)\s)?"
    r"(?:(?:final|correct)\s)?(?:(?:answer|result|option|choice)\s?(?:is|are|:|=)|ans\s?[:=]|"
    r"(?:it|this|that|which)\s(?:is|equals)\s)"
    r"\s?:?\s?\}?\s?(?=\S)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"(?!.*(?:\bnot\b|n't|\bnever\b|\bor\b|\bif\b))"
    r"(?:A: |[A-Z][A-Za-z,' ()$]{3,150}\b(?:is|are|equals)(?: equal to)?:? (?=[-\d$\\(\[.]))"
)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Texts that mean the same, the first one as it is written here.
_SYNONYMS: dict[str, str] = {
    **dict.fromkeys(
        (f"{_SET_OPEN}{_SET_CLOSE}", "no solution", "no solutions", "none", "empty set", "empty"),
        "\\emptyset",
    ),
    **dict.fromkeys(("no real solution", "no real solutions", "no real roots"), "\\emptyset"),
    **dict.fromkeys(("infinity", "infinite", "inf", "oo", "+\\infty", "+inf"), "\\infty"),
    **dict.fromkeys(("infinitely many", "infinitely many solutions", "\\inf"), "\\infty"),
    **dict.fromkeys(("-infinity", "-inf", "negative infinity", "-oo"), "-\\infty"),
    **dict.fromkeys(("dne", "undefined", "does not exist", "not defined"), "undefined"),
    **{day[:3]: day for day in _DAYS},
    **dict.fromkeys(("all real numbers", "all reals", "all real", "real numbers"), "\\mathbb{R}"),
}
_YES_NO = {"yes", "no", "true", "false"}


_REMAINDER = re.compile(r"^(\d+)\s?(?:\\text\{)?\s?(?:[Rr]|remainder)\s?\}?\s?(\d+)$")


def _match(gold: str, answer: str, accept: bool, depth: int) -> bool:
    """Whether two canonical texts are the same answer."""
    if _same_text(gold, answer) or _one_word(gold) == _one_word(answer):
        return True
    if depth > 6 or not answer or not gold:
        return False
    gold, answer = _one_word(gold), _one_word(answer)
    gold, answer = (_REMAINDER.sub(r"\1\\text{R}\2", side) for side in (gold, answer))
    if gold == answer:
        return True
    moment = _moment(gold)
    if moment is not None:
        return _same_moment(moment, _moment(answer, is_asked=True))
    if "\\approx" in gold:
        parts = [part.strip() for part in gold.split("\\approx") if part.strip()]
        return any(_match(part, answer, accept, depth + 1) for part in parts[:3])
    gold_number = _number(gold)
    if gold_number is not None:
        return _match_number(gold, gold_number, answer, accept)
    for compare in (
        _match_choices,
        _match_words,
        _match_matrices,
        _match_vectors,
        _match_ratios,
        _match_regions,
        _match_relations,
        _match_collections,
    ):
        verdict = compare(gold, answer, accept, depth)
        if verdict is not None:
            return verdict
    return any(_match_formulas(gold, value) for value in _stated(answer) or [answer])


def _one_word(text: str) -> str:
    plain = _PLAIN_TEXT.sub(" ", text).strip(" .").casefold() if len(text) < 60 else text
    return _SYNONYMS.get(re.sub(r"^(?:the|there (?:is|are)) ", "", " ".join(plain.split())), text)


_PLAIN_TEXT = re.compile(r"\\text\s?\{|\}")


def _without_lead(answer: str) -> str:
    r"""What a sentence says: `The answer is 5`, `The number of apples is 5`; without a condition
    after it: `2^k \text{ for } k > 0`."""
    lead = _LEAD.match(answer) or _SENTENCE.match(answer)
    answer = _canonical(answer[lead.end() :]) if lead else answer
    return re.split(r",?\s?\\text\s?\{\s?,?\s?(?:for|where)\b", answer, maxsplit=1)[0].strip()


_DECIMAL_COMMA = re.compile(r"-?(?:\d{1,3},(?:\d{1,2}|\d{4,15})|\d{4,15},\d{1,15})")


def _only_formula(answer: str) -> str | None:
    """The formula of a sentence that has one: `We find that $x < 3$.`"""
    if not re.search(r"[$(\[] ?[^ ]", answer) or not re.match(r"[A-Z][a-z']* [a-z]+ ", answer):
        return None
    found = list(_FORMULA.finditer(answer))
    rest = _FORMULA.sub(" ", answer)
    if len(found) != 1 or re.search(r"\d|\b(?:not|or|no|if|never|but)\b|n't", rest):
        return None
    return str(found[0][found[0].lastindex or 0])


_RESIDUE = re.compile(
    r"(\d{1,40})\s?(?:\\pmod\s?\{\s?(\d{1,40})\s?\}|\(?\s?(?:\\bmod|\\text\{\s?mod\s?\}|mod)\s?"
    r"\{?(\d{1,40})\s?\}?\)?)"
)


def _match_number(gold: str, gold_number: _Number, answer: str, accept: bool) -> bool:
    if _moment(answer) is not None:
        return False  # "5 March" is no 5
    residue = _RESIDUE.fullmatch(answer)
    if residue and int(residue[1]) < int(residue[2] or residue[3]):
        answer = residue[1]  # `809 \pmod{1000}` names its remainder
    group = _brackets(answer)
    if group and group[0] == _SET_OPEN and len(_items(group[1])) == 1:
        answer = group[1]  # a list of one, as a set
    if gold_number.value.denominator > 1 and _DECIMAL_COMMA.fullmatch(answer):
        answer = answer.replace(",", ".")  # a list would be no answer to this
    for value in _stated(answer):
        number = _number(value) or _power(value) or _number_in_words(value)
        if number is not None:
            is_quotient = number.is_ratio and number.value.denominator == 1
            is_answer = accept or gold_number.is_ratio or not is_quotient
            if is_answer and _numbers_match(gold_number, number):
                return True
        elif _is_rounded_value(gold, value) or (
            (accept or ("degrees" in gold and "\\pi" in value)) and _match_formulas(gold, value)
        ):
            return True
    return False


def _power(text: str) -> _Number | None:
    """`2^{10}`: how large numbers are written. Other expressions leave the work to the grader."""
    match = _POWER.fullmatch(text)
    if match is None or (int(match[2]) == 0 and match[3].startswith("-")):
        return None
    value = Fraction(int(match[2])) ** int(match[3])
    return _Number(-value if match[1] else value)


_IN_WORDS = re.compile(
    r"(?:\\approx\s?|\\text\s?\{)?\s?([A-Za-z][A-Za-z',: ]{0,100}?)?"
    r"(?:[ :]\s?\}?\s?|\}\s?|$)([-$€£.\d\\].*)",
    re.DOTALL,
)


def _number_in_words(text: str) -> _Number | None:
    """The number of a short text that says one: `She has 42 apples`."""
    match = _IN_WORDS.fullmatch(text)
    if match is None or match[1] is None:
        return None
    words = match[1].casefold().replace(",", " ").replace(":", " ").split()
    if len(words) == 1 and len(words[0]) < 3:
        return None
    if any(_HEDGES.fullmatch(word) or word in _WORDS for word in words):
        return None
    return _number(_canonical(match[2]))


def _stated(answer: str) -> list[str]:
    r"""What an answer says in the end: `5` of `x = 2+3 = 5`, both of `\frac{1}{3} \approx 0.333`.

    Nothing where it says nothing, or contradicts itself: `5 = 4`.
    """
    if "\\approx" not in answer:
        value = _last_value(answer)
        return [] if value is None else [value]
    parts = [part.strip() for part in answer.split("\\approx")]
    if len(parts) > 3:
        return []
    exact, rounded = _last_value(parts[0]) if parts[0] else None, parts[-1]
    if not rounded or (exact is None and "=" in parts[0] and not _is_name(parts[0])):
        return []
    if exact is None or _is_name(exact):
        return [rounded]
    return [exact, rounded] if _rounds_to(exact, rounded) else []


def _rounds_to(exact: str, rounded: str) -> bool:
    number, value = _number(rounded), _evaluate(_without_unit(exact)[0], 1)
    if number is None or value is None:
        return False
    decimals = re.search(r"\.(\d+)", rounded)
    allowed = 10.0 ** -len(decimals[1]) if decimals else 0.5
    try:
        value = complex(value)
        return abs(value - float(number.value)) <= max(allowed, 1e-9 * abs(value)) * 1.0001
    except OverflowError:
        return False


def _last_value(answer: str) -> str | None:
    r"""What an answer like `x = 2+3 = 5` says in the end: `5`.

    None where it says nothing, or contradicts itself: `5 = 4`.
    """
    if "=" not in answer:
        return answer
    parts = _split_at(_EQUALS, answer)[::2]
    if len(parts) > 8:
        return None
    if len(parts) == 1:
        return answer
    names = [part for part in parts if _is_name(part)]
    parts = [part for part in parts if not _is_name(part)]
    if len(parts) > 1 and _ONLY_NAMES.fullmatch(parts[0]):
        parts = parts[1:]  # `m+n = 204`
    if not parts or not parts[-1]:
        return None
    if any(not _match_formulas(parts[-1], part) for part in parts[:-1]):
        return None
    if _mentions(names, parts[-1]):
        return None
    return next((part for part in reversed(parts) if _number(part) is not None), parts[-1])


def _mentions(names: list[str], value: str) -> bool:
    """Whether one of these variables stands in what they are said to be: `n = 2n-1` says nothing
    about n."""
    if not names or _number(value) is not None:
        return False
    letters = re.findall(r"[A-Za-z]+(?!_)", re.sub(r"\\text\s?\{[^{}]*\}|\\[a-zA-Z]+", " ", value))
    return any(len(name) == 1 and any(name in group for group in letters) for name in names)


_ONLY_NAMES = re.compile(r"[+\-]?\|?[A-Za-z]{1,3}\|?(?:\s?[+\-]?\s?\|?[A-Za-z]{1,3}\|?){0,5}")


# What only names a value: `P(X=2)`, `\\gcd(a,b)`, `[ABC]`, `\\sum_{k=1}^n k`.
_NAMED_VALUE = re.compile(
    r"(?:P|Pr|E|Var|\\Pr|\\(?:det|gcd|lcm|max|min))\s?(?:\([^()+]{1,60}\)|\[[^\[\]+]{1,60}\])|"
    r"\[[A-Z]{3,6}\]|\\(?:lim|sum|prod|int)\b[^=]{0,3}_.{1,150}"
)


def _is_name(text: str) -> bool:
    r"""A variable, perhaps with index or argument: `x`, `a_n`, `f(x)`, `\angle ABC`."""
    text = re.sub(
        r"\\(?:angle|text|triangle|overline|mathbb|theta|alpha|beta|lambda|vec|hat)\s?", "a", text
    )
    text = re.sub(r"_\s?\{\s?(?:a\s?\{[A-Za-z ]{1,20}\}|\\(?:max|min)\s?)\s?\}", "", text)
    if _NAMED_VALUE.fullmatch(text):
        return True
    text = re.sub(r"\\frac\s?\{d[a-z]?\}\s?\{d[a-z]\}", "d", text.replace(" ", ""))
    name = (
        r"\{?[A-Za-z]{1,12}'{0,3}\}?(?:_\{?\w{1,6}\}?)?(?:\^\{?-1\}?)?(?:\{[A-Za-z]{1,12}\})?"
        r"(?:\([a-z]\)|\(-?\d{1,6}\)|\([A-Z][A-Za-z|,\\ ]{0,12}\))?"
    )
    return bool(re.fullmatch(rf"{name}|\({name}(?:,{name}){{1,9}}\)", text))


def _match_choices(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    choice = _CHOICE.fullmatch(gold)
    if choice is None:
        return None
    match = _CHOSEN.fullmatch(answer)
    if match is None or _OTHER_CHOICE.search(match["rest"]):
        return False
    letter: str = match["bracketed"] or match["square"] or match["bare"]
    return letter.upper() == (choice[1] or choice[2])


def _is_words(text: str) -> bool:
    plain = text.replace("\\text{", "").replace("}", "")
    return bool(re.fullmatch(r"[^\W\d_][^\d\\=<>^_{}()+*/]*", plain)) and bool(
        re.search(r"[^\W\d_]{3}", plain)
    )


def _match_words(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    if not _is_words(gold) or (re.fullmatch(r"[A-Z]{2,6}", gold) and len(_items(answer)) > 1):
        return None
    gold, answer = _plain_words(gold), _plain_words(answer)
    if gold == answer:
        return True
    if gold in _YES_NO:
        said = re.match(r"(\w+),\s(.*)", answer)
        return bool(
            said and said[1] == gold and not _YES_NO & set(re.findall(r"\w+", said[2])) - {gold}
        ) and not re.search(r"\b(?:not|or|maybe|but)\b", answer)
    if re.fullmatch(
        rf"{re.escape(gold)} (?:is|was|has|does)\b(?!.*\b(?:not|or|and|wrong|incorrect|false)\b).*",
        answer,
    ):
        return True
    items = [sorted(re.split(r",\s?(?:and\s)?|\sand\s", text)) for text in (gold, answer)]
    return len(items[0]) > 1 and items[0] == items[1]


def _plain_words(text: str) -> str:
    text = text.replace("\\text{", "").replace("}", "").casefold()
    text = " ".join(re.sub(r"[\"'`.]", "", text).split()).removesuffix(" only")
    return re.sub(r"^(?:(?:on|in|at) )?(?:an? |the )?(?=\w)", "", text)


# Dates and times ----------------------------------------------------------------------------------

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(
    r"\b(jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)"
    r"(?:uary|ruary|ch|il|e|y|ust|tember|ober|ember)?\b",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?:at )?(\d{1,2})(?:[:.](\d\d))?(?::(\d\d))?\s?(?:(a|p)\.?\s?m\b\.?|(noon|midnight))?",
    re.IGNORECASE,
)


@lru_cache(maxsize=_CACHED)
def _moment(text: str, is_asked: bool = False) -> tuple[Any, ...] | None:
    """A date as ("date", year, month, day), a time of day as ("time", seconds, whether am or pm
    is said); None for anything else. `03/05/2024` is read with the month first, where it can be."""
    if len(text) > 60 or not re.search(r"\d", text):
        return None
    text = _PLAIN_TEXT.sub(" ", text)
    numbers = re.fullmatch(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", text)
    if numbers:
        return ("date", *map(int, numbers.groups()))
    numbers = re.fullmatch(r"(\d{1,2})[/](\d{1,2})[/](\d{4}|\d\d)", text)
    if numbers:
        a, b, year = map(int, numbers.groups())
        return ("date", year, b, a) if a > 12 >= b else ("date", year, a, b)
    month = _MONTH.search(text)
    if month:
        rest = re.sub(r"[,.]|\b(?:of|the|st|nd|rd|th)\b", " ", _MONTH.sub(" ", text, count=1))
        parts = rest.split()
        days = [int(part) for part in parts if re.fullmatch(r"\d{1,2}", part)]
        years = [int(part) for part in parts if re.fullmatch(r"\d{4}", part)]
        if len(days) == 1 and len(years) <= 1 and len(parts) == len(days) + len(years):
            index = _MONTHS.index(month[1][:3].casefold()) + 1
            return ("date", years[0] if years else None, index, days[0])
        return None
    return _time_of_day(" ".join(text.split()), is_asked)


def _time_of_day(text: str, is_asked: bool) -> tuple[Any, ...] | None:
    """`3:30 pm`, `3 p.m.`, `15:30`. Where no time is asked for, `3:45` (a ratio would be `1:15`)
    and `3:04` are times, but `3:4` and `3:40` are ratios."""
    match = _TIME.fullmatch(text)
    if match is None or not (match[4] or (match[2] and "." not in text)):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    if hour > 24 or minute > 59 or second > 59 or (match[4] and not 1 <= hour <= 12):
        return None
    if match[4]:
        hour = hour % 12 + (12 if match[4].casefold() == "p" else 0)
    elif (
        not is_asked
        and not match[3]
        and not match[1].startswith("0")
        and math.gcd(hour, minute) == 1
        and not (match[2] or "").startswith("0")
    ):
        return None
    return ("time", hour * 3600 + minute * 60 + second, bool(match[4]) or hour > 12)


def _same_moment(gold: tuple[Any, ...], answer: tuple[Any, ...] | None) -> bool:
    if answer is None or gold[0] != answer[0]:
        return False
    if gold[0] == "time" and gold[2] != answer[2]:
        # The one without am or pm may mean either, noon aside.
        bare, full = (gold, answer) if answer[2] else (answer, gold)
        is_noon = bare[1] >= 12 * 3600
        return bool(full[1] == bare[1] or (not is_noon and full[1] == bare[1] + 12 * 3600))
    if gold[0] == "date" and gold[1] is None:
        return gold[2:] == answer[2:]
    return gold[: 2 if gold[0] == "time" else 4] == answer[: 2 if gold[0] == "time" else 4]


# Brackets, matrices, vectors, ratios --------------------------------------------------------------


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
    gold_rows = _matrix(gold)
    if gold_rows is None or (gold.startswith("\\binom") and "\\begin" not in answer):
        return None
    name, sign, rest = answer.partition("=")
    answer_rows = _matrix(rest.strip() if sign and _is_name(name.strip()) else answer)
    if answer_rows is None and len(gold_rows[1]) > 1 and len(gold_rows[1][0]) == 1:
        components = _components(answer)
        if components:
            answer_rows = (gold_rows[0], [[c] for c in components[: len(gold_rows[1])]])
    if answer_rows is None or gold_rows[0] != answer_rows[0]:
        return False
    if [len(row) for row in gold_rows[1]] != [len(row) for row in answer_rows[1]]:
        return False
    pairs = zip(chain(*gold_rows[1]), chain(*answer_rows[1]), strict=True)
    return all(_match(g, a, accept, depth + 1) for g, a in pairs)


def _matrix(text: str) -> tuple[bool, list[list[str]]] | None:
    r"""Whether it is a determinant, and its rows; of `[[1,2],[3,4]]` and `\binom{2}{1}` too."""
    inside = _brackets(text)
    if inside and inside[0] in "([" and inside[1].startswith("\\begin"):
        text = inside[1]
    match = re.fullmatch(r"\\begin \{([a-zA-Z]?matrix|array)\}(.*)\\end \{\1\}", text, re.DOTALL)
    if len(text) > MAX_ANSWER_CHARS:
        return None
    if match is None:
        rows = [_brackets(row) for row in _split(inside[1], ",;")] if inside else []
        if inside and inside[0] == "[" and len(rows) > 1 and all(r and r[0] == "[" for r in rows):
            return False, [_split(row[1], ",;") for row in rows if row]
        column = re.fullmatch(r"\\binom\s?\{([^{}]*)\}\s?\{([^{}]*)\}", text)
        return (False, [[column[1].strip()], [column[2].strip()]]) if column else None
    body = re.sub(r"^\{[lcr| ]+\}", "", match.group(2).strip())
    lines = [row for row in body.split("\\\\") if row.strip()]
    return match[1] in ("vmatrix", "Vmatrix"), [
        [c.strip() for c in row.split("&")] for row in lines
    ]


_UNIT_VECTOR = re.compile(
    r"\\(?:text|hat|vec|overline|overrightarrow)\s?(?:\{\s?\\(?:text|hat|vec)\s?)?"
    r"\{\s?\\?(i|j|k|imath|jmath)\s?\}\s?\}?"
)


def _components(text: str) -> list[str] | None:
    r"""Components of `3\mathbf{i} + 4\hat{j}` as formulas, always three of them."""
    if len(text) > _MAX_FORMULA_CHARS or not _UNIT_VECTOR.search(text):
        return None
    parts = []
    for name in ("i", "j", "k"):
        # Without the other two, and with and without this one: the difference is its component.
        with_it, without = (_with_vector(text, name, length) for length in (1, 0))
        if _evaluate(without, 1) != 0 or _evaluate(with_it, 1) is None:
            return None
        values = [_evaluate(with_it, point) for point in _POINTS[:2]]
        is_number = isinstance(values[0], Fraction) and values[0] == values[1]
        parts.append(str(values[0]) if is_number else with_it)
    return parts


def _with_vector(text: str, name: str, length: int) -> str:
    """A vector with the unit vector of this name replaced by a number, and the others by 0."""
    return _UNIT_VECTOR.sub(lambda m: f"({length if m[1][0] == name else 0})", text)


_NAMED_VECTOR = re.compile(r"^(?:\\[a-z]+\s?)?\{?[A-Za-z]\}?\s?=\s?")


def _match_vectors(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    gold, answer = (_NAMED_VECTOR.sub("", text) for text in (gold, answer))
    gold_parts, answer_parts = _components(gold), _components(answer)
    if gold_parts is None and answer_parts is None:
        return None
    sides = []
    for parts, text in ((gold_parts, gold), (answer_parts, answer)):
        group = _brackets(text)
        parts = parts or (_split(group[1], ",;") if group and group[0] in "([" else None)
        if parts is None or not 2 <= len(parts) <= 3:
            return False
        sides.append([*parts, "0"][:3])
    return all(_match_formulas(g, a) or _is_zero(g, a) for g, a in zip(*sides, strict=True))


def _is_zero(*texts: str) -> bool:
    return all(_evaluate(text, 1) == 0 for text in texts)


def _match_ratios(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    if ":" not in gold:
        return None
    answer = re.sub(r"\s?\\text\{\s?to\s?\}\s?|\sto\s", ":", answer)
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


# Inequalities, intervals, equations ---------------------------------------------------------------


def _match_regions(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    """Sets of real numbers: intervals, unions, inequalities in one variable, set builders."""
    gold_set, answer_set = _region(gold), _region(answer)
    if gold_set is None and answer_set is None:
        return None
    if gold_set is None or answer_set is None:
        other = gold if gold_set is None else answer
        is_set = _brackets(other) is not None or "\\cup" in other
        if answer_set is not None and gold_set is None and answer_set[2]:
            is_set = True  # `x \in ...` says the same as what it is in
        if not is_set or other.startswith("{"):
            return None
    names = {side[0] for side in (gold_set, answer_set) if side and side[0]}
    if len(names) > 1:
        return False
    gold_text = gold_set[1] if gold_set else gold
    return _match(gold_text, answer_set[1] if answer_set else answer, accept, depth + 1)


def _region(text: str) -> tuple[str, str, bool] | None:
    r"""`-2 \le x < 7` as (`x`, `[-2,7)`, False): name, intervals, and whether it says `\in`."""
    if len(text) > _MAX_FORMULA_CHARS:
        return None
    pierced = re.fullmatch(
        rf"([(\[])([^,;]+)[,;]([^,;]+)([)\]])\s?\\setminus\s?{_SET_OPEN}(.*){_SET_CLOSE}", text
    )
    if pierced:
        return "", _without_points(_items(pierced[5]), *pierced.groups()[:4]), False
    built = re.fullmatch(
        rf"{_SET_OPEN}\s?([A-Za-z])(?:\s?\\in .{{1,20}}?)?\s?[|:](.*){_SET_CLOSE}", text
    )
    text = built[2].strip() if built else text
    text = _ALL_BUT.sub(rf"\\mathbb{{R}}\\setminus {_SET_OPEN}\1{_SET_CLOSE}", text)
    real = re.fullmatch(r"\\mathbb\s?\{?R\}?(.*)", text, re.DOTALL)
    if real:
        return _real_line(real[1].strip())
    if not _RELATION.search(text):
        return None
    parts = re.split(r"\s?\\text\{\s?or\s?\}\s?|\sor\s", text)
    if len(parts) > 1:
        regions = [_region(part.strip()) for part in parts[:10]]
        names = {region[0] for region in regions if region}
        if None in regions or len(names) != 1:
            return None
        return names.pop(), "\\cup ".join(region[1] for region in regions if region), False
    parts = re.split(r"\s?\\text\{\s?and\s?\}\s?|\sand\s|,(?=[^,]*(?:[<>]|\\[lgn]e ))", text)
    if len(parts) > 1:
        return _intersection([part.strip() for part in parts[:10]])
    relation = _relation(text)
    return _as_set(relation) if relation else None


_ALL_BUT = re.compile(
    r"^(?:\\text\{)?all real(?: number)?s?,? (?:except|other than|but)(?: for)?\s?\}?\s?"
    r"(?:x\s?=)?\s?"
    r"([^{}]{1,40})\}?$"
)


def _real_line(rest: str) -> tuple[str, str, bool] | None:
    if not rest:
        return "", "(-\\infty,\\infty)", False
    signed = re.fullmatch(r"(?:\^|_)\s?\{?\s?([+-]|>\s?0|\\ge\s?0)\s?\}?", rest)
    if signed:
        forms = {"-": "(-\\infty,0)", "\\": "[0,\\infty)"}
        return "", forms.get(signed[1][0], "(0,\\infty)"), False
    without = re.fullmatch(rf"(?:\\setminus|-)\s?{_SET_OPEN}(.*){_SET_CLOSE}", rest)
    return ("", _without_points(_items(without[1])), False) if without else None


def _without_points(
    points: list[str],
    left: str = "(",
    low: str = "-\\infty",
    high: str = "\\infty",
    right: str = ")",
) -> str:
    """An interval without these points, which are inside of it."""
    ends = [low, *sorted(points, key=_real_value), high]
    inside = ")\\cup (".join(f"{a},{b}" for a, b in pairwise(ends))
    return f"{left}{inside}{right}"


def _real_value(text: str) -> float:
    value = _evaluate(text, 1)
    try:
        return complex(value).real if value is not None else math.inf
    except OverflowError:
        return math.inf


def _intersection(parts: list[str]) -> tuple[str, str, bool] | None:
    r"""Of two half-lines, or of any number of `x \ne a`."""
    relations = [_relation(part) for part in parts]
    if all(r and len(r) == 3 and r[1] == "\\ne " for r in relations):
        names = {r[0] for r in relations if r}
        return (
            (names.pop(), _without_points([r[2] for r in relations if r]), False)
            if len(names) == 1
            else None
        )
    sets = [_as_set(r) if r else None for r in relations]
    if len(sets) != 2 or sets[0] is None or sets[1] is None or sets[0][0] != sets[1][0]:
        return None
    for low, high in ((sets[0][1], sets[1][1]), (sets[1][1], sets[0][1])):
        if low.endswith(",\\infty)") and high.startswith("(-\\infty,"):
            return sets[0][0], low[: -len("\\infty)")] + high[len("(-\\infty,") :], False
    return None


def _relation(text: str) -> list[str] | None:
    if len(_split(text, ",;")) > 1 or re.search(r"\b(?:and|or)\b", text):
        return None
    parts = _split_at(_RELATION, text)
    return parts if 3 <= len(parts) <= 5 else None


def _split_at(pattern: re.Pattern[str], text: str) -> list[str]:
    r"""Parts and separators, where a separator in braces is none: `\sum_{k=1}^n k = 6`."""
    parts, start, depth, at = [], 0, 0, 0
    for match in pattern.finditer(text):
        passed = text[at : match.start()]
        depth += sum(map(passed.count, "{([")) - sum(map(passed.count, "})]"))
        at = match.start()
        if depth == 0:
            parts += [text[start : match.start()].strip(), match.group()]
            start = match.end()
    return [*parts, text[start:].strip()]


def _as_set(parts: list[str]) -> tuple[str, str, bool] | None:
    """A relation as a region, None where it is no statement about one variable."""
    if len(parts) == 3:
        left, sign, right = parts
        if sign != "\\in " and _is_name(right) and not _is_name(left):
            left, sign, right = right, _FLIPPED[sign], left
        size = re.fullmatch(r"\|([A-Za-z])\|", left)
        if size and sign in ("<", "\\le "):
            return _as_set([f"-({right})", sign, size[1], sign, right])
        if size and sign in (">", "\\ge "):
            low, high = (
                _as_set([size[1], _FLIPPED[sign], f"-({right})"]),
                _as_set([size[1], sign, right]),
            )
            return (size[1], f"{low[1]}\\cup {high[1]}", False) if low and high else None
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
        inner = _region(right) if sign == "\\in " else None
        text = inner[1] if inner else forms.get(sign, "")
        return (left, text, sign == "\\in ") if text else None
    low_end, sign, name, sign2, high_end = parts
    if sign[0] == ">" or sign == "\\ge ":
        if sign2 not in (">", "\\ge "):
            return None
        low_end, sign, sign2, high_end = high_end, _FLIPPED[sign2], _FLIPPED[sign], low_end
    if sign not in ("<", "\\le ") or sign2 not in ("<", "\\le "):
        return None
    opening, closing = "(" if sign == "<" else "[", ")" if sign2 == "<" else "]"
    size = re.fullmatch(r"\|([A-Za-z])\|", name)
    if size:
        left = "(" if closing == ")" else "["
        right = ")" if opening == "(" else "]"
        below = f"{left}-({high_end}),-({low_end}){right}"
        return size[1], f"{below}\\cup {opening}{low_end},{high_end}{closing}", False
    return (name, f"{opening}{low_end},{high_end}{closing}", False) if _is_name(name) else None


def _match_relations(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    """Equations, and inequalities that are no statement about one variable."""
    gold_parts, answer_parts = _relation(gold), _relation(answer)
    if gold_parts is None:
        return _match_stated(gold, answer_parts, accept, depth)
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
    other, other_sign, other_right = answer_parts
    if sign == other_sign == "=" and _is_name(left) and _is_name(other):
        if _same_text(left, other):
            return _match(right, other_right, accept, depth + 1)
        if {_NAME_ARGUMENT.sub("", side) for side in (left, other)} == {"y", "f"}:
            return _match(right, other_right, accept, depth + 1)  # `y = ...`, `f(x) = ...`
    return _match_sides(gold_parts, answer_parts)


_NAME_ARGUMENT = re.compile(r"(?:\s?\^\s?\{-1\})?\s?\(\s?x\s?\)$")


def _match_stated(
    gold: str, answer_parts: list[str] | None, accept: bool, depth: int
) -> bool | None:
    """`(x,y) = (3,-4)` for a gold answer that has no `=`."""
    if answer_parts is None or len(answer_parts) != 3 or answer_parts[1] not in ("=", "\\in "):
        return None
    left, _, right = answer_parts
    if not _is_name(left) or _mentions([left], right):
        return None
    return _match(gold, right, accept, depth + 1)


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


# Unions, lists, tuples, sets ----------------------------------------------------------------------


def _match_collections(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    if "\\cup" in gold or "\\cup" in answer:
        sides = [[p.strip() for p in side.split("\\cup")] for side in (gold, answer)]
        if len(sides[1]) == 1 and len(items := _items(answer)) > 1:
            sides[1] = items if all(_brackets(item) for item in items) else sides[1]
        return _match_unordered(sides[0], sides[1], accept, depth)
    gold_group, answer_group = _brackets(gold), _brackets(answer)
    if gold_group and gold_group[0] == _SET_OPEN:
        if answer_group and answer_group[0] in "([":
            return False
        inside = answer_group[1] if answer_group and answer_group[0] == _SET_OPEN else answer
        return _match_unordered(_items(gold_group[1]), _items(inside), accept, depth, is_set=True)
    if gold_group and gold_group[0] in "([" and len(_split(gold_group[1], ",;")) > 1:
        return _match_tuples(gold_group, answer_group, answer, accept, depth)
    return _match_lists(gold, answer, accept, depth)


def _match_lists(gold: str, answer: str, accept: bool, depth: int) -> bool | None:
    """Lists without brackets around them, in any order; with a name for each item, by name."""
    answer_group = _brackets(answer)
    gold_items, answer_items = _items(gold), _items(answer)
    if len(answer_items) > 1 and re.fullmatch(r"[A-Z]{2,6}", gold):
        gold_items = list(gold)  # letters of choices
    if len(gold_items) == 1 and len(answer_items) == 1:
        return None
    if len(answer_items) == 1 and re.search(r"\bor\b", gold) and len(gold_items) == 2:
        # `\frac{1}{2} or 0.5`: one answer, spelled twice.
        same = _match(gold_items[0], gold_items[1], accept, depth + 1)
        return same and _match(gold_items[0], answer, accept, depth + 1)
    if answer_group and answer_group[0] == _SET_OPEN:
        answer_items = _items(answer_group[1])
    named = _named_values(gold_items)
    if named and answer_group and answer_group[0] == "(":
        answer_items = _items(answer_group[1])
    if named and len(answer_items) == len(gold_items) and not _named_values(answer_items):
        pairs = zip(named.values(), answer_items, strict=True)
        return all(_match(g, a, accept, depth + 1) for g, a in pairs)
    return _match_unordered(gold_items, answer_items, accept, depth)


def _match_tuples(
    gold: tuple[str, str, str],
    answer: tuple[str, str, str] | None,
    text: str,
    accept: bool,
    depth: int,
) -> bool:
    gold_items = _items(gold[1])
    if answer is None:
        named = _named_values(_items(text))
        orders = [list(named.values()), [named[name] for name in sorted(named)]] if named else []
    else:
        # With two items, `[` and `(` are different intervals; with more both are only brackets.
        same = (gold[0], gold[2]) == (answer[0], answer[2])
        both = {gold[0], answer[0]} <= {"(", "["} and len(gold_items) > 2
        orders = [_items(answer[1])] if same or both else []
    return any(
        len(gold_items) == len(items)
        and all(_match(g, a, accept, depth + 1) for g, a in zip(gold_items, items, strict=True))
        for items in orders
    )


def _named_values(items: list[str]) -> dict[str, str]:
    """`x=3` and `y=-4` as name -> value; empty where not every item has a name of its own."""
    named: dict[str, str] = {}
    for item in items[:20]:
        name, sign, value = item.partition("=")
        name = name.replace(" ", "")
        if not sign or not value.strip() or "=" in value or not _is_name(name) or name in named:
            return {}
        named[name] = value.strip()
    return named if len(named) == len(items) > 1 else {}


def _items(text: str) -> list[str]:
    r"""Items of a list; `\pm` is two of them, `or` and `and` are commas."""
    text = re.sub(r"\\text\{\s?,?\s?(?:or|and)\s?\}|\b(?:or|and)\b", ",", text)
    if re.fullmatch(r"[A-Z]{2,6}", text) and len(set(text)) == len(text):
        return [text]
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
    """Whether two lists have the same items in any order.

    Naming an item again adds nothing, unless the gold answer itself does so in a list.
    """
    if len(gold) > 1 and len(answer) == 1 and all(re.fullmatch(r"\(?[A-Z]\)?", g) for g in gold):
        answer = list(answer[0]) if re.fullmatch(r"[A-Z]{2,6}", answer[0]) else answer
    if max(len(gold), len(answer)) > 50:
        return False
    if not is_set and len(gold) < len(answer):
        is_set = not any(_match(g, h, accept, depth + 1) for g, h in combinations(gold, 2))
    if is_set:
        pairs = [[_match(g, a, accept, depth + 1) for a in answer] for g in gold]
        return all(map(any, pairs)) and all(map(any, zip(*pairs, strict=True))) and bool(answer)
    left = list(answer)
    for item in gold:
        found = next((i for i, a in enumerate(left) if _match(item, a, accept, depth + 1)), None)
        if found is None:
            return False
        del left[found]
    return not left


# Formulas by value --------------------------------------------------------------------------------


def _match_formulas(gold: str, answer: str) -> bool:
    """Whether two formulas have the same value, at a few points where they have variables."""
    gold, answer = _bare(gold), _bare(answer)
    if gold == answer or (len(gold) < 200 and _squeezed(gold) == _squeezed(answer)):
        return True
    gold, gold_unit = _without_unit(gold)
    answer, answer_unit = _without_unit(answer)
    if gold_unit and answer_unit and not _same_words(gold_unit, answer_unit):
        return False
    num_compared = 0
    for point in _points_for(gold + answer):
        a, b = _evaluate(gold, point), _evaluate(answer, point)
        if a is None and b is None and num_compared:
            continue  # outside the domain of both
        if a is None or b is None or not _close(a, b):
            return False
        num_compared += 1
    return num_compared > 0


def _points_for(text: str) -> Sequence[int]:
    """Where to compare: formulas that round at whole numbers too, and of n, m or k only there."""
    if "\\lfloor" not in text and "\\lceil" not in text:
        return _POINTS
    names = set(re.findall(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", text)))
    return _WHOLE_POINTS if names <= set("nmkNMK") else (*_POINTS, *_WHOLE_POINTS)


def _bare(text: str) -> str:
    r"""With `\\text{i}` as the letter it is, and one spelling of the constant of integration."""
    text = re.sub(r"\\text\{\s?([eijxyzn])\s?\}", r"{\1}", text)
    return re.sub(r"\+\s?c$", "+ C", text)


def _squeezed(text: str) -> str:
    """For what has no value here (integrals, sums, primes): without spaces and braces that group
    a single letter."""
    text = re.sub(r"\\text\{([A-Za-z]+)\}", r"\1", text)
    text = re.sub(r"(?<![A-Za-z}])\{([A-Za-z0-9])\}", r"\1", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _without_unit(text: str) -> tuple[str, frozenset[str]]:
    match = re.fullmatch(r"(.*\S)\s?\\text\{([^{}]*)\}\s?(\^\s?\{?[23]\}?)?", text, re.DOTALL)
    if match is None or re.search(r"[_^=]\s?\{?$", match[1]):
        return text, frozenset()
    unit = _unit(f"\\text{{{match[2]}}}{match[3] or ''}", True)
    return match[1], unit.words if unit else frozenset()


# Points for the variables of a formula: two positive ones, a negative one, and one of both signs,
# so that `|xy|` is not `xy`.
_POINTS = (1, 2, -3, -4)
_MIXED = -4
_WHOLE_POINTS = range(11, 17)  # six in a row, so that every remainder by 2 and 3 is among them
_TOKEN = re.compile(r"(\d+\.?\d*|\.\d+)|\\([a-zA-Z]+)|([a-zA-Z]+)|(\S)")
_CLOSES = {"(": ")", "{": "}", "[": "]", "|": "|"}
_CLOSING = ("\\rfloor", "\\rceil")
_TIMES = ("*", "\\cdot", "\\times")
_ROUNDING: dict[str, tuple[str, Callable[[Fraction], int]]] = {
    "lfloor": ("\\rfloor", math.floor),
    "lceil": ("\\rceil", math.ceil),
}
_WHOLE: dict[str, Callable[..., int]] = {
    **{"gcd": math.gcd, "lcm": math.lcm, "min": min, "max": max},
}
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


@lru_cache(maxsize=2000)
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
            value = _bounded(_added(value, sign * self._product()))
        self._depth -= 1
        return value

    def _product(self, stops: tuple[str, ...] = ()) -> Fraction | complex:
        value = self._signed()
        while True:
            token = self._peek()
            following = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else ""
            if token in _TIMES and following in stops:
                return value  # `\sin x \cdot \sin y` is not the sine of a product
            if self._take(*_TIMES):
                value = _bounded(value * self._signed())
            elif self._take("/", "\\div"):
                value = _bounded(value / self._signed())
            elif token and token not in "+-)]}|,=<>:;!" and token not in (*stops, *_CLOSING):
                if token[0] == "\\" and not self._starts_factor(token):
                    raise _CannotEvaluateError(token)
                value = _bounded(value * self._power())
            else:
                return value

    @staticmethod
    def _starts_factor(token: str) -> bool:
        name = token[1:]
        is_known = (
            name in ("frac", "sqrt", "binom", *_ROUNDING, *_WHOLE)
            or name in _CONSTANTS
            or name in _FUNCTIONS
        )
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
        self._at += 1
        if token in _CLOSES:
            value = self._sum()
            self._need(_CLOSES[token])
            if token != "|":
                return value
            return abs(value) if isinstance(value, Fraction) else complex(abs(value))
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
        if len(name) > 1 and name in _FUNCTIONS | _ROUNDING | _WHOLE:
            return self._function(name)
        if not name.isalpha() or (token[0] == "\\" and not self._starts_factor(token)):
            raise _CannotEvaluateError(token)
        return self._variable(name)

    def _rounded(self, closing: str, function: Callable[[Fraction], int]) -> Fraction:
        value = self._sum()
        self._need(closing)
        if isinstance(value, complex) and abs(value.imag) < 1e-12 and abs(value) < 1e12:
            value = Fraction(value.real)
        if not isinstance(value, Fraction):
            raise _CannotEvaluateError("a part of that")
        return Fraction(function(value))

    def _whole(self, function: Callable[..., int]) -> Fraction:
        """`\\gcd(14,21)`: a function of whole numbers."""
        self._need("(")
        arguments = [self._sum()]
        while self._take(",") and len(arguments) < 20:
            arguments.append(self._sum())
        self._need(")")
        wholes = [a.numerator for a in arguments if isinstance(a, Fraction) and a.denominator == 1]
        if len(wholes) < len(arguments) or any(abs(whole) > 10**40 for whole in wholes):
            raise _CannotEvaluateError("whole numbers are missing")
        return Fraction(function(*wholes))

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
        if name in _ROUNDING:
            return self._rounded(*_ROUNDING[name])
        if name in _WHOLE:
            return self._whole(_WHOLE[name])
        function = _FUNCTIONS[name]
        if name == "log" and self._take("_"):
            base = self._argument()
            if base == 1:
                raise _CannotEvaluateError("a logarithm to base 1")
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
            if name not in ("sin", "cos", "tan"):
                raise _CannotEvaluateError("an inverse function")
            function, exponent = _FUNCTIONS[f"arc{name}"], None
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
        seed = f"{name} {abs(self._point)}" if self._point not in _WHOLE_POINTS else name
        spread = zlib.crc32(seed.encode()) % 797
        if self._point in _WHOLE_POINTS:
            return Fraction(self._point + spread)
        is_negative = self._point < 0 and (self._point != _MIXED or ord(name[-1]) % 2 == 0)
        return Fraction(101 + spread, 211) * (-1 if is_negative else 1)


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


def _added(a: Fraction | complex, b: Fraction | complex) -> Fraction | complex:
    """The sum, where it says as much as its parts: `e^{100}+1` in floats would be `e^{100}`."""
    if isinstance(a, Fraction) != isinstance(b, Fraction):
        exact, other = (a, b) if isinstance(a, Fraction) else (b, a)
        if exact and abs(complex(exact)) < 1000 * _TOLERANCE * abs(complex(other)):
            raise _CannotEvaluateError("a sum of large and small")
    return a + b


def _raise(base: Fraction | complex, exponent: Fraction | complex) -> Fraction | complex:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = base.numerator.bit_length() + base.denominator.bit_length()
        if abs(base) != 1 and abs(exponent.numerator) * bits > _MAX_BITS:
            raise _CannotEvaluateError("a number of too many digits")
        return base ** (exponent.numerator if abs(base) != 1 else exponent.numerator % 2)
    if base == 0:
        raise _CannotEvaluateError("a root or power of zero")
    if isinstance(exponent, Fraction) and exponent.denominator % 2 and _is_negative(base):
        # The real root, as school mathematics has it: the cube root of -8 is -2.
        sign = -1 if exponent.numerator % 2 else 1
        return sign * _raise(-base, exponent)
    return _bounded(complex(base) ** complex(exponent))


def _is_negative(value: Fraction | complex) -> bool:
    if isinstance(value, Fraction):
        return value < 0
    return value.real < 0 and abs(value.imag) <= 1e-12 * abs(value.real)


def _factorial(value: Fraction | complex) -> Fraction:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 3000:
        raise _CannotEvaluateError("a factorial of that")
    return Fraction(math.factorial(value.numerator))


def _binomial(n: Fraction | complex, k: Fraction | complex) -> Fraction:
    if not (isinstance(n, Fraction) and isinstance(k, Fraction)):
        raise _CannotEvaluateError("a binomial of that")
    if n.denominator == k.denominator == 1 and 0 <= k <= n <= 3000:
        return Fraction(math.comb(n.numerator, k.numerator))
    if k.denominator != 1 or not 0 <= k <= 20:
        raise _CannotEvaluateError("a binomial of that")
    return math.prod((n - i for i in range(int(k))), start=Fraction(1)) / math.factorial(int(k))
