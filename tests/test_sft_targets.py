"""SFT trains on the whole completion and its end, or says before training why it would not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from trl_r1.reasoning_format import FORMATS, chat_template, get_format
from trl_r1.stages.cold_start import ColdStartConfig, ColdStartTrainer
from trl_r1.stages.distillation import SPEC as DISTILLATION
from trl_r1.stages.distillation import R1DistillationConfig
from trl_r1.stages.mixed_sft import MixedSFTConfig
from trl_r1.training.sft import ReasoningSFTTrainer, TargetError

# What DeepSeek-R1-Distill tokenizers do to an assistant turn.
DISTILL_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|assistant|>' -}}
{%- set content = message['content'] -%}
{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
{{- content + '<|end|>' -}}
{%- else -%}{{- '<|user|>' + message['content'] -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def build(
    model: Path, rows: list[dict[str, Any]], tmp_path: Path, template: str | None = None, **kw: Any
) -> ReasoningSFTTrainer:
    tokenizer = AutoTokenizer.from_pretrained(model)
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.eos_token = kw.pop("tokenizer_eos", tokenizer.eos_token)
    defaults = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    args = ColdStartConfig(
        output_dir=str(tmp_path), report_to="none", use_cpu=True, **defaults | kw
    )
    return ColdStartTrainer(
        str(model), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )


def targets(trainer: ReasoningSFTTrainer, index: int = 0) -> str:
    labels = trainer.train_dataset[index]["labels"]
    text: str = trainer.processing_class.decode([i for i in labels if i != -100])
    return text


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("template", ["compact", "chatml"])
def test_targets_are_the_completion_and_its_end(
    tiny_model_dir: Path, tmp_path: Path, name: str, template: str
) -> None:
    fmt = get_format(name)
    response = fmt.render("4+5=9", "9")
    row = {
        "prompt": fmt.prompt("4+5=?"),
        "completion": [{"role": "assistant", "content": response}],
    }
    text, _ = chat_template(template, fmt)
    text = text.replace("<|im_end|>", "<|end|>")  # the tiny vocabulary has one end token
    trainer = build(tiny_model_dir, [row] * 4, tmp_path, template=text)
    got = targets(trainer)
    # A prefilled opener is part of the prompt: the model never writes it.
    expected = response.removeprefix("<think>\n") if fmt.is_prefilled else response
    assert got.rstrip() == expected + "<|end|>"
    assert len(trainer.train_dataset) == 4


def test_plain_text_rows_are_trained_on_in_full(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "completion": "<think>2</think>2"}] * 4
    assert targets(build(tiny_model_dir, rows, tmp_path)) == "<think>2</think>2<|end|>"


def test_a_template_that_drops_the_reasoning_is_an_error(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(TargetError, match="row 0: the chat template drops the reasoning"):
        build(tiny_model_dir, tiny_task_rows, tmp_path, template=DISTILL_TEMPLATE)


def test_masks_that_hide_everything_are_an_error(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    silent = DISTILL_TEMPLATE.replace("{{- content + '<|end|>' -}}", "")
    with pytest.raises(TargetError, match="row 0: no token is trained on"):
        build(tiny_model_dir, tiny_task_rows, tmp_path, template=silent)


def test_targets_without_the_end_token_are_an_error(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(TargetError, match=r"end with '<\|end\|>' and not with the EOS '<\|pad\|>'"):
        build(tiny_model_dir, tiny_task_rows, tmp_path, tokenizer_eos="<|pad|>")


def test_a_template_that_changes_the_text_is_an_error(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    shouting = DISTILL_TEMPLATE.replace("content.split('</think>')[-1]", "content | upper")
    with pytest.raises(TargetError, match=r"the chat template (changes|drops)"):
        build(tiny_model_dir, tiny_task_rows, tmp_path, template=shouting)


def test_rows_without_a_completion_are_an_error(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}]}]
    with pytest.raises(TargetError, match="need the columns 'prompt' and 'completion'"):
        build(tiny_model_dir, rows, tmp_path)


def test_long_rows_are_dropped_and_counted_never_cut(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    rows = copy.deepcopy(tiny_task_rows)
    rows[3]["completion"][0]["content"] = f"<think>{'1' * 80}</think><answer>1</answer>"
    trainer = build(tiny_model_dir, rows, tmp_path, max_length=40)
    assert trainer.num_dropped_rows == 1
    assert len(trainer.train_dataset) == 15
    assert all(targets(trainer, i).endswith("</answer><|end|>") for i in range(15))


def test_too_many_long_rows_are_an_error(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(TargetError, match=r"16 of 16 train rows \(100.0%\) are longer than"):
        build(tiny_model_dir, tiny_task_rows, tmp_path, max_length=8)


def test_packing_keeps_every_target(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    trainer = build(
        tiny_model_dir,
        tiny_task_rows,
        tmp_path,
        max_length=128,
        packing=True,
        packing_strategy="bfd",
    )
    text = "".join(targets(trainer, i) for i in range(len(trainer.train_dataset)))
    assert len(trainer.train_dataset) < 16
    assert all(row["completion"][0]["content"] in text for row in tiny_task_rows)


@pytest.mark.parametrize("config", [ColdStartConfig, MixedSFTConfig])
def test_the_defaults_are_the_papers(config: type, tmp_path: Path) -> None:
    args = config(output_dir=str(tmp_path))
    assert 2 <= args.num_train_epochs <= 3
    assert args.learning_rate == 5e-5
    assert args.lr_scheduler_type == "cosine_with_min_lr"
    assert args.lr_scheduler_kwargs == {"min_lr_rate": 0.1}  # 5e-5 -> 5e-6
    assert args.max_length == 32768
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 128


def test_distillation_presets_are_the_papers(tmp_path: Path) -> None:
    args = R1DistillationConfig(output_dir=str(tmp_path))
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 64
    assert args.lr_scheduler_kwargs == {"min_lr_rate": 0.1}
    rates = {name: preset["learning_rate"] for name, preset in DISTILLATION.presets.items()}
    assert rates == {
        "qwen-1.5b": 1e-4,
        "qwen-7b": 8e-5,
        "qwen-14b": 7e-5,
        "qwen-32b": 6e-5,
        "llama-8b": 5e-5,
        "llama-70b": 2e-5,
    }


def test_the_learning_rate_ends_at_a_tenth(
    tiny_model_dir: Path, tmp_path: Path, tiny_task_rows: list[dict[str, Any]]
) -> None:
    trainer = build(tiny_model_dir, tiny_task_rows, tmp_path, save_strategy="no")
    trainer.train()
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(5e-6)
