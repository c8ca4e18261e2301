"""Any text as a part of a card: it shows as it is, and can't become Markdown, HTML or a drawing.

Cards are public. What looks like a token is left out, of a path on this machine only the last name
is shown, and of a server only that it is one.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

import yaml

from trl_r1.report.reading import visible
from trl_r1.trust.secrets import mask, only_own_masked

LEFT_OUT = "(left out)"
_TOKEN = re.compile(
    r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}|\b(?:sk|rk|pk)-[\w-]{16,}|\bgh[opsur]_\w{20,}"
    r"|\bgithub_pat_\w{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bxox[a-z]-[\w-]{10,}"
    r"|(?<![\w-])ey[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"
    r"|(?i:(?<=bearer )[\w.~+/=-]{8,})"
    r"|(?i:(?:(?<=token=)|(?<=password=)|(?<=secret=)|(?<=api_key=)|(?<=apikey=)|(?<=signature=)))"
    r"[^\s&\"']+"
)
# Of limited length, and not begun inside of a word: else a long text takes its square in time.
_URL = re.compile(r"(?<![\w+.-])[a-z][a-z0-9+.-]{1,20}://[^\s<>\"'`]+", re.IGNORECASE)
_NAME = r"[^\s/\\'\"`|<>,;:()\[\]{}]+"
_POSIX_PATH = re.compile(
    rf"(?<![\w/.<~\\-])(?:~(?:[A-Za-z_][\w.-]*)?(?:/{_NAME})+|(?:/{_NAME}){{2,}})/?"
)
_WINDOWS_PATH = re.compile(
    rf"(?<!\w)[A-Za-z]:[\\/]+(?:Users|home)(?:[\\/]+{_NAME})*", re.IGNORECASE
)
_HOMES = ("home", "users")
_MOST_SPACES = 3
_LONGEST_TEXT = 2000  # of a recipe, in characters
_PRIVATE = (".local", ".internal", ".lan", ".home", ".corp", ".intranet")

# As entities, which can't be the marks of anything.
_MARKS = {
    **{mark: f"&#{ord(mark)};" for mark in "|`*[]\\~$!"},
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
}
_SAFE_NAME = re.compile(r"[@\w][\w@./:+ ,=-]*", re.ASCII)


def public(text: Any) -> str:
    """A text without tokens, paths of this machine and private servers."""
    with only_own_masked():
        found = _TOKEN.sub(LEFT_OUT, mask(str(text), by=LEFT_OUT))
    if _is_path(found):
        return _last_name(found)
    found = _URL.sub(lambda match: _public_url(match[0]), found)
    for pattern in (_WINDOWS_PATH, _POSIX_PATH):
        found = pattern.sub(lambda match: _last_name(match[0]), found)
    return found


def public_data(value: Any) -> Any:
    """Plain data with every text in it made `public` and visible, keys too."""
    if isinstance(value, str):
        return visible(public(value))
    if isinstance(value, Mapping):
        return {visible(public(key)): public_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [public_data(item) for item in value]
    return f"({len(value):,} bytes)" if isinstance(value, (bytes, bytearray)) else value


def _is_path(text: str) -> bool:
    """Whether a whole text, such as a value of a recipe, is a path and no sentence with one."""
    if "\n" in text or text.count(" ") > _MOST_SPACES:
        return False
    is_posix = re.match(r"(?:file://)?/|~(?:[A-Za-z_][\w.-]*)?/", text) is not None
    is_posix = (is_posix and "/" in text.rstrip("/")[1:]) or ".." in PurePosixPath(text).parts
    return is_posix or re.fullmatch(r"(?:[A-Za-z]:[\\/]|\\\\\w)[^{}$]*", text) is not None


def _last_name(path: str) -> str:
    path = path.removeprefix("file://")
    is_posix = "/" in path and "\\" not in path
    parts = (PurePosixPath if is_posix else PureWindowsPath)(path).parts
    # A home alone is the name of a person.
    is_home = len(parts) <= 3 and any(part.lower() in _HOMES for part in parts[1:2])
    return "~" if is_home else parts[-1]


def _public_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return LEFT_OUT
    if not host:  # `file:///home/me/x`, `sqlite:////home/me/x`
        return _last_name(parts.path) if parts.path.strip("/") else LEFT_OUT
    if "@" in parts.netloc:
        return f"{parts.scheme}://{LEFT_OUT}"
    is_web = parts.scheme.lower() in ("http", "https", "ws", "wss")
    return "(a server)" if is_web and _is_private(host) else url


def _is_private(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.lower().endswith(_PRIVATE)
    return True


def one_line(text: Any, limit: int = 300) -> str:
    """A text that is public, visible, in one line and not too long; for the header of a card."""
    line = " ".join(visible(" ".join(public(text).split())).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def inline(text: Any, limit: int = 300) -> str:
    """A text inside a paragraph or a cell."""
    return _escaped(one_line(text, limit))


def _escaped(line: str) -> str:
    line = "".join(_MARKS.get(mark, mark) for mark in line)
    line = line.replace("://", "&#58;//").replace("www.", "www&#46;")
    line = re.sub(r"(?<!\w)_|_(?!\w)", "&#95;", line)
    # What would begin a heading, a list, a rule or a quotation.
    found = re.match(r"[#+=-]|\d+[.)](?=\s|$)", line)
    if found is None:
        return line
    end = found.end()
    return f"{line[: end - 1]}&#{ord(line[end - 1])};{line[end:]}"


def code(text: Any, limit: int = 120) -> str:
    """A name as code; one with characters that code in a table can't show, as plain text."""
    line = one_line(text, limit)
    return f"`{line}`" if _SAFE_NAME.fullmatch(line) else _escaped(line)


def link(text: str, url: str) -> str:
    """A link; the text is Markdown already."""
    return f"[{text}]({url})"


def block(text: str, language: str = "") -> str:
    """A text in a fence that it can't leave."""
    clean = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", clean)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = [line.rstrip() for line in clean.rstrip().split("\n")]
    return "\n".join([f"{fence}{language}", *lines, fence])


def fold(summary: str, body: str) -> str:
    """A part that is closed at first. The summary is ours, the body is Markdown already."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its cells are Markdown already, such as `inline` and `code` make it."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def drawn(text: Any, limit: int = 48) -> str:
    """A text in a box of a Mermaid drawing, between double quotes."""
    return "".join(
        mark if mark.isalnum() or mark in " _.,:/+()-" else f"#{ord(mark)};"
        for mark in one_line(text, limit)
    )


def as_yaml(value: Any) -> str:
    """Plain data as YAML, without secrets and paths; texts of pages are cut, and say so."""
    shown = _shortened(public_data(value), _LONGEST_TEXT)
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100)


def row_as_json(value: Mapping[str, Any], limit: int = 600) -> str:
    """A row as JSON, a line a column; long texts and lists are cut, and say so."""
    row = _shortened(public_data(value), limit, most_items=12)
    lines = [json.dumps({key: item}, ensure_ascii=False, default=str) for key, item in row.items()]
    return "\n".join(["{", ",\n".join(f"  {line[1:-1]}" for line in lines), "}"])


def _shortened(value: Any, limit: int, most_items: int | None = None) -> Any:
    if isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]}… ({len(value):,} characters)"
    if isinstance(value, Mapping):
        return {key[:limit]: _shortened(item, limit, most_items) for key, item in value.items()}
    if isinstance(value, list):
        shown = [_shortened(item, limit, most_items) for item in value[:most_items]]
        left = len(value) - len(shown)
        return [*shown, f"… ({left:,} more)"] if left else shown
    return value
