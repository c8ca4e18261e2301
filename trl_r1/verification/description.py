"""What a reward function says about itself: its columns, what it needs at once, whether it is pure.

A function may carry these attributes, all optional:
    needs: `"rows"` (default), `"group"` (all completions of a prompt in one call) or `"batch"`.
        A coroutine function gets the batch by default, so that it can await its rows together.
    is_pure: True if equal rows always get equal rewards; the pool then grades equal rows once. The
        default is True for the rewards of this package that take neither the trainer's state nor
        its log calls, and False for any other.
    malformed: a function of the same columns that says of each row whether there is nothing in its
        completion that could be graded (no answer, no program, no form). Such a row's reward stays
        what it is; the share of them is logged as `rewards/<name>/malformed`.
    prepare: a function without arguments that a worker calls once before the first row, for slow
        imports and the like, which no row's time limit should pay for.
    row_fault: a function of a row's columns, by keyword, that says why no completion of it could be
        graded ("not gradable because ..."), or None. Asked when data is loaded (`ungradable.py`).
    settings: names of parameters that `args` has to give, since they are no columns.
    runs_in_trainer: True for a reward that must stay in the trainer's process (it holds a model on
        the trainer's device).
    runs_in_thread: True for one whose work processes of its own do, so that a stage calls it from
        a thread and goes on.
"""

from __future__ import annotations

import dis
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

NEEDS = ("rows", "group", "batch")
_FROM_THE_TRAINER = {"trainer_state", "log_extra", "log_metric", "environments"}


@dataclass(frozen=True)
class RewardDescription:
    """A reward function as a plain record, so that it can cross from one process to another.

    Attributes:
        name: its `__name__`.
        summary: first line of its docstring, `""` where it has none.
        required: keyword parameters without a default.
        optional: keyword parameters with one.
        defaults: text of the optional parameters' defaults.
        reads_kwargs: whether it may look into its `**kwargs`; if not, only named columns are sent.
        needs: `rows`, `group` or `batch`.
        is_pure: whether equal rows get equal rewards.
        says_malformed: whether it says which completions hold nothing to grade.
        runs_in_trainer: whether it must not be moved to another process.
    """

    name: str
    summary: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    defaults: Mapping[str, str]
    reads_kwargs: bool
    needs: str
    is_pure: bool
    says_malformed: bool
    runs_in_trainer: bool

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> RewardDescription:
        """From what a worker reports: JSON has no tuples."""
        lists = {name: tuple(reply[name]) for name in ("required", "optional")}
        return cls(**{**reply, **lists})

    def wants(self, column: str) -> bool:
        """Whether a column has to be passed to it; the completions always are."""
        if column == "completions":
            return True
        return self.reads_kwargs or column in self.required or column in self.optional


def describe_reward(function: Callable[..., Any]) -> RewardDescription:
    """Read a reward function's signature and attributes.

    Raises:
        ValueError: for a `needs` that is not one of `NEEDS`.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    names = {p.name for p in parameters}
    needs = getattr(function, "needs", "batch" if _is_coroutine(function) else "rows")
    if needs not in NEEDS:
        raise ValueError(f"its attribute needs is {needs!r}; it must be one of {', '.join(NEEDS)}")
    builtin = needs == "rows" and _is_builtin(function) and not names & _FROM_THE_TRAINER
    return RewardDescription(
        name=getattr(function, "__name__", None) or type(function).__name__,
        summary=(inspect.getdoc(function) or "").partition("\n")[0],
        required=tuple(p.name for p in parameters if p.default is p.empty),
        optional=tuple(p.name for p in parameters if p.default is not p.empty),
        defaults={p.name: repr(p.default) for p in parameters if p.default is not p.empty},
        reads_kwargs=_reads_kwargs(function),
        needs=needs,
        is_pure=bool(getattr(function, "is_pure", builtin)),
        says_malformed=hasattr(function, "malformed"),
        runs_in_trainer=bool(getattr(function, "runs_in_trainer", False)),
    )


def _is_coroutine(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks how it is called, not whether
    )


def _is_builtin(function: Callable[..., Any]) -> bool:
    spec = importlib.util.find_spec("trl_r1.rewards")
    folders = {
        Path(folder).resolve() for folder in (spec and spec.submodule_search_locations) or ()
    }
    code = _code_of(function)
    return code is not None and Path(code.co_filename).resolve().parent in folders


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)  # type: ignore[assignment] # noqa: B004
    return function.__code__ if isinstance(function, FunctionType) else None


def _reads_kwargs(function: Callable[..., Any]) -> bool:
    """Whether a function's own code looks at its `**kwargs`; True where that can't be told."""
    code = _code_of(function)
    if code is None:
        return True
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    num_before = code.co_argcount + code.co_kwonlyargcount
    num_before += bool(code.co_flags & inspect.CO_VARARGS)
    name = code.co_varnames[num_before]
    # A closure over it, or a look at all local variables, reads it where we can't see.
    if name in code.co_cellvars or {"locals", "vars", "eval", "exec"} & set(code.co_names):
        return True
    return any(step.argval == name for step in dis.get_instructions(code))
