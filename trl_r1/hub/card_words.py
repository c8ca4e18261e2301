"""What a card says in sentences: what an artifact is, its licence, its limits, the way back."""

from __future__ import annotations

from collections.abc import Sequence

from trl_r1.hub.card_lineage import STAGE_WORDS, place_words, role_names
from trl_r1.hub.card_scores import headline
from trl_r1.hub.card_text import block, code, inline, link
from trl_r1.hub.licences import Licence
from trl_r1.hub.subjects import Subject, repo_url, start_of
from trl_r1.pipeline.ledger import Input, weight_ancestors

_PAPER = "[DeepSeek-R1 recipe](https://arxiv.org/abs/2501.12948)"
# What a model is, by the name that `report.stage_table` gives it, with the paper's section.
_ROLE_WORDS = {
    "R1-Zero": "RL with rules as rewards, with no SFT before it in the run (section 2.2)",
    "R1 Dev1: cold start": "SFT of the base on few, readable samples (section 2.3.1)",
    "R1 Dev2: reasoning RL": "RL on reasoning problems, after the cold start (section 2.3.2)",
    "R1 Dev3: mixed SFT": "SFT of the base on reasoning and general data (section 2.3.3)",
    "R1: RL for all scenarios": "RL on reasoning and general prompts (section 2.3.4)",
    "Distilled student": "SFT of a smaller model on what a bigger one wrote (section 2.4)",
    "Student by RL alone (control)": "R1-Zero's RL on a small model, to compare (section 4.1)",
}
_DATA_WORDS = {
    "dataset": "what was kept of a model's samples, for SFT",
    "samples": "every sample of a model, with what was found of it",
    "rollouts": "every completion that RL generated, with its rewards, verdicts and advantage",
}


def has_lora(subject: Subject) -> bool:
    """Whether the stage trained an adapter, merged afterwards or not."""
    return subject.is_adapter or bool(subject.record.recipe.get("use_peft"))


def model_intro(subject: Subject) -> str:
    """What a model is."""
    record = subject.record
    role = role_names(subject.run, subject.ledger, subject.folder)[record.name]
    words = _ROLE_WORDS.get(role) or STAGE_WORDS.get(record.stage, record.stage)
    if subject.artifact == "student":
        role = "Student base"
    start = start_of(record)
    origin = f" Its weights start from {_named(subject, start)}." if start is not None else ""
    kind = "Whole weights."
    if subject.is_adapter:
        kind = "A LoRA adapter, without the model that it stands on."
    elif has_lora(subject):
        kind = "Trained with LoRA; the adapter is merged in, so these are whole weights."
    told = headline(subject)
    what = f"**{inline(role)}**: {inline(words)}.{origin} {kind}"
    return "\n\n".join(filter(None, [what, told, _of_run(subject)]))


def data_intro(subject: Subject, num_rows: int) -> str:
    """What a data set is."""
    words = _DATA_WORDS.get(subject.artifact, STAGE_WORDS.get(subject.record.stage, "data"))
    start = start_of(subject.record)
    verb = "policy starts from" if subject.artifact == "rollouts" else "model is"
    origin = f" The {verb} {_named(subject, start)}." if start is not None else ""
    return f"{num_rows:,} rows: {words}.{origin}\n\n{_of_run(subject)}"


def _named(subject: Subject, item: Input) -> str:
    """A thing by its place on the Hub, or else as the recipe has it."""
    return place_words(item, subject.ledger, subject.links) or code(item.source)


def _of_run(subject: Subject) -> str:
    version = subject.record.versions.get("trl-r1")
    package = f"trl_r1 {inline(version)}" if version else "trl_r1"
    run = inline(subject.run)
    if subject.run_link:
        run = link(run, repo_url(subject.run_link, "dataset"))
    text = (
        f"Made by stage {code(subject.record.name)} of the run {run} with {package}, which carries "
        f"a base model through the {_PAPER} with Hugging Face TRL."
    )
    return f"{text}\n\n> {inline(subject.description, 500)}" if subject.description else text


def licence_text(licence: Licence) -> str:
    """Where a model's licence comes from, or that it is not known."""
    holder = code(licence.holder)
    if licence.identifier is None:
        return (
            f"Not known: the weights come from {holder}, whose licence could not be read. Its "
            "terms hold for this model, too; look them up before you pass it on."
        )
    name = inline(licence.name or licence.identifier)
    if licence.is_own:
        return f"{name}, that of trl_r1, which made {holder}, where the weights come from."
    return f"{name}, that of {holder}, which the weights come from."


def data_licences_text(licences: Sequence[Licence]) -> str:
    """The licences of data from outside, one by one; empty without any."""
    parts = [f"{code(one.holder)}: {inline(one.identifier or 'not known')}" for one in licences]
    return f"Data that it was made from: {'; '.join(parts)}." if parts else ""


def _is_made_on_the_spot(subject: Subject) -> bool:
    name = subject.record.name
    names = {name, *weight_ancestors(subject.ledger, name)}
    return any(subject.ledger[name].stage == "tiny_base" for name in names)


def model_limits(subject: Subject) -> str:
    """What not to expect of a model."""
    parts = []
    if _is_made_on_the_spot(subject):
        parts.append(
            "A tiny model, made on the spot to show the recipe at work. It knows sums of a few "
            "digits and greetings from its corpus and nothing else: it is of no use for anything."
        )
    if subject.record.stage == "reward_model":
        parts.append(
            "Policies learn to please a reward model rather than people; it was trained on the "
            "pairs named above and is sure of nothing else."
        )
    else:
        parts.append(
            "The scores hold for the problems and the sampling named with them. Reasoning that "
            "reads well may still be wrong. Nothing was measured of safety, bias or facts."
        )
    return "\n\n".join(parts)


def data_limits(subject: Subject) -> str:
    """What not to expect of a data set."""
    parts = ["The answers were written by a model and judged by programs; no person has read them."]
    if subject.artifact != "dataset":
        parts.append("Wrong, malformed and cut off answers are among them, on purpose.")
    if _is_made_on_the_spot(subject):
        parts.append("The model is a tiny one, made on the spot to show the recipe at work.")
    return " ".join(parts)


def way_back(run_link: str | None) -> str:
    """How to get the whole run; empty where it is not on the Hub."""
    if not run_link:
        return ""
    text = "All stages with their ledger, recipes, curves and samples, checked by content hash:"
    return f"{text}\n\n{block(f'trl-r1 pull {run_link}', 'bash')}"
