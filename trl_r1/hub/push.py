"""Pushes a run: a repository for each artifact and for the run, a report page, a collection.

Each repository is changed by one commit, so that nobody ever loads half a model, and only where
something of it changed. `hub.json` is written after each: a push that was cut short goes on with
the next one, and of the one it was at, files that the Hub has already are not sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trl_r1.hub.adapters import CONFIG, config_for_the_hub
from trl_r1.hub.cards import Link, Subject, dataset_card, model_card, run_card
from trl_r1.hub.client import HubError, hub_errors, make_api
from trl_r1.hub.collection import fill_collection, is_there, make_collection
from trl_r1.hub.contents import Artifact, RunContents, select_stages
from trl_r1.hub.names import repo_name
from trl_r1.hub.record import (
    HUB_FILE,
    HubRecord,
    PushedRepo,
    hub_record_text,
    parse_hub_record,
    read_hub_record,
    write_hub_record,
)
from trl_r1.hub.repositories import Repositories
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.run_file import read_run_file
from trl_r1.pipeline.table import table_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from huggingface_hub import HfApi

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
        self.repositories = Repositories(self.api, self.private, self.overwrite_cards)
        self.run_repo = f"{self.owner}/{self.name}"
        self.record = self._known()

    def push(self, stages: Sequence[str] | None = None) -> HubRecord:
        """Push stages and what belongs to the run; returns what lies where.

        Args:
            stages: names; all finished ones by default.

        Raises:
            PipelineError: something is damaged, or holds a token.
            HubError: the Hub refuses, or can't be reached; what was pushed until then stays.
        """
        artifacts = self._chosen(stages)
        self._meet_what_is_there()
        for artifact in artifacts:
            self._push_artifact(artifact, self.run_repo)
        if self.report is not None:
            self._push_report(self.report)
        self._make_collection()
        self._push_run()
        fill_collection(self.api, self.record.collection, self.record.repos.values())
        return self.record

    def push_artifacts(self, stages: Sequence[str]) -> HubRecord:
        """Push what stages left, and nothing of the run besides.

        Raises:
            PipelineError, HubError: as `push`.
        """
        artifacts = self._chosen(stages)
        self._meet_what_is_there()
        has_run = self.record.repo("dataset", self.run_repo) is not None
        for artifact in artifacts:
            self._push_artifact(artifact, self.run_repo if has_run else None)
        return self.record

    def _chosen(self, stages: Sequence[str] | None) -> list[Artifact]:
        chosen = select_stages(self.contents, stages)
        artifacts = self.contents.artifacts(self.owner, self.name, chosen, self.repo_ids)
        for artifact in artifacts:
            place = (artifact.repo_type, artifact.repo_id.lower())
            if place == ("dataset", self.run_repo.lower()):
                raise PipelineError(
                    f"{self.run_repo} would hold both the run and what {artifact.stage} left; give "
                    "the stage another hub_model_id, or push with another --name"
                )
        return artifacts

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

    def _meet_what_is_there(self) -> None:
        """Refuse a name that holds another run; go on from what another machine has pushed."""
        remote = self._remote_record()
        if remote is None:
            return
        if remote.run_id != self.contents.run_id:
            raise PipelineError(
                f"{self.run_repo} on the Hub is another run's; push this one with a --name of its "
                f"own, as --name {self.name}-2"
            )
        if not self.record.repos:
            self.record = replace(remote, private=self.private)

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
        try:
            return parse_hub_record(path.read_bytes())
        except ValueError as error:
            raise PipelineError(
                f"{HUB_FILE} of {self.run_repo} on the Hub can't be read ({error}), so nobody "
                "knows whose run it is; delete that file there, or push with another --name"
            ) from error

    def _download(self, file: str) -> Path:
        return Path(self.api.hf_hub_download(self.run_repo, file, repo_type="dataset"))

    def _push_artifact(self, artifact: Artifact, run_link: str | None) -> None:
        contents = self.contents
        self._refuse_what_was_changed(artifact)
        subject = Subject(
            run=contents.pipeline,
            description=contents.description,
            record=contents.ledger[artifact.stage],
            artifact=artifact.name,
            folder=artifact.folder,
            ledger=contents.ledger,
            links=self._links(),
            repo_id=artifact.repo_id,
            run_link=run_link,
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
        files: dict[str, Path | bytes] = dict(artifact.files)
        config = config_for_the_hub(subject)
        if config is not None:
            files[CONFIG] = config
        self._bring(pushed, files, card, f"{artifact.stage}: {artifact.name}")

    def _refuse_what_was_changed(self, artifact: Artifact) -> None:
        """Refuse files that are not what the record tells, which no pull would take.

        An adapter that was pulled names another base than the one that was hashed, so of adapters
        nothing can be said here.
        """
        if (artifact.folder / CONFIG).is_file():
            return
        if self.repositories.hashes.path(artifact.folder) != artifact.hash:
            raise PipelineError(
                f"{artifact.folder} was changed after {artifact.stage} was finished: its hash is "
                "not the record's; put its files back, or move the stage's folder away and run the "
                "pipeline again"
            )

    def _push_report(self, report: Path) -> None:
        name = repo_name(f"{self.name}-report")
        pushed = PushedRepo(f"{self.owner}/{name}", "space", "")
        card = report_card(self.contents.pipeline, self.run_repo)
        self._bring(pushed, {"index.html": report}, card, "report")

    def _push_run(self) -> None:
        contents = self.contents
        files: dict[str, Path | bytes] = dict(contents.run_files())
        known = self.record.repo("dataset", self.run_repo)
        if self.report is not None:
            files["report.html"] = self.report
        elif known is not None and "report.html" in known.files:
            # Pushed before, and not told to go.
            files["report.html"] = self._download("report.html")
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
        self._bring(PushedRepo(self.run_repo, "dataset", ""), files, card, "run")

    def _links(self) -> dict[tuple[str, str], Link]:
        """Where the artifacts lie that were pushed so far."""
        return {
            (repo.stage, repo.artifact): Link(repo.repo_id, repo.repo_type, repo.commit)
            for repo in self.record.repos.values()
            if repo.stage
        }

    def _bring(
        self, repo: PushedRepo, files: Mapping[str, Path | bytes], card: str, message: str
    ) -> None:
        """Bring a repository to hold these files and this card; remember its commit."""
        known = self.record.repo(repo.repo_type, repo.repo_id)
        repo, how = self.repositories.bring(repo, known, files, card, message)
        self.say(f"{repo.repo_id}: {how}")
        if repo != known:
            self.record = self.record.with_repo(repo)
            write_hub_record(self.contents.folder, self.record)

    def _make_collection(self) -> None:
        """The collection, still empty: the run's own repository names it."""
        slug = self.record.collection
        if not slug or not is_there(self.api, slug):
            title = self.name[:_MAX_TITLE]
            about = f"Every stage of a run of {self.contents.pipeline}, by trl_r1"
            slug = make_collection(self.api, self.owner, title, about, self.private)
            self.record = replace(self.record, collection=slug)


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
