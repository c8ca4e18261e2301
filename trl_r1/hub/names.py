"""Names of repositories on the Hub, made from those of runs, stages and artifacts."""

from __future__ import annotations

import hashlib
import re

_MAX_NAME = 96  # the Hub's limit of a repository's name


def repo_name(text: str) -> str:
    """A name that the Hub takes for a repository, as near to a text as can be.

    Letters of other alphabets and signs become dashes; a name that is too long ends in a hash, so
    that two long ones stay apart.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    name = re.sub(r"[-.]{2,}", "-", name).strip("-.")
    name = re.sub(r"(\.git|\.ipynb)$", "", name)
    if len(name) > _MAX_NAME or not name:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name[: _MAX_NAME - 9].rstrip('-.')}-{digest}".lstrip("-")
    return name
