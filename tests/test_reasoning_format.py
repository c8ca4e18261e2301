"""Prompt, template, response format and parser agree with one another."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from trl_r1.reasoning_format import CHAT_TEMPLATES, FORMATS, chat_template, get_format
from trl_r1.rewards.think_format import think_format_reward

CASES = [(fmt, template) for fmt in FORMATS for template in CHAT_TEMPLATES]


def render(messages: list[dict[str, str]], template: str, **kwargs: object) -> str:
    (text,), _ = render_jinja_template([messages], chat_template=template, **kwargs)
    return text


@pytest.mark.parametrize(("name", "template_name"), CASES)
def test_the_generation_prompt_is_a_prefix_of_the_sft_example(
    name: str, template_name: str
) -> None:
    fmt = FORMATS[name]
    template, end_token = chat_template(template_name, fmt)
    prompt = fmt.prompt("2+2=?")
    target = fmt.render("2+2=4", "4")
    before = render(prompt, template, add_generation_prompt=True)
    whole = render([*prompt, {"role": "assistant", "content": target}], template)
    assert whole.startswith(before)
    completion = whole[len(before) :]
    assert completion.rstrip("\n").endswith(end_token)
    assert "2+2=4" in completion, "the reasoning is part of the target"
    assert before.endswith("<think>\n") is fmt.is_prefilled


@pytest.mark.parametrize(("name", "template_name"), CASES)
def test_the_generation_mark_covers_the_assistant_turn_with_its_end_token(
    name: str, template_name: str
) -> None:
    fmt = FORMATS[name]
    template, end_token = chat_template(template_name, fmt)
    target = fmt.render("2+2=4", "4")
    messages = [*fmt.prompt("2+2=?"), {"role": "assistant", "content": target}]
    (text,), (spans,) = render_jinja_template(
        [messages], chat_template=template, return_assistant_tokens_mask=True
    )
    shown = [fmt.render(reasoning, answer) for _, reasoning, answer in fmt.examples]
    marked = [text[start:end] for start, end in spans]
    assert marked == [turn + end_token for turn in (*shown, target)]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_rendered_parses_back_and_earns_the_format_reward(name: str) -> None:
    fmt = FORMATS[name]
    target = fmt.render("first 2+2=4\nthen 4+1=5", "5")
    parts = fmt.parse(target)
    assert (parts.reasoning, parts.answer, parts.fault) == ("first 2+2=4\nthen 4+1=5", "5", None)
    assert think_format_reward([target], profile=fmt.profile, prefilled=fmt.is_prefilled) == [1.0]
    assert fmt.target(target) == target


def test_a_prefilled_completion_lacks_the_opener_and_its_target_has_it() -> None:
    fmt = FORMATS["r1_prefilled"]
    completion = "2+2=4\n</think>\nIt is \\boxed{4}."
    assert fmt.parse(completion).reasoning == "2+2=4"
    assert fmt.parse(completion).is_well_formed
    assert fmt.target(completion) == "<think>\n" + completion
    assert not FORMATS["r1"].parse(completion).is_well_formed, "only where it was prefilled"


def test_an_earlier_assistant_turn_keeps_its_reasoning() -> None:
    fmt = FORMATS["r1"]
    template, _ = chat_template("chatml", fmt)
    first = fmt.render("because", "yes")
    messages = [
        {"role": "user", "content": "really?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "sure?"},
    ]
    assert first in render(messages, template, add_generation_prompt=True)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown reasoning_format 'zer'; known: zero, "):
        get_format("zer")
    with pytest.raises(ValueError, match="unknown chat_template 'alpaca'; known: chatml, compact"):
        chat_template("alpaca", FORMATS["r1"])
