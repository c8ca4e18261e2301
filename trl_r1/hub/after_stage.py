"""`push_to_hub: true` of a stage: what the runner pushes when it is done, and what fails of it.

A push never costs a run: where the Hub refuses or is away, a line says so, and the next run of the
same pipeline takes it up again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trl_r1.hub.checkpoints import OUTBOX, checkpoint_repo, send_outbox
from trl_r1.hub.names import repo_name
from trl_r1.pipeline.ledger import StageFolder
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.recipe import StageRecipe


def push_stages(
    run_dir: Path,
    recipes: Path,
    stages: Sequence[StageRecipe],
    say: Callable[[str], None],
) -> list[StageRecipe]:
    """Push the finished ones among stages that ask for it; returns those that did not arrive.

    Args:
        run_dir: folder of the run.
        recipes: of the pipeline.
        stages: any stages.
        say: gets a line for each thing done, and for what failed.
    """
    asking = [recipe for recipe in stages if recipe.values.get("push_to_hub")]
    done = [r for r in asking if StageFolder(run_dir, r.name).finished() is not None]
    failed = []
    for recipe in done:
        try:
            _push_stage(run_dir, recipes, recipe, say)
        except (PipelineError, OSError) as error:
            say(f"{recipe.name} is not pushed: {error}. No step of the run is lost by that.")
            failed.append(recipe)
    return failed


def _push_stage(
    run_dir: Path, recipes: Path, recipe: StageRecipe, say: Callable[[str], None]
) -> None:
    from trl_r1.hub.client import token_name
    from trl_r1.hub.contents import read_contents
    from trl_r1.hub.push import Pusher

    run = repo_name(run_dir.name)
    repo = checkpoint_repo(recipe.values, repo_name(f"{run}-{recipe.name}"))
    assert repo is not None, "the stage asks for it"
    send_outbox(run_dir / recipe.name / OUTBOX, repo, say)
    owner, _, _ = repo.name.rpartition("/")
    pusher = Pusher(
        read_contents(run_dir, recipes),
        owner or token_name(repo.token),
        run,
        private=repo.private,
        say=say,
        token=repo.token,
        repo_ids={recipe.name: repo.name},
    )
    pusher.push_artifacts([recipe.name])
