"""What of a run goes to the Hub, and where: a repository for each artifact, one for the run itself.

The artifacts of finished stages go, and what explains them: recipes, records, metrics, samples of
the scoring, the report. Checkpoints, logs and hidden files stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from trl_r1.hub.names import repo_name
from trl_r1.pipeline.ledger import RECORD_FILE, StageRecord, damage, records
from trl_r1.pipeline.mistakes import PipelineError, one_of, suggestion
from trl_r1.pipeline.references import MODEL_KINDS, artifact_kind
from trl_r1.pipeline.run_file import order_of, read_run_file
from trl_r1.pipeline.yaml_files import PIPELINE_FILE, STAGE_FILE, read_mapping

RepoType = Literal["model", "dataset", "space"]
# Beside the artifacts of a stage, and not for others: logs name folders of this machine.
_STAYS = ("log.txt",)
# What of a folder of recipes is a recipe, code of one, or about one.
_RECIPE = (".yaml", ".yml", ".py", ".jinja", ".md", ".txt")


@dataclass(frozen=True)
class Artifact:
    """An artifact and its repository.

    Attributes:
        stage: the stage that made it.
        name: in the stage's record.
        folder: where it lies.
        repo_id: where it goes.
        repo_type: `model` or `dataset`.
        hash: of its content, as in the record.
    """

    stage: str
    name: str
    folder: Path
    repo_id: str
    repo_type: RepoType
    hash: str

    @property
    def files(self) -> dict[str, Path]:
        """Its files by their path in the repository; a card of its own is not among them."""
        found = {path: self.folder / path for path in visible_files(self.folder)}
        found.pop("README.md", None)
        return found


@dataclass(frozen=True)
class RunContents:
    """A run as it goes to the Hub.

    Attributes:
        folder: of the run.
        pipeline: the pipeline's name.
        description: the pipeline's.
        run_id: a name that no other run has.
        order: the finished stages, in the order they ran.
        ledger: their records.
        recipes: folder of the recipes; None where it is gone.
    """

    folder: Path
    pipeline: str
    description: str
    run_id: str
    order: tuple[str, ...]
    ledger: Mapping[str, StageRecord]
    recipes: Path | None

    def artifacts(
        self, owner: str, name: str, stages: Sequence[str], repo_ids: Mapping[str, str]
    ) -> list[Artifact]:
        """The artifacts of stages, each with its repository, in the order they were made.

        Args:
            owner: user or organisation.
            name: of the run's own repository; those of the artifacts begin with it.
            stages: which.
            repo_ids: by stage, what the repository of its main artifact is called instead; the
                stage's `hub_model_id` counts, too.

        Raises:
            PipelineError: an artifact is damaged, or two would share a repository.
        """
        found: dict[str, Artifact] = {}
        for stage in stages:
            record = self.ledger[stage]
            fault = damage(record, self.folder / stage)
            if fault:
                raise PipelineError(
                    f"{self.folder / stage}: {fault}; run the pipeline again to make it anew"
                )
            for artifact, entry in record.artifacts.items():
                is_main = artifact == next(iter(record.artifacts))  # what `@stage` means
                parts = (name, stage) if is_main else (name, stage, artifact)
                told = repo_ids.get(stage) or record.recipe.get("hub_model_id")
                repo_id = str(told) if told and is_main else repo_name("-".join(parts))
                repo_id = repo_id if "/" in repo_id else f"{owner}/{repo_id}"
                if repo_id.lower() in found:
                    raise PipelineError(
                        f"two artifacts would both be {repo_id}; push with another --name"
                    )
                kind = str(entry.get("kind") or artifact_kind(artifact))
                is_model = kind in (*MODEL_KINDS, "reward_model")
                found[repo_id.lower()] = Artifact(
                    stage,
                    artifact,
                    self.folder / stage / artifact,
                    repo_id,
                    "model" if is_model else "dataset",
                    entry["hash"],
                )
        return list(found.values())

    def run_files(self) -> Iterator[tuple[str, Path]]:
        """Files of the run's own repository: their path in it, and where they lie."""
        for stage in self.order:
            place = self.folder / stage
            for path in visible_files(place):
                first = path.partition("/")[0]
                if first in (*self.ledger[stage].artifacts, "checkpoints", *_STAYS):
                    # The card that lay with an artifact, since the Hub's takes its place there.
                    if path == f"{first}/README.md" and first in self.ledger[stage].artifacts:
                        yield f"stages/{stage}/{path}", place / path
                    continue
                yield f"stages/{stage}/{path}", place / path
        if self.recipes is not None:
            for path in visible_files(self.recipes):
                if path.endswith(_RECIPE):
                    yield f"recipes/{path}", self.recipes / path

    def left_out(self) -> list[str]:
        """Files beside the recipes that are not pushed: data may be private, or large."""
        files = visible_files(self.recipes) if self.recipes is not None else []
        return [path for path in files if not path.endswith(_RECIPE)]

    def local_paths(self) -> list[tuple[str, str]]:
        """Stages and the absolute paths their recipes name; records and report show them."""
        pairs = [(s, text) for s in self.order for text in _texts(self.ledger[s].recipe)]
        return [pair for pair in dict.fromkeys(pairs) if _is_place(pair[1])]


def read_contents(folder: Path, recipes: Path | None = None) -> RunContents:
    """A run as it lies in its folder.

    Args:
        folder: of the run.
        recipes: folder of its recipes; where it was when the run was made, by default.

    Raises:
        PipelineError: it is no run, or has no finished stage.
    """
    ledger = {n: r for n, r in records(folder).items() if r.status == "finished"}
    if not ledger:
        what = "no stage of it is finished" if records(folder) else f"no {RECORD_FILE} in it"
        raise PipelineError(f"{folder} has nothing to push: {what}; name a run, as runs/tiny-cpu")
    run, order = read_run_file(folder), order_of(folder, ledger)
    if recipes is None:
        is_there = run.folder != Path() and any(map(STAGE_FILE.fullmatch, names_in(run.folder)))
        recipes = run.folder if is_there else None
    elif not recipes.is_dir():
        raise PipelineError(f"--recipes {recipes}: no such folder")
    return RunContents(
        folder,
        run.pipeline,
        _description(recipes),
        run.id,
        tuple(order),
        {name: ledger[name] for name in order},
        recipes,
    )


def select_stages(contents: RunContents, names: Sequence[str] | None) -> list[str]:
    """The stages to push, in their order: those named, or all.

    Raises:
        PipelineError: no finished stage is called that.
    """
    for name in names or ():
        if name not in contents.ledger:
            hint = suggestion(name, contents.order) or f"; there are {one_of(contents.order)}"
            raise PipelineError(f"--stages: no finished stage {name!r}{hint}")
    return [name for name in contents.order if names is None or name in names]


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none where it is not there."""
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def visible_files(folder: Path) -> list[str]:
    """The files of a folder, as paths in it, sorted: those whose path has no hidden part.

    Raises:
        PipelineError: one is a link to a file elsewhere, which would go along.
    """
    found, home = [], folder.resolve()
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(p.startswith(".") or p == "__pycache__" for p in parts):
            if not path.resolve().is_relative_to(home):
                raise PipelineError(
                    f"{path} is a link that leads out of {folder}; put the file itself there, or "
                    "take the link away"
                )
            found.append("/".join(parts))
    return sorted(found)


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _is_place(text: str) -> bool:
    """Whether a text is a path from the root; `/no_think` and templates are none."""
    return text.startswith("/") and "\n" not in text and len(PurePosixPath(text).parts) > 2


def _description(recipes: Path | None) -> str:
    if recipes is None or not (recipes / PIPELINE_FILE).is_file():
        return ""
    values, _ = read_mapping(recipes / PIPELINE_FILE, "")
    return str(values.get("description") or "")
