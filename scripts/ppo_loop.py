"""A step of PPO, and of GRPO, in plain torch: what `bench_ppo.py` measures the value model with.

Left out: generation, several epochs over a batch, and the KL penalty in the reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from trl_r1.objective import Objective, advantages

GROUP = 8
PROMPT_LENGTH = 24
VALUE_CLIP = 0.2


@dataclass(frozen=True)
class Settings:
    """What all sides have in common."""

    model: str
    device: str = "cpu"
    completions: int = 32
    micro_batch: int = 8
    max_length: int = 512
    beta: float = 0.001
    gae_lambda: float = 1.0
    learning_rate: float = 1e-6
    steps: int = 1


@dataclass(frozen=True)
class Rollouts:
    """B completions with their rewards; groups one after the other."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    rewards: Tensor


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16) over right-padded rows.

    Args:
        rewards_BT: what each token earned.
        values_BT: the critic's value before each token.
        mask_BT: 1 for tokens; after the last one the value is 0.

    Returns:
        Advantages and returns, the critic's targets; both 0 at padding.
    """
    values_BT = values_BT * mask_BT
    after_BT = torch.cat([values_BT[:, 1:], torch.zeros_like(values_BT[:, :1])], dim=1)
    surprise_BT = (rewards_BT + gamma * after_BT - values_BT) * mask_BT
    running_B = torch.zeros_like(values_BT[:, 0])
    columns = []
    for surprise_B in reversed(surprise_BT.unbind(1)):
        running_B = surprise_B + gamma * gae_lambda * running_B
        columns.append(running_B)
    advantages_BT = torch.stack(columns[::-1], dim=1) * mask_BT
    return advantages_BT, advantages_BT + values_BT


def value_loss(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """PPO's clipped squared error, a mean over tokens."""
    clipped_BT = old_BT + (values_BT - old_BT).clamp(-VALUE_CLIP, VALUE_CLIP)
    errors_BT = torch.max((values_BT - returns_BT) ** 2, (clipped_BT - returns_BT) ** 2)
    return 0.5 * (errors_BT * mask_BT).sum() / mask_BT.sum()


class PlainLoop:
    """A step of PPO, or of GRPO where there is no critic, in plain torch and transformers."""

    def __init__(self, settings: Settings, rollouts: Rollouts, *, has_critic: bool) -> None:
        self.settings, self.rollouts = settings, rollouts
        self.objective = Objective(beta=settings.beta)
        self.policy = self._load(AutoModelForCausalLM).train()
        self.reference = self._load(AutoModelForCausalLM).eval() if settings.beta else None
        self.critic = None
        self.optimizers = [self._adam(self.policy)]
        if has_critic:
            self.critic = self._load(AutoModelForTokenClassification, num_labels=1).train()
            self.optimizers.append(self._adam(self.critic))

    def _load(self, architecture: Any, **kwargs: Any) -> Any:
        model = architecture.from_pretrained(self.settings.model, dtype=torch.float32, **kwargs)
        return model.to(self.settings.device)

    def _adam(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.learning_rate)

    def step(self) -> None:
        ids, mask, prompt_length = self._batch()
        mask_BT = mask[:, prompt_length:]
        rows = list(self._micro_batches(len(ids)))
        ref_BT, advantages_BT, values_BT, returns_BT = None, None, None, None
        rewards_B = self.rollouts.rewards.to(ids.device)
        with torch.no_grad():
            if self.reference is not None:
                ref_BT = torch.cat([self._logps(self.reference, ids[i], mask[i]) for i in rows])
            if self.critic is None:
                advantages_BT = advantages(rewards_B, GROUP).unsqueeze(1)
            else:
                values_BT = torch.cat([self._values(ids[i], mask[i]) for i in rows])
                advantages_BT, returns_BT = self._by_gae(rewards_B, values_BT, mask_BT)
        for i in rows:
            loss = self.objective.loss(
                self._logps(self.policy, ids[i], mask[i]),
                advantages_BT[i],
                mask_BT[i],
                ref_logps_BT=None if ref_BT is None else ref_BT[i],
            )
            (loss / len(rows)).backward()
            if self.critic is not None:
                new_BT = self._values(ids[i], mask[i])
                loss = value_loss(new_BT, values_BT[i], returns_BT[i], mask_BT[i])
                (loss / len(rows)).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def _by_gae(
        self, rewards_B: Tensor, values_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The reward at the last token; advantages whitened over the batch, as PPO has them."""
        last_B = mask_BT.sum(1).long() - 1
        rewards_BT = torch.zeros_like(values_BT).scatter(1, last_B[:, None], rewards_B[:, None])
        gained_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, 1.0, self.settings.gae_lambda)
        gained = gained_BT[mask_BT.bool()]
        return (gained_BT - gained.mean()) / (gained.std() + 1e-8) * mask_BT, returns_BT

    def _batch(self) -> tuple[Tensor, Tensor, int]:
        """Ids and mask of prompts and completions, padded to the longest as TRL does."""
        rows = self.rollouts.completion_ids
        longest = max(map(len, rows))
        pairs = zip(self.rollouts.prompt_ids, rows, strict=True)
        ids = [prompt + row + [0] * (longest - len(row)) for prompt, row in pairs]
        mask = [[1.0] * (PROMPT_LENGTH + len(row)) + [0.0] * (longest - len(row)) for row in rows]
        device = self.settings.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device), PROMPT_LENGTH

    def _micro_batches(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.settings.micro_batch):
            yield slice(start, start + self.settings.micro_batch)

    def _logps(self, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        keep = ids.shape[1] - PROMPT_LENGTH
        logits = model(ids, attention_mask=mask, logits_to_keep=keep + 1).logits[:, :-1]
        logps = logits.log_softmax(-1)
        return logps.gather(-1, ids[:, PROMPT_LENGTH:, None]).squeeze(-1)

    def _values(self, ids: Tensor, mask: Tensor) -> Tensor:
        assert self.critic is not None
        values = self.critic(ids, attention_mask=mask).logits.squeeze(-1)
        return values[:, PROMPT_LENGTH - 1 : -1]
