"""Dynamic sampling: groups that teach nothing make way for groups of further prompts.

Where all outputs of a prompt get the same reward, their advantages are zero: the prompt is too
easy or too hard by now. DAPO (arXiv 2503.14476, section 3.2) goes on drawing prompts until the
batch is full of groups with signal. Here that is done at most `dynamic_sampling_max_rounds` times,
with as many prompts as the share of groups with signal so far makes necessary; groups that still
lack signal then stay in the batch, which keeps its size. The log has `dynamic_sampling/...`.

Further prompts are drawn from the data set in an order that the seed and the number of the batch
alone decide, so that a resumed run draws the same. They are not taken out of the schedule: the
same prompt may come again in its own turn. Every process sees all rewards and so decides alike;
groups may lie across processes. Left out: images, iterable data sets, and ways to scale rewards in
which one group's advantages hang on another's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from trl_r1.training.data import RolloutPlan

# What stands at padded places of each tensor; 0 where nothing is said.
_PADDING = {"tool_mask": 1, "importance_sampling_ratio": 1.0}


def phase_starts(from_steps: Iterable[int], plan: RolloutPlan) -> list[int]:
    """The rows of a schedule of prompts (`schedule_prompts`) from which on its mixture is another.

    Args:
        from_steps: optimizer steps at which sources begin.
        plan: of the schedule.
    """
    starts = {0}
    for step in from_steps:
        micro_steps = max(step, 0) * plan.micro_steps_per_update
        generation = math.ceil(micro_steps / plan.micro_steps_per_generation)
        starts.add(generation * plan.prompts_per_generation)
    return sorted(starts)


class DynamicSampling:
    """Fills the batches of a trainer.

    Args:
        trainer: an `R1GRPOTrainer`, fully built.
        phase_starts: rows of its data set, ascending from 0, at which another mixture of prompts
            begins; further prompts come from the phase of the batch.

    Raises:
        ValueError: settings in which it can't work, or a reward that is not there.
    """

    def __init__(self, trainer: Any, phase_starts: Sequence[int] = (0,)) -> None:
        args = trainer.args
        self.trainer, self.phase_starts = trainer, list(phase_starts)
        self.max_rounds = int(getattr(args, "dynamic_sampling_max_rounds", 0))
        self.reward_name: str | None = getattr(args, "dynamic_sampling_reward", None)
        if not self.max_rounds:
            return
        if self.reward_name not in (None, *trainer.reward_func_names):
            raise ValueError(
                f"dynamic_sampling_reward {self.reward_name!r} is no reward; there are: "
                f"{trainer.reward_func_names}"
            )
        if not hasattr(trainer.train_dataset, "__getitem__"):
            raise ValueError("dynamic_sampling_max_rounds needs a data set that is no stream")
        if (
            args.scale_rewards not in ("group", "none")
            or args.multi_objective_aggregation != "sum_then_normalize"
        ):
            raise ValueError(
                "dynamic_sampling_max_rounds needs advantages of the group alone: scale_rewards "
                "'group' or 'none' and multi_objective_aggregation 'sum_then_normalize'"
            )

    def complete(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[bool]]]:
        """Generate for `inputs`, then for further prompts while groups lack signal.

        Args:
            inputs: this process's rows, as TRL's sampler repeats them.

        Returns:
            The batch that is trained on, of the size of `inputs`, and for each round which of this
            process's rows are in it.
        """
        rounds = [self.trainer._generate_round(inputs)]
        if not self.max_rounds:
            return rounds[0], [[True] * len(inputs)]
        live_P = self._has_signal()
        batch = [(0, group) for group in range(len(live_P))]
        lacking = [group for group, is_live in enumerate(live_P) if not is_live]
        sizes, num_live = [len(live_P)], sum(live_P)
        prompts = self._further_prompts(inputs) if lacking else iter(())
        while lacking and len(rounds) <= self.max_rounds:
            wanted = self._num_prompts(len(lacking), num_live / sum(sizes), len(batch))
            drawn = list(islice(prompts, wanted))
            if len(drawn) < wanted:  # the data set has no more
                break
            rounds.append(self.trainer._generate_round(self._own_rows(drawn)))
            live_P = self._has_signal()
            found = [group for group, is_live in enumerate(live_P) if is_live]
            for slot, group in zip(lacking, found, strict=False):
                batch[slot] = (len(rounds) - 1, group)
            lacking = lacking[len(found) :]
            sizes.append(len(live_P))
            num_live += sum(live_P)
        self._log(sizes, len(lacking))
        output = rounds[0] if len(rounds) == 1 else self._merge(rounds, sizes, batch)
        return output, self._uses(sizes, batch)

    def _has_signal(self) -> list[bool]:
        """Of each group of the last round, over all processes, whether its rewards differ."""
        rewards_BF: torch.Tensor = self.trainer.last_rewards
        if self.reward_name is not None:
            values = rewards_BF[:, self.trainer.reward_func_names.index(self.reward_name)]
        else:
            values = (rewards_BF * self.trainer.reward_weights.to(rewards_BF.device)).nansum(1)
            values[torch.isnan(rewards_BF).all(1)] = torch.nan
        groups_PG = values.view(-1, self.trainer.num_generations).double()
        most = groups_PG.nan_to_num(nan=-math.inf).amax(1)
        least = groups_PG.nan_to_num(nan=math.inf).amin(1)
        return [bool(is_live) for is_live in most - least > 1e-6]

    def _num_prompts(self, lacking: int, live_share: float, batch_size: int) -> int:
        """Prompts to draw so that, at the share so far, enough of them have signal."""
        group, ranks = self.trainer.num_generations, self.trainer.accelerator.num_processes
        together = ranks // math.gcd(group, ranks)  # so that the rows divide among the processes
        wanted = batch_size if live_share == 0 else math.ceil(lacking / live_share)
        count: int = min(math.ceil(wanted / together) * together, batch_size)
        return count

    def _further_prompts(self, inputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Rows of the phase in the batch's own order, none with a prompt of the batch or twice.

        Called by every process.
        """
        dataset, plan, step = self.trainer.train_dataset, self.trainer.plan, self.trainer._step
        done = int(self.trainer.state.global_step) * plan.micro_steps_per_update
        done += step % plan.micro_steps_per_update
        generation = done // plan.micro_steps_per_generation
        first = generation * plan.prompts_per_generation
        starts = [start for start in self.phase_starts if start <= first] or [0]
        ends = [start for start in self.phase_starts if start > first] or [len(dataset)]
        order = np.random.default_rng([self.trainer.args.seed, generation])
        used = set(map(str, gather_object([row["prompt"] for row in inputs])))
        return self._unused(starts[-1] + order.permutation(ends[0] - starts[-1]), used, inputs[0])

    def _unused(
        self, indices: Any, used: set[str], like: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for index in indices:
            row = self.trainer.train_dataset[int(index)]
            if str(row["prompt"]) not in used:
                used.add(str(row["prompt"]))
                yield {key: row[key] for key in like if key in row}

    def _own_rows(self, drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """This process's part of the prompts, each as often as a group has outputs."""
        accelerator, group = self.trainer.accelerator, self.trainer.num_generations
        rows = [dict(row) for row in drawn for _ in range(group)]
        count = len(rows) // accelerator.num_processes
        return rows[accelerator.process_index * count :][:count]

    def _merge(
        self, rounds: list[dict[str, Any]], sizes: list[int], batch: list[tuple[int, int]]
    ) -> dict[str, Any]:
        """The rows of the batch from the rounds they are of, this process's part.

        Raises:
            ValueError: there are images.
        """
        accelerator, group = self.trainer.accelerator, self.trainer.num_generations
        starts = np.cumsum([0, *sizes[:-1]]) * group
        rows = [int(starts[r]) + g * group + i for r, g in batch for i in range(group)]
        count = len(rows) // accelerator.num_processes
        own = rows[accelerator.process_index * count :][:count]
        merged: dict[str, Any] = {}
        for key, value in rounds[0].items():
            if not isinstance(value, torch.Tensor) or key == "pixel_values":
                raise ValueError("dynamic_sampling_max_rounds can't move images between batches")
            if value.dim():
                parts = [output[key] for output in rounds]
                merged[key] = self._joined(key, parts)[torch.tensor(own, device=value.device)]
        mask = merged["completion_mask"] * merged.get("tool_mask", 1)
        merged["num_items_in_batch"] = accelerator.gather(mask.sum()).sum()
        return merged

    def _joined(self, key: str, parts: list[torch.Tensor]) -> torch.Tensor:
        """The rows of all processes and rounds, padded to one width."""
        is_prompt, value = key.startswith("prompt"), _PADDING.get(key, 0)
        if key in ("prompt_ids", "completion_ids"):
            value = self.trainer._tokenizer.pad_token_id
        accelerator = self.trainer.accelerator
        whole = []
        for part in parts:
            if part.dim() > 1:
                part = accelerator.pad_across_processes(
                    part.contiguous(), dim=1, pad_index=value, pad_first=is_prompt
                )
            whole.append(accelerator.gather(part))
        if whole[0].dim() == 1:
            return torch.cat(whole)
        width = max(part.size(1) for part in whole)
        sides = [(width - part.size(1), 0) for part in whole]
        return torch.cat(
            [
                torch.nn.functional.pad(part, side if is_prompt else side[::-1], value=value)
                for part, side in zip(whole, sides, strict=True)
            ]
        )

    def _uses(self, sizes: list[int], batch: list[tuple[int, int]]) -> list[list[bool]]:
        accelerator, group = self.trainer.accelerator, self.trainer.num_generations
        used, uses = set(batch), []
        for index, size in enumerate(sizes):
            flags = [(index, g) in used for g in range(size) for _ in range(group)]
            count = len(flags) // accelerator.num_processes
            uses.append(flags[accelerator.process_index * count :][:count])
        return uses

    def _log(self, sizes: list[int], num_lacking: int) -> None:
        metrics = self.trainer._metrics["train"]
        metrics["dynamic_sampling/rounds"].append(float(len(sizes) - 1))
        metrics["dynamic_sampling/further_prompts"].append(float(sum(sizes[1:])))
        metrics["dynamic_sampling/groups_without_signal"].append(num_lacking / sizes[0])
