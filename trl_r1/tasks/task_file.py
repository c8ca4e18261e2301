"""A task of one's own: a YAML file with the fields of `ColumnTask`.

    # my_exam.yaml; in a recipe: datasets: [{task: my_exam.yaml, split: train}]
    name: my_exam
    source: exam.jsonl            # beside this file; or a Hub id; a recipe's dataset_name wins
    prompt: "{passage}\\n\\n{question}"
    solution: "{answer}"
    extract: boxed                # the answer is in the last \\boxed{} of that
    grader: math_answer           # or choice, code_tests, instruction, my_reward.py:my_reward
    where: {subject: [algebra, geometry]}
    columns: {level: difficulty}  # further columns for rewards
    splits: {test: validation}    # what the source calls a split

Keys of `columns` can't be `prompt`, `completion`, `solution` or `task`, which have their own.
`prepare: my_code.py:my_function` names a function `(row, split) -> row or None` for what templates
can't say.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from trl_r1.pipeline.mistakes import one_of, suggestion
from trl_r1.pipeline.yaml_files import read_mapping
from trl_r1.tasks import Task
from trl_r1.tasks.columns import ColumnTask, Prepare
from trl_r1.tasks.declared_values import value_faults
from trl_r1.tasks.sources import files_of_splits
from trl_r1.trust.withholding import WithheldError, is_withheld

_FIELDS = {field.name: field for field in dataclasses.fields(ColumnTask)}


def read_task_file(path: Path) -> Task:
    """The task that a YAML file declares.

    Raises:
        ValueError: with all that is wrong with the file.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ValueError(f"{path}: no such task file") from error
    return _read(path.resolve(), stat.st_mtime_ns, is_withheld())


@functools.cache
def _read(path: Path, changed: int, without_code: bool) -> Task:
    values, mistakes = read_mapping(path, str(path))
    if mistakes:
        raise ValueError("; ".join(map(str, mistakes)))
    if not values:
        raise ValueError(f"{path}: a task file is a mapping like `name: my_task`")
    faults = [_unknown(key) for key in values if key not in _FIELDS]
    values.setdefault("name", path.stem)
    prepare = values.pop("prepare", None)
    try:
        given = {key: value for key, value in values.items() if key in _FIELDS}
        declared = pydantic.TypeAdapter(ColumnTask).validate_python(given)
    except pydantic.ValidationError as error:
        faults += [f"{_place(e['loc'])}: {e['msg']}" for e in error.errors()]
    faults += value_faults(values, path.parent)
    if faults:
        raise ValueError(f"{path}: {'; '.join(faults)}")
    if prepare is not None:
        function = _withheld if without_code else _function(str(prepare), path)
        declared = replace(declared, prepare=function)
    return replace(
        declared,
        source=_beside(declared.source, path.parent),
        grader=_reward_beside(declared.grader, path.parent),
    ).task()


def _unknown(key: Any) -> str:
    hint = suggestion(str(key), _FIELDS) or f"; known: {', '.join(_FIELDS)}"
    return f"unknown key {key!r}{hint}"


def _place(location: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in location[:2])


def _beside(source: str | None, folder: Path) -> str | None:
    """A source that lies beside the file, by its path; `{split}` stands for any split."""
    if not source:
        return source
    beside = folder / source
    if beside.exists() or ("{split}" in beside.name and files_of_splits(beside)):
        return str(beside)
    return source


def _reward_beside(grader: str, folder: Path) -> str:
    """A grader whose file lies beside the task's, by its path."""
    file, is_file, function = grader.partition(".py:")
    if is_file and (folder / f"{file}.py").is_file():
        return f"{folder / file}.py:{function}"
    return grader


def _withheld(row: dict[str, Any], split: str) -> dict[str, Any] | None:
    raise WithheldError("prepare: the task's code is shown, not run")


def _function(reference: Any, path: Path) -> Prepare:
    """The function `package.module:name` or `file.py:name`, the file beside the task's."""
    target, _, name = str(reference).rpartition(":")
    place = f"{path}: prepare: {reference}"
    if not target or not name:
        raise ValueError(f"{place}: write file.py:function or package.module:function")
    try:
        if target.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(target).stem, path.parent / target)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(target)
    except FileNotFoundError as error:
        raise ValueError(f"{place}: {error}") from error
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise ValueError(f"{place}: {where}: SyntaxError: {error.msg}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module does as it is imported
        told = " ".join(str(error).split())
        raise ValueError(f"{place}: {type(error).__name__} at its import: {told}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        hint = suggestion(name, known) or f"; it has {one_of(known) or 'none'}"
        raise ValueError(f"{place}: there is no function {name!r}{hint}")
    made: Prepare = function
    return made
