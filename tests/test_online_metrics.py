"""pass@k, best, majority, language share and lengths, by hand and in a real training."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_rows
from datasets import Dataset

from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.stages.grpo import R1GRPOConfig, R1GRPOTrainer
from trl_r1.stages.grpo.online_metrics import (
    OnlineMetrics,
    RowFigures,
    best_of_group,
    group_sizes,
    length_percentiles,
    majority_accuracy,
    pass_at_k,
)
from trl_r1.stages.grpo.verdicts import reward_applies, row_verdicts

NAN = math.nan


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_the_mean_over_every_way_to_draw_k_answers(k: int) -> None:
    correct = torch.tensor([[1.0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    draws = [max(draw) for row in correct.tolist() for draw in itertools.combinations(row, k)]
    assert pass_at_k(correct, k) == pytest.approx(sum(draws) / len(draws))


def test_pass_at_k_by_hand() -> None:
    # 1 - C(2, 2) / C(4, 2) = 5/6 and 1 - C(3, 2) / C(4, 2) = 1/2.
    assert pass_at_k(torch.tensor([[1.0, 0, 0, 1], [0, 0, 1, 0]]), 2) == pytest.approx(2 / 3)


def test_answers_without_a_grade_are_no_answers() -> None:
    correct = torch.tensor([[1.0, 0, NAN, NAN], [NAN, NAN, NAN, NAN]])
    assert pass_at_k(correct, 1) == pytest.approx(0.5)
    assert pass_at_k(correct, 2) == pytest.approx(1.0)
    assert math.isnan(pass_at_k(correct, 3))


def test_the_best_of_a_group_ignores_what_was_not_graded() -> None:
    rewards = torch.tensor([[0.2, NAN, 1.0], [NAN, -1.0, -2.0], [NAN, NAN, NAN]])
    assert best_of_group(rewards) == pytest.approx((1.0 - 1.0) / 2)
    assert math.isnan(best_of_group(torch.full((1, 2), NAN)))


def test_the_majority_decides_and_equal_answers_are_one_party() -> None:
    answers = [["1/2", "3", "0.5", "3", "\\frac{1}{2}"], ["7", None, None, None, None]]
    correct = torch.tensor([[1.0, 0, 1, 0, 1], [1.0, 0, 0, 0, 0]])
    assert majority_accuracy(answers, correct) == 1.0
    wrong = [["4", "4", "5", None, "6"]]
    assert majority_accuracy(wrong, torch.tensor([[0.0, 0, 1, 0, 0]])) == 0.0


def test_a_tie_counts_in_parts_and_no_answer_counts_as_wrong() -> None:
    assert majority_accuracy([["1", "2"]], torch.tensor([[1.0, 0.0]])) == 0.5
    assert majority_accuracy([[None, None]], torch.tensor([[0.0, 0.0]])) == 0.0
    assert math.isnan(majority_accuracy([["1"]], torch.tensor([[NAN]])))


def test_percentiles_lie_between_neighbours_in_a_straight_line() -> None:
    found = length_percentiles(range(101))
    assert found == {10: 10.0, 50: 50.0, 90: 90.0, 99: 99.0}
    assert length_percentiles([0, 10])[90] == pytest.approx(9.0)


def test_k_goes_up_in_powers_of_two_to_the_group() -> None:
    assert group_sizes(16) == [1, 2, 4, 8, 16]
    assert group_sizes(6) == [1, 2, 4, 6]


class Entry:
    """A reward with what a recipe says of it."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.__name__ = name
        self.args = settings.pop("args", {})
        self.from_step = settings.pop("from_step", 0)
        self.until_step = settings.pop("until_step", None)
        self.tasks = settings.pop("tasks", ())


def test_a_reward_applies_in_its_steps_to_its_tasks() -> None:
    rows = [{"task": "sums"}, {"task": "talk"}, {}]
    reward = Entry("r", from_step=2, until_step=4, tasks=("sums",))
    assert reward_applies(reward, rows, 1) == [False, False, False]
    assert reward_applies(reward, rows, 3) == [True, False, False]
    assert reward_applies(reward, rows, 4) == [False, False, False]
    assert reward_applies(math_answer_reward, rows, 0) == [True, True, True]


def test_verdicts_tell_not_gradable_from_left_out_and_the_pools_win() -> None:
    rows = [{"task": "sums"}, {"task": "talk"}]
    functions = [Entry("a", tasks=("sums",)), Entry("b"), Entry("c")]
    rewards = [[1.0, None, 0.0], [None, 0.0, None]]
    assert row_verdicts(functions, rewards, rows, 0, {2: ["timed out", "crashed"]}) == [
        ["ok", "not gradable", "timed out"],
        ["left out", "ok", "crashed"],
    ]


def test_the_batch_by_hand() -> None:
    metrics = OnlineMetrics([Entry("right"), Entry("style", tasks=("sums",))], ["right", "style"],
                            "right")  # fmt: skip
    rewards = torch.tensor([[1.0, 0.5], [0.0, NAN], [0.0, NAN], [NAN, 1.0]])
    figures = [
        RowFigures(length, answer, share, (True, applies))
        for length, answer, share, applies in (
            (10, "5", 1.0, True),
            (20, "6", 0.5, True),
            (30, None, None, False),
            (40, None, None, True),
        )
    ]
    found = metrics.batch(figures, rewards, torch.tensor([1.0, 0.2]), 2)
    assert found["best_of_group"] == pytest.approx((1.1 + 0.2) / 2)
    assert found["pass@1"] == pytest.approx((0.5 + 0.0) / 2)
    assert found["pass@2"] == 1.0  # the second group has one graded answer only
    assert found["majority_accuracy"] == pytest.approx((0.5 + 0.0) / 2)
    assert found["language_share"] == 0.75
    assert found["completions/length_p50"] == 25.0
    assert found["rewards/right/not_gradable"] == 0.25
    assert found["rewards/style/not_gradable"] == pytest.approx(1 / 3)


def test_a_row_is_read_as_the_rewards_read_it() -> None:
    prefilled = OnlineMetrics([Entry("math_answer", args={"prefilled": True})], ["m"], "m")
    texts = ["the sum und das ist </think> \\boxed{5}", "never closed \\boxed{5}"]
    rows = [{"language": "en"}, {"language": "en"}]
    first, second = prefilled.rows(rows, texts, [[1, 2], [3]], 0)
    assert (first.answer, second.answer) == ("5", None)
    assert first.language_share == pytest.approx(3 / 5)  # und, ist
    assert (first.length, first.applies) == (2, (True,))
    with pytest.raises(ValueError, match="unknown language 'xx'"):
        OnlineMetrics([], [], None, language="xx")


def test_no_language_is_measured_unless_it_is_known() -> None:
    text = ["<think>the sum is</think>"]
    silent = OnlineMetrics([], [], None).rows([{}], text, [[1]], 0)[0]
    told = OnlineMetrics([], [], None, language="en").rows([{}], text, [[1]], 0)[0]
    assert (silent.language_share, told.language_share) == (None, 1.0)


def test_a_training_logs_them_for_every_step(tiny_model_dir: Path, tmp_path: Path) -> None:
    kept: list[tuple[Any, ...]] = []

    def first_is_even(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        rewards = [float(ids[0] % 2 == 0) for ids in completion_ids]
        kept.append((rewards, [len(ids) for ids in completion_ids]))
        return rewards

    args = R1GRPOConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        gradient_checkpointing=False,
        disable_tqdm=True,
        save_strategy="no",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        max_steps=2,
    )
    rows = [{k: row[k] for k in ("prompt", "solution")} for row in make_rows()]
    trainer = R1GRPOTrainer(
        str(tiny_model_dir),
        reward_funcs=[first_is_even],
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logs) == len(kept) == 2
    for log, (rewards, lengths) in zip(logs, kept, strict=True):
        right = torch.tensor(rewards).view(-1, 4)
        assert log["pass@1"] == pytest.approx(float(right.mean()))
        assert log["pass@4"] == pytest.approx(float(right.max(dim=1).values.mean()))
        assert log["best_of_group"] == pytest.approx(log["pass@4"])
        assert log["completions/length_p50"] == pytest.approx(torch.tensor(lengths).double()
                                                              .quantile(0.5).item())  # fmt: skip
        assert log["rewards/first_is_even/not_gradable"] == 0.0
