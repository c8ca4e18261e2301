"""Keeps tokens off the Hub: what is to be pushed is looked through first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.trust.secrets import holds_secret, only_own_masked

# Text that people or programs write; weights and parquet hold none.
_TEXT = (".yaml", ".yml", ".json", ".jsonl", ".md", ".py", ".txt", ".toml", ".cfg", ".html", ".csv")
# Of what models write: there a text that only looks like a token is a sample, not a leak.
_SAMPLES = (".html", ".jsonl", ".csv")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}")


def refuse_secrets(repo_id: str, files: Mapping[str, Path | bytes]) -> None:
    """Look for tokens in files that are to be pushed.

    Args:
        repo_id: where they would go.
        files: by their path there.

    Raises:
        PipelineError: one holds something that looks like a token, or is one of the user's; the
            text says where, not what.
    """
    for path, content in files.items():
        if isinstance(content, Path) and content.suffix.lower() not in _TEXT:
            continue
        data = content.read_bytes() if isinstance(content, Path) else content
        text = data.decode(errors="replace")
        has_own, has_shape = _has_own(text), not path.lower().endswith(_SAMPLES)
        for number, line in enumerate(text.splitlines(), start=1):
            if (has_shape and _TOKEN.search(line)) or (has_own and _has_own(line)):
                where = content if isinstance(content, Path) else path
                raise PipelineError(
                    f"{where}, line {number} holds what looks like a token, so {repo_id} is not "
                    "pushed; take it out (HF_TOKEN and `hf auth login` need none in a file)"
                )


def _has_own(text: str) -> bool:
    """Whether one of the user's own secrets is in a text: a variable's, or the Hub's token."""
    with only_own_masked():
        return holds_secret(text)
