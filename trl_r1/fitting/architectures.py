"""The sizes of a model that a recipe names: from its folder, the Hub, or a table of known ones.

Only `config.json` is ever read, never a weight. Without the Hub the table of well-known families
stands in, and the caller says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from trl_r1.training.models import base_model_path, is_adapter_folder


@dataclass(frozen=True)
class Architecture:
    """A model's config and where it is from.

    Attributes:
        config: transformers' config.
        source: `folder`, `Hub` (or its cache) or `known sizes`.
    """

    config: PretrainedConfig
    source: str


class UnknownArchitectureError(LookupError):
    """There is no way to know a model's sizes here."""


# hidden, intermediate, layers, heads, key-value heads, vocabulary, tied; from the models' own
# config.json on the Hub. Qwen3 and Llama have heads of the width in the last column.
_QWEN2: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "0.5b": (896, 4864, 24, 14, 2, 151936, True),
    "1.5b": (1536, 8960, 28, 12, 2, 151936, True),
    "3b": (2048, 11008, 36, 16, 2, 151936, True),
    "7b": (3584, 18944, 28, 28, 4, 152064, False),
    "14b": (5120, 13824, 48, 40, 8, 152064, False),
    "32b": (5120, 27648, 64, 40, 8, 152064, False),
}
_QWEN3: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "0.6b": (1024, 3072, 28, 16, 8, 151936, True),
    "1.7b": (2048, 6144, 28, 16, 8, 151936, True),
    "4b": (2560, 9728, 36, 32, 8, 151936, True),
    "8b": (4096, 12288, 36, 32, 8, 151936, False),
    "14b": (5120, 17408, 40, 40, 8, 151936, False),
}
_LLAMA3: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "1b": (2048, 8192, 16, 32, 8, 128256, True),
    "3b": (3072, 8192, 28, 24, 8, 128256, True),
    "8b": (4096, 14336, 32, 32, 8, 128256, False),
}
_SMOLLM2: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "135m": (576, 1536, 30, 9, 3, 49152, True),
    "360m": (960, 2560, 32, 15, 5, 49152, True),
    "1.7b": (2048, 8192, 24, 32, 32, 49152, True),
}
# Hub ids by pattern; the first that fits counts.
_FAMILIES = (
    (r"deepseek-r1-distill-qwen-([\d.]+b)", "qwen2", _QWEN2),
    (r"deepseek-r1-distill-llama-([\d.]+b)", "llama", _LLAMA3),
    (r"qwen2\.5(?:-math|-coder)?-([\d.]+b)", "qwen2", _QWEN2),
    (r"qwen3-([\d.]+b)", "qwen3", _QWEN3),
    (r"llama-3\.[12]-([\d.]+b)", "llama", _LLAMA3),
    (r"smollm2-([\d.]+[mb])", "llama", _SMOLLM2),
)


def find_architecture(name: str) -> Architecture:
    """The architecture of a model folder, adapter folder (its base) or Hub id.

    Raises:
        UnknownArchitectureError: there is no such folder, the Hub can't be reached, and the name is
            of no family that is known here.
    """
    if is_adapter_folder(name):
        return find_architecture(base_model_path(name))
    is_folder = Path(name).is_dir()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        known = None if is_folder else known_config(name)
        if known is None:
            raise UnknownArchitectureError(
                f"{name}: its config.json can't be read ({_short(error)}), and it is none of the "
                "models whose sizes are known here; give a folder that holds its config.json"
            ) from error
        return Architecture(known, "known sizes")
    return Architecture(config, "folder" if is_folder else "Hub")


def known_config(name: str) -> PretrainedConfig | None:
    """The config of a well-known model by its Hub id, from the table here; None for others."""
    text = name.rpartition("/")[2].lower()
    for pattern, model_type, sizes in _FAMILIES:
        match = re.match(pattern, text)
        if match and match[1] in sizes:
            # The 1.5B students of R1 have an output layer of their own.
            is_untied = text.startswith("deepseek-r1-distill")
            return _config(model_type, sizes[match[1]], is_untied)
    return None


def _config(
    model_type: str, sizes: tuple[int, int, int, int, int, int, bool], is_untied: bool
) -> PretrainedConfig:
    hidden, intermediate, layers, heads, kv_heads, vocabulary, is_tied = sizes
    settings: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": is_tied and not is_untied,
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    if model_type == "qwen3":
        settings["head_dim"] = 128
    return AutoConfig.for_model(model_type, **settings)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
