"""Code blocks that use an artifact from the Hub as they stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trl_r1.evaluation.record import KEPT_FOLDER
from trl_r1.hub.card_lineage import hub_id, hub_revision
from trl_r1.hub.card_text import block, code, public_data
from trl_r1.hub.subjects import Link, Subject, link_of, start_of
from trl_r1.pipeline.ledger import StageRecord
from trl_r1.reasoning_format import FORMATS
from trl_r1.report.reading import finite

_QUESTION = "What is 12 + 7 + 25?"
_ANSWERS = ("Twelve and seven are nineteen, and twenty-five more is 44.", "No idea.")
_MAX_PROMPT = 1500
# What the paper samples with, where nothing else is known.
_SAMPLING = {"temperature": 0.6, "top_p": 0.95}
_MAX_NEW_TOKENS = 2048


def model_usage(subject: Subject) -> str:
    """How to generate with a model or an adapter."""
    base = adapter_base(subject) if subject.is_adapter else None
    if subject.is_adapter and base is None:
        return _without_base(subject)
    loading = _loading(subject, "AutoModelForCausalLM", base)
    lines = [
        *loading,
        f"messages = {_literal(example_prompt(subject))}",
        "inputs = tokenizer.apply_chat_template(",
        '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
        ").to(model.device)",
        f"output = model.generate(**inputs, {_sampling(subject)})",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], '
        "skip_special_tokens=True))",
    ]
    recipe = _recipe_lines("model_name_or_path: ", subject)
    return "\n\n".join([block("\n".join(lines), "python"), *recipe])


def reward_usage(subject: Subject) -> str:
    """How to score answers with a reward model."""
    base = adapter_base(subject) if subject.is_adapter else None
    if subject.is_adapter and base is None:
        return _without_base(subject)
    question = example_prompt(subject, is_general=True)
    lines = [
        "import torch",
        *_loading(subject, "AutoModelForSequenceClassification", base, ", num_labels=1"),
        f"question = {_literal(question)}",
        f"for answer in {_literal(list(_ANSWERS))}:",
        '    messages = [*question, {"role": "assistant", "content": answer}]',
        "    inputs = tokenizer.apply_chat_template(",
        '        messages, return_dict=True, return_tensors="pt"',
        "    ).to(model.device)",
        "    with torch.no_grad():",
        "        print(model(**inputs).logits[0, 0].item(), answer)  # higher is better",
    ]
    text = (
        "It was trained on answers without reasoning: give it what follows the reasoning. In a "
        "recipe of trl_r1, as a reward:"
    )
    reward = f'rewards:\n  - {{use: preference_model, args: {{model: "@hub:{subject.repo_id}"}}}}'
    return "\n\n".join([block("\n".join(lines), "python"), text, block(reward, "yaml")])


def data_usage(subject: Subject) -> str:
    """How to load a data set."""
    lines = [
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset({_literal(subject.repo_id)}, split="train")',
        "print(rows)",
        "print(rows[0])",
    ]
    entry = f'datasets:\n  - {{dataset_name: "@hub:{subject.repo_id}"}}'
    text = f"In a recipe of trl_r1 ({_pin(subject)}):"
    return "\n\n".join([block("\n".join(lines), "python"), text, block(entry, "yaml")])


def _recipe_lines(key: str, subject: Subject) -> list[str]:
    text = f"In a recipe of trl_r1 ({_pin(subject)}):"
    return [text, block(f'{key}"@hub:{subject.repo_id}"', "yaml")]


def _pin(subject: Subject) -> str:
    return f"`@hub:{subject.repo_id}@COMMIT` pins it"


def _loading(
    subject: Subject, architecture: str, base: tuple[str, str | None] | None, more: str = ""
) -> list[str]:
    name = _literal(subject.repo_id)
    if base is None:
        return [
            f"from transformers import {architecture}, AutoTokenizer",
            "",
            f'model = {architecture}.from_pretrained({name}, dtype="auto")',
            f"tokenizer = AutoTokenizer.from_pretrained({name})",
        ]
    revision = f", revision={_literal(base[1])}" if base[1] else ""
    return [
        "from peft import PeftModel",
        f"from transformers import {architecture}, AutoTokenizer",
        "",
        f"base = {architecture}.from_pretrained(",
        f'    {_literal(base[0])}{revision}{more}, dtype="auto"',
        ")",
        f"model = PeftModel.from_pretrained(base, {name})",
        f"tokenizer = AutoTokenizer.from_pretrained({name})",
    ]


def _without_base(subject: Subject) -> str:
    named = adapter_config(subject.folder).get("base_model_name_or_path") or "not named"
    return (
        f"This is an adapter of a model that is not on the Hub ({code(named)}). With that model's "
        "folder: `PeftModel.from_pretrained(base, "
        f'"{subject.repo_id}")`.'
    )


def adapter_config(folder: Path) -> dict[str, Any]:
    """The `adapter_config.json` of a folder; empty where it has none that can be read."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def adapter_base(subject: Subject) -> tuple[str, str | None] | None:
    """The repository of the model that an adapter stands on, and its commit where it is known.

    An adapter that is trained on over several stages stands on what the first of them started from.

    Returns:
        None where that model is not on the Hub.
    """
    seen: set[str] = set()
    record: StageRecord | None = subject.record
    run_dir = subject.folder.parent.parent
    while record is not None and record.name not in seen:
        seen.add(record.name)
        start = start_of(record)
        if start is None:
            return None
        if start.stage is None:
            name = hub_id(start)
            revision = hub_revision(start) or record.recipe.get("model_revision")
            return None if name is None else (name, str(revision) if revision else None)
        if not adapter_config(run_dir / start.stage / str(start.artifact)):
            found: Link | None = link_of(start, subject.ledger, subject.links)
            return None if found is None else (found.repo_id, found.commit)
        record = subject.ledger.get(start.stage)
    return None


def example_prompt(subject: Subject, is_general: bool = False) -> list[dict[str, str]]:
    """Messages to try a model with: of a problem that it was scored on, where one was kept.

    Args:
        subject: the model.
        is_general: without what makes a reasoning prompt.
    """
    if is_general:
        return [{"role": "user", "content": _QUESTION}]
    prompt = _kept_prompt(subject.folder.parent / KEPT_FOLDER / "after.parquet")
    if prompt is not None:
        return prompt
    fmt = FORMATS.get(str(subject.record.recipe.get("reasoning_format")), FORMATS["zero"])
    return fmt.prompt(_QUESTION)


def _kept_prompt(path: Path) -> list[dict[str, str]] | None:
    try:
        rows = pq.read_table(path, columns=["prompt", "is_general"]).slice(0, 1).to_pylist()
    except (OSError, pa.ArrowException, KeyError):
        return None
    prompt = rows[0]["prompt"] if rows and not rows[0]["is_general"] else None
    if not isinstance(prompt, list) or len(str(prompt)) > _MAX_PROMPT:
        return None
    return [dict(message) for message in prompt]


def _sampling(subject: Subject) -> str:
    """Arguments of `generate`: the model's own, then what it was scored with, then the paper's."""
    try:
        text = (subject.folder / "generation_config.json").read_text(encoding="utf-8")
        own = json.loads(text)
    except (OSError, ValueError):
        own = {}
    own = own if isinstance(own, Mapping) else {}
    scored = subject.record.scored_on
    limit = int(_first(scored.get("max_new_tokens"), _MAX_NEW_TOKENS))
    told = {key: _first(own.get(key), scored.get(key), last) for key, last in _SAMPLING.items()}
    if told["temperature"] == 0:
        return f"max_new_tokens={limit}, do_sample=False"
    names = [f"{key}={found}" for key, found in told.items()]
    return ", ".join([f"max_new_tokens={limit}", "do_sample=True", *names])


def _first(*values: Any) -> float:
    return next(found for value in values if (found := finite(value)) is not None)


def _literal(value: Any) -> str:
    """Texts, and lists and dicts of them, as Python; what can't be seen is written out."""
    return json.dumps(public_data(value), ensure_ascii=False)
