"""What is wrong with the values of a task file, each by its key, before any row is read.

Left out: unknown keys and types (`task_file`), and what only the rows can tell (`column_rows`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.rewards.language_consistency import LANGUAGES
from trl_r1.tasks import TASKS
from trl_r1.tasks.row_templates import as_template, template_fault
from trl_r1.verification.reward_modules import builtin_rewards

_TEMPLATES = ("prompt", "solution", "reasoning", "response")
# Columns of every row that come from keys of their own.
_OWN = ("prompt", "completion", "solution", "task")
_NAME = re.compile(r"\w[\w .+-]*")


def value_faults(values: Mapping[str, Any], folder: Path) -> list[str]:
    """All that is wrong, one line each; values of a wrong type are passed over.

    Args:
        values: of the file, by key.
        folder: of the file, where a grader's file may lie.
    """
    return [
        *_name_faults(values.get("name")),
        *_template_faults(values),
        *_grader_faults(values.get("grader"), folder),
        *_language_faults(values.get("language")),
        *_completion_faults(values),
    ]


def _name_faults(name: Any) -> Iterator[str]:
    if not isinstance(name, str):
        return
    if name in TASKS:
        yield f"name: {name!r} is a built-in task; choose another name"
    elif not _NAME.fullmatch(name):
        yield f"name: {name!r} may have letters, digits, `_`, `-`, `.`, `+` and blanks alone"


def _template_faults(values: Mapping[str, Any]) -> Iterator[str]:
    for key in _TEMPLATES:
        text = values.get(key)
        if isinstance(text, str) and (fault := template_fault(text)):
            yield f"{key}: {fault}"
    columns = values.get("columns")
    for name, text in columns.items() if isinstance(columns, Mapping) else ():
        if name in _OWN:
            how = f"use the key {name!r}" if name in _TEMPLATES else "it is made by the task"
            yield f"columns.{name}: every row has this column; {how}, or choose another name"
        elif isinstance(text, str) and (fault := template_fault(as_template(text))):
            yield f"columns.{name}: {fault}"


def _grader_faults(grader: Any, folder: Path) -> Iterator[str]:
    """A name that is no reward, or a file that is not there; the file is not run."""
    if not isinstance(grader, str):
        return
    target, _, function = grader.rpartition(":")
    if not target and not grader.endswith(".py"):
        known = builtin_rewards()
        if grader not in known:
            hint = suggestion(grader, known) or f"; built in: {one_of(known)}"
            yield f"grader: unknown reward {grader!r}{hint}; your own is file.py:function"
    elif not target or not function:
        yield f"grader: {grader} names no function; write file.py:function"
    elif target.endswith(".py") and not any((p / target).is_file() for p in (folder, Path.cwd())):
        yield f"grader: there is no file {target} in {folder}"


def _language_faults(language: Any) -> Iterator[str]:
    if not isinstance(language, str):
        return
    code = language.replace("_", "-").partition("-")[0].casefold()
    if code not in LANGUAGES:
        hint = suggestion(language, LANGUAGES) or f"; known: {', '.join(LANGUAGES)}"
        yield f"language: unknown language {language!r}{hint}"


def _completion_faults(values: Mapping[str, Any]) -> Iterator[str]:
    given = [key for key in ("reasoning", "response", "messages") if values.get(key)]
    if len(given) > 1:
        yield f"{' and '.join(given)}: each makes the completion; keep one"
