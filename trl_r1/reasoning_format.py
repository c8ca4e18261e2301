"""The one owner of prompt, chat template, response format and parser.

SFT targets, generation prompts, the format reward, answer extraction and evaluation all go through
a `ReasoningFormat`, so they can't disagree. What counts as well-formed is written once, in
`rewards/think_format.py`, which has to stand alone; this module builds on it.

Left out on purpose: tool calls and images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trl_r1.rewards.think_format import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    ResponseParts,
    completion_text,
    split_response,
)

Message = dict[str, str]

# `{% generation %}` encloses the assistant turn, its end token included, so that
# `assistant_only_loss` trains on it. # Content is never cut: a template that drops
# `<think>..</think>` from earlier turns would drop it from SFT targets.
_CHATML = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}@PREFILL@{%- endif -%}"""

# A token a role and nothing else: for the tiny models of the offline demo, whose prompts are a
# dozen tokens long.
_COMPACT = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|assistant|>' -}}
{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- '<|' + message['role'] + '|>' + message['content'] -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}@PREFILL@{%- endif -%}"""

_TEMPLATES = {"chatml": (_CHATML, "<|im_end|>"), "compact": (_COMPACT, "<|end|>")}
CHAT_TEMPLATES = tuple(_TEMPLATES)

_ZERO_SYSTEM_PROMPT = (
    "First think about the question step by step, then give the answer. Write the thinking "
    "between <think> and </think> and the answer between <answer> and </answer>, like this: "
    "<think> the steps </think> <answer> the answer </answer>"
)
_R1_SYSTEM_PROMPT = (
    "Think about the question step by step between <think> and </think>. Then answer; put a "
    "final answer that can be checked in \\boxed{}."
)


_EXAMPLE = (
    "Sue has 2 pens and gets 1 more. How many pens does Sue have?",
    "2 + 1 = 3",
    "\\boxed{3}",
)


@dataclass(frozen=True)
class ReasoningFormat:
    """How a question is put to the model and what a response looks like.

    Attributes:
        name: its key in `FORMATS`, the value of a recipe's `reasoning_format`.
        profile: the well-formedness profile of `rewards/think_format.py`.
        system_prompt: system message of reasoning prompts; None for none. General prompts never get
            it.
        is_prefilled: the generation prompt ends with `<think>` and a newline.
        separator: text around the reasoning and before the answer in rendered targets.
        examples: (question, reasoning, answer) of turns that come before the question, for models
            that take a format from an example and not from a description.
    """

    name: str
    profile: str
    system_prompt: str | None = None
    is_prefilled: bool = False
    separator: str = "\n"
    examples: tuple[tuple[str, str, str], ...] = ()

    def prompt(self, question: str) -> list[Message]:
        """Messages of a reasoning prompt: the system prompt, where there is one, and the
        question."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        turns: list[Message] = []
        for asked, reasoning, answer in self.examples:
            turns.append({"role": "user", "content": asked})
            turns.append({"role": "assistant", "content": self.render(reasoning, answer)})
        return [*system, *turns, {"role": "user", "content": question}]

    def render(self, reasoning: str, answer: str) -> str:
        """A well-formed response, as an SFT target: always with the opener, prefilled or not."""
        sep = self.separator
        body = f"{ANSWER_OPEN}{answer}{ANSWER_CLOSE}" if self.profile == "answer_tags" else answer
        return f"{THINK_OPEN}{sep}{reasoning.strip()}{sep}{THINK_CLOSE}{sep}{body}"

    def parse(self, completion: Any) -> ResponseParts:
        """Take a completion (text or messages) apart into reasoning, answer and what is wrong with
        it."""
        return split_response(completion_text(completion), self.profile, self.is_prefilled)

    def target(self, completion: Any) -> str:
        """The SFT target of a sampled completion: its text, with the opener put back where it was
        prefilled."""
        text: str = completion_text(completion).strip()
        if self.is_prefilled and not text.startswith(THINK_OPEN):
            return f"{THINK_OPEN}{self.separator}{text}"
        return text


FORMATS: dict[str, ReasoningFormat] = {
    fmt.name: fmt
    for fmt in (
        # The R1-Zero template (paper, table 1): thinking and answer both in tags.
        ReasoningFormat("zero", "answer_tags", _ZERO_SYSTEM_PROMPT),
        # The same without a system prompt: the demo's base model has seen the tags in its corpus.
        ReasoningFormat("zero_bare", "answer_tags", separator=""),
        # R1's own output: thinking in tags, then plain text with the checkable answer boxed.
        ReasoningFormat("r1", "think_then_text", _R1_SYSTEM_PROMPT),
        ReasoningFormat("r1_prefilled", "think_then_text", _R1_SYSTEM_PROMPT, is_prefilled=True),
        # The same shown by an example, for models too small to follow a system prompt.
        ReasoningFormat("r1_example", "think_then_text", is_prefilled=True, examples=(_EXAMPLE,)),
    )
}


def get_format(name: str) -> ReasoningFormat:
    """The format of that name.

    Raises:
        ValueError: for an unknown name, with the known ones.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(
            f"unknown reasoning_format {name!r}; known: {', '.join(FORMATS)}"
        ) from None


def chat_template(name: str, fmt: ReasoningFormat) -> tuple[str, str]:
    """The Jinja text of a named chat template and the token that ends its assistant turn.

    Raises:
        ValueError: for an unknown name, with the known ones.
    """
    if name not in _TEMPLATES:
        raise ValueError(
            f"unknown chat_template {name!r}; known: {', '.join(_TEMPLATES)}, "
            "or leave it out to keep the model's own"
        )
    text, end_token = _TEMPLATES[name]
    prefill = "{{- '" + THINK_OPEN + "\\n' -}}" if fmt.is_prefilled else ""
    return text.replace("@PREFILL@", prefill), end_token
