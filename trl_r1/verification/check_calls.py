"""Calls of a reward that is being checked: the columns it gets, and what came back.

Left out: what the results mean (`rewards_check.py`, `check_games.py`).
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_r1.verification import check_programs
from trl_r1.verification.pooled_reward import PooledReward

FAILURES = ("timed out", "crashed", "out of memory", "error")
MAX_SPEED_ROWS = 512
_MAX_SAMPLES = 128
_MAX_TOKENS = 32_768
_PROMPT = "2 + 2 = ?"
# Values for columns that this project's tasks have, used where no data is given.
_SAMPLE_COLUMNS: Mapping[str, Any] = {
    "solution": "4",
    "task": "sample",
    "language": "en",
    "completion_ids": [1, 2, 3, 4],
    "tests": check_programs.TASKS[0].tests,
    "instruction_id_list": ["punctuation:no_comma"],
    "entry": '{"answer": "4", "metadata": {"source_dataset": "chain_sum"}}',
}
_SAMPLES = (
    r"2 and 2 make \boxed{4}.",
    r"2 and 2 make \boxed{5}.",
    "<think>2 and 2 make 4.</think> <answer>4</answer>",
    "<think>2 and 2 make 4.</think> The answer is 4.",
    "I do not know.",
    "4",
)


@dataclass(frozen=True)
class Graded:
    """What a call came to, row by row.

    Attributes:
        rewards: numbers, and None where it does not grade.
        verdicts, details: see `PendingRewards`.
        row_seconds: how long the call took that graded the row.
        seconds: of all of it.
    """

    rewards: list[float | None]
    verdicts: list[str]
    details: list[str]
    row_seconds: list[float]
    seconds: float

    @property
    def failed(self) -> list[str]:
        """What is said of the rows that failed."""
        pairs = zip(self.verdicts, self.details, strict=True)
        return [detail for verdict, detail in pairs if verdict in FAILURES]

    def in_words(self) -> str:
        """How many rewards there are, from what to what, and how many None."""
        numbers = [reward for reward in self.rewards if reward is not None]
        share = 1 - len(numbers) / len(self.rewards)
        text = f"{len(self.rewards)} rewards for {len(self.rewards)} completions"
        if numbers:
            mean = sum(numbers) / len(numbers)
            text += f", {min(numbers):.4g} to {max(numbers):.4g}, mean {mean:.4g}"
        return f"{text}; None: {share:.0%}"


class Subject:
    """A reward that is being checked.

    Args:
        reward: it.
        rows: the user's rows, if any.

    Attributes:
        needed: columns without which it can't be called.
        takes_text, takes_messages: which completions it takes; found out by the first check.
    """

    def __init__(self, reward: PooledReward, rows: Sequence[Mapping[str, Any]] | None) -> None:
        self.reward = reward
        self.rows = rows
        self.takes_text = self.takes_messages = True
        self.bound = set(reward.spec.args)
        passed = {"prompts", "completions"} | self.bound
        self.needed = [name for name in reward.description.required if name not in passed]
        if rows is None:
            optional = [name for name in reward.description.optional if name not in passed]
            names = [name for name in (*self.needed, *optional) if name in _SAMPLE_COLUMNS]
            self.columns = {name: _SAMPLE_COLUMNS[name] for name in names}
        else:
            # One that is bound to an argument wins over a column of its name, as in a run.
            own = self.bound | {"completion"}
            self.columns = {name: value for name, value in rows[0].items() if name not in own}

    @property
    def missing(self) -> list[str]:
        """Columns that it needs and that there is no value for."""
        return [name for name in self.needed if name not in self.columns]

    def form(self, text: Any) -> Any:
        """A completion in the form that it takes."""
        return as_text(text) if self.takes_text else as_messages(text)

    def samples(self) -> tuple[list[Any], dict[str, list[Any]]]:
        """Completions to grade, and their columns where those are not the same for each."""
        if self.rows is None or "completion" not in self.rows[0]:
            return list(_SAMPLES), {}
        rows = self.rows[:_MAX_SAMPLES]
        return [row["completion"] for row in rows], self.columns_of(rows)

    def columns_of(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """The user's columns, as TRL passes them."""
        names = [name for name in self.columns if name != "prompt"]
        columns = {name: [row.get(name) for row in rows] for name in names}
        if "prompt" in self.columns:
            columns["prompts"] = [row.get("prompt") for row in rows]
        return columns

    def call(
        self,
        completions: Sequence[Any],
        columns: Mapping[str, list[Any]] | None = None,
        needs: str | None = None,
    ) -> Graded:
        """Grade completions beside copies of the first row's columns.

        Args:
            completions: B completions in a form that it takes.
            columns: columns that win over the first row's.
            needs: in place of what it says itself that it needs at once.

        Raises:
            RewardError: it never came back, or asks for what can't be sent.
        """
        num_rows = len(completions)
        filled = {name: [value] * num_rows for name, value in self.columns.items()}
        if self.rows is None and "completion_ids" in filled:
            filled["completion_ids"] = [_token_ids(as_text(c)) for c in completions]
        filled.update(columns or {})
        prompts = filled.pop("prompt", [_PROMPT] * num_rows)
        prompts = filled.pop("prompts", prompts)
        if completions and isinstance(completions[0], list) and isinstance(prompts[0], str):
            prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        about = self.reward.description
        began_at = time.monotonic()
        try:
            if needs is not None:
                self.reward.description = dataclasses.replace(about, needs=needs)
            pending = self.reward.submit(list(completions), **{"prompts": prompts, **filled})
        finally:
            self.reward.description = about
        rewards = pending.result()
        seconds = time.monotonic() - began_at
        return Graded(rewards, pending.verdicts, pending.details, pending.seconds, seconds)

    def call_alone(
        self, completions: Sequence[Any], columns: Mapping[str, list[Any]] | None = None
    ) -> Graded:
        """Likewise, each row in a call of its own, so that one that fails costs itself alone."""
        return self.call(completions, columns, needs="rows")


def _token_ids(text: str) -> list[int]:
    """A token a byte, up to more than a trainer lets anyone write."""
    return list(text[:_MAX_TOKENS].encode("utf-8", "surrogatepass"))[:_MAX_TOKENS]


def as_text(completion: Any) -> str:
    """A completion as plain text: the last message's where it is a list of messages."""
    if isinstance(completion, list):
        return str(completion[-1].get("content") or "") if completion else ""
    return str(completion)


def as_messages(completion: Any) -> list[Any]:
    """A completion as a list of messages."""
    if isinstance(completion, list):
        return completion
    return [{"role": "assistant", "content": completion}]


def reward_text(reward: float | None) -> str:
    """A reward as it stands in the table."""
    return "None" if reward is None else f"{reward:g}"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file; `gold` and `pred` are taken for `solution` and `completion`.

    Raises:
        ValueError: it can't be read as that.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: can't be read as JSON lines: {error}") from error
    if not rows or not all(isinstance(row, dict) and row for row in rows):
        raise ValueError(f"{path}: it must have one JSON object a line, with the row's columns")
    names = {"gold": "solution", "pred": "completion"}
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]
