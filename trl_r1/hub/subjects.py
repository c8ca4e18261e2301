"""What a card is about, and where things lie on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from trl_r1.pipeline.ledger import Input, StageRecord

_PREFIXES = {"model": "", "dataset": "datasets/", "space": "spaces/"}


@dataclass(frozen=True)
class Link:
    """Where an artifact lies on the Hub.

    Attributes:
        repo_id: `owner/name`.
        repo_type: `model`, `dataset` or `space`.
        commit: 40 hex digits.
    """

    repo_id: str
    repo_type: str
    commit: str

    @property
    def url(self) -> str:
        """The page of its files at the commit."""
        return f"{repo_url(self.repo_id, self.repo_type)}/tree/{self.commit}"


@dataclass(frozen=True)
class Subject:
    """An artifact that gets a card.

    Attributes:
        run: the pipeline's name.
        description: the pipeline's.
        record: of the stage that made it.
        artifact: its name in the record.
        folder: its folder, `RUN/STAGE/ARTIFACT`.
        ledger: records of the whole run, by stage.
        links: where the artifacts that are pushed lie, by stage and artifact.
        repo_id: where this one will lie.
        run_link: repository of the run itself, a data set.
        recipes: folder of the run's recipes, where their relative paths start; None if not known.
    """

    run: str
    description: str
    record: StageRecord
    artifact: str
    folder: Path
    ledger: Mapping[str, StageRecord]
    links: Mapping[tuple[str, str], Link]
    repo_id: str
    run_link: str | None = None
    recipes: Path | None = None

    @property
    def hash(self) -> str | None:
        """The content hash of the artifact."""
        return hash_of(self.record, self.artifact)

    @property
    def is_main(self) -> bool:
        """Whether it is what `@stage` means, which is what is scored."""
        return next(iter(self.record.artifacts), None) == self.artifact

    @property
    def is_adapter(self) -> bool:
        """Whether its folder holds an adapter without the weights it stands on."""
        return (self.folder / "adapter_config.json").is_file()

    def uses(self, item: Input) -> bool:
        """Whether an input of another stage is this artifact as it is."""
        place = (item.stage, item.artifact)
        return place == (self.record.name, self.artifact) and item.hash == self.hash


def hash_of(record: StageRecord | None, artifact: str | None) -> str | None:
    """The content hash of an artifact in the ledger; None where there is no such artifact."""
    found = record.artifacts.get(artifact or "") if record is not None else None
    return None if found is None else str(found.get("hash") or "") or None


def start_of(record: StageRecord) -> Input | None:
    """The weights that a stage starts from; None where it starts from none."""
    starts = [item for item in record.inputs if item.role == "weights"]
    named = [item for item in starts if item.key == "model_name_or_path"]
    return next(iter(named or starts), None)


def link_of(
    item: Input, ledger: Mapping[str, StageRecord], links: Mapping[tuple[str, str], Link]
) -> Link | None:
    """Where an input lies on the Hub; None where it does not, or was made anew since."""
    if item.stage is None or item.artifact is None:
        return None
    if item.hash != hash_of(ledger.get(item.stage), item.artifact):
        return None
    return links.get((item.stage, item.artifact))


def repo_url(repo_id: str, repo_type: str = "model") -> str:
    """The page of a repository."""
    return f"{constants.ENDPOINT}/{_PREFIXES[repo_type]}{repo_id}"
