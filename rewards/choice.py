"""Choice reward: 1.0 where a response chooses the right option of a multiple choice question.

Labels are letters, A to Z, or numbers where the gold answer is one. What counts is one clear
choice, in the forms that models write: answer tags, a box, "the answer is (B)", "答案：B", a line
with nothing but a choice. Where the options are known their texts count too. "A or B", a list of
all labels, options restated without a choice, and what stands in the reasoning are worth 0.0, and
of several statements the last one counts. Where several options are right, exactly these have to
be chosen.

This file stands alone: it imports neither a sibling nor `trl_r1`, so it can be copied next to any
script and passed to `trl.GRPOTrainer(reward_funcs=...)`.

Left out: partial credit, and options that are compared by value (`1/2` for an option `0.5`); use
`math_answer` on the option's text for that.
"""
# ruff: noqa: RUF001, RUF002 - the dashes, quotes and letters are those that models write

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_ANSWER_CHARS = 20_000  # of a response, from its end
_MAX_SPAN_CHARS = 2_000  # of a box or a tag
_MAX_STATEMENTS = 64  # the last ones

_MARKUP = re.compile(
    r"\\(?:text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf)|bf|rm|bm|boldsymbol|operatorname)\b\s*"
    r"|\\[()\[\] ,;!]|[{}$*`\"“”„«»]|__|</?[a-z]{1,8}>"
)
_QUOTED = re.compile(r"(?<!\w)['‘]([A-Za-z])['’](?!\w)")
_END = " \t.。．!！,，;；:："
_SPACE = re.compile(r"\s+")
# A label ends where its word does; in scripts without spaces a word may follow at once.
_WORD_GOES_ON = r"(?![^\W\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]|['’%+#*^=<>~]|-\w|[.,]\d)"
_LABELS = {
    False: re.compile(
        rf"(?P<open>[(\[]?)\s?(?P<label>[A-Za-z])\s?(?P<close>[)\]]?){_WORD_GOES_ON}"
    ),
    True: re.compile(
        rf"(?P<open>[(\[]?)\s?(?P<label>\d{{1,2}})\s?(?P<close>[)\]]?){_WORD_GOES_ON}"
    ),
}
_AND = re.compile(r"\s*(?:[,;&+、，和与]|\b(?:and|und|et|y|e|и)\b)\s*(?:and\b\s*)?")
_OR = re.compile(r"\s*(?:,\s*)?(?:/|\||或者?|\b(?:or|oder|ou|o|или)\b)\s*")
# More choices further on: "B. Paris, or perhaps (C)".
_MORE = re.compile(
    r"(?:/|\||或者?|\b(?i:or|and|oder|und|ou|et|или|и)\b)[\s,]{1,3}(?:[a-z]{2,10}[\s,]{1,3}){0,3}"
    r"[(\[]?(?:[A-Z]|\d{1,2})[)\]]?(?=\s*(?:$|[.。,;:!?)\]]))"
)
_REASON = re.compile(r"\s+(?:because|since|as|for|with|which|due|weil|porque|car|因为)\b")
_CUE = re.compile(
    r"\banswers?\b|\boption\b|\bchoice\b|\bchoose\b|\bselect\b|\bpick\b|\bgo with\b"
    r"|\b(?:antwort|réponse|respuesta|risposta|resposta|antwoord|odpowiedź|cevap|ответ)\b"
    r"|答案|选项|選項|应选|故选|選|选|正解|答え|정답|الإجابة|الجواب|उत्तर",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"[\s:：=>→\-–—'’,，]+|(?:is|are|was|be|has|have|to|would|should|must|will|ist|lautet|est|es|è|é"
    r"|correcta?|richtig|richtige|the|la|el|le|die|der|das|clearly|therefore|thus|hence|most"
    r"|likely|probably|definitely|indeed|either|final|best|right|option|choice|letter|answer"
    r"|number|only)\b|是|为|為|应该|は|이|은|는|هي|هو|है",
    re.IGNORECASE,
)
# "Option A: wrong" states nothing; "the best option is A" and "option A is right" do.
_WEAK_CUES = ("option", "choice", "选项", "選項")
_MAKES_STRONG = re.compile(
    r"(?:correct|right|best|final|my|most \w{1,20}|正确|正確)\s?$", re.IGNORECASE
)
_IS = re.compile(r"\s?(?:is|would be|should be|must be|是|为|為)(?![a-z])", re.IGNORECASE)
_DENIED = re.compile(
    r"(?:n['’]t|\bnot|\bnever|\bwrong|\bincorrect|\bfalse|\bbad|不|没|别|错误)\s?$", re.IGNORECASE
)
_WRONG = re.compile(r"\b(?:also\s|is\s)?(?:wrong|incorrect)\b|错", re.IGNORECASE)
_PRAISED = re.compile(
    r"\W{0,3}(?:is|are|must be|would be|seems)\s+(?:\w+ly\s+)?(?:the\s+)?(?:only\s+|most\s+)?"
    r"(?:correct|right|best|answer|true|appropriate)\b",
    re.IGNORECASE,
)
_JUDGED = re.compile(
    r"\W{0,3}(?:is|are|was|were|can|could|cannot|does|do|has|isn|doesn|would|may|might|must|seems"
    r"|looks|states|says)\b",
    re.IGNORECASE,
)
_LAST_WORD = re.compile(r"(?:\b(?:is|be|are)|[:=→])\s*(?P<choice>\S.{0,12})$")


def choice_reward(
    completions: list[Any],
    solution: list[Any],
    options: Sequence[Any] | None = None,
    prefilled: bool = False,
    **kwargs: Any,
) -> list[float | None]:
    r"""Score the choices: 1.0 or 0.0, None where the gold answer is no choice.

    Args:
        completions: B completions, plain text or lists of messages.
        solution: B gold answers: a label (`B`, `(B)`, `3`), several (a list, `A, C`, `AC`), the
            text of an option, or an int, which is a place in the options from 0, as in MMLU.
        options: B times the options of a row, or a list of texts that holds for all rows: texts, a
            mapping of labels to texts, ARC's `{"label": [...], "text": [...]}`, or JSON of these.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` is all reasoning.

    Returns:
        B rewards.

    Raises:
        ValueError: for options that are none of these.
    """
    if _are_of_all(options):
        labelled_options(options)  # a mistake in them shows even where there is no row
    rewards: list[float | None] = []
    for row, (completion, gold) in enumerate(zip(completions, solution, strict=True)):
        known = _options_of(options, row, len(completions))
        right = gold_labels(gold, known)
        if right is None:
            rewards.append(None)
            continue
        has_numbers = all(label.isdigit() for label in (known or right))
        text = _visible(completion_text(completion), prefilled)
        rewards.append(float(chosen_labels(text, known, has_numbers) == right))
    return rewards


def chooses_nothing(
    completions: list[Any], options: Any = None, prefilled: bool = False, **kwargs: Any
) -> list[bool]:
    """Whether each response makes no clear choice; logged as the share malformed."""
    found = []
    for row, completion in enumerate(completions):
        known = _options_of(options, row, len(completions))
        text = _visible(completion_text(completion), prefilled)
        kinds = {all(label.isdigit() for label in known)} if known else {False, True}
        found.append(all(chosen_labels(text, known, kind) is None for kind in kinds))
    return found


choice_reward.malformed = chooses_nothing  # type: ignore[attr-defined]


def gold_fault(solution: Any, options: Any = None) -> str | None:
    """Why a gold answer can't be graded, as "not gradable because ..."; None where it can."""
    if solution is None or (isinstance(solution, str) and not solution.strip()):
        return "not gradable because it is missing"
    if gold_labels(solution, labelled_options(options)) is None:
        return "not gradable because it is neither a label nor the text of one option"
    return None


def gold_labels(solution: Any, options: Mapping[str, str] | None = None) -> frozenset[str] | None:
    """Labels of a gold answer; None where it names none."""
    known = dict(options or {})
    if isinstance(solution, (list, tuple, set, frozenset)):
        parts = [gold_labels(part, known) for part in solution]
        labels = frozenset().union(*(part for part in parts if part))
        return labels if parts and all(parts) else None
    if isinstance(solution, int) and not isinstance(solution, bool):
        names = list(known) or list(_LETTERS)
        return frozenset([names[solution]]) if 0 <= solution < len(names) else None
    if not isinstance(solution, str) or not solution.strip():
        return None
    text = solution.strip()
    if text[0] == "[" and text[-1] == "]" and '"' in text:
        return gold_labels(_from_json(text), known)
    boxed = _last_box(text)
    text = _clean(text if boxed is None else boxed)
    by_text = _by_text(text, known)
    has_numbers = text.strip("()[]. ").isdigit() and (
        not known or all(label.isdigit() for label in known)
    )
    return _read(text, known, has_numbers) or by_text


def chosen_labels(
    text: str, options: Mapping[str, str] | None = None, has_numbers: bool = False
) -> frozenset[str] | None:
    """What a response, without its reasoning, chooses; None where that is nothing or unclear."""
    known = dict(options or {})
    text = unicodedata.normalize("NFKC", text[-_MAX_ANSWER_CHARS:])
    before, has_close, _ = text.rpartition("</answer>")
    _, has_open, span = before.rpartition("<answer>")
    if has_close and has_open:
        text = span
    boxed = _last_box(text)
    if boxed is not None:
        return _read(boxed, known, has_numbers)
    if has_close and has_open and (choice := _read(text, known, has_numbers)):
        return choice
    is_stated, choice = _stated(text, known, has_numbers)
    return choice if is_stated else _on_a_line(text, known, has_numbers)


# Reading a choice ---------------------------------------------------------------------------------


def _read(span: str, options: dict[str, str], has_numbers: bool) -> frozenset[str] | None:
    """The choice in a text that is an answer and nothing else: `B`, `(B) Paris`, `A, C`."""
    lines = [line for line in span[:_MAX_SPAN_CHARS].split("\n") if line.strip()]
    if not lines:
        return None
    text = _skip(_clean(lines[0]))
    if together := _letters_together(text, options):
        return together
    labels, is_clear, rest = _labels_at(text, options, has_numbers)
    if labels and is_clear:
        is_own_text = len(labels) == 1 and _plain(rest) == _plain(options.get(labels[0], ""))
        if _plain(rest) and not is_own_text:
            other = _by_text(rest.lstrip(" .):-–—"), options)
            is_led = (
                rest[0] in ".):,;-–—"
                or rest.startswith(" (")
                or text.removesuffix(rest).rstrip()[-1] in ")]"
                or _REASON.match(rest)
            )
            is_wrong = _WRONG.match(rest.lstrip(" .):,;-–—"))
            if (
                other
                or is_wrong
                or not is_led
                or _MORE.search(rest)
                or (has_numbers and rest[0] in ",-–")
            ):
                return None
        if len(lines) > 1 and _MORE.search(" ".join(lines[1:])):
            return None
        return frozenset(labels)
    return None if labels else _by_text(text, options)


def _labels_at(
    text: str, options: dict[str, str], has_numbers: bool
) -> tuple[list[str], bool, str]:
    """Labels that a text begins with, whether they are one choice, and what follows them."""
    labels: list[str] = []
    is_clear, place, end = True, 0, 0
    while match := _LABELS[has_numbers].match(text, place):
        label, rest = match["label"].upper(), text[match.end() :]
        ends = not rest or rest[0] in ".):,;/|&+-–—" or rest[0] > "\u3000" or bool(match["close"])
        if options and label not in options:
            break
        # "a dog" and "I think" are no choices; a small letter alone is.
        is_small = match["label"].islower()
        if not ends and (is_small or (label in "AI" and not _goes_on(rest))):
            break
        labels.append(label)
        end = match.end()
        joint = _OR.match(text, end) or _AND.match(text, end)
        if joint is None or not _LABELS[has_numbers].match(text, joint.end()):
            break
        is_clear = is_clear and _OR.match(text, end) is None
        place = joint.end()
    return labels, is_clear, text[end:]


def _letters_together(text: str, options: dict[str, str]) -> frozenset[str] | None:
    """Several labels as in `ACD`: different letters, in order."""
    letters = list(text)
    if len(letters) < 2 or letters != sorted(set(letters)):
        return None
    return frozenset(letters) if set(letters) <= set(options or _LETTERS[:10]) else None


def _goes_on(rest: str) -> bool:
    """Whether what follows is about the label before it."""
    followers = (_REASON, _OR, _AND, _JUDGED)
    return any(follower.match(rest) for follower in followers)


def _stated(
    text: str, options: dict[str, str], has_numbers: bool
) -> tuple[bool, frozenset[str] | None]:
    """The last statement of a choice, as in "the answer is B": whether there is one, and which."""
    found: tuple[bool, frozenset[str] | None] = (False, None)
    for cue in list(_CUE.finditer(text))[-_MAX_STATEMENTS:]:
        before, after = text[max(0, cue.start() - 30) : cue.start()], text[cue.end() :][:400]
        if _DENIED.search(before):
            continue  # "I would not choose A", "the wrong answer is A"
        line = _skip(_clean(after.partition("\n")[0]))
        labels, is_clear, rest = _labels_at(line, options, has_numbers)
        if labels:
            is_weak = cue[0].lower() in _WEAK_CUES and not (
                _IS.match(after) or _MAKES_STRONG.search(before)
            )
            if (is_weak or _JUDGED.match(rest)) and not _PRAISED.match(rest):
                continue  # "option A is wrong"
            is_own_text = _plain(rest) == _plain(options.get(labels[0], ""))
            is_clear = is_clear and (is_own_text or not _MORE.search(rest)) and rest[:1] != "?"
            found = (True, frozenset(labels) if is_clear else None)
        elif by_text := _by_text(line.partition(". ")[0], options):
            found = (True, by_text)
    for praised in re.finditer(r"(?<![\w'])[(\[]?([A-Z]|\d{1,2})[)\]]?(?= (?:is|are) )", text):
        label = praised[1]
        if found[0] or label.isdigit() != has_numbers or (options and label not in options):
            continue
        if _PRAISED.match(text, praised.end()):
            found = (True, frozenset([label]))
    return found


def _on_a_line(text: str, options: dict[str, str], has_numbers: bool) -> frozenset[str] | None:
    """The choice of a line that holds nothing else: the last line, or the only one of its kind."""
    lines = [line for line in text.split("\n") if line.strip()][-200:]
    if not lines:
        return None
    last = _clean(lines[-1])
    labels, is_clear, rest = _labels_at(last, options, has_numbers)
    if labels and not _plain(rest):
        return frozenset(labels) if is_clear else None
    choices = {choice for line in lines if (choice := _read(line, options, has_numbers))}
    if len(choices) == 1:
        return choices.pop()
    if choices or " not " in last or _WRONG.search(last):
        return None
    match = _LAST_WORD.search(last)
    return _read(match["choice"], options, has_numbers) if match else None


def _skip(text: str) -> str:
    """The text after words that lead to a choice."""
    while match := _FILLER.match(text):
        text = text[match.end() :]
    return text


def _clean(text: str) -> str:
    text = _QUOTED.sub(r"\1", unicodedata.normalize("NFKC", text))
    return _SPACE.sub(" ", _MARKUP.sub(" ", text)).strip().rstrip(_END).lstrip(":： ")


def _plain(text: str) -> str:
    return _clean(text).casefold().strip(_END + "()-–—'")


def _by_text(text: str, options: dict[str, str]) -> frozenset[str] | None:
    """The only option with this text."""
    plain = _plain(text)
    labels = [label for label, option in options.items() if plain and _plain(option) == plain]
    return frozenset(labels) if len(labels) == 1 else None


# Options and responses ----------------------------------------------------------------------------


def _options_of(options: Any, row: int, num_rows: int) -> dict[str, str] | None:
    if options is None:
        return None
    are_of_all = _are_of_all(options)
    if not are_of_all and len(options) != num_rows:
        raise ValueError(
            f"options are given for {len(options)} rows of {num_rows}; give each row its list, or "
            "one list of texts for all"
        )
    return labelled_options(options if are_of_all else options[row])


def _are_of_all(options: Any) -> bool:
    """Whether the options are those of every row: texts, where rows have lists or JSON."""
    if options is None or isinstance(options, Mapping):
        return options is not None
    return all(isinstance(each, str) and each.lstrip()[:1] not in ("[", "{") for each in options)


def labelled_options(options: Any) -> dict[str, str] | None:
    """Options by label.

    Raises:
        ValueError: for what is neither texts nor a mapping of labels to texts.
    """
    if isinstance(options, str):
        options = _from_json(options)
    if options is None or len(options) == 0:
        return None
    if isinstance(options, Mapping):
        labels, texts = options.get("label"), options.get("text")
        if isinstance(labels, (list, tuple)) and isinstance(texts, (list, tuple)):
            options = dict(zip(labels, texts, strict=True))
        return {str(label).strip().upper(): str(text) for label, text in options.items()}
    if not isinstance(options, (list, tuple)) or len(options) > len(_LETTERS):
        raise ValueError(
            f"options are {str(options)[:80]!r}; they must be at most 26 texts, or a mapping of "
            "labels to texts"
        )
    texts = [str(option) for option in options]
    leads = [rf"\s*[(\[]?{label}[)\].:]\s*" for label in _LETTERS]
    if all(re.match(lead, text) for lead, text in zip(leads, texts, strict=False)):
        texts = [re.sub(lead, "", text, count=1) for lead, text in zip(leads, texts, strict=False)]
    return dict(zip(_LETTERS, texts, strict=False))


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"options are {text[:80]!r}, which is no JSON: {error}") from error


def _visible(text: str, prefilled: bool) -> str:
    _, is_closed, visible = text.rpartition("</think>")
    if prefilled and not is_closed:
        return ""
    return visible.partition("<think>")[0]


def _last_box(text: str) -> str | None:
    r"""Content of the last closed `\boxed{}`, found in one pass."""
    start = text.rfind("\\boxed{")
    depth = 0
    for place in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 7 : place]
    return None


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
