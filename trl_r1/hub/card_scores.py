"""Scores on a card: what was measured, on what, before and after; and as `model-index` metadata.

Scores are those of the ledger: the runner's before and after each stage, and of the evaluation
stages that were about this very model, by its content hash. Nothing is measured here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from trl_r1.evaluation.record import RECORD_FILE
from trl_r1.hub.card_text import code, inline, one_line, table
from trl_r1.hub.subjects import Subject, start_of
from trl_r1.pipeline.ledger import StageRecord
from trl_r1.report.reading import finite
from trl_r1.report.stage_table import interval
from trl_r1.tasks import find_task
from trl_r1.training.arguments import EvaluationSettings

_TASK = "text-generation"
_WORDS = {
    "pass@1": "right answers (pass@1)",
    "format": "well-formed responses",
    "mean_length": "length in tokens",
    "truncated": "cut off",
    "language": "reasoning in the wanted language",
    "general": "general prompts answered right",
    "preference": "score of the preference model",
}


@dataclass(frozen=True)
class Measured:
    """A set of scores.

    Attributes:
        title: heading of its column, as Markdown.
        scores: see `trl_r1.evaluation.scores`.
        settings: an `EvaluationSettings` as plain data; empty where the ledger does not have it.
        is_own: whether they are the subject's, and not of what it starts from.
        num_problems: where it is known.
    """

    title: str
    scores: Mapping[str, Any]
    settings: Mapping[str, Any]
    is_own: bool = True
    num_problems: int | None = None


def measured(subject: Subject) -> list[list[Measured]]:
    """The sets of scores of a model; those of one list were measured alike."""
    found = [_by_runner(subject)]
    for other in subject.ledger.values():
        if other.stage == "evaluation" and any(subject.uses(item) for item in other.inputs):
            found.append(_by_stage(subject, other))
    return [group for group in found if any(one.is_own and one.scores for one in group)]


def _by_runner(subject: Subject) -> list[Measured]:
    record = subject.record
    if subject.is_main:
        start = start_of(record)
        before = f"before: {code(start.source)}" if start is not None else "before"
        parts = [("before", before, False), ("after", "this model", True)]
        return [
            Measured(title, scores, record.scored_on, is_own)
            for name, title, is_own in parts
            if isinstance(scores := record.scores.get(name), Mapping) and scores
        ]
    # Another artifact is scored where a stage starts from it.
    for other in subject.ledger.values():
        scores = other.scores.get("before")
        is_start = any(item.role == "weights" and subject.uses(item) for item in other.inputs)
        if other.stage != "evaluation" and is_start and isinstance(scores, Mapping) and scores:
            return [Measured("this model", scores, other.scored_on)]
    return []


def _by_stage(subject: Subject, record: StageRecord) -> list[Measured]:
    """The scores of an evaluation stage, each task for itself where it kept them so."""
    names = {field.name for field in fields(EvaluationSettings)}
    given = {key: value for key, value in record.recipe.items() if key in names}
    settings = {**asdict(EvaluationSettings()), "seed": record.seed, **given}
    tasks = _tasks_of(subject.folder.parent.parent / record.name / RECORD_FILE)
    number = record.details.get("problems")
    parts = []
    for name, scores in tasks.items():
        own = [source for source in settings["datasets"] if source.get("task") == name]
        if len(own) == 1 and isinstance(scores, Mapping):
            title = f"{code(record.name)}: {code(name)}"
            parts.append(Measured(title, scores, {**settings, "datasets": own}))
    if len(parts) > 1 and len(parts) == len(tasks):
        return parts
    return [Measured(code(record.name), record.scores, settings, num_problems=number)]


def _tasks_of(path: Path) -> dict[str, Any]:
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(tasks) if isinstance(tasks, Mapping) else {}


def scores_section(subject: Subject) -> str:
    """Tables of a model's scores with what they were measured on; empty without any."""
    told = [*_tables(measured(subject)), _pairs_words(subject.record)]
    return "\n\n".join(filter(None, told))


def evaluation_section(subject: Subject) -> str:
    """The scores of an evaluation stage, for the card of its samples; empty without any."""
    return "\n\n".join(_tables([_by_stage(subject, subject.record)]))


def _tables(groups: list[list[Measured]]) -> list[str]:
    parts = []
    for group in groups:
        keys = list(dict.fromkeys(key for one in group for key in one.scores))
        cells = {key: [_cell(one.scores, key) for one in group] for key in keys}
        rows = [[inline(_word(key)), *row] for key, row in cells.items() if any(row)]
        parts.append(table(["score", *(one.title for one in group)], rows))
        parts.append(_measured_on(group))
    return parts


def headline(subject: Subject) -> str:
    """The score that says most, before and after, in a sentence; empty without any."""
    for group in measured(subject):
        own = next(one for one in group if one.is_own)
        found = [_cell(one.scores, "pass@1") for one in group]
        if not all(found) or not own.settings or len({one.is_own for one in group}) < len(group):
            continue
        names = ", ".join(code(_source_name(source)) for source in own.settings["datasets"])
        return f"Right answers on {names} (pass@1, 95% interval): {' → '.join(found)}."
    return _pairs_words(subject.record)


def _pairs_words(record: StageRecord) -> str:
    """What a reward model's held-out pairs say of it; empty for other stages."""
    accuracy, pairs = finite(record.details.get("accuracy")), record.details.get("held_out_pairs")
    if record.stage != "reward_model" or accuracy is None:
        return ""
    return f"The better answer scores higher in {accuracy:.3f} of {inline(pairs)} held-out pairs."


def _word(key: str) -> str:
    if key in _WORDS:
        return _WORDS[key]
    name, _, number = key.partition("@")
    return {"pass": f"right in one of {number} (pass@{number})",
            "cons": f"majority of {number} right (cons@{number})"}.get(name, key)  # fmt: skip


def _cell(scores: Mapping[str, Any], key: str) -> str:
    value, ends = finite(scores.get(key)), interval(scores, key)
    if value is None:
        return ""
    digits = 1 if key == "mean_length" else 3
    text = f"{value:.{digits}f}"
    return text if ends is None else f"{text} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def _measured_on(group: list[Measured]) -> str:
    settings = group[-1].settings
    if not settings:
        return "What these were measured on is not in the run's ledger. Brackets: 95% intervals."
    problems, general = (
        ", ".join(
            dict.fromkeys(_source_words(s) for one in group for s in one.settings.get(key) or ())
        )
        for key in ("datasets", "general")
    )
    text = f"Held-out problems: {problems or 'none'}"
    text += f"; general prompts: {general}" if general else ""
    text += (
        f". {settings.get('num_samples')} samples each, temperature {settings.get('temperature')}, "
        f"top-p {settings.get('top_p')}, at most {settings.get('max_new_tokens')} tokens, seed "
        f"{settings.get('seed')}. Brackets: 95% intervals, problems as clusters."
    )
    if settings.get("preference_model") and "preference" in group[-1].scores:
        text += f" Preference model: {code(settings['preference_model'])}."
    if settings.get("extraction") == "lenient":
        text += " Graded on the last number of a response, whatever its format."
    return text


def _source_words(source: Mapping[str, Any]) -> str:
    count = source.get("num_rows")
    number = f", {count} rows" if isinstance(count, int) else ""
    return f"{code(_source_name(source))} ({inline(source.get('split') or 'test')}{number})"


def _source_name(source: Mapping[str, Any]) -> str:
    return str(source.get("task") or source.get("dataset_name") or "data")


def eval_results(subject: Subject) -> list[EvalResult]:
    """The subject's scores as `model-index` entries: shares of right answers, 0 to 1."""
    found: dict[tuple[Any, ...], EvalResult] = {}
    for group in measured(subject):
        for one in group:
            if not one.is_own or not one.settings:
                continue
            for key, value in one.scores.items():
                is_right = key == "general" or key.startswith(("pass@", "cons@"))
                if is_right and not key.endswith("_interval") and finite(value) is not None:
                    result = _result(one, key)
                    place = (result.unique_identifier, str(result.metric_args), key)
                    found.setdefault(place, result)
    return [*found.values(), *_of_reward_model(subject)]


def _result(one: Measured, key: str) -> EvalResult:
    settings = one.settings
    sources = settings.get("general" if key == "general" else "datasets") or ()
    ends = interval(one.scores, key)
    rows = [source.get("num_rows") for source in sources]
    names = ("num_samples", "temperature", "top_p", "max_new_tokens", "seed", "extraction")
    arguments = {name: settings[name] for name in names if name in settings}
    if all(isinstance(count, int) for count in rows) and rows:
        arguments["num_problems"] = sum(rows)
    elif one.num_problems is not None and key != "general":
        arguments["num_problems"] = one.num_problems
    if ends is not None:
        arguments["interval_95"] = [round(end, 4) for end in ends]
    return EvalResult(
        task_type=_TASK,
        **_dataset_fields(sources),
        metric_type="accuracy" if key == "general" else one_line(key),
        metric_name=one_line(_word(key)),
        metric_value=round(float(one.scores[key]), 4),
        metric_args=arguments,
        verified=False,
    )


def _dataset_fields(sources: Any) -> dict[str, Any]:
    names, types, configs, splits = [], [], [], []
    for source in sources:
        task = find_task(source.get("task")) if source.get("task") else None
        place = source.get("dataset_name") or (task.default_source if task else None)
        name, _, config = str(place or _source_name(source)).partition(":")
        names.append(one_line(_source_name(source)))
        types.append(one_line(name))
        configs += [one_line(config)] if config else []
        splits.append(one_line(source.get("split") or "test"))
    return {
        "dataset_name": " + ".join(names) or "held-out problems",
        "dataset_type": " + ".join(types) or "held-out problems",
        "dataset_config": configs[0] if len(configs) == len(types) == 1 else None,
        "dataset_split": splits[0] if len(set(splits)) == 1 else None,
    }


def _of_reward_model(subject: Subject) -> list[EvalResult]:
    accuracy = finite(subject.record.details.get("accuracy"))
    if subject.record.stage != "reward_model" or accuracy is None:
        return []
    sources = subject.record.recipe.get("datasets") or ()
    return [
        EvalResult(
            task_type="text-classification",
            **_dataset_fields([{"split": "train", **source} for source in sources]),
            metric_type="accuracy",
            metric_name="held-out pairs in which the better answer scores higher",
            metric_value=round(accuracy, 4),
            metric_args={"held_out_pairs": subject.record.details.get("held_out_pairs")},
            verified=False,
        )
    ]
