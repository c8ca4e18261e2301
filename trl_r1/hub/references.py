"""`@hub:org/name[@revision]`: a model or data set on the Hub as an input of a stage.

What it means is fixed before any stage runs: the revision is looked up and the files are
fetched into the Hub's own cache, so that a run works on one commit, and offline after that. A data
set that has the name of a model is written `@hub:datasets/org/name`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from trl_r1.pipeline.mistakes import PipelineError

PREFIX = "@hub:"
RepoType = Literal["model", "dataset"]
_FORM = re.compile(r"@hub:(?:(models|datasets)/)?([^/@\s]+/[^/@\s]+)(?:@(\S+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubReference:
    """A reference to the Hub as it stands in a recipe.

    Attributes:
        text: as written.
        repo_id: `org/name`.
        revision: branch, tag or commit; None for the main branch.
        told_type: the type it names itself, by `datasets/` or `models/`.
    """

    text: str
    repo_id: str
    revision: str | None = None
    told_type: RepoType | None = None

    @cached_property
    def types(self) -> tuple[RepoType, ...]:
        """The types of repository it may mean, the likelier first."""
        return (self.told_type,) if self.told_type else ("model", "dataset")

    def folder(self, repo_type: RepoType | None = None) -> Path | None:
        """Its files in the Hub's cache; None where they were not fetched.

        Args:
            repo_type: what it has to be; None for either.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        for kind in (repo_type,) if repo_type else self.types:
            try:
                return Path(
                    snapshot_download(
                        self.repo_id,
                        repo_type=kind,
                        revision=self.revision,
                        local_files_only=True,
                    )
                )
            except (LocalEntryNotFoundError, OSError, ValueError):
                continue
        return None


def is_hub_reference(value: object) -> bool:
    """Whether a value of a recipe refers to the Hub."""
    return isinstance(value, str) and value.startswith(PREFIX)


def parse_hub_reference(text: str) -> HubReference:
    """A reference taken apart.

    Raises:
        PipelineError: it is none; the text says how one is written.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    match = _FORM.fullmatch(text.strip())
    try:
        if match is None or not text.isascii():
            raise ValueError
        validate_repo_id(match[2])
    except (HFValidationError, ValueError):
        short = text if len(text) <= 80 else f"{text[:77]}..."
        raise PipelineError(
            f"{short!r} is no reference to the Hub; write @hub:owner/name, or "
            "@hub:owner/name@revision"
        ) from None
    told: RepoType | None = None
    if match[1]:
        told = "model" if match[1] == "models" else "dataset"
    return HubReference(text, match[2], match[3], told)


def find_hub_folder(text: str) -> Path | None:
    """The folder of a reference, if its files are in the cache; None otherwise."""
    try:
        return parse_hub_reference(text).folder()
    except PipelineError:
        return None


def fetch(text: str, repo_type: RepoType | None = None) -> Path:
    """Fetch what a reference means; returns the folder in the Hub's cache.

    Offline, what was fetched before counts.

    Raises:
        PipelineError: it is not there, may not be seen, or can't be fetched.
    """
    from trl_r1.hub.client import HubError, hub_errors, make_api

    reference = parse_hub_reference(text)
    kinds = (repo_type,) if repo_type else reference.types
    for kind in kinds:
        try:
            with hub_errors(f"fetching {text}"):
                return Path(
                    make_api().snapshot_download(
                        reference.repo_id, repo_type=kind, revision=reference.revision
                    )
                )
        except HubError as error:
            if error.status not in (401, 404) or kind == kinds[-1]:
                raise
    raise AssertionError("the last kind returns or raises")


def commit_of(folder: Path) -> str | None:
    """The commit that a folder of the Hub's cache holds; None for other folders."""
    is_snapshot = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if is_snapshot else None
