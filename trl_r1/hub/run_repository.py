"""What the repository of a run tells: `hub.json`, `run.json` and the records of its stages.

A stranger may have written them, so nothing of them is taken for what a run would write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trl_r1.hub.client import hub_errors
from trl_r1.hub.record import HUB_FILE, HubRecord, parse_hub_record
from trl_r1.pipeline.ledger import RECORD_FILE, StageRecord, read_record
from trl_r1.pipeline.mistakes import PipelineError, one_of, suggestion
from trl_r1.pipeline.run_file import RUN_FILE, RunFile, read_run_file

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def read_documents(api: HfApi, repo_id: str, commit: str) -> tuple[HubRecord, RunFile]:
    """`hub.json` and `run.json` of a run's repository.

    Raises:
        PipelineError: it holds no run, or what it tells is damaged.
        HubError: the Hub refuses, or can't be reached.
    """
    from huggingface_hub.errors import EntryNotFoundError

    files = []
    for name in (HUB_FILE, RUN_FILE):
        try:
            with hub_errors(f"reading {name} of {repo_id}"):
                path = api.hf_hub_download(repo_id, name, repo_type="dataset", revision=commit)
        except PipelineError as error:
            if isinstance(error.__cause__, EntryNotFoundError):
                raise PipelineError(
                    f"{repo_id} holds no run (no {name}); name the repository that "
                    "`trl-r1 push` printed"
                ) from error
            raise
        files.append(Path(path))
    try:
        pushed = parse_hub_record(files[0].read_bytes())
    except ValueError as error:
        raise PipelineError(
            f"{HUB_FILE} of {repo_id} can't be read ({error}); ask who pushed it to push it again"
        ) from error
    run = read_run_file(files[1].parent)
    if not _NAME.fullmatch(run.pipeline):
        raise PipelineError(f"{repo_id}: {run.pipeline!r} is no name of a pipeline")
    return pushed, run


def read_ledger(told: Path, repo_id: str) -> dict[str, StageRecord]:
    """The records of a run that was fetched, by stage.

    Args:
        told: folder with the files of the run's repository.
        repo_id: its name.

    Raises:
        PipelineError: one is not what a run writes of a finished stage.
    """
    found = {}
    for path in sorted((told / "stages").glob(f"*/{RECORD_FILE}")):
        where = f"{repo_id}: stages/{path.parent.name}/{RECORD_FILE}"
        record = read_record(path.parent)
        assert record is not None, "the file is there"
        names = [record.name, *record.artifacts]
        if record.name != path.parent.name or not all(map(_NAME.fullmatch, names)):
            raise PipelineError(f"{where} holds names that no run gives")
        if record.status != "finished":
            raise PipelineError(f"{where} tells of a stage that is not finished; none is pushed so")
        if not all(isinstance(entry.get("hash"), str) for entry in record.artifacts.values()):
            raise PipelineError(f"{where} tells no hash of an artifact, so nothing can be checked")
        found[record.name] = record
    return found


def select(ledger: dict[str, StageRecord], stages: Sequence[str] | None) -> list[str]:
    """The names of the stages to fetch: those asked for, or all.

    Raises:
        PipelineError: there is no stage of a name.
    """
    for name in stages or ():
        if name not in ledger:
            hint = suggestion(name, ledger) or f"; there are {one_of(ledger)}"
            raise PipelineError(f"--stages: no stage {name!r} in it{hint}")
    return [name for name in ledger if stages is None or name in stages]
