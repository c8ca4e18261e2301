"""Rows are cut into micro-batches of little padding, and come back where they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trl_r1.stages.grpo.micro_batches import (
    NORMALIZERS,
    CompactRows,
    RowLengths,
    Window,
    normalizer,
    plan_micro_batches,
)


def padded(plan: list[list[int]], lengths: list[int]) -> list[int]:
    return [len(batch) * max(lengths[row] for row in batch) for batch in plan]


def test_equal_rows_fill_the_limit() -> None:
    assert [len(batch) for batch in plan_micro_batches([10] * 8, 40)] == [4, 4]


def test_rows_of_like_length_go_together_the_longest_first() -> None:
    plan = plan_micro_batches([100, 10, 99, 12, 11], 200)
    assert [sorted(batch) for batch in plan] == [[0, 2], [1, 3, 4]]


def test_a_row_over_the_limit_is_alone() -> None:
    plan = plan_micro_batches([500, 20, 20], 100)
    assert [sorted(batch) for batch in plan] == [[0], [1, 2]]


@pytest.mark.parametrize("num_rows", [1, 7, 64, 300])
def test_every_row_is_in_one_micro_batch_within_the_limit(num_rows: int) -> None:
    drawn = np.random.default_rng(num_rows).lognormal(np.log(100), 0.8, num_rows)
    lengths = np.clip(drawn, 1, 512).astype(int).tolist()
    plan = plan_micro_batches(lengths, 4096)
    assert sorted(row for batch in plan for row in batch) == list(range(num_rows))
    assert max(padded(plan, lengths)) <= 4096


def test_little_is_padding_where_lengths_are_lognormal() -> None:
    drawn = np.random.default_rng(0).lognormal(np.log(100), 0.8, 64)
    lengths = (40 + np.clip(drawn, 1, 512).astype(int)).tolist()
    plan = plan_micro_batches(lengths, 8 * (40 + 512))
    assert sum(lengths) / sum(padded(plan, lengths)) > 0.95


def test_no_more_micro_batches_than_saved_padding_pays_for() -> None:
    lengths = [100, 101, 102, 103]
    assert len(plan_micro_batches(lengths, 412)) == 1


# Two rows in TRL's layout: prompts [1 2] and [3], completions [4] and [5 6 7].
IDS = torch.tensor([[1, 2, 4, 0, 0], [0, 3, 5, 6, 7]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])


def test_compact_rows_have_no_padding_on_the_left() -> None:
    rows = CompactRows.of(IDS, RowLengths.of(MASK, logits_to_keep=3))
    assert rows.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert (rows.input_ids * rows.attention_mask).tolist() == [[1, 2, 4, 0], [3, 5, 6, 7]]
    assert rows.logits_to_keep == 3  # the shortest prompt is one token


def test_values_come_back_to_the_columns_of_the_completions() -> None:
    rows = CompactRows.of(IDS, RowLengths.of(MASK, logits_to_keep=3))
    values = rows.input_ids[:, -rows.logits_to_keep :].float()
    assert rows.back(values, 3).tolist() == [[4, 0, 0], [5, 6, 7]]


def test_a_completion_that_is_masked_as_a_whole_has_no_values() -> None:
    mask = MASK.clone()
    mask[1, 2:] = 0
    rows = CompactRows.of(IDS, RowLengths.of(mask, logits_to_keep=3))
    assert rows.back(rows.input_ids[:, -rows.logits_to_keep :].float(), 3).tolist() == [
        [4, 0, 0],
        [0, 0, 0],
    ]


def micro_step(advantages: list[float], lengths: list[int], num_items: int) -> dict[str, object]:
    """TRL's inputs of one micro-step, prompts of one token."""
    width = max(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    ones = torch.ones(len(lengths), 1, dtype=torch.long)
    return {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": 7 * mask,
        "completion_mask": mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(num_items),
    }


def window(loss_type: str) -> Window:
    steps = [micro_step([1.0, 0.0], [2, 4], 6), micro_step([0.0, -1.0], [6, 3], 9)]
    return Window.of(steps, loss_type)


def test_rows_of_several_generations_are_padded_to_one_width() -> None:
    joined = window("grpo").inputs
    assert joined["completion_mask"].sum(1).tolist() == [2, 4, 6, 3]
    assert joined["completion_ids"].shape == (4, 6)


def test_rows_without_advantage_are_left_out_and_one_row_stays() -> None:
    rows = window("grpo")
    assert rows.rows_with_signal(0.0).tolist() == [0, 3]
    assert rows.rows_with_signal(None).tolist() == [0, 1, 2, 3]
    assert rows.rows_with_signal(1.0).tolist() == [0], "the shortest, where none has a signal"


def test_rows_whose_tokens_are_all_masked_are_left_out() -> None:
    rows = window("grpo")
    rows.inputs["completion_mask"][0] = 0
    assert rows.rows_with_signal(None).tolist() == [1, 2, 3]


# Worked out by hand for rows 0 and 3 in one micro-batch: TRL weighs a row by 1/2 (rows of its
# micro-step), 1/6 and 1/9 (tokens of its micro-step or generation); alone, the two weigh 1/2, 1/5
# (tokens), or 1/6 (the first's generation).
@pytest.mark.parametrize(
    ("loss_type", "wanted"),
    [("grpo", [1.0, 1.0]), ("bnpo", [5 / 6, 5 / 9]), ("dapo", [1.0, 6 / 9])],
)
def test_weights_give_each_row_the_part_it_has_in_trls_loss(
    loss_type: str, wanted: list[float]
) -> None:
    rows, taken = window(loss_type), torch.tensor([0, 3])
    inputs = rows.take(taken)
    assert inputs["completion_mask"].shape == (2, 3), "as wide as the longer of the two"
    assert rows.weights(taken, inputs, loss_type).tolist() == pytest.approx(wanted)


def test_tokens_of_tools_do_not_count() -> None:
    inputs = {**micro_step([1.0], [4], 4), "tool_mask": torch.tensor([[1, 0, 0, 1]])}
    assert normalizer(inputs, "bnpo") == 2


def test_the_loss_types_are_those_of_trl() -> None:
    from trl.trainer import grpo_trainer

    source = open(grpo_trainer.__file__, encoding="utf-8").read()  # noqa: SIM115, PTH123
    assert all(f'"{loss_type}"' in source for loss_type in NORMALIZERS)
