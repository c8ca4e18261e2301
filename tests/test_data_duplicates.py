"""The first of equal and of nearly equal rows stays; nothing else goes."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from datasets import Dataset

from trl_r1.data.card import DataLog
from trl_r1.data.duplicates import drop_exact_duplicates, drop_near_duplicates
from trl_r1.data.texts import words


def sentence(rng: random.Random, count: int = 60) -> list[str]:
    return [f"w{rng.randrange(3000)}" for _ in range(count)]


def similarity(first: str, second: str) -> float:
    """Jaccard index of the runs of three words, written out."""
    runs = []
    for text in (first, second):
        tokens = words(text)
        runs.append({tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)})
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def test_exact_duplicates_are_told_by_problem_and_response_and_not_by_white_space() -> None:
    rows = [
        {"problem": "a  b", "completion": "1"},
        {"problem": "a b", "completion": "1"},
        {"problem": "a b", "completion": "2"},
        {"problem": "a b ", "completion": "2\n"},
        {"problem": "A b", "completion": "1"},
    ]
    log = DataLog()
    kept = drop_exact_duplicates(Dataset.from_list(rows), log=log)
    assert kept.to_list() == [rows[0], rows[2], rows[4]]
    by_problem = drop_exact_duplicates(Dataset.from_list(rows), ["problem"])
    assert by_problem.to_list() == [rows[0], rows[4]]
    assert log.records[0].text == "dropped 2 rows with the same problem and completion"


def test_texts_that_only_run_together_alike_are_not_the_same() -> None:
    rows = Dataset.from_list(
        [{"problem": "a b", "completion": "c"}, {"problem": "a", "completion": "b c"}]
    )
    assert len(drop_exact_duplicates(rows)) == 2


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_each_dropped_row_is_alike_one_that_stays_and_those_that_stay_are_not(
    threshold: float,
) -> None:
    rng = random.Random(0)
    texts = []
    for _ in range(40):
        base = sentence(rng)
        for num_changed in (0, 1, 3, 8, 20):
            changed = list(base)
            for place in rng.sample(range(len(base)), num_changed):
                changed[place] = f"x{rng.randrange(10**6)}"
            texts.append(" ".join(changed))
    rows = Dataset.from_dict({"text": texts, "index": range(len(texts))})
    kept = set(drop_near_duplicates(rows, threshold)["index"])
    for index in set(range(len(texts))) - kept:
        assert any(similarity(texts[index], texts[k]) >= threshold for k in kept if k < index)
    alike = [
        pair
        for pair in itertools.combinations(sorted(kept), 2)
        if similarity(texts[pair[0]], texts[pair[1]]) >= threshold
    ]
    # MinHash finds by chance: a pair at the threshold itself may be missed, one far over it not.
    assert len(alike) <= 2
    assert all(similarity(texts[a], texts[b]) < threshold + 0.05 for a, b in alike)
    assert 40 <= len(kept) < 200


def test_problems_that_differ_in_their_numbers_both_stay() -> None:
    text = "Tom has {} apples and buys {} more at {} cents each. How much does he pay in all?"
    rows = Dataset.from_dict({"problem": [text.format(3, 4, 5), text.format(7, 9, 11)]})
    assert len(drop_near_duplicates(rows, 0.8)) == 2


def test_short_and_empty_texts_are_compared_as_a_whole() -> None:
    texts = ["yes", "Yes!", "no", "", " ", "?"]
    kept = drop_near_duplicates(Dataset.from_dict({"text": texts}), 0.8)
    assert kept["text"][:] == ["yes", "no", ""]


def test_a_second_run_takes_what_the_first_had_kept_and_several_processes_agree(
    tmp_path: Path,
) -> None:
    rng = random.Random(1)
    base = [" ".join(sentence(rng, 20)) for _ in range(300)]
    rows = Dataset.from_dict({"text": base + base[:50]})
    one = drop_near_duplicates(rows, 0.8, workspace=tmp_path / "work")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    again = drop_near_duplicates(rows, 0.8, workspace=tmp_path / "work")
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    assert one["text"][:] == again["text"][:] == base


def test_a_threshold_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="threshold is 80"):
        drop_near_duplicates(Dataset.from_dict({"text": ["a"]}), 80)
