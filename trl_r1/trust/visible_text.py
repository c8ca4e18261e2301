"""A stranger's text as a terminal may safely print it, and a stranger's file as the lines in it.

Escape sequences can hide or repaint lines on a terminal, marks of direction show text in another
order than it runs in, and a file that is no file can hang whoever reads it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tokenize
import unicodedata
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1 << 20
_MAX_COLUMNS = 160
# Besides what Unicode calls control, format, private or unassigned: separators that only some
# programs take for the end of a line, and letters that print as nothing.
_UNSEEN = frozenset("\u2028\u2029\u115f\u1160\u3164\uffa0\u2800")
_SPACES = "Zs"


@dataclass(frozen=True)
class SourceText:
    """What is in a file.

    Attributes:
        size: in bytes.
        digest: its sha256.
        text: the beginning, at most `MAX_BYTES`; None where it is no text.
        is_whole: the text is all of it.
        remarks: what a reader should know: another encoding, a link, no text.
    """

    size: int
    digest: str
    text: str | None
    is_whole: bool
    remarks: tuple[str, ...] = ()


def visible(text: str, keep: str = "\n") -> str:
    r"""A text whose unseen characters are written out: `\x1b`, `\u202e`.

    Args:
        text: any.
        keep: characters that stay as they are.
    """
    return "".join(c if c in keep or not _is_unseen(c) else _escaped(c) for c in text)


def shown_line(line: str) -> str:
    """A line of source as it is printed: unseen characters written out, cut to a width."""
    clean = visible(line.expandtabs(4), keep="")
    if len(clean) <= _MAX_COLUMNS:
        return clean
    return f"{clean[:_MAX_COLUMNS]} ... ({len(clean) - _MAX_COLUMNS:,} more characters)"


def source_lines(text: str) -> list[str]:
    """The lines as Python parts them; `str.splitlines` would part at more."""
    return re.split(r"\r\n|\r|\n", text.removesuffix("\n"))


def hidden_characters(text: str) -> bool:
    """Whether something in it would not be seen on a terminal."""
    return any(_is_unseen(c) and c not in "\t\n\r\f" for c in text)


def read_source(path: Path) -> SourceText:
    """What is in a file of source, whatever it is.

    Raises:
        OSError: it can't be read, or is no regular file; its text says which.
    """
    # A pipe without a writer would block the opening itself.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        beginning = file.read(MAX_BYTES)
        digest, size = hashlib.sha256(beginning), len(beginning)
        while chunk := file.read(MAX_BYTES):
            digest.update(chunk)
            size += len(chunk)
    remarks = [f"a link to {path.resolve()}"] if path.is_symlink() else []
    text, remark = _decoded(beginning)
    is_whole = size == len(beginning)
    if not is_whole:
        remarks.append(f"only its first {MAX_BYTES >> 20} MiB are looked at")
    return SourceText(
        size,
        digest.hexdigest(),
        text,
        is_whole,
        tuple([*remarks, remark] if remark else remarks),
    )


def _decoded(data: bytes) -> tuple[str | None, str | None]:
    """The text as Python would read it, and a remark where that is not plain UTF-8."""
    if b"\0" in data:
        return None, "not a text: it holds zero bytes"
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode(encoding, errors="replace")
    except (SyntaxError, LookupError, UnicodeError, ValueError) as error:
        return data.decode("utf-8", errors="replace"), f"Python would not read it: {error}"
    if encoding in ("utf-8", "utf-8-sig"):
        return text, None
    return text, f"its encoding is {encoding}; shown is what Python would read"


def _is_unseen(character: str) -> bool:
    category = unicodedata.category(character)
    is_odd_space = category == _SPACES and character != " "
    return category[0] == "C" or is_odd_space or character in _UNSEEN


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
