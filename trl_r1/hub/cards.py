"""Cards for what a run leaves: of models, of data sets, and of the run itself.

A card is made from the run's ledger and the artifact's folder; nothing on it is typed by hand and
nothing is guessed. Left out: uploads, which are `push.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from huggingface_hub import DatasetCardData, ModelCardData

from trl_r1.data.card import STEPS_KEY, DataLog
from trl_r1.hub.card_data import (
    columns_table,
    data_files,
    left_out_table,
    sample_row,
    size_category,
    steps_table,
)
from trl_r1.hub.card_lineage import (
    Ledger,
    Links,
    ancestors,
    ancestry,
    base_link,
    drawing,
    hub_id,
    in_order,
    inputs_of,
    is_model,
    lineage_table,
    role_names,
)
from trl_r1.hub.card_making import making_section
from trl_r1.hub.card_scores import eval_results, evaluation_section, scores_section
from trl_r1.hub.card_text import block, code, inline, link, one_line, public_data, table
from trl_r1.hub.card_usage import adapter_base, data_usage, model_usage, reward_usage
from trl_r1.hub.card_words import (
    data_intro,
    data_licences_text,
    data_limits,
    has_lora,
    licence_text,
    model_intro,
    model_limits,
    way_back,
)
from trl_r1.hub.licences import Licence, common_licence, data_licences, model_licence
from trl_r1.hub.subjects import Link, Subject, link_of
from trl_r1.report.reading import time_text

__all__ = ["Link", "Subject", "dataset_card", "model_card", "run_card"]

_TAGS = {
    "tiny_base": ("tiny",),
    "cold_start": ("sft", "cold-start"),
    "grpo": ("grpo", "reinforcement-learning"),
    "mixed_sft": ("sft",),
    "reward_model": ("reward-trainer", "reward-model"),
    "distillation": ("sft", "distillation"),
    "rejection_sampling": ("rejection-sampling", "synthetic"),
    "evaluation": ("evaluation",),
}


def model_card(subject: Subject) -> str:
    """The card of a model, an adapter or a reward model: header and text.

    Args:
        subject: the artifact.
    """
    record = subject.record
    licence = model_licence(record, subject.ledger, subject.recipes)
    data = data_licences_text(data_licences(record, subject.ledger, subject.recipes))
    is_scorer = record.stage == "reward_model"
    sections = {
        "": model_intro(subject),
        "Use": reward_usage(subject) if is_scorer else model_usage(subject),
        "Scores": scores_section(subject),
        "How it was made": making_section(record),
        "Lineage": _lineage(subject),
        "Licence": "\n\n".join(filter(None, [licence_text(licence), data])),
        "Limits": model_limits(subject),
        "The whole run": way_back(subject.run_link),
    }
    return _page(_model_data(subject, licence), _title(subject), sections)


def _model_data(subject: Subject, licence: Licence) -> ModelCardData:
    record = subject.record
    if subject.is_adapter:
        base = adapter_base(subject)
        base_id, relation = (base[0] if base else None), "adapter"
    else:
        base_id, relation = base_link(record, subject.ledger, subject.links), "finetune"
    results = eval_results(subject)
    tags = ["trl", "trl-r1", *_TAGS.get(record.stage, ()), *(["lora"] if has_lora(subject) else [])]
    is_scorer = record.stage == "reward_model"
    return ModelCardData(
        base_model=base_id,
        base_model_relation=relation if base_id else None,
        datasets=_datasets(subject) or None,
        language=_languages(licence),
        library_name="peft" if subject.is_adapter else "transformers",
        pipeline_tag="text-classification" if is_scorer else "text-generation",
        tags=tags,
        eval_results=results or None,
        model_name=subject.repo_id.rpartition("/")[2] if results else None,
        **licence.fields,
    )


def dataset_card(subject: Subject) -> str:
    """The card of a data set, of samples or of rollouts: header and text.

    Args:
        subject: the artifact.

    Raises:
        OSError: its files can't be read.
    """
    record, files = subject.record, data_files(subject.folder)
    log = DataLog.of_folder(subject.folder)
    model = model_licence(record, subject.ledger, subject.recipes)
    licences = data_licences(record, subject.ledger, subject.recipes)
    licence = common_licence([model, *licences])
    steps = public_data([asdict(step) for step in log.records])
    data = DatasetCardData(
        language=_languages(model),
        size_categories=[size_category(files.num_rows)],
        task_categories=["text-generation"],
        source_datasets=_datasets(subject) or None,
        pretty_name=_title(subject),
        tags=["trl", "trl-r1", *_TAGS.get(record.stage, ())],
        configs=[{"config_name": "default", "data_files": files.splits}],
        **licence.fields,
        **({STEPS_KEY: steps} if steps else {}),
    )
    told = [f"The model that wrote it: {licence_text(model)}", data_licences_text(licences)]
    if licence.identifier is not None:
        told.insert(0, f"{inline(licence.identifier)}, like all that it was made from.")
    sections = {
        "": data_intro(subject, files.num_rows),
        "Use": data_usage(subject),
        "Columns": columns_table(files.schema),
        "A row": block(row, "json") if (row := sample_row(files)) else "",
        "Scores": evaluation_section(subject) if record.stage == "evaluation" else "",
        "What was kept": left_out_table(record),
        "Steps": steps_table(log),
        "How it was made": making_section(record),
        "Lineage": _lineage(subject),
        "Licence": "\n\n".join(filter(None, told)),
        "Limits": data_limits(subject),
        "The whole run": way_back(subject.run_link),
    }
    return _page(data, _title(subject), sections)


def run_card(
    run: str,
    description: str,
    ledger: Ledger,
    links: Links,
    table: str,
    repo_id: str,
) -> str:
    """The card of a run's own repository, a data set.

    Args:
        run: the pipeline's name.
        description: the pipeline's.
        ledger: records by stage.
        links: where the artifacts lie.
        table: the stage table as `trl-r1 table` prints it.
        repo_id: of the run's repository.
    """
    names = in_order(ledger)
    roles = role_names(run, ledger, Path())
    data = DatasetCardData(tags=["trl", "trl-r1", "run"], pretty_name=one_line(run), viewer=False)
    sections = {
        "": "\n\n".join(filter(None, [inline(description, 500), _RUN_TEXT])),
        "Stages": block(table, "text"),
        "Models and data": _links_table(ledger, links, roles, names),
        "Lineage": f"{drawing(ledger, names, roles)}\n\n{lineage_table(ledger, links, names)}",
        "Get it back": f"{_BACK_TEXT}\n\n{block(f'trl-r1 pull {repo_id}', 'bash')}",
    }
    return _page(data, inline(run), sections)


_RUN_TEXT = (
    "A run of trl_r1, which carries a base model through the "
    "[DeepSeek-R1 recipe](https://arxiv.org/abs/2501.12948) with Hugging Face TRL. Here lie its "
    "recipes, ledger, curves and samples; models and data lie in repositories of their own, each "
    "at the commit that the table links to."
)


_BACK_TEXT = (
    "All of it, checked by content hash. The command prints how to go on: run again as it is, the "
    "pipeline finds every stage finished; after a change it makes anew what depends on that."
)


def _links_table(ledger: Ledger, links: Links, roles: Mapping[str, str], names: list[str]) -> str:
    rows = []
    for name in names:
        for artifact, facts in ledger[name].artifacts.items():
            found = links.get((name, artifact))
            place = (
                link(f"{found.repo_id}@{found.commit[:8]}", found.url) if found else "not pushed"
            )
            short = f"`{str(facts.get('hash'))[:12]}`" if str(facts.get("hash")).isalnum() else ""
            time = time_text(ledger[name])
            rows.append([code(name), inline(roles[name]), code(artifact), short, place, time])
    return table(["stage", "what", "artifact", "content hash", "on the Hub", "time"], rows)


def _lineage(subject: Subject) -> str:
    name = subject.record.name
    names = [*ancestors(subject.ledger, name), name]
    roles = role_names(subject.run, subject.ledger, subject.folder)
    parts = [
        ancestry(subject.ledger, name),
        drawing(subject.ledger, names, roles, name),
        lineage_table(subject.ledger, subject.links, names),
    ]
    if subject.hash:
        parts.insert(0, f"Content hash of this artifact: {code(subject.hash)}.")
    return "\n\n".join(filter(None, parts))


def _datasets(subject: Subject) -> list[str]:
    """Ids of the data sets that a stage reads."""
    found = []
    for item in inputs_of(subject.record):
        place = link_of(item, subject.ledger, subject.links)
        name = place.repo_id if place is not None else hub_id(item)
        is_data = item.role == "data" and not is_model(item)
        is_data = is_data and (place is None or place.repo_type == "dataset")
        if is_data and name is not None and name not in found:
            found.append(name)
    return found


def _languages(licence: Licence) -> list[str] | None:
    return [one_line(name, 20) for name in licence.languages] or None


def _title(subject: Subject) -> str:
    name = subject.record.name
    title = f"{subject.run}: {name}"
    return one_line(title if subject.is_main else f"{title} ({subject.artifact})", 120)


def _page(data: ModelCardData | DatasetCardData, title: str, sections: Mapping[str, str]) -> str:
    """Header and text of a card; sections without text are left out."""
    parts = [f"---\n{data.to_yaml()}\n---", f"# {inline(title)}"]
    for heading, text in sections.items():
        if text:
            parts.append(f"## {heading}\n\n{text}" if heading else text)
    return "\n\n".join(parts) + "\n"
