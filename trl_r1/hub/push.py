"""Pushes a run: a repository for each artifact and for the run, a report page, a collection.

Each repository is changed by one commit, so that nobody ever loads half a model, and only where
something of it changed. `hub.json` is written after each: a push that was cut short goes on with
the next one, and of the one it was at, files that the Hub has already are not sent again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.hub.cards import Link, Subject, dataset_card, model_card, run_card
from trl_r1.hub.client import HubError, hub_errors, make_api
from trl_r1.hub.contents import Artifact, RepoType, RunContents, select_stages
from trl_r1.hub.leaks import refuse_secrets
from trl_r1.hub.names import repo_name
from trl_r1.hub.record import (
    HUB_FILE,
    HubRecord,
    PushedRepo,
    hub_record_text,
    read_hub_record,
    write_hub_record,
)
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.run_file import read_run_file
from trl_r1.pipeline.table import table_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from huggingface_hub import HfApi

CARD = "README.md"
_MAX_TITLE = 59  # the Hub's limit of a collection's title


@dataclass
class Pusher:
    """Pushes one run.

    Attributes:
        contents: the run.
        owner: user or organisation.
        name: of the run's own repository.
        private: whether new repositories are private.
        say: gets a line for each thing done.
        report: file of the report; None to push none.
        overwrite_cards: put our card over one that was edited on the Hub.
        token: over that of `hf auth login` or HF_TOKEN.
        repo_ids: by stage, other names for the repositories of their main artifacts.
    """

    contents: RunContents
    owner: str
    name: str
    private: bool
    say: Callable[[str], None]
    report: Path | None = None
    overwrite_cards: bool = False
    token: str | None = None
    repo_ids: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api: HfApi = make_api(self.token)
        self.hashes = FileHashes()
        self.run_repo = f"{self.owner}/{self.name}"
        self._with_run = True
        self.record = self._known()

    def push(self, stages: Sequence[str] | None = None, with_run: bool = True) -> HubRecord:
        """Push stages and what belongs to the run; returns what lies where.

        Args:
            stages: names; all finished ones by default.
            with_run: also the run's own repository, its report and the collection.

        Raises:
            PipelineError: something is damaged, or holds a token.
            HubError: the Hub refuses, or can't be reached; what was pushed until then stays.
        """
        self._with_run = with_run
        chosen = select_stages(self.contents, stages)
        artifacts = self.contents.artifacts(self.owner, self.name, chosen, self.repo_ids)
        self._refuse_foreign_run()
        for artifact in artifacts:
            self._push_artifact(artifact)
        if not with_run:
            return self.record
        if self.report is not None:
            self._push_report(self.report)
        self._make_collection()
        self._push_run()
        self._collect()
        return self.record

    @property
    def page(self) -> str:
        """The page of the collection, or of the run where there is none."""
        if self.record.collection:
            return f"{self.api.endpoint}/collections/{self.record.collection}"
        return f"{self.api.endpoint}/datasets/{self.run_repo}"

    def _known(self) -> HubRecord:
        """What was pushed before; of another owner or name nothing counts."""
        fresh = HubRecord(self.contents.run_id, self.owner, self.name, self.private)
        known = read_hub_record(self.contents.folder / HUB_FILE)
        if known is None or (known.owner, known.name) != (self.owner, self.name):
            return fresh
        return replace(known, run_id=self.contents.run_id)

    def _refuse_foreign_run(self) -> None:
        """A repository of that name may hold another run: nothing of it is to be lost."""
        remote = self._remote_record()
        if remote is None or remote.run_id == self.contents.run_id:
            return
        raise PipelineError(
            f"{self.run_repo} on the Hub is another run's; push this one with a --name of its own, "
            f"as --name {self.name}-2"
        )

    def _remote_record(self) -> HubRecord | None:
        """The `hub.json` of the run's repository; None where there is none."""
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        try:
            with hub_errors(f"reading {self.run_repo}"):
                path = self._download(HUB_FILE)
        except HubError as error:
            if isinstance(error.__cause__, (EntryNotFoundError, RepositoryNotFoundError)):
                return None
            raise
        return read_hub_record(path)

    def _download(self, file: str) -> Path:
        return Path(self.api.hf_hub_download(self.run_repo, file, repo_type="dataset"))

    def _push_artifact(self, artifact: Artifact) -> None:
        contents = self.contents
        subject = Subject(
            run=contents.pipeline,
            description=contents.description,
            record=contents.ledger[artifact.stage],
            artifact=artifact.name,
            folder=artifact.folder,
            ledger=contents.ledger,
            links=self._links(),
            repo_id=artifact.repo_id,
            run_link=self.run_repo if self._has_run_repo() else None,
            recipes=contents.recipes,
        )
        card = model_card(subject) if artifact.repo_type == "model" else dataset_card(subject)
        pushed = PushedRepo(
            artifact.repo_id,
            artifact.repo_type,
            "",
            stage=artifact.stage,
            artifact=artifact.name,
            hash=artifact.hash,
        )
        self._commit(pushed, artifact.files, card, f"{artifact.stage}: {artifact.name}")

    def _has_run_repo(self) -> bool:
        return self._with_run or self.record.repo("dataset", self.run_repo) is not None

    def _push_report(self, report: Path) -> None:
        name = repo_name(f"{self.name}-report")
        pushed = PushedRepo(f"{self.owner}/{name}", "space", "")
        card = report_card(self.contents.pipeline, self.run_repo)
        self._commit(pushed, {"index.html": report}, card, "report")

    def _push_run(self) -> None:
        contents = self.contents
        files: dict[str, Path | bytes] = dict(contents.run_files())
        if self.report is not None:
            files["report.html"] = self.report
        files["run.json"] = run_document(contents)
        # Of what lies on the Hub, without the run's own repository: its commit is not known yet.
        others = {k: r for k, r in self.record.repos.items() if r.repo_id != self.run_repo}
        files[HUB_FILE] = hub_record_text(replace(self.record, repos=others)).encode()
        card = run_card(
            run=contents.pipeline,
            description=contents.description,
            ledger=contents.ledger,
            links=self._links(),
            table=table_text(contents.folder),
            repo_id=self.run_repo,
        )
        self._commit(PushedRepo(self.run_repo, "dataset", ""), files, card, "run")

    def _links(self) -> dict[tuple[str, str], Link]:
        """Where the artifacts lie that were pushed so far."""
        return {
            (repo.stage, repo.artifact): Link(repo.repo_id, repo.repo_type, repo.commit)
            for repo in self.record.repos.values()
            if repo.stage
        }

    def _commit(
        self, pushed: PushedRepo, files: Mapping[str, Path | bytes], card: str, message: str
    ) -> None:
        """Bring a repository to hold these files and this card; remember its commit."""
        repo_id, repo_type = pushed.repo_id, pushed.repo_type
        known = self.record.repo(repo_type, repo_id)
        refuse_secrets(repo_id, {**files, CARD: card.encode()})
        hashes = {path: self._hash(content) for path, content in files.items()}
        hashes[CARD] = self._hash(card.encode())
        with hub_errors(f"pushing {repo_id}"):
            head = self._make_repo(repo_id, repo_type)
            if known is not None and known.commit == head and known.files == hashes:
                self.say(f"{repo_id}: unchanged")
                return
            operations, kept_card = self._operations(known, files, card)
            commit = self.api.create_commit(
                repo_id,
                operations,
                repo_type=repo_type,
                commit_message=f"trl_r1: {message}",
                parent_commit=head,
            ).oid
            card_blob = self._card_blob(repo_id, repo_type, commit)
        how = "unchanged" if commit == head else f"pushed, {_count(known, hashes)}"
        if kept_card:
            how += "; its card was edited on the Hub and is kept (--overwrite_cards puts ours back)"
            # Ours is not there: the next push has to look again.
            del hashes[CARD]
            card_blob = known.card if known else ""
        self.say(f"{repo_id}: {how}")
        self.record = self.record.with_repo(
            replace(pushed, commit=commit, files=hashes, card=card_blob)
        )
        write_hub_record(self.contents.folder, self.record)

    def _make_repo(self, repo_id: str, repo_type: RepoType) -> str:
        """Make a repository where there is none; returns the head of its main branch."""
        self.api.create_repo(
            repo_id,
            repo_type=repo_type,
            private=self.private or None,
            exist_ok=True,
            space_sdk="static" if repo_type == "space" else None,
        )
        info = self.api.repo_info(repo_id, repo_type=repo_type)
        if self.private and not info.private:
            self.api.update_repo_settings(repo_id, repo_type=repo_type, private=True)
        return str(info.sha)

    def _card_blob(self, repo_id: str, repo_type: RepoType, revision: str) -> str:
        infos = self.api.get_paths_info(repo_id, [CARD], repo_type=repo_type, revision=revision)
        return str(getattr(infos[0], "blob_id", "")) if infos else ""

    def _operations(
        self, known: PushedRepo | None, files: Mapping[str, Path | bytes], card: str
    ) -> tuple[list[Any], bool]:
        """What a commit does, and whether a card that was edited on the Hub is kept."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        adds: list[Any] = [
            CommitOperationAdd(path, str(content) if isinstance(content, Path) else content)
            for path, content in files.items()
        ]
        if known is None:
            return [*adds, CommitOperationAdd(CARD, card.encode())], False
        there = set(self.api.list_repo_files(known.repo_id, repo_type=known.repo_type))
        gone = [path for path in known.files if path not in files and path != CARD]
        adds += [CommitOperationDelete(path) for path in gone if path in there]
        blob = self._card_blob(known.repo_id, known.repo_type, "main") if CARD in there else ""
        kept = bool(blob and known.card and blob != known.card) and not self.overwrite_cards
        return adds if kept else [*adds, CommitOperationAdd(CARD, card.encode())], kept

    def _hash(self, content: Path | bytes) -> str:
        if isinstance(content, Path):
            return self.hashes.path(content)
        return hashlib.sha256(content).hexdigest()[:32]

    def _make_collection(self) -> None:
        """The collection, still empty: the run's own repository names it."""
        if self.record.collection:
            return
        title = self.name[:_MAX_TITLE]
        with hub_errors(f"making the collection {title}"):
            made = self.api.create_collection(
                title,
                namespace=self.owner,
                description=f"Every stage of a run of {self.contents.pipeline}, by trl_r1"[:150],
                private=self.private,
                exists_ok=True,
            )
        self.record = replace(self.record, collection=made.slug)

    def _collect(self) -> None:
        """Put everything into the collection, in the order it was made."""
        slug = self.record.collection
        with hub_errors(f"filling the collection {slug}"):
            there = {(i.item_type, i.item_id) for i in self.api.get_collection(slug).items}
            for repo in self.record.repos.values():
                if (repo.repo_type, repo.repo_id) not in there:
                    self.api.add_collection_item(slug, repo.repo_id, repo.repo_type, exists_ok=True)


def _count(known: PushedRepo | None, hashes: Mapping[str, str]) -> str:
    """How many files a push sends, in words."""
    old = known.files if known else {}
    changed = sum(old.get(path) != content for path, content in hashes.items())
    changed += sum(path not in hashes for path in old)
    return f"{changed} of {len(hashes)} files" if old else f"{len(hashes)} files"


def report_card(run: str, run_repo: str) -> str:
    """The card of the Space that shows a report."""
    from huggingface_hub import SpaceCard, SpaceCardData

    data = SpaceCardData(
        title=f"{run}: report"[:_MAX_TITLE],
        sdk="static",
        app_file="index.html",
        datasets=[run_repo],
        tags=["trl-r1"],
    )
    text = f"Scores, curves, lineage and samples of every stage of the run `{run_repo}`."
    return str(SpaceCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n"))


def run_document(contents: RunContents) -> bytes:
    """`run.json` as it is pushed: without the folder that the recipes had here."""
    run = read_run_file(contents.folder)
    document = {**asdict(run), "folder": "", "recipes": Path(run.recipes).name}
    return (json.dumps(document, indent=1) + "\n").encode()
