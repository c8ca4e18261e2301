"""The length reward: Kimi k1.5's formula over the responses to one prompt."""

from __future__ import annotations

from typing import Any

import pytest

from trl_r1.rewards.length_within_group import length_within_group_reward
from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.verification.pooled_reward import pooled


def score(
    lengths: list[int], right: list[float | None], prompts: list[str] | None = None, **settings: Any
) -> list[float | None]:
    return length_within_group_reward(
        ["" for _ in lengths],
        [[1] * length for length in lengths],
        prompts=prompts,
        grader=lambda completions, **kwargs: right,
        **settings,
    )


def test_right_responses_get_lambda_and_wrong_ones_at_most_zero() -> None:
    # lambda = 0.5 - (len - 10) / 20: 0.5, 0.25, -0.25, -0.5
    lengths = [10, 15, 25, 30]
    assert score(lengths, [1.0, 1.0, 1.0, 1.0]) == [0.5, 0.25, -0.25, -0.5]
    assert score(lengths, [0.0, 1.0, 0.0, 0.0]) == [0.0, 0.25, -0.25, -0.5]


def test_responses_of_one_length_get_zero() -> None:
    assert score([7, 7], [1.0, 0.0]) == [0.0, 0.0]
    assert score([7], [1.0]) == [0.0]
    assert score([0, 0], [1.0, 1.0]) == [0.0, 0.0]
    assert length_within_group_reward([], [], grader=None) == []


def test_each_prompts_responses_are_compared_among_themselves() -> None:
    rewards = score([10, 20, 100, 200], [1.0] * 4, prompts=["a", "a", "b", "b"])
    assert rewards == [0.5, -0.5, 0.5, -0.5]
    messages: Any = [[{"role": "user", "content": p}] for p in ("a", "a", "b", "b")]
    assert score([10, 20, 100, 200], [1.0] * 4, prompts=messages) == rewards


def test_a_response_that_cannot_be_graded_counts_for_nothing() -> None:
    assert score([10, 20, 1000], [1.0, 1.0, None]) == [0.5, -0.5, None]
    assert score([10], [None]) == [None]


def test_right_responses_may_be_compared_with_one_another_only() -> None:
    rewards = score([1, 10, 20, 999], [0.0, 1.0, 1.0, 0.0], only_right=True)
    assert rewards == [0.0, 0.5, -0.5, 0.0]


def test_what_counts_as_right_may_be_lowered() -> None:
    assert score([10, 20], [0.5, 0.5]) == [0.0, -0.5]
    assert score([10, 20], [0.5, 0.5], min_right=0.5) == [0.5, -0.5]


def test_without_a_grader_the_lengths_alone_count() -> None:
    assert length_within_group_reward(["", ""], [[1], [1, 2]], grader=None) == [0.5, -0.5]


def test_any_reward_grades_by_name_reference_or_as_a_function() -> None:
    completions = [r"\boxed{4}", r"\boxed{4}", r"\boxed{5}"]
    columns: Any = {"solution": ["4"] * 3, "prompts": ["?"] * 3, "task": ["x"] * 3}
    ids = [[1], [1] * 2, [1] * 3]
    module = "trl_r1.rewards.math_answer:math_answer_reward"
    for grader in ("math_answer", module, math_answer_reward):
        rewards = length_within_group_reward(completions, ids, grader=grader, **columns)
        assert rewards == [0.5, 0.0, -0.5]
    given = {"extraction": "strict"}
    rewards = length_within_group_reward(["4", "4"], [[1], [1, 2]], solution=["4"] * 2)
    assert rewards == [0.0, -0.5]
    lenient = {"extraction": "lenient"}
    for settings, expected in ((given, [0.0, -0.5]), (lenient, [0.5, -0.5])):
        rewards = length_within_group_reward(
            ["4", "4"], [[1], [1, 2]], solution=["4"] * 2, grader_args=settings
        )
        assert rewards == expected


def test_a_grader_learns_of_a_prefilled_opener() -> None:
    completions = [r"\boxed{4}", r"x</think> \boxed{4}"]
    columns: Any = {"solution": ["4"] * 2, "completion_ids": [[1], [1, 2]]}
    assert length_within_group_reward(completions, **columns) == [0.5, -0.5]
    assert length_within_group_reward(completions, prefilled=True, **columns) == [0.0, -0.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "grader 'math_answer' needs solution; give the data set such a column"),
        ({"grader": "math_anser"}, "did you mean 'math_answer'"),
        ({"grader": "length_within_group"}, "can't be its own grader"),
        ({"grader": lambda completions, **kwargs: []}, "returned 0 rewards for 2 completions"),
    ],
)
def test_mistakes_are_one_clear_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        length_within_group_reward(["", ""], [[1], [2]], **settings)


@pytest.mark.parametrize("completion", [None, [], "", "\ud800", "\\boxed{" * 10_000])
def test_hostile_responses_are_merely_wrong(completion: Any) -> None:
    rewards = length_within_group_reward(
        [r"\boxed{4}", completion], [[1] * 9, [1] * 3], prompts=["?"] * 2, solution=["4"] * 2
    )
    assert rewards == [-0.5, 0.0]


def test_in_worker_processes_it_sees_the_whole_group() -> None:
    reward = pooled("length_within_group")
    assert reward.description.needs == "group"
    rewards = reward(
        completions=[r"\boxed{4}"] * 2 + [r"\boxed{6}"] * 2,
        completion_ids=[[1], [1, 2], [1, 2, 3], [1]],
        prompts=["2+2", "2+2", "3+3", "3+3"],
        solution=["4", "4", "6", "6"],
    )
    assert rewards == [0.5, -0.5, -0.5, 0.5]
