"""`hub.json`: what of a run lies on the Hub, where, at which commit.

It is kept beside the run and pushed with it. It says which files of a repository are ours, so that
a later push removes what is gone and leaves alone what others added.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import pydantic

from trl_r1.pipeline.ledger import write_text
from trl_r1.pipeline.mistakes import PipelineError

HUB_FILE = "hub.json"


@dataclass(frozen=True)
class PushedRepo:
    """A repository as the last push left it.

    Attributes:
        repo_id: owner and name.
        repo_type: `model`, `dataset` or `space`.
        commit: the commit that holds it.
        files: its files by path, with their hashes (of the content, as in the ledger).
        stage, artifact: what it holds; empty for the run's own and the report's.
        hash: of the artifact's content, as in the ledger.
        card: the blob id of the card on the Hub, by which a card edited there is known.
    """

    repo_id: str
    repo_type: Literal["model", "dataset", "space"]
    commit: str
    files: dict[str, str] = field(default_factory=dict)
    stage: str = ""
    artifact: str = ""
    hash: str = ""
    card: str = ""


@dataclass(frozen=True)
class HubRecord:
    """What `hub.json` holds.

    Attributes:
        run_id: the run's name in its `run.json`.
        owner: user or organisation.
        name: of the run's own repository.
        private: whether the repositories were made private.
        repos: by repository type and id, as `dataset me/run`.
        collection: slug of the collection; empty before there is one.
    """

    run_id: str
    owner: str = ""
    name: str = ""
    private: bool = False
    repos: dict[str, PushedRepo] = field(default_factory=dict)
    collection: str = ""

    def with_repo(self, repo: PushedRepo) -> HubRecord:
        """The record with a repository in its place."""
        return replace(self, repos={**self.repos, f"{repo.repo_type} {repo.repo_id}": repo})

    def repo(self, repo_type: str, repo_id: str) -> PushedRepo | None:
        """What is known of a repository."""
        return self.repos.get(f"{repo_type} {repo_id}")


def write_hub_record(folder: Path, record: HubRecord) -> None:
    """Write `hub.json` in one piece."""
    write_text(folder / HUB_FILE, hub_record_text(record))


def hub_record_text(record: HubRecord) -> str:
    """The text of `hub.json`."""
    return json.dumps(asdict(record), indent=1) + "\n"


def read_hub_record(path: Path) -> HubRecord | None:
    """What a `hub.json` says; None where there is none.

    Raises:
        PipelineError: it is damaged.
    """
    try:
        return parse_hub_record(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PipelineError(
            f"{path} can't be read ({why}); move it away: a push then looks at the Hub anew"
        ) from error


def parse_hub_record(text: bytes) -> HubRecord:
    """What the text of a `hub.json` says.

    Raises:
        ValueError: it is damaged; its text says what is wrong, in a few words.
    """
    try:
        return _record_type().validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error


@cache
def _record_type() -> pydantic.TypeAdapter[HubRecord]:
    return pydantic.TypeAdapter(HubRecord)
