"""A reward file for tests that also makes every completion depend on its prompt alone.

Processes draw from random numbers of their own, so a run in two of them can't have the completions
of a run in one. Here each is drawn by `generate` alone, from the current policy, with a seed made
of the step, the prompt and its number in the group: the same whichever process draws it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch
from trl import GRPOTrainer

from trl_r1.sampling import derive_seed


def _per_row(
    self: Any, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
) -> tuple[list[list[int]], None]:
    model = self.accelerator.unwrap_model(self.model)
    was_training = model.training
    model.eval()
    state = torch.get_rng_state()
    numbers: Counter[str] = Counter()
    ends = self.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends)
    drawn = []
    for ids in prompt_ids:
        name = json.dumps(ids)
        numbers[name] += 1
        seed = derive_seed(self.state.global_step, name, numbers[name])
        torch.manual_seed(seed)
        with torch.no_grad():
            output = model.generate(
                input_ids=torch.tensor([ids]), generation_config=self.generation_config
            )
        tokens = output[0, len(ids) :].tolist()
        end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        drawn.append(tokens[: end + 1])
    torch.set_rng_state(state)
    model.train(was_training)
    return drawn, None


GRPOTrainer._generate_single_turn = _per_row


def token_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Something that differs within a group, whatever the model has learned."""
    return [sum(token % 7 for token in ids) / 50 for ids in completion_ids]
