"""Reading a pipeline folder into the dataclasses of `recipe.py`, with every mistake in its files.

Precedence: command line over stage file over `pipeline.yaml` defaults over preset over the defaults
of the configs. What needs more than one file, rewards or data is checked in `check.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trl_r1.pipeline.keys import check_keys, keys_of, unknown_key
from trl_r1.pipeline.mistakes import Mistake, RecipeError, one_of, suggestion
from trl_r1.pipeline.overrides import PIPELINE_TARGETS, Override, apply_override, read_overrides
from trl_r1.pipeline.ranges import range_fault
from trl_r1.pipeline.recipe import OWNED_KEYS, SOURCE_KEYS, STAGE_KEYS, Pipeline, StageRecipe
from trl_r1.pipeline.yaml_files import PIPELINE_FILE, STAGE_FILE, read_mapping, stage_files
from trl_r1.stages import STAGES, RewardSpec, StageSpec, load_stage
from trl_r1.tasks import DatasetSource
from trl_r1.training.arguments import EvaluationSettings


@dataclass(frozen=True)
class _Header:
    """The keys of `pipeline.yaml`."""

    name: str | None = None
    description: str = ""
    seed: int = 0
    threads: int | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def load_pipeline(
    folder: Path, options: Sequence[str] = (), seed: int | None = None, shown: str | None = None
) -> Pipeline:
    """The pipeline of a folder.

    Args:
        folder: the folder.
        options: the values of `--set`.
        seed: over the seed of `pipeline.yaml`.
        shown: what mistakes call the folder; the path by default.

    Raises:
        RecipeError: with every mistake in the keys of every file.
    """
    pipeline, mistakes = read_pipeline(folder, options, seed, shown)
    if mistakes:
        raise RecipeError(mistakes)
    return pipeline


def read_pipeline(
    folder: Path, options: Sequence[str] = (), seed: int | None = None, shown: str | None = None
) -> tuple[Pipeline, list[Mistake]]:
    """As `load_pipeline`, but what can be read is read and the mistakes come beside it."""
    shown = shown or str(folder)
    if not folder.is_dir():
        return Pipeline("none", folder, shown), [
            Mistake(shown, "no such folder" if not folder.exists() else "is not a folder")
        ]
    overrides, mistakes = read_overrides(options)
    if seed is not None and (fault := range_fault("seed", seed)):
        mistakes.append(Mistake("--seed", fault))
    header, header_mistakes = _read_header(folder, shown, overrides)
    files, file_mistakes = stage_files(folder, shown)
    mistakes += [*header_mistakes, *file_mistakes]
    if not files and not file_mistakes:
        mistakes.append(Mistake(shown, "has no stage files (01_name.yaml)"))
    reader = _Reader(header, overrides, f"{shown}/{PIPELINE_FILE}")
    stages = [reader.stage(path, f"{shown}/{path.name}") for path in files]
    pipeline = Pipeline(
        name=header.name or folder.resolve().name,
        folder=folder.resolve(),
        shown=shown,
        stages=tuple(stage for stage in stages if stage is not None),
        evaluation=reader.evaluation(),
        description=header.description,
        sources=header.sources,
        seed=header.seed if seed is None else seed,
        threads=header.threads,
        unread=reader.unread,
    )
    return pipeline, list(dict.fromkeys([*mistakes, *reader.mistakes, *reader.unused(files)]))


def _read_header(
    folder: Path, shown: str, overrides: Sequence[Override]
) -> tuple[_Header, list[Mistake]]:
    path, where = folder / PIPELINE_FILE, f"{shown}/{PIPELINE_FILE}"
    given, mistakes = read_mapping(path, where) if path.exists() else ({}, [])
    for override in overrides:
        if override.target not in PIPELINE_TARGETS:
            continue
        keys = override.keys if override.target == "pipeline" else (override.target, *override.keys)
        mistake = apply_override(given, replace(override, keys=keys))
        mistakes += [mistake] if mistake else []
    # A key with nothing below it, as when all of it is commented out.
    given = {key: value for key, value in given.items() if value is not None}
    values, messages = check_keys(given, keys_of(_Header))
    header = _Header(**values)
    if header.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", header.name):
        messages.append(f"name {header.name!r} has to serve as a folder name: letters, digits, -_.")
        header = replace(header, name=None)
    return header, mistakes + [Mistake(where, message) for message in messages]


class _Reader:
    """Reads the stage files of one pipeline; gathers mistakes and which defaults were of use."""

    def __init__(self, header: _Header, overrides: Sequence[Override], where: str) -> None:
        self.header = header
        self.overrides = [o for o in overrides if o.target not in PIPELINE_TARGETS]
        self.where = where
        self.mistakes: list[Mistake] = []
        self._used_defaults: set[str] = set()
        self._known: set[str] = set()
        self._targets: set[str] = set()
        self._unread: set[str] = set()

    def stage(self, path: Path, where: str) -> StageRecipe | None:
        """The stage of a file; None where not even its type is clear."""
        match = STAGE_FILE.fullmatch(path.name)
        assert match is not None, "stage_files lists matching names only"
        name = match["name"]
        given, mistakes = read_mapping(path, where)
        self.mistakes += mistakes
        kind = given.get("stage")
        self._targets |= {name, str(kind)}
        spec = self._spec(kind, where, is_readable=bool(given) or not mistakes)
        if spec is None:
            self._unread.add(name)
            return None
        merged, origins = self._merge(name, str(kind), spec, given, where)
        return self._parse(name, str(kind), spec, where, merged, origins)

    @property
    def unread(self) -> frozenset[str]:
        """The names of stages that are there, but whose files say too little."""
        return frozenset(self._unread)

    def _spec(self, kind: Any, where: str, is_readable: bool) -> StageSpec | None:
        if not is_readable:
            return None
        if kind is None:
            self._wrong(where, f"stage is missing; it is one of {one_of(STAGES)}")
        elif not isinstance(kind, str) or kind not in STAGES:
            hint = suggestion(str(kind), STAGES) or f"; known: {one_of(STAGES)}"
            self._wrong(where, f"unknown stage {kind!r}{hint}")
        else:
            spec: StageSpec = load_stage(kind).SPEC
            return spec
        return None

    def _merge(
        self, name: str, kind: str, spec: StageSpec, given: Mapping[str, Any], where: str
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """All layers in one mapping, and where each value comes from."""
        known = {*keys_of(*spec.configs), *STAGE_KEYS[1:]}
        self._known |= known
        top = copy.deepcopy(
            {key: value for key, value in self.header.defaults.items() if key in known}
        )
        self._used_defaults |= set(top)
        origins = dict.fromkeys(top, self.where)
        top.update(copy.deepcopy(dict(given)))
        origins.update(dict.fromkeys(given, where))
        for override in self.overrides:
            if override.target in (name, kind):
                if override.keys[0] == "stage":
                    self._wrong(override.where, f"what kind of stage {name} is stands in its file")
                    continue
                mistake = apply_override(top, override)
                self.mistakes += [mistake] if mistake else []
                origins[override.keys[0]] = override.where
        preset = top.get("preset")
        settings: Mapping[str, Any] = {}
        if preset is not None and (not isinstance(preset, str) or preset not in spec.presets):
            known_presets = f"; known: {one_of(spec.presets)}" if spec.presets else ""
            near = suggestion(str(preset), spec.presets) or known_presets or "; it has none"
            self._wrong(origins["preset"], f"unknown preset {preset!r} of {kind}{near}")
        elif preset is not None:
            settings = spec.presets[preset]
        merged = {**copy.deepcopy(dict(settings)), **top}
        return merged, {**dict.fromkeys(settings, f"preset {preset!r} of {kind}"), **origins}

    def _parse(
        self,
        name: str,
        kind: str,
        spec: StageSpec,
        where: str,
        merged: dict[str, Any],
        origins: dict[str, str],
    ) -> StageRecipe:
        for key in [key for key in merged if key in OWNED_KEYS]:
            self._wrong(origins[key], f"{key} can't be set in a recipe: {OWNED_KEYS[key]}")
            del merged[key]
        keys = keys_of(*spec.configs)
        values: dict[str, Any] = {}
        for key, value in merged.items():
            read, messages = check_keys({key: value}, keys, STAGE_KEYS)
            values.update(read)
            for message in messages:
                self._wrong(origins[key], message)
        for listed in SOURCE_KEYS:
            if isinstance(values.get(listed), list):
                values[listed] = self._datasets(values[listed], listed, origins[listed])
        allow = merged.get("allow_rl_weights", False)
        if not isinstance(allow, bool):
            self._wrong(origins["allow_rl_weights"], "allow_rl_weights should be true or false")
        return StageRecipe(
            name=name,
            stage=kind,
            spec=spec,
            where=where,
            values=values,
            origins=origins,
            rewards=self._rewards(merged, kind, spec, origins),
            preset=str(merged["preset"]) if merged.get("preset") is not None else None,
            allow_rl_weights=allow is True,
        )

    def _datasets(self, given: Sequence[Any], key: str, where: str) -> list[dict[str, Any]]:
        """Checked entries of `datasets:`, with the pipeline's `sources` filled in."""
        entries = []
        for index, entry in enumerate(given):
            place = f"{key}[{index}]"
            if not isinstance(entry, dict):
                self._wrong(where, f"{place} should be a mapping like {{dataset_name: rows.jsonl}}")
                continue
            values, messages = check_keys(entry, keys_of(DatasetSource), prefix=f"{place}.")
            for message in messages:
                self._wrong(where, message)
            task = values.get("task")
            if task in self.header.sources and not values.get("dataset_name"):
                values["dataset_name"] = self.header.sources[task]
            entries.append(values)
        return entries

    def _rewards(
        self, merged: Mapping[str, Any], kind: str, spec: StageSpec, origins: Mapping[str, str]
    ) -> tuple[RewardSpec, ...]:
        if not merged.get("rewards"):
            if spec.needs_rewards:
                where = origins.get("rewards", origins["stage"])
                self._wrong(where, f"rewards is missing; a {kind} stage needs one at least")
            return ()
        where, given = origins["rewards"], merged["rewards"]
        if not spec.uses_rewards:
            if where != self.where:  # a default is for the stages that know it
                self._wrong(where, f"rewards: a {kind} stage uses none")
            return ()
        if not isinstance(given, list):
            self._wrong(where, "rewards should be a list of {use: ..., weight: ...}")
            return ()
        rewards = []
        for index, entry in enumerate(given):
            place = f"rewards[{index}]"
            if not isinstance(entry, dict) or "use" not in entry:
                self._wrong(where, f"{place} should be a mapping like {{use: math_answer}}")
                continue
            values, messages = check_keys(entry, keys_of(RewardSpec), prefix=f"{place}.")
            for message in messages:
                self._wrong(where, message)
            if "use" in values:
                rewards.append(RewardSpec(**values))
        return tuple(rewards)

    def evaluation(self) -> EvaluationSettings:
        """The pipeline's evaluation settings."""
        keys = keys_of(EvaluationSettings)
        values, messages = check_keys(self.header.evaluation, keys, prefix="evaluation.")
        for message in messages:
            self._wrong(self.where, message)
        for key in SOURCE_KEYS:
            if key in values:
                values[key] = self._datasets(values[key], f"evaluation.{key}", self.where)
        return EvaluationSettings(**values)

    def unused(self, files: Sequence[Path]) -> list[Mistake]:
        """Defaults that no stage knows and `--set` targets that are not there."""
        mistakes = [
            Mistake(self.where, unknown_key(key, self._known, "defaults."))
            for key in self.header.defaults
            if files and self._known and key not in self._used_defaults
        ]
        known = [*sorted(self._targets - {"None"}), *PIPELINE_TARGETS]
        for override in self.overrides:
            if override.target not in self._targets:
                mistakes.append(
                    Mistake(
                        override.where,
                        f"no stage or stage type {override.target!r}"
                        f"{suggestion(override.target, known) or f'; known: {one_of(known)}'}",
                    )
                )
        return mistakes

    def _wrong(self, where: str, message: str) -> None:
        self.mistakes.append(Mistake(where, message))
