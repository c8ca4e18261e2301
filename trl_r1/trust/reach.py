"""What a pipeline's YAML files ask for beyond training: servers, keys, uploads, code of models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trl_r1.pipeline.references import is_model_key
from trl_r1.trust.code_references import CodeReference, Place, existing, place_text

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

Values = Sequence[tuple[str, Path, Place, Any]]
_PICKLES = "weights may be pickles, which can run code when they are read"
_UPLOAD = "is uploaded to with your token"
# By key: whether a value means it, and what it means.
_BY_KEY: dict[str, tuple[Callable[[Any], bool], str]] = {
    "trust_remote_code": (bool, "code in the repository or folder of a model is run"),
    "use_safetensors": (lambda value: value is False, _PICKLES),
    "load_format": (lambda value: value in ("pt", "npcache"), _PICKLES),
    "custom_generate": (bool, "code of that repository generates"),
    "attn_implementation": (lambda value: "/" in str(value), "a kernel of the Hub is run"),
    "push_to_hub": (bool, "models are uploaded with your token"),
    "hub_model_id": (bool, _UPLOAD),
    "log_completions_hub_repo": (bool, _UPLOAD),
    "trackio_space_id": (bool, _UPLOAD),
    "report_to": (lambda value: value not in ("none", "tensorboard", None), "figures go there"),
}


def reach_lines(values: Values) -> list[str]:
    """A line for each thing that a run would ask of others, send them, or take from them."""
    lines = []
    for called, _, place, value in values:
        if text := _meaning(place, value):
            lines.append(f"{called}: {place_text(place)}: {value}: {text}")
    return list(dict.fromkeys(lines))


def _meaning(place: Place, value: Any) -> str | None:
    key = next((part for part in reversed(place) if isinstance(part, str)), "")
    is_meant, text = _BY_KEY.get(key, (None, ""))
    if is_meant is not None and is_meant(value):
        return text
    if key.endswith("key_variable"):
        return "what this environment variable holds is sent to the servers named beside it"
    if isinstance(value, str) and _ADDRESS.fullmatch(value.strip()):
        return "is read or sent to"
    return None


def model_code(values: Values, folder: Path) -> Iterator[CodeReference]:
    """The code that models would run, where `trust_remote_code` is set anywhere."""
    trusts = [v for v in values if v[2] and v[2][-1] == "trust_remote_code" and v[3]]
    if not trusts:
        return
    for called, own_folder, place, value in values:
        key = str(place[-1]) if place else ""
        if not isinstance(value, str) or not is_model_key(key) or value.startswith("@"):
            continue
        where = f"{called}: {place_text(place)}"
        found = existing(value, (own_folder, folder, Path.cwd()))
        files = tuple(sorted(_python_files(found)))
        if files:
            yield CodeReference(where, value, "", files)
        elif not found and _HUB_ID.fullmatch(value):
            note = f"code on the Hub, if any: https://huggingface.co/{value}/tree/main"
            yield CodeReference(where, value, "", (), note)


def _python_files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from folder.glob("*.py")
