"""Answers that mean the same vote together, and a hostile one keeps nobody waiting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trl_r1.evaluation import same_answers
from trl_r1.evaluation.same_answers import leaders_of, pooled_match, votes_of
from trl_r1.metrics.votes import majority_vote
from trl_r1.rewards.math_answer import answers_match
from trl_r1.verification.pooled_reward import pooled


def sample(problem: int, answer: str | None, score: float | None = 0.0) -> dict[str, Any]:
    return {"prompt_index": problem, "answer": answer, "score": score, "solution": "7"}


def test_wrong_answers_vote_by_meaning_and_right_ones_together() -> None:
    rows = [
        sample(0, "0.5"),
        sample(0, "1/2"),
        sample(0, None),
        sample(0, "seven", 1.0),
        sample(0, None, 1.0),
        sample(1, "1/2"),
    ]
    votes = ["0.5", "0.5", None, "seven", "seven", "1/2"]
    assert votes_of(rows, ["math"] * 6) == votes
    assert votes_of(rows, [None] * 6) == [None] * 6
    assert votes_of([sample(0, "b"), sample(0, "B")], ["choice"] * 2) == ["b", "b"]


def test_votes_are_those_of_comparing_in_this_process() -> None:
    def match(pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return [float(answers_match(one, other)) for one, other in pairs]

    rng = np.random.default_rng(2)
    texts = ["1/2", "0.5", r"\frac{1}{2}", "50", "3", "3.0", "x+1", "1+x", "pi"]
    groups = [[texts[i] for i in rng.integers(0, len(texts), 12)] for _ in range(25)]
    for group, leaders in zip(groups, leaders_of(groups, match), strict=True):
        expected = majority_vote(group, "math")
        counts = {leader: leaders.count(leader) for leader in leaders}
        most = max(counts.values())
        assert (most, len(leaders)) == (expected.votes, expected.num_voters)
        assert {text for text, count in counts.items() if count == most} == set(expected.answers)


def test_answers_are_compared_in_worker_processes() -> None:
    assert pooled_match([("1/2", "0.5"), ("1", "2")]) == [1.0, 0.0]


def test_a_hostile_answer_costs_itself_alone(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(
        "import time\n"
        "def same(completions, other, **kwargs):\n"
        "    if 'hang' in completions + other: time.sleep(600)\n"
        "    return [float(a.lower() == b.lower()) for a, b in zip(completions, other)]\n"
    )
    reward = pooled(f"{file}:same", timeout=0.5, on_kill="none", num_workers=1)
    calls = []

    def match(pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        calls.extend(pairs)
        return reward(completions=[b for _, b in pairs], other=[a for a, _ in pairs])

    groups = [["hang", "a", "A", "hang", "b"], ["c"]]
    assert leaders_of(groups, match) == [["hang", "a", "a", "hang", "b"], ["c"]]
    assert sum("hang" in pair for pair in calls) == 1, "it is killed once"
    assert same_answers.REFERENCE.endswith(same_answers.same_answer_reward.__name__)
