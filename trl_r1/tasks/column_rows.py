"""Rows of a source to rows of a task: prompt, completion, gold answer and further columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trl_r1.tasks.choices import read_choices, with_options
from trl_r1.tasks.row_templates import fill, text_of, value_of
from trl_r1.trust.withholding import WithheldError

if TYPE_CHECKING:
    from trl_r1.reasoning_format import Message, ReasoningFormat
    from trl_r1.tasks.columns import ColumnTask

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Convert:
    """Rows of a source to rows of the task, a batch at a time."""

    task: ColumnTask
    fmt: ReasoningFormat
    split: str
    place: str

    def __call__(
        self, batch: Mapping[str, Sequence[Any]], indices: Sequence[int], where: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        made: list[dict[str, Any]] = []
        for index, values in zip(indices, zip(*batch.values(), strict=True), strict=True):
            row: dict[str, Any] | None = dict(zip(batch, values, strict=True))
            try:
                if row is None or not is_wanted(row, where):
                    continue
                row = self._prepared(row) if self.task.prepare else row
                converted = None if row is None else self._row(row)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                detail = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"{self.place.format(index)}, {self.split}: {detail}") from error
            made += [] if converted is None else [converted]
        return {name: [row[name] for row in made] for name in self.task.column_names}

    def _prepared(self, row: dict[str, Any]) -> dict[str, Any] | None:
        assert self.task.prepare is not None
        try:
            made = self.task.prepare(row, self.split)
        except WithheldError:
            raise
        except Exception as error:  # the user's own code may raise anything
            detail = " ".join(str(error).split())
            raise ValueError(f"prepare: {type(error).__name__}: {detail}") from error
        if made is not None and not isinstance(made, dict):
            kind = type(made).__name__
            raise ValueError(f"prepare: it returned a {kind}; a row (a dict) or None is wanted")
        return made

    def _row(self, row: dict[str, Any]) -> dict[str, Any] | None:
        task = self.task
        question = "" if task.messages else fill(task.prompt, row)
        solution = None if task.solution is None else fill(task.solution, row)
        options: list[str] = []
        if task.choices:
            if solution is not None and not solution.strip():
                return None
            shuffles = task.shuffle_choices
            options, solution = read_choices(task.choices, row, solution or "", shuffles)
            question = with_options(question, options)
        answer = None if solution is None else extracted(solution, task.extract)
        if solution is not None and not answer:
            return None
        prompt = self._prompt(question, row)
        converted: dict[str, Any] = {
            "prompt": prompt,
            "solution": answer,
            "task": task.name,
            "language": row.get("language") or task.language,
            "options": json.dumps(options, ensure_ascii=False),
            **{name: text_of(value_of(text, row)) for name, text in task.columns.items()},
        }
        if "completion" in task.column_names:
            text = self._completion(row, answer or "")
            if not text:
                return None
            converted["completion"] = [{"role": "assistant", "content": text}]
        return converted

    def _prompt(self, question: str, row: Mapping[str, Any]) -> list[Message]:
        if self.task.messages:
            turns = self._turns(row)
            return turns[:-1] if turns and turns[-1]["role"] == "assistant" else turns
        if self.task.kind == "reasoning":
            return self.fmt.prompt(question)
        return [{"role": "user", "content": question}]

    def _turns(self, row: Mapping[str, Any]) -> list[Message]:
        name = str(self.task.messages)
        given = row[name]
        if not given:
            raise ValueError(f"messages: {name} is empty; leave such rows out in `prepare`")
        is_list = isinstance(given, list)
        if not is_list or not all(isinstance(t, Mapping) and t.get("role") for t in given):
            raise ValueError(f"messages: {name} should be a list of turns with role and content")
        if any(turn.get("content") is None for turn in given):
            raise ValueError(f"messages: a turn of {name} has no content")
        return [dict(turn) for turn in given]

    def _completion(self, row: Mapping[str, Any], answer: str) -> str:
        if self.task.messages:
            last = self._turns(row)[-1]
            return str(last["content"]) if last["role"] == "assistant" else ""
        final = answer if self.fmt.profile == "answer_tags" else f"\\boxed{{{answer}}}"
        if self.task.reasoning:
            return self.fmt.render(fill(self.task.reasoning, row), final)
        text = fill(self.task.response or "", row)
        if self.task.kind == "general" or not text:
            return text
        reasoning, has_end, rest = text.partition(_THINK_CLOSE)
        reasoning = reasoning.strip().removeprefix(_THINK_OPEN)
        if not has_end:
            return self.fmt.render(text, final)
        is_plain = self.fmt.profile == "answer_tags" or not rest.strip()
        return self.fmt.render(reasoning, final if is_plain else rest.strip())


def extracted(text: str, how: Literal["text", "boxed", "after_hashes"]) -> str:
    r"""The answer in a text: all of it, its last `\boxed{}` with balanced braces, or what follows
    `####`; an empty text where there is none."""
    if how == "text":
        return text.strip()
    if how == "after_hashes":
        return text.rpartition("####")[2].strip().replace(",", "") if "####" in text else ""
    start = text.rfind("\\boxed{")
    depth = 0
    for end in range(start, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if text[end] == "}" and depth == 0:
            return text[start + len("\\boxed{") : end].strip()
    return ""


def is_wanted(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether a row has the values, or one of each list of values, that are asked for."""
    for name, allowed in where.items():
        values = allowed if isinstance(allowed, (list, tuple)) else [allowed]
        if row[name] not in values:
            return False
    return True
