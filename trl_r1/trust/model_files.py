"""What a model's folder would run when it is loaded: code of its own, and pickles for weights.

Neither is taken unless the recipe says so: `trust_remote_code: true`, `use_safetensors: false`.
Checked by the names and JSON of a folder; of a model on the Hub the files in the cache count.

Left out: checkpoints of Trainer, which it reads with `weights_only`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONFIGS = ("config.json", "tokenizer_config.json", "processor_config.json")
_WEIGHTS = re.compile(r"(adapter_model|model|pytorch_model|consolidated|tf_model|flax_model)\b.*")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5")
_CODE_KEY, _PICKLE_KEY = "trust_remote_code: true", "use_safetensors: false"


@dataclass(frozen=True)
class Allowed:
    """What a recipe allows of a model.

    Attributes:
        code: `trust_remote_code`.
        pickles: not `use_safetensors`.
    """

    code: bool = False
    pickles: bool = False


class ModelTrustError(ValueError):
    """A model that would run what nobody has asked for; its text says what, and which key asks."""


def check_model(name: str, allowed: Allowed) -> None:
    """Refuse a folder, or an id whose files are in the Hub's cache, before anything of it is read.

    Raises:
        ModelTrustError: it needs code of its own, or has pickles for weights.
    """
    folder = Path(name) if Path(name).is_dir() else cached_folder(name)
    if folder is not None and (fault := folder_fault(name, folder, allowed)):
        raise ModelTrustError(fault)


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """The folder of a model in the Hub's cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in ("config.json", "adapter_config.json"):
        try:
            found = try_to_load_from_cache(name, file, revision=revision)
        except (HFValidationError, OSError, ValueError):
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


def folder_fault(name: str, folder: Path, allowed: Allowed) -> str | None:
    """What is wrong with a model's folder, and what to do; None where nothing is."""
    fault = None if allowed.code else _code_fault(name, folder)
    if fault or allowed.pickles:
        return fault
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return None  # told where it is read
    return weights_fault(name, names) or _index_fault(name, folder)


def weights_fault(name: str, files: Iterable[str]) -> str | None:
    """What is wrong with a model's files by their names."""
    weights = sorted(file for file in files if _WEIGHTS.fullmatch(file))
    pickles = [file for file in weights if file.endswith(_PICKLES)]
    is_adapter = any(file.startswith("adapter_model") for file in weights)
    kind = "adapter_model" if is_adapter else "model"
    if not pickles or any(f.startswith(kind) and f.endswith(".safetensors") for f in weights):
        return None
    loader = "AutoPeftModelForCausalLM" if is_adapter else "AutoModelForCausalLM"
    return (
        f"{name}: its weights are no safetensors but {pickles[0]}, a format that can run code when "
        f"it is read; take a model with safetensors, convert it where that can do no harm "
        f"({loader}.from_pretrained(...).save_pretrained(...)), or set {_PICKLE_KEY}"
    )


def _index_fault(name: str, folder: Path) -> str | None:
    """An index of shards may lead to pickles, or out of the folder."""
    for index in folder.glob("*.safetensors.index.json"):
        shards = _json(index).get("weight_map")
        for shard in shards.values() if isinstance(shards, dict) else ():
            text = str(shard)
            if not text.endswith(".safetensors") or "/" in text or "\\" in text:
                return f"{name}: {index.name} names {text!r}, which is no file of safetensors in it"
    return None


def _code_fault(name: str, folder: Path) -> str | None:
    files: dict[str, None] = {}
    for config in _CONFIGS:
        values = _json(folder / config)
        references = values.get("auto_map")
        if isinstance(references, dict) and not _is_known(values, config):
            files.update(dict.fromkeys(_files_of(references.values())))
    if not files:
        return None
    return (
        f"{name}: it needs code of its own, {', '.join(files)}, which is not run unless it is "
        f"asked for; read it, then set {_CODE_KEY}, or take a model that transformers knows"
    )


def _is_known(values: dict[str, Any], config: str) -> bool:
    """Whether transformers has code for it itself, which is then used."""
    if config != "config.json":
        # Which class a tokenizer needs is transformers' to say, when it is loaded.
        return True
    from transformers import CONFIG_MAPPING

    return values.get("model_type") in CONFIG_MAPPING


def _files_of(references: Iterable[Any]) -> Iterator[str]:
    """`modeling_x.py` of `modeling_x.XModel`; of another repository's, its name before it."""
    for item in references:
        for reference in item if isinstance(item, (list, tuple)) else (item,):
            if isinstance(reference, str):
                repository, _, place = reference.rpartition("--")
                file = place.rpartition(".")[0].replace(".", "/") + ".py"
                yield f"{repository}/{file}" if repository else file


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # told where it is read
    return values if isinstance(values, dict) else {}


@contextmanager
def told_of_trust(name: str) -> Iterator[None]:
    """Say of what transformers refuses which key of a recipe asks for it.

    Raises:
        ModelTrustError: in place of transformers' own errors.
    """
    try:
        yield
    except ModelTrustError:
        raise
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelTrustError(
            f"{name}: it needs code of its own, which is not run unless it is asked for; read it, "
            f"then set {_CODE_KEY}, or take a model that transformers knows"
        ) from error
    except OSError as error:
        if "safetensors" not in str(error):
            raise
        raise ModelTrustError(
            f"{name}: it has no weights as safetensors; other formats can run code when they are "
            f"read; take a model with safetensors, or set {_PICKLE_KEY}"
        ) from error
