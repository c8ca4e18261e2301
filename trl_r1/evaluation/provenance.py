"""What `evaluation.json` says of how problems were put to the model, and with which packages."""

from __future__ import annotations

import hashlib
from typing import Any

from trl_r1.pipeline.versions import package_versions
from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.sampling.engines import EngineArguments
from trl_r1.training.arguments import ModelArguments


def provenance(
    model: str | None, model_args: ModelArguments, fmt: ReasoningFormat, engine: EngineArguments
) -> dict[str, Any]:
    """`template` and `versions` of `evaluation.json`.

    Args:
        model: folder or id of the model, for servers of its tokenizer; None where there is none.
        model_args: how it is loaded.
        fmt: response format of reasoning prompts.
        engine: what generates; servers that render prompts themselves have templates of their own.

    Raises:
        ValueError: the tokenizer can't be loaded, or does not go with the format.
    """
    is_theirs = model is None or (engine.engine == "server" and engine.server_template)
    template = None if model is None or is_theirs else _chat_template(model, model_args, fmt)
    return {
        "template": {
            "reasoning_format": fmt.name,
            "system_prompt": fmt.system_prompt,
            "chat_template_hash": template and hashlib.sha256(template.encode()).hexdigest(),
        },
        "versions": package_versions(),
    }


def _chat_template(model: str, model_args: ModelArguments, fmt: ReasoningFormat) -> str:
    from trl_r1.training.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(model, model_args, fmt)
    except OSError as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{model}: its tokenizer can't be loaded ({said})") from error
    return str(tokenizer.chat_template)
