r"""A task by declaration: which columns of a set make the prompt, the gold answer and the rest.

`ColumnTask` is what known sets (`known_sets`) and users' YAML files (`task_file`) are made of.
Texts are templates over the source's columns (`row_templates`); braces of LaTeX in a template
itself are doubled, those in columns are not looked at. Left out: making the rows (`column_rows`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trl_r1.tasks import DatasetSource, Task
from trl_r1.tasks.column_rows import Convert, is_wanted
from trl_r1.tasks.row_templates import as_template, columns_of
from trl_r1.tasks.sources import Source, read_source

if TYPE_CHECKING:
    from datasets import Dataset

    from trl_r1.reasoning_format import ReasoningFormat

# A source's row and the split to one with further or other columns; None leaves the row out.
Prepare = Callable[[dict[str, Any], str], "dict[str, Any] | None"]

_logger = logging.getLogger(__name__)


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
        convert = Convert(self, fmt, source.split, f"{self.name}: row {{}} of {name}")
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
        if not len(rows) and len(table):
            raise ValueError(f"{self.name}: {_why_none(table, where, name)}")
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
        texts = [
            self.solution,
            self.reasoning,
            self.response,
            *map(as_template, self.columns.values()),
        ]
        texts += [None if self.messages else self.prompt]
        names = {name for text in texts if text for name in columns_of(text)}
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


def _why_none(table: Dataset, where: Mapping[str, Any], name: str | None) -> str:
    """Why no row of a table is used."""
    for key, allowed in where.items():
        there = list(dict.fromkeys(map(repr, table[key])))
        if not any(is_wanted({key: value}, {key: allowed}) for value in table[key]):
            shown = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
            return f"where: no row of {name} has {allowed!r} as {key}; there is {shown}"
    if where:
        keys = ", ".join(where)
        return f"no row of {name} is used: none has all of where ({keys}) and an answer"
    return (
        f"none of the {len(table)} rows of {name} is used: each is without an answer (see "
        "`solution` and `extract`), or `prepare` leaves it out"
    )
