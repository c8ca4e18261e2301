"""Whether a stage that asks to be pushed can be: what is told before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trl_r1.hub.client import HubError, hub_errors, make_api


def setting_faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a stage's settings of pushing, without asking anybody.

    Args:
        values: its keys.

    Yields:
        The key, and what is wrong and what to do.
    """
    if not values.get("push_to_hub"):
        return
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    name = values.get("hub_model_id")
    try:
        if name is not None:
            validate_repo_id(str(name))
    except HFValidationError as error:
        yield (
            "hub_model_id",
            f"hub_model_id {name!r} is no name of a repository: {' '.join(str(error).split())}",
        )
    if not constants.HF_HUB_OFFLINE and not values.get("hub_token") and get_token() is None:
        yield (
            "push_to_hub",
            "push_to_hub is set, and there is no token; run `hf auth login`, or set HF_TOKEN",
        )


def access_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """Why the Hub would not take what a stage pushes: a dry run that writes nothing.

    Args:
        values: the stage's keys.
    """
    if not values.get("push_to_hub"):
        return
    try:
        with hub_errors("asking what the token may do"):
            account = make_api(values.get("hub_token")).whoami()
    except HubError as error:
        yield f"push_to_hub: {error}"
        return
    name = str(account["name"])
    role = ((account.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        yield f"push_to_hub: the token of {name} may only read; make one that may write"
    owner, slash, _ = str(values.get("hub_model_id") or "").partition("/")
    roles = {str(org["name"]): org.get("roleInOrg") for org in account.get("orgs") or ()}
    if slash and owner != name and owner not in roles:
        yield (
            f"hub_model_id: {name} is not a member of {owner}; push to {name}/..., or ask its "
            "admins"
        )
    elif slash and roles.get(owner) == "read":
        yield f"hub_model_id: {name} may only read in {owner}; ask its admins for write access"
