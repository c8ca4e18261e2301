r"""A task by declaration: which columns of a set make the prompt, the gold answer and the rest.

`ColumnTask` is what known sets (`known_sets`) and users' YAML files (`task_file`) are made of.
Texts are templates over the source's columns: `{question}`, a field inside of one
`{reward_model[ground_truth]}`; braces of LaTeX in a template itself are doubled, those in columns
are not looked at.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trl_r1.tasks import DatasetSource, Task
from trl_r1.tasks.sources import Source, read_source

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import Message, ReasoningFormat

# A source's row and the split to one with further or other columns; None leaves the row out.
Prepare = Callable[[dict[str, Any], str], "dict[str, Any] | None"]

_logger = logging.getLogger(__name__)
_LETTERS = string.ascii_uppercase
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ColumnTask:
    r"""One task.

    Attributes:
        name: of the task, the value of its rows' `task` column.
        source: where rows come from unless a recipe says: Hub id, `owner/name:config`, file, folder
            or `hf://` address; may have a `{split}`.
        prompt: template of what is asked.
        solution: template of the gold answer; None for a task without one.
        extract: where the answer is in that: all of it, the last `\boxed{}`, or after `####`. Rows
            without one are left out.
        kind: `reasoning` prompts get the reasoning format's system prompt; `general` ones don't.
        grader: reward that says whether an answer is right, as in `rewards:` `use`.
        reasoning: template of steps that lead to the answer; makes a `completion`.
        response: template of a whole response, with `<think>` and `</think>` or without; makes a
            `completion`.
        messages: column of a conversation; its last turn is the `completion`, the rest the prompt.
        choices: options of a multiple choice question: a column (a list of texts, or ARC's mapping
            of labels and texts), or several with a text each. They are put under the question and
            into the column `options`; the solution is a letter, a text of one, or a place from 0.
        shuffle_choices: in an order of their own for each question, always the same.
        columns: further columns of the rows: a column of the source, or a template. All are text;
            what is none is written as JSON.
        where: rows to keep, by values of columns: one, or a list of them.
        splits: what a split is called in the source.
        language: of the problems, for the reward `language_consistency`; None for no such column.
        prepare: changes a row of the source, or leaves it out, before all this.
        needs: columns of the source that `prepare` reads.
    """

    name: str
    source: str | None = None
    prompt: str = "{problem}"
    solution: str | None = "{answer}"
    extract: Literal["text", "boxed", "after_hashes"] = "text"
    kind: Literal["reasoning", "general"] = "reasoning"
    grader: str = "math_answer"
    reasoning: str | None = None
    response: str | None = None
    messages: str | None = None
    choices: str | tuple[str, ...] | None = None
    shuffle_choices: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    language: str | None = "en"
    prepare: Prepare | None = None
    needs: tuple[str, ...] = ()

    def task(self) -> Task:
        """It as a `Task`."""
        return Task(
            name=self.name,
            kind=self.kind,
            rows=self.rows,
            default_source=self.source,
            columns=self.column_names,
            grader=self.grader,
            arguments=("where",),
        )

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns of its rows."""
        has_completion = self.reasoning or self.response or self.messages
        own = ["prompt", *(["completion"] if has_completion else []), "solution", "task"]
        own += ["language"] if self.language else []
        own += ["options"] if self.choices else []
        return tuple(dict.fromkeys((*own, *self.columns)))

    def rows(self, source: DatasetSource, fmt: ReasoningFormat) -> Dataset:
        """The rows of a split.

        Raises:
            ValueError: where the source can't be read, lacks a column, or a row of it is wrong.
        """
        table = self.read(source)
        name = source.dataset_name or self.source
        convert = _Convert(self, fmt, source.split, f"{self.name}: row {{}} of {name}")
        where = {**self.where, **source.args.get("where", {})}
        if missing := sorted((self._needed() | set(where)) - set(table.column_names)):
            raise ValueError(
                f"{self.name}: {name} has no column {', '.join(missing)}; it has "
                f"{', '.join(table.column_names)}"
            )
        rows = table.map(
            convert,
            fn_kwargs={"where": where},
            batched=True,
            with_indices=True,
            remove_columns=table.column_names,
            features=self._features(),
            load_from_cache_file=False,
            desc=self.name,
        )
        if len(rows) < len(table):
            _logger.info("%s: %d of %d rows are used", self.name, len(rows), len(table))
        return rows

    def read(self, source: DatasetSource) -> Dataset:
        """The source's rows as they are."""
        renamed = self.splits.get(source.split, source.split)
        name = source.dataset_name or self.source
        if not name:
            raise ValueError(f"{self.name}: dataset_name is missing, and the task has no source")
        if self.source and name == self.source.partition(":")[0]:
            name = self.source  # with the config that it needs
        is_local = Path(name).expanduser().exists()
        wanted = replace(source, dataset_name=name.replace("{split}", renamed), split=renamed)
        if is_local:
            own = _split_of_folder(replace(source, dataset_name=name), wanted)
            return read_source(own)
        try:
            return read_source(wanted)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.name}: {name} can't be loaded ({type(error).__name__}: {error}); without "
                f"the Hub give a file, or a folder that holds {source.split}.jsonl: in a recipe as "
                f"`dataset_name` (or `sources: {{{self.name}: ...}}` in pipeline.yaml), on the "
                "command line in its place"
            ) from error

    def _needed(self) -> set[str]:
        """Columns of the source that the templates name; those of `prepare` say so themselves."""
        if self.prepare is not None:
            return set(self.needs)
        texts = [self.solution, self.reasoning, self.response, *_as_templates(self.columns)]
        texts += [None if self.messages else self.prompt]
        names = {name for text in texts if text for name in _names(text)}
        names |= {self.messages} if self.messages else set()
        if isinstance(self.choices, str):
            names.add(self.choices)
        return names | set(self.choices if isinstance(self.choices, tuple) else ())

    def _features(self) -> Any:
        from datasets import Features, List, Value

        turns = List({"role": Value("string"), "content": Value("string")})
        return Features(
            {
                name: turns if name in ("prompt", "completion") else Value("string")
                for name in self.column_names
            }
        )


def _split_of_folder(own: DatasetSource, renamed: DatasetSource) -> Source:
    """A local copy may have the source's name of a split or ours."""
    folder = Path(str(own.dataset_name)).expanduser()
    if own.split == renamed.split or not folder.is_dir():
        return own
    has_own = any(path.name.startswith(own.split) for path in folder.rglob("*"))
    return own if has_own else replace(renamed, dataset_name=own.dataset_name)


@dataclass(frozen=True)
class _Convert:
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
                if row is None or not _is_wanted(row, where):
                    continue
                row = self.task.prepare(row, self.split) if self.task.prepare else row
                converted = None if row is None else self._row(row)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                detail = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"{self.place.format(index)}, {self.split}: {detail}") from error
            made += [] if converted is None else [converted]
        return {name: [row[name] for row in made] for name in self.task.column_names}

    def _row(self, row: dict[str, Any]) -> dict[str, Any] | None:
        task = self.task
        question = "" if task.messages else fill(task.prompt, row)
        solution = None if task.solution is None else fill(task.solution, row)
        options: list[str] = []
        if task.choices:
            options, solution = _choices(task, row, solution or "")
            question = "\n".join(
                [question.strip(), "", *(f"{_LETTERS[i]}. {o}" for i, o in enumerate(options))]
            )
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
            **{name: _text(_value(text, row)) for name, text in task.columns.items()},
        }
        if "completion" in task.column_names:
            text = self._completion(row, answer or "")
            if not text:
                return None
            converted["completion"] = [{"role": "assistant", "content": text}]
        return converted

    def _prompt(self, question: str, row: Mapping[str, Any]) -> list[Message]:
        if self.task.messages:
            turns = [dict(turn) for turn in row[self.task.messages]]
            return turns[:-1] if turns and turns[-1]["role"] == "assistant" else turns
        if self.task.kind == "reasoning":
            return self.fmt.prompt(question)
        return [{"role": "user", "content": question}]

    def _completion(self, row: Mapping[str, Any], answer: str) -> str:
        if self.task.messages:
            last = row[self.task.messages][-1]
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


def _choices(task: ColumnTask, row: Mapping[str, Any], solution: str) -> tuple[list[str], str]:
    """Texts of the options, in order, and the letter of the right one."""
    if isinstance(task.choices, tuple):
        options = [str(row[name]).strip() for name in task.choices]
        labels = list(_LETTERS)
    else:
        given = row[str(task.choices)]
        if isinstance(given, str):
            given = json.loads(given)
        is_labelled = isinstance(given, Mapping)
        options = [str(text) for text in (given["text"] if is_labelled else given)]
        labels = [str(label) for label in given["label"]] if is_labelled else list(_LETTERS)
    right = _place(solution.strip(), options, labels)
    if task.shuffle_choices:
        # By the question's own text, so that no other row and no seed moves them.
        seed = hashlib.sha256("\0".join(options).encode()).digest()
        order = random.Random(seed).sample(range(len(options)), len(options))
        options, right = [options[i] for i in order], order.index(right)
    return options, _LETTERS[right]


def _place(solution: str, options: Sequence[str], labels: Sequence[str]) -> int:
    if solution in options:
        return options.index(solution)
    if solution in labels[: len(options)]:
        return labels.index(solution)
    if solution.isdigit() and int(solution) < len(options):
        return int(solution)
    raise ValueError(f"the answer {solution!r} is none of the options")


def _is_wanted(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    for name, allowed in where.items():
        values = allowed if isinstance(allowed, (list, tuple)) else [allowed]
        if row[name] not in values:
            return False
    return True


class _Template(string.Formatter):
    """`str.format` for columns and what is in them, and not for attributes of objects."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        name, *inner = field_name.replace("]", "").split("[")
        value = kwargs[name]
        for key in inner:
            value = value[int(key)] if isinstance(value, (list, tuple)) else value[key]
        return ("" if value is None else value), name


_template = _Template()


def fill(template: str, row: Mapping[str, Any]) -> str:
    """A template with a row's columns in it; a column that is None is an empty text."""
    return _template.vformat(template, (), row)


def _names(template: str) -> list[str]:
    fields = [name for _, name, _, _ in _template.parse(template) if name is not None]
    return [name.partition("[")[0] for name in fields]


def _as_templates(columns: Mapping[str, str]) -> list[str]:
    return [text if "{" in text else f"{{{text}}}" for text in columns.values()]


def _value(text: str, row: Mapping[str, Any]) -> Any:
    return fill(text, row) if "{" in text else row[text]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
