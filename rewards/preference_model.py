"""Preference reward: what a reward model, trained on pairs of answers, thinks of a response.

For general prompts, where no rule says what is right (paper section 2.3.4). As there, helpfulness
is judged on the final answer only (`scope="answer"`), so that the reasoning stays free, and
harmlessness on the whole response (`scope="response"`). The paper uses no such model on reasoning
tasks, and only in the last 400 of 1,700 steps: policies learn to please it (see `tasks` and
`from_step` of a recipe's rewards).

This file stands alone: it imports neither a sibling nor `trl_r1`, so it can be copied next to any
script and passed to `trl.GRPOTrainer(reward_funcs=...)`, where a model passed directly would see
the reasoning too and score all rows in one batch. Torch and transformers are imported, and the
model loaded, at the first call; a process loads each model once.

Left out: reward models with several outputs, servers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

SCOPES = ("answer", "response")
SCALES = ("sigmoid", "raw")


class PreferenceModelReward:
    """A reward model as a reward function; pickles as its settings.

    Args:
        model: folder or Hub id of a sequence classification model with one output, or of a LoRA
            adapter of one.
        scope: `answer`, what follows the reasoning; `response`, all of it.
        batch_size: responses scored at a time.
        scale: `sigmoid` puts scores on 0..1, the scale of the rule rewards; `raw` gives logits.
        no_answer: reward of a response without an answer. 0.0 with `sigmoid`, below any answer;
            needed with `raw`, where only you know what is low.
        max_length: longest input in tokens, cut at its beginning; the model's own by default.
        dtype: type of the weights, as in transformers.
        device: where the model goes; the process's accelerator, or the CPU, by default.
        prefilled: the prompt ended with `<think>`, so what has no `</think>` has no answer.

    Raises:
        ValueError: for an unknown `scope` or `scale`, or `raw` without `no_answer`.
    """

    __name__ = "preference_model_reward"

    def __init__(
        self,
        model: str,
        scope: str = "answer",
        batch_size: int = 16,
        scale: str = "sigmoid",
        no_answer: float | None = None,
        max_length: int | None = None,
        dtype: str = "auto",
        device: str | None = None,
        prefilled: bool = False,
    ) -> None:
        if scope not in SCOPES:
            raise ValueError(f"unknown scope {scope!r}; known: {', '.join(SCOPES)}")
        if scale not in SCALES:
            raise ValueError(f"unknown scale {scale!r}; known: {', '.join(SCALES)}")
        if scale == "raw" and no_answer is None:
            raise ValueError(
                "scale 'raw' needs no_answer: a score below what the model gives to bad answers, "
                "or else leaving the answer out would pay"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; use 1 or more")
        self.model = model
        self.scope = scope
        self.batch_size = batch_size
        self.scale = scale
        self.no_answer = 0.0 if no_answer is None else no_answer
        self.max_length = max_length
        self.dtype = dtype
        self.device = device
        self.prefilled = prefilled

    def __call__(self, prompts: list[Any], completions: list[Any], **kwargs: Any) -> list[float]:
        """Scores of B responses.

        Args:
            prompts: B prompts, plain text or lists of messages. Messages go through the chat
                template of the model's tokenizer; plain text is joined, with an end token, as
                TRL's `RewardTrainer` does.
            completions: B completions of the same kind.
        """
        judged = [self._judged_text(completion) for completion in completions]
        rows = [i for i, text in enumerate(judged) if text]
        rewards = [self.no_answer] * len(completions)
        if not rows:
            return rewards
        model, tokenizer = _load(self.model, self.dtype, self.device or _default_device())
        inputs = [_token_ids(tokenizer, prompts[i], judged[i]) for i in rows]
        limit = self.max_length or _longest_input(model, tokenizer)
        scores = self._scores(model, tokenizer, [ids[-limit:] for ids in inputs])
        for i, score in zip(rows, scores, strict=True):
            rewards[i] = score
        return rewards

    def _judged_text(self, completion: Any) -> str:
        text = completion_text(completion)
        return text.strip() if self.scope == "response" else answer_text(text, self.prefilled)

    def _scores(self, model: Any, tokenizer: Any, inputs: list[list[int]]) -> list[float]:
        """Scores of token id lists, in batches of similar length."""
        import torch

        scores = [0.0] * len(inputs)
        with torch.inference_mode():
            for rows in _batches([len(ids) for ids in inputs], self.batch_size):
                batch = tokenizer.pad(
                    {"input_ids": [inputs[i] for i in rows]},
                    padding_side="right",
                    return_tensors="pt",
                ).to(model.device)
                logits = model(**batch).logits[:, 0].float().tolist()  # (batch,)
                for i, logit in zip(rows, logits, strict=True):
                    scores[i] = logit if self.scale == "raw" else _sigmoid(logit)
        return scores


def preference_model_reward(
    prompts: list[Any],
    completions: list[Any],
    model: str,
    scope: str = "answer",
    batch_size: int = 16,
    scale: str = "sigmoid",
    no_answer: float | None = None,
    max_length: int | None = None,
    dtype: str = "auto",
    device: str | None = None,
    prefilled: bool = False,
    **kwargs: Any,
) -> list[float]:
    """Score responses with a reward model (paper section 2.3.4, helpfulness and harmlessness).

    Args:
        prompts: B prompts, plain text or lists of messages.
        completions: B completions of the same kind.
        model, scope, batch_size, scale, no_answer, max_length, dtype, device, prefilled: see
            `PreferenceModelReward`.

    Returns:
        B scores.

    Raises:
        ValueError: see `PreferenceModelReward`; also for a model with more than one output.
    """
    reward = PreferenceModelReward(
        model, scope, batch_size, scale, no_answer, max_length, dtype, device, prefilled
    )
    return reward(prompts, completions)


# It holds a model, on the trainer's device where there is one: not a matter for worker processes.
preference_model_reward.runs_in_trainer = True  # type: ignore[attr-defined]
# What a recipe has to give, since no data set has it.
preference_model_reward.settings = ("model",)  # type: ignore[attr-defined]


def answer_text(text: str, prefilled: bool = False) -> str:
    """What follows the reasoning, without answer tags; `""` where the reasoning is not closed.

    A response that has no reasoning is all answer, unless the prompt has opened it already.
    """
    _, is_closed, visible = text.rpartition("</think>")
    if prefilled and not is_closed:
        return ""
    visible = visible.partition("<think>")[0]
    before, is_closed, _ = visible.rpartition("</answer>")
    _, is_opened, inside = before.rpartition("<answer>")
    return inside.strip() if is_closed and is_opened else visible.strip()


def completion_text(completion: Any) -> str:
    """Text of a plain-text or conversational completion (its last message); `""` for None."""
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    # What a tool or a user said last is no answer of the model's.
    content = None if last.get("role") in ("tool", "user") else last.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content or ""


def _token_ids(tokenizer: Any, prompt: Any, answer: str) -> list[int]:
    if isinstance(prompt, str):
        end = tokenizer.eos_token or ""
        text = prompt + answer if answer.endswith(end) else prompt + answer + end
        return list(tokenizer(text)["input_ids"])
    messages = [*prompt, {"role": "assistant", "content": answer}]
    encoded = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
    return list(encoded["input_ids"])


def _batches(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Row numbers in batches of similar length, so that little is padded."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _longest_input(model: Any, tokenizer: Any) -> int:
    limits = (tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None))
    return min(int(limit) for limit in limits if limit)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _default_device() -> str:
    from accelerate import PartialState

    return str(PartialState().device)


@lru_cache(maxsize=4)
def _load(model_name: str, dtype: str, device: str) -> tuple[Any, Any]:
    """The model, frozen and in eval mode, and its tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    loader: Any = AutoModelForSequenceClassification
    settings: dict[str, Any] = {"dtype": dtype}
    if (Path(model_name) / "adapter_config.json").is_file():
        from peft import AutoPeftModelForSequenceClassification

        loader = AutoPeftModelForSequenceClassification
        settings["num_labels"] = 1
        if not (Path(model_name) / "adapter_model.safetensors").is_file():
            raise ValueError(f"{model_name}: its adapter is no safetensors; convert it first")
    # Neither code that a model brings nor pickles are for a reward to run.
    settings.update(trust_remote_code=False, use_safetensors=True)
    model = loader.from_pretrained(model_name, **settings)
    if model.config.num_labels != 1:
        raise ValueError(
            f"{model_name}: a reward model has one output, this one has {model.config.num_labels}"
        )
    tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    return model.to(device).eval().requires_grad_(False), tokenizer
