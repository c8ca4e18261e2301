"""The texts of a row, and their words as comparisons see them.

A row's problem is what a person asks (`prompt`, `problem`, `question`, the user's turns of
`messages`), its response what a model or an author answers. System prompts and examples given in a
prompt are no part of either: they are the same in every row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROBLEM_COLUMNS = ("prompt", "problem", "question", "Question", "instruction", "question_content")
RESPONSE_COLUMNS = ("completion", "response", "output", "generation", "target", "chosen")
TURN_COLUMNS = ("messages", "conversations")
_TEXT_COLUMNS = ("text",)

# A thousands separator, of plain text or LaTeX.
_SEPARATOR = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")
# Zero-width characters, soft hyphens and marks of direction: they part words that are one.
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]{2}) +-+ +(?=[^\W\d_]{2})")
_OPERATOR = re.compile(r"(?<![^\W\d_])-|-(?![^\W\d_])|[+*/^=<>%]")
# Dashes in the place of a minus; the one between clauses (\u2014) is none.
_MINUS = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"))
_MINUS |= str.maketrans({"\u00d7": "*", "\u00f7": "/"})
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])['’`](?=[^\W\d_])")  # noqa: RUF001 - as people type it
# What changes how LaTeX looks and not what it says.
_LATEX_LAYOUT = re.compile(
    r"\\(?:begin|end)\s*\{[a-z*]+\}(?:\{[lcr|\s]*\})?"
    r"|\\(?:left|right|bigg?[lr]?|displaystyle|textstyle|limits|q?quad|text(?:bf|it|rm|tt|sf)?"
    r"|math(?:rm|bf|it|sf|bb|cal)|mbox|operatorname|boldsymbol|hspace|vspace)(?![a-z])\*?"
    r"|\\[\\,;:!> ]"
)
_LATEX_SIZE = re.compile(r"\\[dtc](?=(?:frac|binom)(?![a-z]))")
_WORD = re.compile(r"\d+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_\u3040-\u9fff]+")
_SQUEEZED_LAYOUT = re.compile(
    r"begin(?:align|array|cases|pmatrix)|end(?:align|array|cases|pmatrix)"
    r"|left|right|displaystyle|qquad|quad|text(?:bf|it|rm)?|math(?:rm|bf|it|bb)|mbox|operatorname"
    r"|[dt](?=frac|binom)"
)


def words(text: str) -> list[str]:
    r"""The words of a text without white space, case, punctuation and LaTeX layout.

    `$\dfrac{1}{2}$ of 1,000` gives `frac 1 2 of 1000`: names of LaTeX commands are words, digits
    are parted from letters, `\left`, `\text` and spacing are dropped, and each character of a
    script without spaces is a word.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text))
    # Also names of commands: a text in capitals is to be found.
    text = _SEPARATOR.sub("", text.lower())
    if "\\" in text:
        text = _LATEX_LAYOUT.sub(" ", _LATEX_SIZE.sub("", text))
    return _WORD.findall(_APOSTROPHE.sub("", text))


def operators(text: str) -> str:
    """The signs of arithmetic in a text, in order; hyphens and dashes between words are none."""
    plain = unicodedata.normalize("NFKC", text).translate(_MINUS)
    return "".join(_OPERATOR.findall(_BETWEEN_WORDS.sub(" ", plain)))


def squeezed(tokens: Sequence[str]) -> str:
    """The words in one piece, for texts whose punctuation was taken out and not replaced."""
    return _SQUEEZED_LAYOUT.sub("", "".join(tokens))


@dataclass(frozen=True)
class TextColumns:
    """Which columns hold texts.

    Attributes:
        problem: texts, or messages of which the last turn of the user counts.
        response: texts or messages, whatever the role.
        turns: whole conversations: the user's turns are problems, the assistant's responses.
    """

    problem: tuple[str, ...] = ()
    response: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [*self.problem, *self.response, *self.turns]


def text_columns(column_names: Iterable[str], wanted: Sequence[str] = ()) -> TextColumns:
    """The text columns of a data set.

    Args:
        column_names: those it has.
        wanted: the ones to look at; by default every one with a name in use for them.

    Raises:
        ValueError: a wanted column is not there, or there is none.
    """
    there = list(column_names)
    if missing := [name for name in wanted if name not in there]:
        raise ValueError(f"no column {', '.join(missing)}; there is {', '.join(there)}")
    if wanted:
        turns = tuple(name for name in wanted if name in TURN_COLUMNS)
        response = tuple(name for name in wanted if name in RESPONSE_COLUMNS)
        problem = tuple(name for name in wanted if name not in (*turns, *response))
        return TextColumns(problem, response, turns)
    problem = tuple(name for name in PROBLEM_COLUMNS if name in there)
    response = tuple(name for name in RESPONSE_COLUMNS if name in there)
    # A set that has both keeps the same texts twice.
    turns = () if problem else tuple(name for name in TURN_COLUMNS if name in there)
    if not (problem or turns):
        problem = tuple(name for name in _TEXT_COLUMNS if name in there)
    if not (problem or turns):
        raise ValueError(
            f"no column with a problem among {', '.join(there)}; name the columns to look at"
        )
    return TextColumns(problem, response, turns)


def problem_texts(row: Mapping[str, Any], columns: TextColumns) -> list[str]:
    """What is asked in a row; of several columns with the same text, one."""
    texts = [_last_user_text(row[name]) for name in columns.problem]
    texts += [text for name in columns.turns for text in _turns(row[name], is_asked=True)]
    return list(dict.fromkeys(text for text in texts if text))


def response_texts(row: Mapping[str, Any], columns: TextColumns) -> list[str]:
    """What is answered in a row."""
    texts = [_whole_text(row[name]) for name in columns.response]
    texts += [text for name in columns.turns for text in _turns(row[name], is_asked=False)]
    return [text for text in texts if text]


def question_of(prompt: Any) -> str:
    """What a prompt asks, whatever its format says before: the last turn of the user."""
    return " ".join(_last_user_text(prompt).split())


def rows_of(batch: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a slice of a data set."""
    names = list(batch)
    return [dict(zip(names, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def _content(message: Any) -> str:
    if not isinstance(message, Mapping):
        return message if isinstance(message, str) else ""
    return content_text(message.get("content", message.get("value")))


def content_text(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        return "" if content is None else str(content)
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def role_of(message: Any) -> str:
    """Who says a message, in the names of the chat templates."""
    role = message.get("role", message.get("from")) if isinstance(message, Mapping) else None
    return {"human": "user", "gpt": "assistant"}.get(str(role), str(role))


def _last_user_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        return "" if value is None else str(value)
    asked = [message for message in value if role_of(message) == "user"]
    return _content(asked[-1]) if asked else "\n".join(_content(m) for m in value)


def _whole_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "\n".join(_content(message) for message in value)
    return "" if value is None else str(value)


def _turns(value: Any, is_asked: bool) -> list[str]:
    if not isinstance(value, (list, tuple)):
        return []
    role = "user" if is_asked else "assistant"
    return [_content(message) for message in value if role_of(message) == role]
