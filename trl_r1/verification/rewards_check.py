"""Puts a reward function through its paces before a run depends on it.

What it takes and returns, how fast it is, whether it is deterministic, whether it stands what a
policy invents, and whether the known ways of gaming a grader work on it. It runs in worker
processes, so a reward that hangs or crashes is a finding, not the end of the check.

Left out: whether the reward measures the right thing.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_r1.verification import check_cases as cases
from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.pool import RewardPool
from trl_r1.verification.pooled_reward import PooledReward, pooled

OK, NOTE, FAULT = "ok", "note", "FAULT"
_FAILURES = ("timed out", "crashed", "out of memory", "error")
_SLOW_SECONDS = 1.0
_MAX_SPEED_ROWS = 512
# Values for columns that this project's tasks have, used where no data is given.
_SAMPLE_COLUMNS: Mapping[str, Any] = {
    "solution": "4",
    "task": "sample",
    "language": "en",
    "completion_ids": [1, 2, 3, 4],
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
class Finding:
    """One line of the table: what was looked at, `ok`, `note` or `FAULT`, and what was seen."""

    check: str
    level: str
    seen: str


@dataclass
class CheckReport:
    """Everything that was found out about a reward.

    Attributes:
        reference: the reward.
        findings: one a check, in order.
    """

    reference: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """1 where there is a fault."""
        return int(any(finding.level == FAULT for finding in self.findings))

    def add(self, check: str, level: str, seen: str) -> None:
        self.findings.append(Finding(check, level, seen))


def check_reward(
    reference: str,
    data: Path | None = None,
    args: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    timeout: float = 5.0,
    memory_mb: int = 1024,
) -> CheckReport:
    """Check a reward function.

    Args:
        reference: `name`, `package.module:function` or `file.py:function`.
        data: JSONL file of rows with the columns it needs, and `completion` (text or messages)
            where there are some; rows of our own by default.
        args: keyword arguments bound to it.
        base_dir: folder that a relative file reference starts from.
        timeout, memory_mb: limits of a call; what goes beyond them is a fault.

    Raises:
        ValueError: `data` can't be read.
    """
    report = CheckReport(reference)
    rows = _read_rows(data) if data else None
    with RewardPool(num_workers=2) as pool, _quiet():
        try:
            reward = pooled(
                reference,
                args=args,
                timeout=timeout,
                memory_mb=memory_mb,
                on_kill="none",
                on_error="none",
                cache=False,
                base_dir=base_dir,
                pool=pool,
                even_if_it_should_stay=True,
            )
        except RewardReferenceError as error:
            report.add("loads", FAULT, str(error))
            return report
        try:
            _Check(reward, rows, report).run()
        except RewardError as error:  # it never came back, or asks for what can't be sent
            report.add("runs", FAULT, str(error))
    return report


class _Check:
    """The checks of one reward; each adds its findings to the report."""

    def __init__(
        self, reward: PooledReward, rows: Sequence[Mapping[str, Any]] | None, report: CheckReport
    ) -> None:
        self.reward = reward
        self.report = report
        self.bound = set(reward.spec.args)
        passed = {"prompts", "completions"} | self.bound
        self.needed = [name for name in reward.description.required if name not in passed]
        self.rows = rows
        self.columns: dict[str, list[Any]] = {}

    def run(self) -> None:
        self._signature()
        if not self._find_columns():
            return
        if not self._returns():
            return
        self._repeats()
        self._rows_alone()
        self._speed()
        self._trials()
        self._answer_games()
        self._format_games()

    def _signature(self) -> None:
        about = self.reward.description
        optional = [name for name in about.optional if name not in self.bound]
        self.report.add(
            "signature",
            OK,
            f"columns: {', '.join(self.needed) or 'none but completions'}; "
            f"optional: {', '.join(optional) or 'none'}; called by {about.needs}"
            + ("; equal rows graded once" if about.is_pure else "")
            + ("; runs in the trainer's process" if about.runs_in_trainer else ""),
        )
        if not about.summary:
            self.report.add("docstring", NOTE, "it has none; `rewards list` shows its first line")

    def _find_columns(self) -> bool:
        """The columns that one row of ours can be repeated with; False where they lack."""
        if self.rows is not None:
            first = self.rows[0]
            missing = [name for name in self.needed if name not in first and name != "prompts"]
            if missing:
                self.report.add("data", FAULT, f"the rows have no column {', '.join(missing)}")
                return False
            self.columns = {name: value for name, value in first.items() if name != "completion"}
            return True
        unknown = [name for name in self.needed if name not in _SAMPLE_COLUMNS]
        if unknown:
            self.report.add(
                "data",
                NOTE,
                f"not run: it needs {', '.join(unknown)}; give rows with --data FILE.jsonl, "
                "or arguments with --args",
            )
            return False
        self.columns = {name: _SAMPLE_COLUMNS[name] for name in self.needed}
        return True

    def _call(self, completions: Sequence[Any], **columns: list[Any]) -> _Graded:
        """Grade completions beside copies of the first row's columns; `columns` win."""
        num_rows = len(completions)
        filled = {name: [value] * num_rows for name, value in self.columns.items()}
        prompts = filled.pop("prompt", ["2 + 2 = ?"] * num_rows)
        if completions and not isinstance(completions[0], str) and isinstance(prompts[0], str):
            prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        began_at = time.monotonic()
        pending = self.reward.submit(list(completions), **{"prompts": prompts, **filled, **columns})
        rewards = pending.result()
        seconds = time.monotonic() - began_at
        return _Graded(rewards, pending.verdicts, pending.details, pending.seconds, seconds)

    def _returns(self) -> bool:
        """What it returns for plain text and for messages; one of the two has to work."""
        samples = self._samples()
        plain = self._call([_as_text(sample) for sample in samples[0]], **samples[1])
        messages = self._call([_as_messages(sample) for sample in samples[0]], **samples[1])
        self.takes_text, self.takes_messages = not plain.failed, not messages.failed
        works = self.takes_text or self.takes_messages
        for name, graded in (("plain text", plain), ("messages", messages)):
            if graded.failed:
                self.report.add(name, NOTE if works else FAULT, graded.failed[0])
            else:
                self.report.add(name, OK, graded.in_words())
        if self.takes_text and self.takes_messages and plain.rewards != messages.rewards:
            self.report.add(
                "text and messages", FAULT, "the same text gets other rewards as messages"
            )
        return works

    def _samples(self) -> tuple[list[Any], dict[str, list[Any]]]:
        if self.rows is None or "completion" not in self.rows[0]:
            return list(_SAMPLES), {}
        rows = self.rows[:_MAX_SPEED_ROWS]
        names = [name for name in rows[0] if name not in ("completion", "prompt")]
        columns = {name: [row.get(name) for row in rows] for name in names}
        if "prompt" in rows[0]:
            columns["prompts"] = [row["prompt"] for row in rows]
        return [row["completion"] for row in rows], columns

    def _form(self, text: Any) -> Any:
        return _as_text(text) if self.takes_text else _as_messages(text)

    def _repeats(self) -> None:
        completions, columns = self._samples()
        rows = [self._form(completion) for completion in completions]
        first, second = self._call(rows, **columns), self._call(rows, **columns)
        if first.rewards == second.rewards:
            self.report.add("determinism", OK, f"{len(rows)} rows graded twice alike")
        else:
            differing = sum(a != b for a, b in zip(first.rewards, second.rewards, strict=True))
            level = FAULT if self.reward.description.is_pure else NOTE
            self.report.add(
                "determinism", level, f"{differing} of {len(rows)} rows differ in a second call"
            )

    def _rows_alone(self) -> None:
        """Whether a row's reward depends on the others of its call, when it does not say so."""
        if self.reward.description.needs != "rows":
            return
        completions, columns = self._samples()
        rows = [self._form(completion) for completion in completions]
        alone = self._call(rows, **columns)
        about = self.reward.description
        try:
            self.reward.description = dataclasses.replace(about, needs="batch")
            together = self._call(rows, **columns)
        finally:
            self.reward.description = about
        if together.failed:
            self.report.add("batch", FAULT, together.failed[0])
        elif together.rewards == alone.rewards:
            self.report.add("rows alone", OK, "a row's reward does not depend on the others")
        else:
            self.report.add(
                "rows alone",
                FAULT,
                "a batch gets other rewards than its rows one by one; if it compares rows, set "
                f"{about.name}.needs = 'group' or 'batch' beside it",
            )

    def _speed(self) -> None:
        completions, columns = self._samples()
        copies = -(-_MAX_SPEED_ROWS // len(completions)) if not columns else 1
        rows = [self._form(completion) for completion in completions] * copies
        graded = self._call(rows, **columns)
        speed = len(rows) / graded.seconds
        level = OK if speed > 100 else NOTE
        self.report.add(
            "speed", level, f"{speed:,.0f} completions/s ({len(rows)} rows, 2 workers, no cache)"
        )

    def _trials(self) -> None:
        """What a policy may write: none of it may raise, hang or crash."""
        trials: dict[str, Any] = {n: self._form(text) for n, text in cases.TRIALS.items()}
        if not self.takes_messages:
            trials["None"] = None
        self._try(trials)
        if self.takes_messages:
            self._try(cases.MESSAGE_TRIALS)

    def _try(self, trials: Mapping[str, Any]) -> None:
        graded = self._call(list(trials.values()))
        for row, name in enumerate(trials):
            seconds = graded.row_seconds[row]
            if graded.verdicts[row] in _FAILURES:
                self.report.add(name, FAULT, graded.details[row])
            else:
                level = NOTE if seconds > _SLOW_SECONDS else OK
                slow = f", after {seconds:.1f} s" if level == NOTE else ""
                self.report.add(name, level, f"{_reward_text(graded.rewards[row])}{slow}")

    def _answer_games(self) -> None:
        """Where it rewards the right answer over a wrong one, no game may get as much."""
        if "solution" not in self.needed:
            return
        form = full = None
        for name, write in cases.ANSWER_FORMS.items():
            pair = [self._form(write("4")), self._form(write("7"))]
            right, wrong = self._call(pair, solution=["4", "4"]).rewards
            if right is not None and wrong is not None and right > wrong:
                form, full = name, right
                break
        if form is None or full is None:
            self.report.add(
                "games", NOTE, "not played: a right answer gets no more than a wrong one"
            )
            return
        write = cases.ANSWER_FORMS[form]
        texts = {g: write(g.answer) for g in cases.ANSWER_GAMES if g.answer is not None}
        texts |= {g: g.completion for g in cases.COMPLETION_GAMES if g.completion is not None}
        graded = self._call(
            [self._form(text) for text in texts.values()], solution=[game.gold for game in texts]
        )
        self._play(f"answers in {form}", graded, full, [game.name for game in texts])

    def _format_games(self) -> None:
        """Where it rewards a format over plain text, no malformed response may get as much.

        Only of a reward that calls itself one: a length or a language may well be preferred in
        what is malformed.
        """
        if "format" not in f"{self.reward.__name__} {self.reward.spec.use}".casefold():
            return
        texts = [*cases.FORMATS.values(), cases.PLAIN_TEXT]
        *formed, plain = self._call([self._form(text) for text in texts]).rewards
        scores = [reward for reward in formed if reward is not None]
        if plain is None or not scores or max(scores) <= plain:
            return
        # The last one that gets full marks is the most lenient: tags are text to it.
        best = max(scores)
        profile = [name for name, got in zip(cases.FORMATS, formed, strict=True) if got == best][-1]
        games = dict(cases.FORMAT_GAMES)
        if profile == "answer tags":
            games.update(cases.TAG_GAMES)
        graded = self._call([self._form(text) for text in games.values()])
        self._play(f"format with {profile}", graded, best, list(games))

    def _play(self, what: str, graded: _Graded, full: float, names: Sequence[str]) -> None:
        num_won = 0
        for name, reward in zip(names, graded.rewards, strict=True):
            if reward is not None and reward >= full:
                num_won += 1
                self.report.add(f"game: {name}", FAULT, f"gets {_reward_text(reward)} as if right")
        for failure in graded.failed:
            self.report.add("game", FAULT, failure)
        self.report.add(
            "games",
            FAULT if num_won else OK,
            f"{what}: {len(names) - num_won} of {len(names)} get less than {full:g}",
        )


@dataclass(frozen=True)
class _Graded:
    rewards: list[float | None]
    verdicts: list[str]
    details: list[str]
    row_seconds: list[float]
    seconds: float

    @property
    def failed(self) -> list[str]:
        pairs = zip(self.verdicts, self.details, strict=True)
        return [detail for verdict, detail in pairs if verdict in _FAILURES]

    def in_words(self) -> str:
        numbers = [reward for reward in self.rewards if reward is not None]
        share = 1 - len(numbers) / len(self.rewards)
        text = f"{len(self.rewards)} rewards for {len(self.rewards)} completions"
        if numbers:
            mean = sum(numbers) / len(numbers)
            text += f", {min(numbers):.4g} to {max(numbers):.4g}, mean {mean:.4g}"
        return f"{text}; None: {share:.0%}"


def _as_text(completion: Any) -> str:
    if isinstance(completion, list):
        return str(completion[-1].get("content") or "") if completion else ""
    return str(completion)


def _as_messages(completion: Any) -> list[Any]:
    if isinstance(completion, list):
        return completion
    return [{"role": "assistant", "content": completion}]


def _reward_text(reward: float | None) -> str:
    return "None" if reward is None else f"{reward:g}"


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file; `gold` and `pred` are taken for `solution` and `completion`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: can't be read as JSON lines: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: it must have one JSON object a line, with the row's columns")
    names = {"gold": "solution", "pred": "completion"}
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


@contextmanager
def _quiet() -> Any:
    """What the pool warns of is in the table."""
    log = logging.getLogger("trl_r1.verification")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
