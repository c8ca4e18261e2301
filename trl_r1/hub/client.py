"""The Hub's client, and its errors in words that say what to do next.

Requests, retries, tokens and endpoints are `huggingface_hub`'s own: `hf auth login`, `HF_TOKEN`,
`HF_ENDPOINT` and `HF_HUB_OFFLINE` count as everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trl_r1.pipeline.mistakes import PipelineError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

_MAX_SAID = 200  # characters of what a server says


class HubError(PipelineError):
    """The Hub refused or could not be reached; the text says what was tried and what to do.

    Attributes:
        status: HTTP status; None where no answer came.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def make_api(token: str | None = None) -> HfApi:
    """The client, with the user's endpoint.

    Args:
        token: over that of `hf auth login` or HF_TOKEN.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(library_name="trl-r1", token=token)


def token_name(token: str | None = None) -> str:
    """The account that a token belongs to.

    Args:
        token: over that of `hf auth login` or HF_TOKEN.

    Raises:
        HubError: there is no token, it is not valid, or the Hub can't be reached.
    """
    from huggingface_hub import get_token

    if not token and get_token() is None:
        raise HubError("there is no token for the Hub; run `hf auth login`, or set HF_TOKEN")
    with hub_errors("asking whose token it is"):
        return str(make_api(token).whoami()["name"])


@contextmanager
def hub_errors(doing: str) -> Iterator[None]:
    """Turn what the client raises into a `HubError`.

    Args:
        doing: what is tried, to begin the message: `pushing me/zero`.

    Raises:
        HubError: instead of the client's errors.
    """
    from huggingface_hub import errors

    # The error of the HTTP library that this version of the client uses.
    transport_error: type[BaseException] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise HubError(
            f"{doing}: HF_HUB_OFFLINE is set, so the Hub is not asked; unset it and try again"
        ) from error
    except errors.HFValidationError as error:
        said = " ".join(str(error).split())[:_MAX_SAID]
        raise HubError(f"{doing}: no repository has such a name ({said})") from error
    except errors.LocalTokenNotFoundError as error:
        raise HubError(
            f"{doing}: there is no token for the Hub; run `hf auth login`, or set HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        raise HubError(_refusal(doing, error), error.response.status_code) from error
    except (
        errors.LocalEntryNotFoundError,
        transport_error,
        ConnectionError,
        TimeoutError,
    ) as error:
        raise _no_answer(doing, error) from error
    except RuntimeError as error:
        # What a thread of an upload met, by LFS as the cause, by Xet as text.
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            raise HubError(_refusal(doing, cause), cause.response.status_code) from error
        raise _no_answer(doing, cause or error) from error


def _no_answer(doing: str, error: BaseException) -> HubError:
    """The error for a request that got no answer of the Hub's."""
    from huggingface_hub import constants, errors

    # A download looks into the cache where the Hub refuses, and then says only that it found
    # nothing there.
    cause = error.__cause__
    if isinstance(cause, errors.HfHubHTTPError):
        return HubError(_refusal(doing, cause), cause.response.status_code)
    if constants.HF_HUB_OFFLINE:
        return HubError(
            f"{doing}: it is not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch it"
        )
    return HubError(
        f"{doing}: no answer from {constants.ENDPOINT} ({_short(error)}); look at the network, "
        "then give the same command again: it goes on where it was"
    )


def _refusal(doing: str, error: HfHubHTTPError) -> str:
    """One line for an answer that is no success."""
    from huggingface_hub import errors

    status = error.response.status_code
    said = " ".join((error.server_message or "").split())[:_MAX_SAID]
    said = f" ({said})" if said else ""
    if isinstance(error, errors.GatedRepoError):
        return f"{doing}: the repository is gated{said}; ask for access on its page first"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{doing}: there is no such revision{said}; name a branch, a tag or a commit"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{doing}: a file is not there{said}"
    if status == 401 or isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{doing}: status {status}{said}: no such repository, or this token may not see it; "
            "look at the name, and `hf auth whoami`"
        )
    return f"{doing}: status {status}{said}: {_advice(status, error)}"


def _advice(status: int, error: HfHubHTTPError) -> str:
    if status == 403:
        return (
            "this token may not write there; make one with write access to that name, or push to "
            "another --org"
        )
    if status in (409, 412):
        return (
            "somebody else changed it at the same moment; give the same command again, it looks "
            "anew at what is there"
        )
    if status == 429:
        wait = error.response.headers.get("retry-after")
        when = f"in {wait} seconds" if wait and wait.isdigit() else "in some minutes"
        return f"too many requests; give the same command again {when}, it goes on where it was"
    if status >= 500:
        return "the Hub has trouble; give the same command again later, it goes on where it was"
    if status in (400, 413, 422):
        return "the Hub does not take it; what it says is all that is known"
    return "give the same command again; if that does not help, the Hub's page of it may say more"


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MAX_SAID]}" if text else type(error).__name__
