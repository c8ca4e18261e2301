"""Modules that rewards are taken from: those of this package, installed ones, and files.

Left out: which function of a module is meant, and whether it is a reward (`loading.py`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from trl_r1.trust.withholding import WithheldError, is_ours, is_withheld

BUILTIN_PACKAGE = "trl_r1.rewards"


class RewardReferenceError(ValueError):
    """A reward reference that can't be used; its message says why and what to write instead."""


class WithheldRewardError(RewardReferenceError, WithheldError):
    """A reward whose code was not run, since it comes from a stranger."""


def builtin_rewards() -> list[str]:
    """Names that `use:` takes without a module: the files of `rewards/`, sorted."""
    spec = importlib.util.find_spec(BUILTIN_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    return sorted(info.name for info in pkgutil.iter_modules(folders))


def load_builtin(name: str) -> ModuleType:
    """The module of a built-in reward.

    Raises:
        RewardReferenceError: there is none of that name.
    """
    known = builtin_rewards()
    if name not in known:
        raise RewardReferenceError(
            f"unknown reward {name!r}"
            + suggestion(name, known)
            + f"; built in: {', '.join(known)}; others are named package.module:function "
            "or file.py:function"
        )
    return importlib.import_module(f"{BUILTIN_PACKAGE}.{name}")


def load_module(target: str, reference: str) -> ModuleType:
    """An installed module.

    Raises:
        RewardReferenceError: it is not there, or does not import.
        WithheldRewardError: nothing may run now.
    """
    if not is_ours(target) and is_withheld():
        raise WithheldRewardError(f"reward {reference!r}: shown, not run")
    try:
        return importlib.import_module(target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's module does, `sys.exit()` included
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (target == missing or target.startswith(f"{missing}.")):
            raise RewardReferenceError(
                f"reward {reference!r}: no module {missing!r} is installed; for a file write "
                "file.py:function"
            ) from error
        origin = getattr(_find_spec(target), "origin", None)
        raise RewardReferenceError(_import_message(reference, origin, error)) from error


def _find_spec(target: str) -> Any:
    try:
        return importlib.util.find_spec(target)
    except (ImportError, ValueError, AttributeError):
        return None


def find_file(target: str, base_dir: Path | None, reference: str) -> Path:
    """A reward file, looked up in `base_dir` and then in the working directory.

    Raises:
        RewardReferenceError: it is in neither.
    """
    folders = [folder for folder in (base_dir, Path.cwd()) if folder is not None]
    try:
        path = Path(target).expanduser()
        candidates = [path] if path.is_absolute() else [folder / path for folder in folders]
        for candidate in candidates:
            if candidate.is_file():
                return candidate.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, `~` of an unknown user
        raise RewardReferenceError(f"reward {reference[:80]!r}: no such file: {error}") from error
    looked = " and ".join(dict.fromkeys(str(c.parent) for c in candidates))
    raise RewardReferenceError(
        f"reward {reference!r}: there is no file {path.name!r} in {looked}"
        + suggestion(
            path.name, [f.name for c in candidates for f in c.parent.glob("*.py") if f.is_file()]
        )
    )


def load_file(path: Path, reference: str) -> ModuleType:
    """Run a reward file as a module of its own.

    Its name comes from path and content: it can't shadow a standard module of the same name, two
    references to one file share a module, and an edited file is loaded afresh.

    Raises:
        RewardReferenceError: it does not run.
        WithheldRewardError: nothing may run now.
    """
    if is_withheld():
        raise WithheldRewardError(f"reward {reference!r}: shown, not run")
    digest = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:16]
    name = f"_trl_r1_reward_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RewardReferenceError(f"reward {reference!r}: {path} can't be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses and pickle look a class's module up while the file is executing.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # whatever the user's file does, `sys.exit()` included
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise RewardReferenceError(_import_message(reference, str(path), error)) from error
    return module


def _import_message(reference: str, origin: str | None, error: BaseException) -> str:
    """One line: the reference, file and line of the mistake, and what it is."""
    where = origin or "the module"
    if isinstance(error, SyntaxError):
        where = f"{error.filename or where}:{error.lineno}"
        return f"reward {reference!r}: {where}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if origin and f.filename == origin]
    if inside:
        where = f"{inside[-1].filename}:{inside[-1].lineno}"
    message = f"reward {reference!r}: {where}: {type(error).__name__}: {error}"
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        message += (
            "; a reward file stands alone: put both in one file, or install them as a package and "
            "write package.module:function"
        )
    if isinstance(error, ModuleNotFoundError) and origin and error.name:
        if (Path(origin).parent / f"{error.name.partition('.')[0]}.py").is_file():
            message += (
                "; a reward file can't import a file beside it: put both in one file, or "
                "install them as a package and write package.module:function"
            )
        else:
            message += f"; install {error.name.partition('.')[0]!r} or take the import out"
    return message


def suggestion(name: str, known: Iterable[str]) -> str:
    """What may have been meant, as the end of a message; `""` where nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
