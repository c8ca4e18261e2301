"""The overlong reward: DAPO's soft punishment (equation 13)."""

from __future__ import annotations

import pytest

from trl_r1.rewards.overlong import overlong_reward


def test_the_punishment_falls_in_a_straight_line_to_minus_one() -> None:
    lengths = [0, 80, 85, 90, 99, 100, 150]
    scores = overlong_reward([[7] * n for n in lengths], max_length=100, soft_length=20, task=["a"])
    assert scores == pytest.approx([0.0, 0.0, -0.25, -0.5, -0.95, -1.0, -1.0])


def test_without_a_soft_part_only_what_exceeds_the_limit_is_punished() -> None:
    assert overlong_reward([[1] * 10, [1] * 11], max_length=10, soft_length=0) == [0.0, -1.0]


@pytest.mark.parametrize("soft_length", [-1, 101])
def test_lengths_that_make_no_sense_are_an_error(soft_length: int) -> None:
    with pytest.raises(ValueError, match=f"soft_length is {soft_length} and max_length 100"):
        overlong_reward([[1]], max_length=100, soft_length=soft_length)
