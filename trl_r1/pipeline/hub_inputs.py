"""What a pipeline takes from the Hub by `@hub:org/name`, to be fetched before any stage runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trl_r1.hub.references import RepoType, commit_of, fetch, is_hub_reference
from trl_r1.pipeline.recipe import SOURCE_KEYS, Pipeline
from trl_r1.pipeline.references import is_model_key


@dataclass(frozen=True)
class HubInput:
    """A reference to the Hub and what it has to be.

    Attributes:
        text: as written in a recipe.
        repo_type: `model` or `dataset`, by the key it stands under.
    """

    text: str
    repo_type: RepoType

    def fetch(self) -> str:
        """Fetch it; returns the commit.

        Raises:
            PipelineError: it is not there, may not be seen, or can't be fetched.
        """
        return commit_of(fetch(self.text, self.repo_type)) or "an unknown commit"


def hub_references(pipeline: Pipeline, stages: Sequence[str]) -> list[HubInput]:
    """What the stages named and the scoring take from the Hub, each once."""
    found: list[HubInput] = list(_inside(asdict(pipeline.evaluation)))
    for recipe in pipeline.stages:
        if recipe.name in stages:
            found += _inside(recipe.values)
            for reward in recipe.rewards:
                found += _inside(reward.args)
    return list(dict.fromkeys(found))


def _inside(values: Mapping[str, Any]) -> Iterator[HubInput]:
    for key, value in values.items():
        if is_hub_reference(value) and is_model_key(key):
            yield HubInput(value, "model")
        elif key in SOURCE_KEYS or key == "general":
            for source in value or ():
                for part in ("dataset_name", "pass_rates"):
                    if is_hub_reference(source.get(part)):
                        yield HubInput(source[part], "dataset")
