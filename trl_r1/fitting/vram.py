"""`trl-r1 plan`: what each stage of a pipeline takes on a card, whether it fits, and what would.

Nothing is downloaded but a `config.json`, where the Hub can be reached, and no weight is loaded.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_r1.fitting.accounts import GIB, Accountant, PhaseAccount, StageAccount
from trl_r1.fitting.loads import SCORING, scoring_load, stage_load
from trl_r1.fitting.remedies import Remedy, find_remedy, gib, set_options
from trl_r1.pipeline.mistakes import RecipeError
from trl_r1.pipeline.reading import read_pipeline
from trl_r1.pipeline.recipe import Pipeline

Say = Callable[[str], None]


@dataclass(frozen=True)
class PlanRequest:
    """What `plan` is asked.

    Attributes:
        folder: of the recipes.
        shown: the folder as the user named it.
        vram: GiB of the card.
        settings: values of `--set`.
        prompt_tokens: tokens of the longest prompt.
        stages: names of the stages to look at; all by default.
        on_card: for a CUDA card; False for tensors on this CPU.
        remedies: look for settings that fit where a stage does not.
    """

    folder: Path
    shown: str
    vram: float
    settings: Sequence[str] = ()
    prompt_tokens: int = 512
    stages: Sequence[str] = ()
    on_card: bool = True
    remedies: bool = True


def plan_pipeline(request: PlanRequest, say: Say) -> bool:
    """Print the account of every stage and what would make those fit that don't.

    Args:
        request: what is asked.
        say: called with each line.

    Returns:
        Whether all stages fit.

    Raises:
        RecipeError: the recipes can't be read.
    """
    pipeline = _read(request, ())
    vram = int(request.vram * GIB)
    accountant = Accountant(vram)
    where = "a card" if request.on_card else "a CPU"
    say(f"{pipeline.name} on {where} of {request.vram:g} GiB, in GiB; ~ marks estimates, the rest")
    say("is measured on tensors without data (see --help)")
    misfits: list[str] = []
    remedies: list[str] = []
    names = [stage.name for stage in pipeline.stages]
    for name in request.stages or [*names, *([] if SCORING in names else [SCORING])]:
        account = _account(request, pipeline, name, accountant)
        if account is None:
            continue
        say("")
        for line in account_lines(account):
            say(line)
        if account.fits:
            continue
        misfits.append(name)
        remedy = _remedy(request, name, account, accountant) if request.remedies else None
        for line in _remedy_lines(request, name, remedy):
            say(line)
        if remedy is not None:
            remedies.append(set_options(name, remedy.changes))
    say("")
    say(_summary(request, misfits, remedies))
    return not misfits


def _read(request: PlanRequest, more: Sequence[str]) -> Pipeline:
    pipeline, mistakes = read_pipeline(
        request.folder, [*request.settings, *more], None, request.shown.rstrip("/")
    )
    if mistakes:
        raise RecipeError(mistakes)
    return pipeline


def _account(
    request: PlanRequest, pipeline: Pipeline, name: str, accountant: Accountant
) -> StageAccount | None:
    """The account of a stage, or of scoring; None where nothing is scored."""
    prompt, on_card = request.prompt_tokens, request.on_card
    with _quiet():
        if name == SCORING and name not in [stage.name for stage in pipeline.stages]:
            load = scoring_load(pipeline, prompt, on_card=on_card)
        else:
            load = stage_load(pipeline, pipeline.stage(name), prompt, on_card=on_card)
        return accountant.account(load) if load is not None else None


def _remedy(
    request: PlanRequest, name: str, account: StageAccount, accountant: Accountant
) -> Remedy | None:
    def attempt(changes: Mapping[str, Any]) -> StageAccount:
        pipeline = _read(request, list(_options(name, changes)))
        changed = _account(request, pipeline, name, accountant)
        assert changed is not None, "it was there before the change"
        return changed

    return find_remedy(account, attempt)


def _options(name: str, changes: Mapping[str, Any]) -> Iterator[str]:
    for key, value in changes.items():
        text = set_options(name, {key: value}).removeprefix("--set ")
        yield text.replace("'", "")


def account_lines(account: StageAccount) -> Iterator[str]:
    """The account of a stage, a line a phase, the highest marked."""
    stage, peak = account.stage_load, account.peak
    load = stage.load
    yield f"{stage.name} ({stage.stage})"
    for note in stage.notes:
        yield f"  {note}"
    if load is None or peak is None:
        return
    for phase in account.phases:
        mark = ">" if phase is peak else " "
        yield f"  {mark} {phase.phase:10} {gib(phase.total):>7}  {_parts(phase)}"
    if account.vram:
        verdict = "fits" if peak.total <= account.vram else "does not fit"
        yield f"    {verdict}: {gib(peak.total)} of {account.vram / GIB:g}, in its {peak.phase}"
    for fault in account.faults:
        yield f"    {fault}"


def _parts(phase: PhaseAccount) -> str:
    words = [f"{name} {gib(size)}" for name, size in phase.measured.items() if size >= GIB // 200]
    words += [f"~{n} {gib(size)}" for n, size in phase.estimated.items() if size >= GIB // 200]
    return ", ".join(words)


def _remedy_lines(request: PlanRequest, name: str, remedy: Remedy | None) -> Iterator[str]:
    if not request.remedies:
        return
    if remedy is None:
        yield "    nothing tried makes it fit: a smaller model, a larger card, or vLLM on another"
        return
    assert remedy.account.peak is not None
    yield f"    fits ({gib(remedy.account.peak.total)}) with:"
    yield f"      {set_options(name, remedy.changes)}"


def _summary(request: PlanRequest, misfits: Sequence[str], remedies: Sequence[str]) -> str:
    if not misfits:
        return f"fits: every stage, on {request.vram:g} GiB"
    if len(remedies) == len(misfits):
        return f"does not fit: {', '.join(misfits)}; with this it does:\n  {' '.join(remedies)}"
    return f"does not fit: {', '.join(misfits)}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep libraries' words about tensors without data from the screen."""
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        enable_progress_bar()
        logging.disable(before)
