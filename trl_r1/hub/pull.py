"""Puts a run that was pushed back into a folder, so that a pipeline goes on from it.

A stage appears in one piece, after its artifacts have the hashes that its record tells. What was
fetched of it before a kill is not fetched again. Nothing of what is fetched is run, and no name in
it may lead out of the folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.hub.adapters import CONFIG, put_local_base
from trl_r1.hub.client import hub_errors, make_api
from trl_r1.hub.contents import visible_files
from trl_r1.hub.record import (
    HubRecord,
    PushedRepo,
    write_hub_record,
)
from trl_r1.hub.run_repository import read_documents, read_ledger, select
from trl_r1.pipeline.hashing import FileHashes
from trl_r1.pipeline.ledger import StageRecord, damage, read_record, write_record
from trl_r1.pipeline.lock import RunLock
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.run_file import RUN_FILE, RunFile, read_run_file, write_run_file

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_WORK = ".pull"  # in the run's folder: what is fetched, and not yet in its place


class Puller:
    """Fetches one run.

    Args:
        repo_id: the run's own repository.
        revision: branch, tag or commit of it; its main branch by default.
        say: gets a line for each thing done.
    """

    def __init__(self, repo_id: str, revision: str | None, say: Callable[[str], None]) -> None:
        self.repo_id = repo_id
        self.revision = revision
        self.say = say
        self.api: HfApi = make_api()
        self.hashes = FileHashes()

    def pull(
        self,
        output_dir: Path | None = None,
        recipes: Path | None = None,
        stages: Sequence[str] | None = None,
    ) -> Path:
        """Fetch the run; returns its folder.

        Args:
            output_dir: folder of the run; `runs/<pipeline>` by default.
            recipes: folder for its recipes; `<pipeline>` by default.
            stages: names; all by default.

        Raises:
            PipelineError: it is no run, something is in its way, or a hash is not the record's.
            HubError: the Hub refuses, or can't be reached.
        """
        with hub_errors(f"looking for {self.repo_id}"):
            info = self.api.repo_info(self.repo_id, repo_type="dataset", revision=self.revision)
        commit = str(info.sha)
        pushed, run = read_documents(self.api, self.repo_id, commit)
        run_dir = output_dir or Path("runs") / run.pipeline
        recipes = recipes or Path(run.pipeline)
        with RunLock(run_dir / ".lock"):
            work = run_dir / _WORK
            told = self._fetch(self.repo_id, "dataset", commit, work / "run")
            ledger = read_ledger(told, self.repo_id)
            chosen = select(ledger, stages)
            self._refuse_what_is_in_the_way(run_dir, run, [ledger[name] for name in chosen])
            place = self._put_recipes(told / "recipes", recipes)
            num_here = sum(self._pull_stage(run_dir, told, ledger[n], pushed) for n in chosen)
            run = replace(run, folder=place.absolute() if place else Path(), recipes=str(recipes))
            write_run_file(run_dir, run)
            own = PushedRepo(self.repo_id, "dataset", commit, _hashes_of(told, self.hashes))
            write_hub_record(run_dir, pushed.with_repo(own))
            for file in ("report.html",):
                if (told / file).is_file():
                    shutil.copyfile(told / file, run_dir / file)
            shutil.rmtree(work, ignore_errors=True)
        self._say_how_to_go_on(run_dir, place, run, num_here)
        return run_dir

    def _refuse_what_is_in_the_way(
        self, run_dir: Path, run: RunFile, ledger: Sequence[StageRecord]
    ) -> None:
        """Before anything is fetched: nothing that is here may be lost."""
        if (run_dir / RUN_FILE).is_file() and read_run_file(run_dir).id != run.id:
            raise PipelineError(
                f"{run_dir} holds another run; use --output_dir for another folder, and then "
                "`trl-r1 run` with the same"
            )
        for record in ledger:
            place = run_dir / record.name
            if os.path.lexists(place) and not _is_here(record, place):
                raise PipelineError(
                    f"{place} is in the way: it is not what {self.repo_id} holds; move it away, or "
                    "use --output_dir for another folder"
                )

    def _fetch(self, repo_id: str, repo_type: str, commit: str, folder: Path) -> Path:
        """Fetch a repository's files; those that are there whole are not fetched again."""
        with hub_errors(f"fetching {repo_id}"):
            self.api.snapshot_download(
                repo_id, repo_type=repo_type, revision=commit, local_dir=folder
            )
        return folder

    def _pull_stage(
        self, run_dir: Path, told: Path, record: StageRecord, pushed: HubRecord
    ) -> bool:
        """Put a stage in its place; whether it is there."""
        place = run_dir / record.name
        if _is_here(record, place):
            self.say(f"{record.name}: is here already")
            return True
        repos = {r.artifact: r for r in pushed.repos.values() if r.stage == record.name}
        missing = [name for name in record.artifacts if name not in repos]
        if missing:
            self.say(f"{record.name}: left out; its {', '.join(missing)} was not pushed")
            return False
        work, stages = run_dir / _WORK / record.name, told / "stages"
        for name, entry in record.artifacts.items():
            repo = repos[name]
            folder = self._fetch(repo.repo_id, repo.repo_type, repo.commit, work / name)
            _restore_card(folder, stages / record.name / name)
            if not self._is_as_pushed(folder, repo, entry["hash"]):
                raise PipelineError(
                    f"{repo.repo_id} at {repo.commit[:8]} is not the {name} that the record of "
                    f"{record.name} tells: its hash differs; remove {folder} to fetch it again, "
                    "and if that does not help, ask who pushed it"
                )
            put_local_base(folder, pushed, run_dir)
        # What lies where an artifact goes was not checked with it.
        shutil.copytree(
            stages / record.name,
            work,
            dirs_exist_ok=True,
            ignore=lambda folder, _: record.artifacts if Path(folder).parent == stages else (),
        )
        for name in record.artifacts:
            shutil.rmtree(work / name / ".cache", ignore_errors=True)
        write_record(work, _with_adapter_sizes(record, work))
        work.rename(place)
        self.say(f"{record.name}: {', '.join(record.artifacts) or 'its scores'}")
        return True

    def _is_as_pushed(self, folder: Path, repo: PushedRepo, told: str) -> bool:
        """Whether what was fetched has the hashes it should have.

        An adapter's config names the base's repository in the place of a folder, so that the hash
        of the whole is another; then each file has to be what was pushed.
        """
        if not (folder / CONFIG).is_file():
            return self.hashes.path(folder) == told
        pushed = {path: hash_ for path, hash_ in repo.files.items() if path != "README.md"}
        found = {path: self.hashes.path(folder / path) for path in visible_files(folder)}
        found.pop("README.md", None)
        return found == pushed

    def _put_recipes(self, source: Path, target: Path) -> Path | None:
        """Put the recipes where a person edits them; what is there already is left alone."""
        if not source.is_dir():
            return None
        if target.exists():
            names = visible_files(source)
            same = target.is_dir() and all(_equal(source / name, target / name) for name in names)
            if not same:
                raise PipelineError(
                    f"{target} is there already and is not the recipes of {self.repo_id}; name "
                    "another folder for them with --recipes"
                )
            return target
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, partial)
        partial.rename(target)
        return target

    def _say_how_to_go_on(
        self, run_dir: Path, recipes: Path | None, run: RunFile, num_stages: int
    ) -> None:
        self.say(f"{run_dir}: {num_stages} stages")
        if recipes is None:
            self.say("its recipes were not pushed; --recipes of `trl-r1 push` would")
            return
        code = [name for name in visible_files(recipes) if name.endswith(".py")]
        if code:
            self.say(
                f"{recipes} brings code of its own ({', '.join(code)}); "
                f"`trl-r1 check --untrusted {recipes}` shows it and runs nothing"
            )
        options = [f"--set {shlex.quote(text)}" for text in run.settings]
        options += [f"--seed {shlex.quote(str(run.seed))}"] if run.seed is not None else []
        if run_dir != Path("runs") / run.pipeline:
            options.append(f"--output_dir {shlex.quote(str(run_dir))}")
        self.say(" ".join(["go on: trl-r1 run", shlex.quote(str(recipes)), *options]))


def _is_here(record: StageRecord, place: Path) -> bool:
    """Whether a stage is in its place, whole and as its record says."""
    here = read_record(place) if place.is_dir() else None
    if here is None or damage(here, place) is not None:
        return False
    return _without_adapter_sizes(here) == _without_adapter_sizes(record)


def _without_adapter_sizes(record: StageRecord) -> dict[str, Any]:
    """A record but for the size of the file that names an adapter's base: it differs by place."""
    document = asdict(record)
    for entry in document["artifacts"].values():
        (entry.get("sizes") or {}).pop(CONFIG, None)
    return document


def _with_adapter_sizes(record: StageRecord, place: Path) -> StageRecord:
    """A record with the sizes that the configs of adapters have here."""
    artifacts = {name: dict(entry) for name, entry in record.artifacts.items()}
    for name, entry in artifacts.items():
        if CONFIG in (entry.get("sizes") or {}):
            size = (place / name / CONFIG).stat().st_size
            entry["sizes"] = {**entry["sizes"], CONFIG: size}
    return replace(record, artifacts=artifacts)


def _restore_card(folder: Path, told: Path) -> None:
    """Put an artifact's own card, if it had one, in the place of the Hub's."""
    (folder / ".gitattributes").unlink(missing_ok=True)
    (folder / "README.md").unlink(missing_ok=True)
    if (told / "README.md").is_file():
        shutil.copyfile(told / "README.md", folder / "README.md")


def _hashes_of(folder: Path, hashes: FileHashes) -> dict[str, str]:
    return {path: hashes.path(folder / path) for path in visible_files(folder)}


def _equal(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
