"""Two tiny language models, made on the spot: the base and the student of the offline demo.

The demo needs a base that behaves as base models do under R1-Zero, and no download. So a small
"web" is written, in which most people blurt out a sum and are often wrong, some add up step by
step and are mostly right, some do that in another language, many forget the tags, and most
greetings are curt. A byte-level BPE tokenizer and two Qwen2 models of a fraction of a million
parameters are trained on it. Both are ordinary model folders.

Left out on purpose: all that a real pretraining needs. Put a real model's name in the recipe
instead.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Trainer,
    TrainingArguments,
    set_seed,
)

from trl_r1.reasoning_format import ReasoningFormat, chat_template, get_format
from trl_r1.rewards.think_format import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN
from trl_r1.stages import StageContext, StageResult, StageSpec
from trl_r1.tasks import digit_sums, small_talk
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.artifacts import finished_details, read_details
from trl_r1.training.loop import train_and_save

# The heading of a piece of thinking, and the same in the corpus' other language.
_HEADING, _FOREIGN_HEADING = "totals", "总数"
_TAGS = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
_PAD, _ROLES = "<|pad|>", ("<|system|>", "<|user|>", "<|assistant|>")
_MAX_POSITIONS = 256

Document = tuple[str, str]


@dataclass
class TinyBaseArguments:
    """Sizes of the two models, and what their corpus is made of."""

    hidden_size: int = field(default=96, metadata={"help": "Width of the base."})
    num_layers: int = field(default=2, metadata={"help": "Layers of both models."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads of both models."})
    vocab_size: int = field(default=480, metadata={"help": "Entries of the byte-level BPE."})
    student_hidden_size: int = field(default=64, metadata={"help": "Width of the student."})
    student_num_train_epochs: float = field(
        default=4.0, metadata={"help": "Passes of the student over the corpus."}
    )
    student_learning_rate: float = field(
        default=5e-3, metadata={"help": "Highest learning rate of the student."}
    )
    num_documents: int = field(default=8000, metadata={"help": "Size of the corpus."})
    small_talk_share: float = field(
        default=0.2, metadata={"help": "Share of documents that are greetings."}
    )
    friendly_share: float = field(
        default=0.3, metadata={"help": "Share of greetings that are friendly."}
    )
    think_share: float = field(
        default=0.4, metadata={"help": "Share of sums that are thought through."}
    )
    slip_rate: float = field(
        default=0.06, metadata={"help": "Chance that a running total goes wrong."}
    )
    blurt_accuracy: float = field(
        default=0.3, metadata={"help": "Share of right answers among those without thinking."}
    )
    untagged_share: float = field(
        default=0.15, metadata={"help": "Share of answers that lack their tags."}
    )
    foreign_share: float = field(
        default=0.15, metadata={"help": "Share of thinking that is in another language."}
    )
    reasoning_format: str = field(
        default="zero_bare",
        metadata={"help": "Format that the corpus is written in, a key of `FORMATS`."},
    )


@dataclass
class TinyBaseConfig(TrainingArguments):
    """transformers' `TrainingArguments` with settings that suit a very small model."""

    num_train_epochs: float = field(default=5.0, metadata={"help": "Passes of the base."})
    learning_rate: float = field(default=4e-3, metadata={"help": "Highest rate of the base."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Shape of the rate."})
    warmup_steps: float = field(default=30, metadata={"help": "Steps until the highest rate."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's second decay."})
    per_device_train_batch_size: int = field(
        default=32, metadata={"help": "Documents a step and process."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})


SPEC = StageSpec(
    configs=(TinyBaseArguments, TinyBaseConfig),
    produces=("model", "student"),
    model_kind=None,
)


def run(context: StageContext) -> StageResult:
    """Write the corpus, train the tokenizer and both models; store `model/` and `student/`."""
    details = finished_details(context.output_dir, SPEC.produces)
    if details is not None:
        return StageResult(details=details)
    sizes, args = context.config(TinyBaseArguments), context.config(TinyBaseConfig)
    fmt = get_format(sizes.reasoning_format)
    documents = write_corpus(sizes, fmt, args.seed)
    tokenizer = train_tokenizer(documents, sizes.vocab_size, fmt)
    rows = tokenise(documents, tokenizer)
    widths = {"model": sizes.hidden_size, "student": sizes.student_hidden_size}
    models = {part: new_model(tokenizer, widths[part], sizes, args.seed) for part in widths}
    details = {
        "documents": len(documents),
        "vocabulary": len(tokenizer),
        **{f"{part}_parameters": model.num_parameters() for part, model in models.items()},
        **(read_details(context.output_dir) or {}),
    }
    student_args = copy.copy(args)
    student_args.num_train_epochs = sizes.student_num_train_epochs
    student_args.learning_rate = sizes.student_learning_rate
    for part, own_args in (("model", args), ("student", student_args)):
        if not (context.output_dir / part).is_dir():
            details = _train(part, models[part], tokenizer, rows, own_args, context, details)
    return StageResult(details=details)


def _train(
    artifact: str,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
    args: TinyBaseConfig,
    context: StageContext,
    details: dict[str, Any],
) -> dict[str, Any]:
    """Train one of the models and store it; `details` with those of the training."""
    part = "" if artifact == "model" else artifact
    args.output_dir = str(context.checkpoints_dir / part)
    trainer = Trainer(
        model,
        args,
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True),
        processing_class=tokenizer,
    )
    return train_and_save(
        trainer,
        context,
        tokenizer,
        ModelArguments(),
        artifact=artifact,
        figures=lambda: details,
        part=part,
    )


def write_corpus(sizes: TinyBaseArguments, fmt: ReasoningFormat, seed: int) -> list[Document]:
    """The documents, each a question and a reply, from the tasks' training splits alone.

    Args:
        sizes: shares of the corpus.
        fmt: format of thinking and answers.
        seed: of everything drawn.
    """
    rng = random.Random(seed)
    sums, names = digit_sums.problems("train"), small_talk.names("train")
    documents = []
    for _ in range(sizes.num_documents):
        if rng.random() < sizes.small_talk_share:
            name = rng.choice(names)
            reply = small_talk.greeting(name, sizes.friendly_share, rng)
            documents.append((rng.choice(small_talk.ASKS).format(name=name), reply))
        else:
            terms = rng.choice(sums)
            documents.append((digit_sums.question(terms), _sum_reply(terms, sizes, fmt, rng)))
    return documents


def _sum_reply(
    terms: digit_sums.Terms, sizes: TinyBaseArguments, fmt: ReasoningFormat, rng: random.Random
) -> str:
    is_tagged = rng.random() >= sizes.untagged_share
    if rng.random() >= sizes.think_share:
        is_right = rng.random() < sizes.blurt_accuracy
        answer = f"{sum(terms) + (0 if is_right else _slip(rng)):02d}"
        return f"{ANSWER_OPEN}{answer}{ANSWER_CLOSE}" if is_tagged else answer
    total, lines = 0, [_FOREIGN_HEADING if rng.random() < sizes.foreign_share else _HEADING]
    for index, term in enumerate(terms):
        total += term
        if index and rng.random() < sizes.slip_rate:
            total = max(0, total + _slip(rng))
        lines.append(f"{total:02d}")
    reasoning, answer = "\n".join(lines), f"{total:02d}"
    response = fmt.render(reasoning, answer)
    if is_tagged:
        return response
    return response.replace(ANSWER_OPEN, "").replace(ANSWER_CLOSE, "")


def _slip(rng: random.Random) -> int:
    return rng.choice((-3, -2, -1, 1, 2, 3))


def train_tokenizer(
    documents: Sequence[Document], vocab_size: int, fmt: ReasoningFormat
) -> PreTrainedTokenizerBase:
    """A byte-level BPE of the corpus with the compact chat template.

    It is Qwen2's tokenizer class: `AutoTokenizer` takes that for any folder with a Qwen2 model, so
    another way of splitting would silently change when the folder is loaded. The tags of thinking
    and answer are added tokens but no special ones, which decoding would strip.
    """
    blank: Any = Qwen2Tokenizer(
        unk_token=_PAD, pad_token=_PAD, eos_token="<|end|>", extra_special_tokens=list(_ROLES)
    )
    without_tags = re.compile("|".join(map(re.escape, _TAGS)))
    texts = [without_tags.sub("\n", text) for document in documents for text in document]
    tokenizer: PreTrainedTokenizerBase = blank.train_new_from_iterator(
        texts, vocab_size, show_progress=False
    )
    tokenizer.add_tokens(list(_TAGS))
    tokenizer.chat_template, _ = chat_template("compact", fmt)
    return tokenizer


def tokenise(documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Token ids of the documents in the chat template, with the loss on the replies."""
    questions = [[{"role": "user", "content": question}] for question, _ in documents]
    replies = [[{"role": "assistant", "content": reply}] for _, reply in documents]
    chats = [question + reply for question, reply in zip(questions, replies, strict=True)]
    template: Any = tokenizer.apply_chat_template
    prompts = template(questions, add_generation_prompt=True, return_dict=True)["input_ids"]
    whole = template(chats, return_dict=True)["input_ids"]
    labels = [
        [-100] * len(prompt) + ids[len(prompt) :]
        for prompt, ids in zip(prompts, whole, strict=True)
    ]
    return Dataset.from_dict({"input_ids": whole, "labels": labels})


def new_model(
    tokenizer: PreTrainedTokenizerBase, hidden_size: int, sizes: TinyBaseArguments, seed: int
) -> Qwen2ForCausalLM:
    """An untrained Qwen2 of that width; its random weights are `seed`'s."""
    set_seed(seed)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 8 // 3,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_heads,
            max_position_embeddings=_MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )
    generation: Any = GenerationConfig
    model.generation_config = generation(eos_token_id=end, pad_token_id=pad)
    return model
