"""Checks of a pipeline that need more than one file: placeholder order of work below."""

from __future__ import annotations

from dataclasses import dataclass

from trl_r1.pipeline.mistakes import Mistake
from trl_r1.pipeline.recipe import Pipeline


@dataclass(frozen=True)
class Report:
    mistakes: tuple[Mistake, ...] = ()
    notes: tuple[str, ...] = ()


def check_pipeline(pipeline: Pipeline, processes: int = 1) -> Report:
    return Report()
