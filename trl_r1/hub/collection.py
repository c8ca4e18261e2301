"""The collection on the Hub that shows all of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trl_r1.hub.client import HubError, hub_errors
from trl_r1.hub.record import PushedRepo

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_MAX_ABOUT = 150  # the Hub's limit of a description


def make_collection(api: HfApi, owner: str, title: str, about: str, private: bool) -> str:
    """Make a collection, or find the one of that title; returns its slug.

    Raises:
        HubError: the Hub refuses, or can't be reached; so of the others here.
    """
    with hub_errors(f"making the collection {title}"):
        made = api.create_collection(
            title, namespace=owner, description=about[:_MAX_ABOUT], private=private, exists_ok=True
        )
    return str(made.slug)


def is_there(api: HfApi, slug: str) -> bool:
    """Whether a collection has not been deleted on the Hub."""
    try:
        with hub_errors(f"looking for the collection {slug}"):
            api.get_collection(slug)
    except HubError as error:
        if error.status == 404:
            return False
        raise
    return True


def fill_collection(api: HfApi, slug: str, repos: Iterable[PushedRepo]) -> None:
    """Put repositories into a collection, in their order; those that are in it stay."""
    with hub_errors(f"filling the collection {slug}"):
        there = {(item.item_type, item.item_id) for item in api.get_collection(slug).items}
        for repo in repos:
            if (repo.repo_type, repo.repo_id) not in there:
                api.add_collection_item(slug, repo.repo_id, repo.repo_type, exists_ok=True)
