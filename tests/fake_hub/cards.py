"""What the Hub asks of the metadata at the head of a README.md.

It checks the YAML, the types of the fields, and those fields whose values come from a list
(license, pipeline_tag, size_categories, a Space's sdk and colors) or have a structure (model-index,
configs). It leaves out what the Hub looks up: that a base model or a dataset is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

# The Hub's own rule for where the metadata lies.
FRONT_MATTER = re.compile(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))")

# What a field may be: `licenses`, `tasks` and `sizes`.
WORDS = {
    key: frozenset(text.split())
    for key, text in yaml.safe_load(Path(__file__).with_name("card_words.yaml").read_text()).items()
}
SDKS = frozenset({"gradio", "streamlit", "docker", "static"})
COLORS = frozenset({"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"})


def card_metadata(content: str) -> dict[str, Any]:
    """The metadata of a README.md, empty where there is none.

    Raises:
        ValueError: where it is no YAML mapping.
    """
    match = FRONT_MATTER.match(content)
    if match is None:
        return {}
    try:
        metadata = yaml.safe_load(match[2])
    except yaml.YAMLError as error:
        raise ValueError(f"YAML metadata is invalid: {error}") from error
    if metadata is not None and not isinstance(metadata, dict):
        raise ValueError("YAML metadata must be an object")
    return metadata or {}


def check_card(content: str, kind: str) -> tuple[list[str], list[str]]:
    """The errors and the warnings that the Hub has for a README.md of a model, dataset or space."""
    try:
        metadata = card_metadata(content)
    except ValueError as error:
        return [str(error)], []
    if not metadata:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [*_check_license(metadata), *_check_texts(metadata)]
    if kind == "model":
        errors += _one_of(metadata, "pipeline_tag", WORDS["tasks"])
        errors += _check_model_index(metadata.get("model-index"))
    elif kind == "dataset":
        errors += _one_of(metadata, "size_categories", WORDS["sizes"])
        errors += _one_of(metadata, "task_categories", WORDS["tasks"])
        errors += _check_configs(metadata.get("configs"))
    else:
        errors += _check_space(metadata)
    return errors, []


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _one_of(metadata: dict[str, Any], key: str, allowed: Iterable[str]) -> list[str]:
    wrong = [value for value in _as_list(metadata.get(key)) if value not in allowed]
    return [f'"{key}" must be one of [{", ".join(sorted(allowed))}]'] if wrong else []


def _check_license(metadata: dict[str, Any]) -> list[str]:
    errors = _one_of(metadata, "license", WORDS["licenses"])
    if "license" in metadata and not _as_list(metadata["license"]):
        errors.append('"license" must not be empty')
    if "license_name" in metadata and not re.fullmatch(
        r"[a-z0-9.-]+", str(metadata["license_name"])
    ):
        errors.append('"license_name" must be lower case, of letters, digits, "." and "-"')
    return errors


def _check_texts(metadata: dict[str, Any]) -> list[str]:
    """Fields that are a text or a list of texts; the classic mistake is a YAML `no`."""
    errors = []
    for key in ("language", "tags", "datasets", "base_model", "metrics"):
        values = _as_list(metadata.get(key))
        if not all(isinstance(value, str) and value for value in values):
            errors.append(f'"{key}" must be a string or an array of strings')
    languages = [value for value in _as_list(metadata.get("language")) if isinstance(value, str)]
    wrong = [each for each in languages if not re.fullmatch(r"[a-z]{2,3}(-\w+)?|code", each)]
    errors += [f'"language" must be an ISO 639 code: "{each}"' for each in wrong]
    relation = metadata.get("base_model_relation")
    if relation not in (None, "adapter", "finetune", "merge", "quantized"):
        errors.append('"base_model_relation" must be one of [adapter, finetune, merge, quantized]')
    return errors


def _check_model_index(entries: Any) -> list[str]:
    """[{name, results: [{task: {type}, dataset: {name, type}, metrics: [{type, value}]}]}]"""
    if entries is None:
        return []
    if not isinstance(entries, list):
        return ['"model-index" must be an array']
    errors = []
    for i, entry in enumerate(entries):
        at = f"model-index[{i}]"
        errors += _missing(entry, at, ("name", "results"))
        results = entry.get("results") if isinstance(entry, dict) else None
        if results is not None and not isinstance(results, list):
            errors.append(f'"{at}.results" must be an array')
            continue
        for k, result in enumerate(results or []):
            errors += _check_result(result, f"{at}.results[{k}]")
    return errors


def _check_result(result: Any, at: str) -> list[str]:
    errors = _missing(result, at, ("task", "dataset", "metrics"))
    if errors:
        return errors
    errors += _missing(result["task"], f"{at}.task", ("type",))
    errors += _missing(result["dataset"], f"{at}.dataset", ("name", "type"))
    if not isinstance(result["metrics"], list):
        return [*errors, f'"{at}.metrics" must be an array']
    for i, metric in enumerate(result["metrics"]):
        errors += _missing(metric, f"{at}.metrics[{i}]", ("type", "value"))
    return errors


def _missing(value: Any, at: str, keys: Iterable[str]) -> list[str]:
    if not isinstance(value, dict):
        return [f'"{at}" must be an object']
    return [f'"{at}.{key}" is required' for key in keys if value.get(key) is None]


def _check_configs(configs: Any) -> list[str]:
    if configs is None:
        return []
    if not isinstance(configs, list):
        return ['"configs" must be an array']
    return [
        error
        for i, config in enumerate(configs)
        for error in _missing(config, f"configs[{i}]", ("config_name",))
    ]


def _check_space(metadata: dict[str, Any]) -> list[str]:
    errors = [] if "sdk" in metadata else ['"sdk" is required']
    errors += _one_of(metadata, "sdk", SDKS)
    for key in ("colorFrom", "colorTo"):
        errors += _one_of(metadata, key, COLORS)
    if len(str(metadata.get("short_description", ""))) > 60:
        errors.append('"short_description" length must be less than or equal to 60 characters long')
    return errors
