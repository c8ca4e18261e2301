"""Whether a model or data set that a recipe names exists: here, in the cache, or on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trl_r1.hub.references import is_hub_reference, parse_hub_reference
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.references import find_path, looks_like_path
from trl_r1.trust.model_files import Allowed, cached_folder, folder_fault, weights_fault
from trl_r1.trust.withholding import is_withheld

_HUB_SECONDS = 5.0


def name_fault(
    name: str,
    kind: Literal["model", "dataset"],
    folder: Path,
    allowed: Allowed = Allowed(),  # noqa: B008 - frozen
) -> tuple[str | None, str | None]:
    """What is wrong with a name, and what could not be checked about it.

    Args:
        name: a path or a Hub id.
        kind: what it should be.
        folder: of the pipeline, where relative paths start.
        allowed: what of a model may run.
    """
    if is_hub_reference(name):
        return _hub_reference_fault(name, kind, allowed)
    path = find_path(name, folder)
    if path is not None:
        return (_folder_fault(name, path, allowed), None) if kind == "model" else (None, None)
    if looks_like_path(name, folder):
        return (
            f"{name} does not exist (looked beside the recipe and in the working directory)",
            None,
        )
    if kind == "dataset":
        if name.startswith("hf://"):
            return None, f"{name} not checked: the address of files"
        name = name.partition(":")[0]  # a config may stand behind it
    if not _is_hub_id(name):
        short = name if len(name) <= 60 else f"{name[:57]}..."
        return f"{short!r} is neither a folder here nor a Hub id (owner/name)", None
    kept = cached_folder(name) if kind == "model" else None
    if kept is not None:
        return _folder_fault(name, kept, allowed), None
    return _answer_of_hub(name, kind, None, allowed)


def allowed_by(values: Mapping[str, Any]) -> Allowed:
    """What of a model the keys of a recipe, or of a reward's arguments, let run."""
    return Allowed(
        values.get("trust_remote_code") is True, values.get("use_safetensors", True) is False
    )


def _hub_reference_fault(
    text: str, kind: Literal["model", "dataset"], allowed: Allowed
) -> tuple[str | None, str | None]:
    """What is wrong with `@hub:org/name@revision`, and what could not be checked about it."""
    try:
        reference = parse_hub_reference(text)
    except PipelineError as error:
        return str(error), None
    if kind not in reference.types:
        return f"{text} is a {reference.told_type}, and a {kind} is needed", None
    kept = reference.folder(kind)
    if kept is not None:
        return (_folder_fault(text, kept, allowed), None) if kind == "model" else (None, None)
    return _answer_of_hub(reference.repo_id, kind, reference.revision, allowed)


def _folder_fault(name: str, path: Path, allowed: Allowed) -> str | None:
    if not path.is_dir():
        return f"{name} is a file; a model is a folder with a config.json"
    if not any((path / file).exists() for file in ("config.json", "adapter_config.json")):
        return f"{name} is no model folder: it has neither config.json nor adapter_config.json"
    return folder_fault(name, path, allowed)


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.isascii()


def _answer_of_hub(
    name: str, kind: Literal["model", "dataset"], revision: str | None, allowed: Allowed
) -> tuple[str | None, str | None]:
    if is_withheld():
        return None, f"{name} not checked: nothing is asked of the Hub for a stranger's recipe"
    fault, note, files = _hub_fault(name, kind, revision)
    if kind == "model" and not fault and not allowed.pickles:
        fault = weights_fault(name, files)
    return fault, note


@cache
def _hub_fault(
    name: str, kind: Literal["model", "dataset"], revision: str | None
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """What is wrong with a name on the Hub, what could not be checked, and its files."""
    from huggingface_hub import HfApi, constants, scan_cache_dir
    from huggingface_hub.errors import (
        CacheNotFound,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        if revision is None and any(
            repo.repo_id == name and repo.repo_type == kind for repo in scan_cache_dir().repos
        ):
            return None, None, ()
    except CacheNotFound:
        pass
    unreachable = f"{name} not checked: Hub not reachable"
    if constants.HF_HUB_OFFLINE:
        return None, unreachable, ()
    try:
        info = HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=_HUB_SECONDS)
    except RepositoryNotFoundError:
        return f"there is no {kind} {name!r} on the Hub, nor a folder of that name here", None, ()
    except RevisionNotFoundError:
        fault = f"{name} on the Hub has no revision {revision!r}: no branch, tag or commit"
        return fault, None, ()
    except Exception:  # noqa: BLE001 - no network has many names: of requests, httpx, the system
        return None, unreachable, ()
    siblings = getattr(info, "siblings", None) or ()
    return None, None, tuple(file.rfilename for file in siblings)
