"""What `trl-r1 check --untrusted` prints: the code that a folder's recipes would run, to be read.

Each file once: which recipes name it, its size and hash, its functions and imports, what to look
at, and its source with unseen characters written out. Nothing of it is run or imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trl_r1.trust.code_references import (
    CodeReference,
    code_references,
    override_values,
    yaml_values,
)
from trl_r1.trust.findings import Findings, findings_of
from trl_r1.trust.reach import model_code, reach_lines
from trl_r1.trust.visible_text import (
    SourceText,
    hidden_characters,
    read_source,
    shown_line,
    source_lines,
)

SHOWN_LINES = 200


def listing(
    folder: Path, shown: str, overrides: Sequence[Any] = (), max_lines: int = SHOWN_LINES
) -> Iterator[str]:
    """The lines to print of a pipeline folder.

    Args:
        folder: the folder.
        shown: the folder as the user named it.
        overrides: of `--set`.
        max_lines: of source, a file; 0 for all.
    """
    values = [*yaml_values(folder, shown), *override_values(overrides, folder)]
    references = [*code_references(values, folder), *model_code(values, folder)]
    if not references:
        yield f"{shown}: its recipes name no code of their own."
    else:
        yield f"Code that {shown} would run, shown and not run:"
    by_file: dict[Path, list[CodeReference]] = {}
    for reference in references:
        for file in reference.files:
            by_file.setdefault(file, []).append(reference)
    for file, naming in by_file.items():
        yield ""
        yield from _file_lines(file, naming, max_lines)
    if without := [r for r in references if r.note]:
        yield ""
        yield "Named, and not to be shown:"
        yield from (f"  {r.where}: {r.text}: {r.note}" for r in without)
    if asked := reach_lines(values):
        yield ""
        yield "What a run would also do:"
        yield from (f"  {line}" for line in asked)
    yield ""


def _file_lines(path: Path, naming: Sequence[CodeReference], max_lines: int) -> Iterator[str]:
    yield f"{path}"
    for reference in naming:
        yield f"  named by    {reference.where}: {reference.text}"
    try:
        source = read_source(path)
    except OSError as error:
        yield f"  not shown   {error.strerror or error}"
        return
    yield f"  size        {source.size:,} bytes"
    yield f"  sha256      {source.digest}"
    for remark in source.remarks:
        yield f"  note        {remark}"
    if source.text is None:
        yield "  not shown   look at it with a tool that you trust"
        return
    yield from _findings_lines(source, findings_of(source.text), naming)
    yield from _source_lines(path, source.text, max_lines)


def _findings_lines(
    source: SourceText, findings: Findings, naming: Sequence[CodeReference]
) -> Iterator[str]:
    if findings.fault is not None:
        yield f"  not Python  {findings.fault}"
    for name in dict.fromkeys(reference.name for reference in naming if reference.name):
        yield f"  function    {findings.signatures.get(name, f'{name}: not defined at its top')}"
    if findings.imports:
        yield f"  imports     {', '.join(findings.imports)}"
    for remark in findings.remarks:
        yield f"  look at     {remark}"
    text = source.text or ""
    for word, has in (
        ("characters that a terminal does not show; they are written out below", hidden_characters),
        ("letters beyond ASCII, which may look like others", lambda line: not line.isascii()),
    ):
        numbers = [i for i, line in enumerate(source_lines(text), 1) if has(line)]
        if numbers:
            more = ", ..." if len(numbers) > 6 else ""
            yield f"  look at     {word}: line {', '.join(map(str, numbers[:6]))}{more}"


def _source_lines(path: Path, text: str, max_lines: int) -> Iterator[str]:
    lines = source_lines(text)
    limit = max_lines or len(lines)
    width = len(str(min(limit, len(lines))))
    for number, line in enumerate(lines[:limit], 1):
        yield f"  {number:>{width}} | {shown_line(line)}"
    if len(lines) > limit:
        yield (
            f"  ... {len(lines) - limit:,} more lines; read them before you run it: "
            f"--lines 0 shows all, {path} holds them"
        )
