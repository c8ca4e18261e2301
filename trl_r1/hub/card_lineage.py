"""What an artifact was made from, over the whole run: a drawing and a table with pinned links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from trl_r1.hub.card_text import block, code, drawn, inline, link, table
from trl_r1.hub.references import is_hub_reference, parse_hub_reference
from trl_r1.hub.subjects import Link, hash_of, link_of, repo_url, start_of
from trl_r1.pipeline.ledger import Input, StageRecord, data_ancestors, weight_ancestors
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.references import is_model_key
from trl_r1.report.reading import Run, Stage
from trl_r1.report.stage_table import stage_roles
from trl_r1.tasks import find_task, is_task_file

Ledger = Mapping[str, StageRecord]
Links = Mapping[tuple[str, str], Link]

# What the paper has no name for.
_STAGE_NAMES = {
    "rejection_sampling": "samples, judged",
    "reward_model": "preference model",
    "evaluation": "evaluation",
}
STAGE_WORDS = {
    "tiny_base": "made on the spot, from a corpus that is written by rules",
    "cold_start": "SFT on few, readable samples",
    "grpo": "RL with GRPO",
    "rejection_sampling": "samples of a model, judged one by one",
    "mixed_sft": "SFT on reasoning and general data",
    "reward_model": "scores answers; learnt from pairs of a better and a worse one",
    "distillation": "SFT of a smaller model on what a bigger one wrote",
    "evaluation": "evaluation of a model on held-out problems",
}
_HUB_DATA = "hf://datasets/"
_ARROWS = {"weights": "==>", "data": "-->", "reward": "-.->"}


@dataclass
class Used:
    """A thing that flowed into stages.

    Attributes:
        item: how its first user names it.
        roles: how it flows in, each with the stages that use it so.
    """

    item: Input
    roles: dict[str, list[str]] = field(default_factory=dict)


def ancestors(ledger: Ledger, stage: str) -> list[str]:
    """The stages that a stage was made from at any distance, in the order they ran in."""
    found = weight_ancestors(ledger, stage) | data_ancestors(ledger, stage)
    return [name for name in in_order(ledger) if name in found and name != stage]


def in_order(ledger: Ledger) -> list[str]:
    """Stages, each after those that it was made from."""
    done: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in done or name in path or name not in ledger:
            return
        for item in ledger[name].inputs:
            visit(item.stage or "", (*path, name))
        done[name] = None

    for name in ledger:
        visit(name, ())
    return list(done)


def role_names(run: str, ledger: Ledger, folder: Any) -> dict[str, str]:
    """What each stage makes, in the paper's words where it has some."""
    stages = tuple(Stage(name, folder, ledger[name]) for name in in_order(ledger))
    roles = stage_roles(Run(run, folder, run, stages))
    return {
        name: roles[name] or _STAGE_NAMES.get(record.stage, record.stage)
        for name, record in ledger.items()
    }


def inputs_of(record: StageRecord) -> Iterator[Input]:
    """All that flows into a stage: what the ledger has, and the tasks that its data comes from."""
    yield from record.inputs
    for index, source in enumerate(record.recipe.get("datasets") or ()):
        task = source.get("task") if isinstance(source, Mapping) else None
        if task and not source.get("dataset_name") and not is_task_file(task):
            known = find_task(str(task))
            name = known.default_source if known is not None else None
            yield Input(f"datasets[{index}].task", name or str(task), "data")


def used_by(ledger: Ledger, names: Iterable[str]) -> list[Used]:
    """What flows into these stages, each thing once, in the order of its first use."""
    found: dict[tuple[Any, ...], Used] = {}
    for name in names:
        for item in inputs_of(ledger[name]):
            thing = (item.stage, item.artifact) if item.stage else (None, item.source)
            used = found.setdefault((*thing, item.hash), Used(item))
            users = used.roles.setdefault(item.role, [])
            if name not in users:
                users.append(name)
    return list(found.values())


def is_model(item: Input) -> bool:
    """Whether an input is a model; one may teach by its answers, and so flow in as data."""
    last = item.key.rpartition(".")[2].partition("[")[0]
    return item.role == "weights" or is_model_key(last)


def hub_id(item: Input) -> str | None:
    """The Hub id that an input from outside names; None for a file, a task or a reward."""
    if is_hub_reference(item.source):
        return _reference(item.source)[0]
    name = item.source.partition(":")[0]
    if item.source.startswith(_HUB_DATA):
        name = "/".join(item.source.removeprefix(_HUB_DATA).split("/")[:2]).partition("@")[0]
    if item.stage is not None or item.hash is not None or name.count("/") != 1:
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def hub_revision(item: Input) -> str | None:
    """The commit of an input from the Hub, or else the revision that it names."""
    return item.commit or _reference(item.source)[1]


def _reference(source: str) -> tuple[str | None, str | None]:
    """Id and revision of `@hub:owner/name@revision`."""
    try:
        found = parse_hub_reference(source)
    except PipelineError:
        return None, None
    return found.repo_id, found.revision


def lineage_table(ledger: Ledger, links: Links, names: Iterable[str]) -> str:
    """A row a thing that flowed into these stages, with its hash and where it lies."""
    rows = [_row(used, ledger, links) for used in used_by(ledger, names)]
    headers = ("what", "made by", "flows into", "content hash", "on the Hub")
    return table(headers, rows) if rows else "Nothing from outside, and no earlier stage."


def _row(used: Used, ledger: Ledger, links: Links) -> list[str]:
    item = used.item
    users = [
        f"{', '.join(map(code, stages))} as {inline(role)}" for role, stages in used.roles.items()
    ]
    if item.stage is not None:
        record = ledger.get(item.stage)
        maker = inline(record.stage.replace("_", " ")) if record else "this run"
        what = f"{item.stage}/{item.artifact}" if item.artifact else item.stage
    else:
        maker, what = _maker(item), item.source
    short = f"`{item.hash[:12]}`" if item.hash and item.hash.isalnum() else ""
    place = place_words(item, ledger, links) or (
        "made anew since" if _is_stale(item, ledger) else ""
    )
    return [code(what), maker, "; ".join(users), short, place]


def _maker(item: Input) -> str:
    if item.key.endswith(".task") and item.hash is None and hub_id(item) is None:
        return "a task of trl_r1"
    return "a reward function" if item.role == "reward" else "outside of the run"


def _is_stale(item: Input, ledger: Ledger) -> bool:
    """Whether an artifact of the run was made anew after it flowed in."""
    return item.stage is not None and item.hash != hash_of(ledger.get(item.stage), item.artifact)


def place_words(item: Input, ledger: Ledger, links: Links) -> str:
    """A link to an input on the Hub, pinned where its commit is known; empty where none is."""
    found = link_of(item, ledger, links)
    if found is not None:
        return link(f"{found.repo_id}@{found.commit[:8]}", found.url)
    name = hub_id(item)
    if name is None:
        return ""
    page, revision = repo_url(name, "model" if is_model(item) else "dataset"), hub_revision(item)
    if revision is None:
        return link(name, page)
    short = revision[:8] if item.commit else inline(revision, 40)
    return link(f"{name}@{short}", f"{page}/tree/{quote(revision, safe='')}")


def ancestry(ledger: Ledger, stage: str) -> str:
    """Which stages a stage has its weights from, and which taught it by data or rewards alone."""
    weights, others = weight_ancestors(ledger, stage), data_ancestors(ledger, stage)
    order = ancestors(ledger, stage)
    by_weights = [code(name) for name in order if name in weights]
    by_data = [code(name) for name in order if name in others - weights]
    is_data = ledger[stage].stage in ("rejection_sampling", "evaluation")
    whose = "Weights of the model that wrote it" if is_data else "Weights"
    parts = [f"{whose}: from {', '.join(by_weights)}."] if by_weights else []
    parts += [f"Data and rewards alone: from {', '.join(by_data)}."] if by_data else []
    return " ".join(parts)


def drawing(ledger: Ledger, names: Iterable[str], roles: Mapping[str, str], here: str = "") -> str:
    """A Mermaid drawing of these stages and of what comes from outside.

    Args:
        ledger: the run's.
        names: the stages, in order.
        roles: what each makes.
        here: the stage that the card is about.
    """
    nodes = {name: f"s{index}" for index, name in enumerate(names)}
    outside: dict[str, str] = {}
    lines: list[str] = []
    arrows: dict[str, None] = {}
    for name, node in nodes.items():
        lines.append(f'  {node}["{drawn(name)}<br/>{drawn(roles.get(name, ""))}"]')
        for item in inputs_of(ledger[name]):
            if item.stage is None and item.role != "reward":
                start = outside.setdefault(item.source, f"o{len(outside)}")
            elif item.stage in nodes:
                start = nodes[str(item.stage)]
            else:
                continue
            arrows[f"  {start} {_ARROWS.get(item.role, '-->')}|{drawn(item.role)}| {node}"] = None
    boxes = [f'  {node}(["{drawn(name)}"])' for name, node in outside.items()]
    marks = [f"  style {nodes[here]} stroke-width:3px"] if here in nodes else []
    return block("\n".join(["flowchart TD", *boxes, *lines, *arrows, *marks]), "mermaid")


def base_link(record: StageRecord, ledger: Ledger, links: Links) -> str | None:
    """The nearest model on the Hub that a stage's weights come from; None where none lies there."""
    seen: set[str] = set()
    start = start_of(record)
    while start is not None:
        found = link_of(start, ledger, links)
        if found is not None:
            return found.repo_id
        if start.stage is None:
            return hub_id(start)
        if start.stage in seen or start.stage not in ledger:
            return None
        seen.add(start.stage)
        start = start_of(ledger[start.stage])
    return None
