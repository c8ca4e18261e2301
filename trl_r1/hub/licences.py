"""Under which licence an artifact may be passed on, as far as it can be known.

A model carries the licence of the outermost base that its weights come from. It is read from the
card of that base, in its folder or on the Hub; nothing is guessed. Left out: licence texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import DatasetCard, ModelCard, constants, hf_hub_download

from trl_r1.hub.card_lineage import Ledger, ancestors, hub_id, hub_revision, inputs_of, is_model
from trl_r1.hub.subjects import repo_url, start_of
from trl_r1.pipeline.ledger import Input, StageRecord
from trl_r1.pipeline.references import find_path
from trl_r1.tasks import find_task

_TIMEOUT = 5.0
CARD_FILE = "README.md"


@dataclass(frozen=True)
class Licence:
    """What is known of a licence.

    Attributes:
        holder: whose it is, as a recipe names it.
        identifier: as the Hub has it, `apache-2.0`; None where it is not known.
        name, link: of one that the Hub has no identifier for.
        languages: that the same card tells.
        is_own: this package's, of what it made from nothing.
    """

    holder: str
    identifier: str | None = None
    name: str | None = None
    link: str | None = None
    languages: tuple[str, ...] = ()
    is_own: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a card's header."""
        if self.identifier is None:
            return {}
        named = {"license_name": self.name, "license_link": self.link}
        return {"license": self.identifier, **{k: v for k, v in named.items() if v}}


def own_licence(holder: str) -> Licence:
    """This package's, for what it makes from nothing."""
    facts = metadata.metadata("trl-r1")
    found = (facts.get_all("License-Expression") or [None])[0]
    return Licence(holder, found.lower() if found else None, languages=("en",), is_own=True)


def model_licence(record: StageRecord, ledger: Ledger, folder: Path | None = None) -> Licence:
    """The licence of a stage's model: that of the outermost base of its weights.

    Args:
        record: of the stage.
        ledger: of the run.
        folder: of the recipes, where relative paths start.
    """
    seen: set[str] = set()
    while True:
        start = start_of(record)
        if start is None:
            is_made_here = record.stage == "tiny_base"
            return own_licence(record.name) if is_made_here else Licence(record.name)
        if start.stage is None:
            revision = record.recipe.get("model_revision")
            return outside_licence(start, folder, str(revision) if revision else None)
        if start.stage in seen or start.stage not in ledger:
            return Licence(start.source)
        seen.add(start.stage)
        record = ledger[start.stage]


def data_licences(record: StageRecord, ledger: Ledger, folder: Path | None = None) -> list[Licence]:
    """The licences of the data from outside that a stage was made from, at any distance."""
    found: dict[str, Licence] = {}
    for name in [*ancestors(ledger, record.name), record.name]:
        for item in inputs_of(ledger[name]):
            if item.role == "data" and item.stage is None and item.source not in found:
                found[item.source] = outside_licence(item, folder)
    return list(found.values())


def common_licence(licences: Sequence[Licence]) -> Licence:
    """The licence of what is made of several things: theirs where it is known and the same."""
    first = licences[0]
    is_one = all(one.fields == first.fields for one in licences)
    return first if is_one else Licence(first.holder)


def outside_licence(
    item: Input, folder: Path | None = None, revision: str | None = None
) -> Licence:
    """The licence of a model or data set from outside of the run.

    Args:
        item: what flowed in.
        folder: where relative paths start.
        revision: of a model on the Hub.
    """
    if item.key.endswith(".task") and item.hash is None and hub_id(item) is None:
        # The rows of other packages are under theirs.
        task = find_task(item.source)
        is_own = task is not None and task.makes_rows and task.name != "reasoning_gym"
        return own_licence(item.source) if is_own else Licence(item.source)
    name, kind = hub_id(item), "model" if is_model(item) else "dataset"
    if name is not None:
        path = _fetched(constants.ENDPOINT, name, kind, hub_revision(item) or revision)
        return _from_card(item.source, kind, path, repo_url(name, kind))
    local = find_path(item.source, folder or Path.cwd())
    if local is None:
        return Licence(item.source)
    place = local if local.is_dir() else local.parent
    return _from_card(item.source, kind, place / CARD_FILE, None)


@cache
def _fetched(endpoint: str, name: str, kind: str, revision: str | None) -> Path | None:
    """The card of a repository; None where it can't be had, as in offline mode."""
    try:
        path = hf_hub_download(
            name,
            CARD_FILE,
            repo_type=kind,
            revision=revision,
            etag_timeout=_TIMEOUT,
            endpoint=endpoint,
        )
    except Exception:  # noqa: BLE001 - of several HTTP clients; a card says so and goes without
        return None
    return Path(path)


def _from_card(holder: str, kind: str, path: Path | None, page: str | None) -> Licence:
    if path is None or not path.is_file():
        return Licence(holder)
    card_type = DatasetCard if kind == "dataset" else ModelCard
    try:
        data = card_type.load(path, ignore_metadata_errors=True).data
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return Licence(holder)
    identifier = _text(data.get("license"))
    link = _text(data.get("license_link"))
    if link and "://" not in link:
        # A file of the base's repository, which does not lie in ours.
        link = f"{page}/blob/main/{link}" if page else None
    languages = data.get("language") or ()
    languages = (languages,) if isinstance(languages, str) else tuple(map(str, languages))
    return Licence(holder, identifier, _text(data.get("license_name")), link, languages)


def _text(value: Any) -> str | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, str) and value.strip() else None
