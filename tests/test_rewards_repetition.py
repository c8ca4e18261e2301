"""The repetition reward: the share of repeated token n-grams, as TRL counts them."""

from __future__ import annotations

import pytest

from trl_r1.rewards.repetition import repetition_reward


def test_the_penalty_is_the_share_of_repeated_ngrams() -> None:
    # 2-grams of 5 5 5 5 5: one of four is new; of 1 2 1 2 3: 12 21 12 23, three of four.
    ids = [[1, 2, 3, 4], [5, 5, 5, 5, 5], [1, 2, 1, 2, 3]]
    assert repetition_reward(ids, ngram_size=2) == [0.0, -0.75, -0.25]
    assert repetition_reward(ids, ngram_size=2, max_penalty=-0.4) == pytest.approx([0, -0.3, -0.1])


def test_a_loop_is_punished_and_ordinary_text_is_not() -> None:
    text = [i * i % 97 for i in range(300)]  # says 3-grams twice, in another order
    loop = [*range(60), *[7, 8, 9] * 200]
    ordinary, looping = repetition_reward([list(range(500)), loop])
    assert ordinary == 0.0
    assert looping < -0.8
    assert repetition_reward([text], ngram_size=3)[0] < -0.5


def test_a_short_or_empty_response_is_not_punished() -> None:
    assert repetition_reward([[], [1], [1] * 39]) == [0.0, 0.0, 0.0]
    assert repetition_reward([]) == []


def test_a_long_response_is_counted_in_time() -> None:
    assert repetition_reward([[1] * 200_000])[0] == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize("settings", [{"ngram_size": 0}, {"max_penalty": 0.5}])
def test_settings_that_make_no_sense_are_an_error(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="use an ngram_size of 1 or more and a max_penalty"):
        repetition_reward([[1]], **settings)  # type: ignore[arg-type]
