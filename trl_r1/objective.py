r"""GRPO's formulas in plain torch: the text to read first.

A policy pi answers each question q with a group of G outputs o_1 ... o_G. Each output gets a reward
r_i, and the whole algorithm is what is below: how far above its group an output is (`advantages`),
how that moves the probability of its tokens without a step that is too long (`clipped_surrogate`),
and how the policy is kept near a reference (`k3`). `grpo_loss` puts them together; there is no
value model anywhere. In the DeepSeek-R1 paper (arXiv 2501.12948) these are equations 1 to 3, in
DeepSeekMath (arXiv 2402.03300), which introduced them and spells out the tokens, 3 and 4:

    J(pi) = E[ 1/G sum_i 1/|o_i| sum_t ( min(ratio A_i, clip(ratio, 1 - eps, 1 + eps) A_i)
                                         - beta (pi_ref/pi - log(pi_ref/pi) - 1) ) ]
    ratio = pi(o_it | q, o_i<t) / pi_old(o_it | q, o_i<t)
    A_i   = (r_i - mean(r)) / std(r)

Under the paper come the variants that TRL has, by TRL's names (`LOSS_TYPES`, `Objective`). The
trainer computes its loss with TRL, not with this; the tests hold TRL's loss to what is here.

Shapes: B outputs (rows), the groups of G one after the other, T tokens of an output, padded.
Left out: models, sampling, several processes, gradient accumulation, and TRL's other way to add
rewards up (`normalize_then_sum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

import torch
from torch import Tensor

# TRL adds it to the standard deviation, so that a group without variance gives 0 and not NaN.
STD_EPSILON = 1e-4


# --- The paper -----------------------------------------------------------------------------------


def advantages(
    rewards_B: Tensor,
    group_size: int,
    scale: str = "group",
    *,
    correction: int = 1,
    epsilon: float = STD_EPSILON,
) -> Tensor:
    """How much better each output is than its group (the paper's equation 3).

    Two outputs of four are right. With the plain standard deviation, which is 0.5, the right ones
    are one standard deviation above the mean and the wrong ones one below:

    >>> rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
    >>> advantages(rewards, 4, correction=0, epsilon=0.0)
    tensor([ 1.,  1., -1., -1.])

    TRL takes Bessel's (divided by G - 1, here 0.577) and adds 1e-4, so the numbers are smaller:

    >>> advantages(rewards, 4)
    tensor([ 0.8659,  0.8659, -0.8659, -0.8659])

    A group whose rewards are all the same says nothing about what to do more of:

    >>> advantages(torch.ones(4), 4)
    tensor([0., 0., 0., 0.])

    Args:
        rewards_B: a reward an output; NaN where it could not be graded, which gives it 0 and leaves
            it out of its group's mean and deviation.
        group_size: G, which divides B.
        scale: what to divide by: `group`, the deviation of the group; `batch`, of all B rewards;
            `none`, nothing (Dr. GRPO, arXiv 2503.20783).
        correction: 1 for Bessel's deviation, 0 for the plain one.
        epsilon: added to the deviation.

    Raises:
        ValueError: B is not made of groups of G, or `scale` is none of the three.
    """
    if rewards_B.numel() % group_size:
        raise ValueError(f"{rewards_B.numel()} rewards are no groups of {group_size}")
    groups_PG = rewards_B.view(-1, group_size)
    centred_PG = groups_PG - groups_PG.nanmean(dim=1, keepdim=True)
    if scale == "group":
        std = _std(groups_PG, correction)
    elif scale == "batch":
        std = _std(rewards_B.view(1, -1), correction)
    elif scale == "none":
        std, epsilon = torch.ones(1, 1, dtype=rewards_B.dtype, device=rewards_B.device), 0.0
    else:
        raise ValueError(f"scale is {scale!r}; it must be group, batch or none")
    return (centred_PG / (std + epsilon)).flatten().nan_to_num(nan=0.0)


def _std(values: Tensor, correction: int) -> Tensor:
    """Standard deviation of each row (kept as a column), NaN left out."""
    count = (~values.isnan()).sum(dim=1, keepdim=True)
    squares = (values - values.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - correction)).sqrt()


def clipped_surrogate(
    ratio: Tensor,
    advantage: Tensor,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    delta: float | None = None,
) -> Tensor:
    """What is made large: min(ratio A, clip(ratio) A), of the paper's equation 1 and PPO.

    The gradient stops where the ratio has already moved far enough the way the advantage asks for;
    a ratio that went the wrong way is always pulled back:

    >>> ratio = torch.tensor([0.5, 1.0, 2.0])
    >>> clipped_surrogate(ratio, torch.tensor(1.0))  # more of it, but no more than 1.2
    tensor([0.5000, 1.0000, 1.2000])
    >>> clipped_surrogate(ratio, torch.tensor(-1.0))  # less of it, but no less than 0.8
    tensor([-0.8000, -1.0000, -2.0000])

    Args:
        ratio: pi / pi_old, of any shape that fits the advantage.
        advantage: of shape (B, 1) or (B, T).
        epsilon_low: how far below 1 the ratio counts.
        epsilon_high: how far above 1; larger than `epsilon_low` in DAPO (arXiv 2503.14476), and 10,
            which is hardly a limit, in the paper's second RL stage.
        delta: a cap of the ratio where the advantage is negative too (two-sided clipping, arXiv
            2505.07291), or None.
    """
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    free = ratio if delta is None else ratio.clamp(max=delta)
    return torch.min(free * advantage, clipped * advantage)


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Estimate of KL(pi || pi_ref) from one token: x - log x - 1 with x = pi_ref / pi.

    The paper's equation 2, DeepSeekMath's 4. Its mean over tokens drawn from pi is the divergence,
    and unlike the plain -log x it is never negative. Its *gradient* on such tokens is another
    matter: it is that of KL(pi_ref || pi). Multiplied by the ratio it is the gradient of
    KL(pi || pi_ref); TRL calls that `use_bias_correction_kl` (DeepSeek-V3.2, arXiv 2512.02556) and
    has it on by default, the R1 paper has it not.

    Args:
        logps: log-probabilities of the tokens under pi, of any shape.
        ref_logps: the same under the reference.
    """
    log_x = ref_logps - logps
    return log_x.exp() - log_x - 1


def grpo_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    ref_logps_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    epsilon: float = 0.2,
    beta: float = 0.001,
) -> Tensor:
    """The paper's objective (equation 1) as a loss: its negative, to be made small.

    Mean over the tokens of an output, then over outputs, so a token of a long output counts less.
    The same as `Objective(...).loss(...)` with the defaults, without the variants around it.

    Args:
        logps_BT: log-probabilities of the outputs' tokens under pi; the gradient is theirs.
        old_logps_BT: under the policy that wrote them. Where that is pi itself, the ratio is 1 but
            its gradient is not zero: pass `logps_BT.detach()`.
        ref_logps_BT: under the reference.
        advantages_B: one an output.
        mask_BT: 1 for tokens of an output, 0 for padding.
    """
    ratio_BT = (logps_BT - old_logps_BT).exp()
    gain_BT = clipped_surrogate(ratio_BT, advantages_B.unsqueeze(1), epsilon, epsilon)
    objective_BT = gain_BT - beta * k3(logps_BT, ref_logps_BT)
    return -mean_of_rows(objective_BT, mask_BT)


def mean_of_rows(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over each row's tokens, then over rows; a row without tokens counts as 0."""
    return ((values_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1.0)).mean()


# --- Variants, by TRL's names --------------------------------------------------------------------


@dataclass(frozen=True)
class Objective:
    """A loss of TRL's GRPO family; the defaults are the paper's.

    The fields have the names and meanings of TRL's `GRPOConfig`, where each names its paper.
    """

    loss_type: str = "grpo"
    importance_sampling_level: str = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.001
    use_bias_correction_kl: bool = False
    max_completion_length: int | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0

    @classmethod
    def from_args(cls, args: object) -> Objective:
        """The objective of a `GRPOConfig`."""
        return cls(**{field.name: getattr(args, field.name) for field in fields(cls)})

    def loss(
        self,
        logps_BT: Tensor,
        advantages: Tensor,
        mask_BT: Tensor,
        *,
        old_logps_BT: Tensor | None = None,
        ref_logps_BT: Tensor | None = None,
        weights: Tensor | None = None,
        num_tokens: Tensor | float | None = None,
    ) -> Tensor:
        """The loss of one batch, a scalar.

        Args:
            logps_BT: log-probabilities under pi, with gradient.
            advantages: of shape (B,) or (B, T).
            mask_BT: 1 for tokens that count, 0 for padding, tool results and cut-off outputs.
            old_logps_BT: under the policy that wrote the outputs; None for pi itself.
            ref_logps_BT: under the reference; not needed with beta 0.
            weights: what the surrogate, but not the KL penalty, is multiplied by, (B, 1) or (B, T):
                importance weights against another sampler (for VESPO they are part of the ratio),
                or masks (tokens of high entropy, outputs far off-policy).
            num_tokens: tokens to divide by in dapo, cispo and vespo; None for those of this batch.

        Raises:
            ValueError: an unknown `loss_type` or level, or an argument that it needs is missing.
        """
        advantage = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
        old_BT = logps_BT.detach() if old_logps_BT is None else old_logps_BT
        ratio = self.ratio(logps_BT - old_BT, mask_BT)
        if self.loss_type == "vespo":
            phi_B1 = self.vespo_weight(logps_BT - old_BT, advantage, mask_BT, weights)
            loss = -phi_B1 * advantage * logps_BT
        else:
            loss = -self._gain(logps_BT, ratio, advantage)
            loss = loss if weights is None else loss * weights
        if self.beta:
            if ref_logps_BT is None:
                raise ValueError(f"beta is {self.beta:g}, so ref_logps_BT is needed")
            kl_BT = k3(logps_BT, ref_logps_BT)
            loss = loss + self.beta * (kl_BT * ratio if self.use_bias_correction_kl else kl_BT)
        return self._aggregate(loss, mask_BT, num_tokens)

    def ratio(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """pi / pi_old: of each token, or one an output, (B, 1): the geometric mean (GSPO)."""
        if self.importance_sampling_level == "token":
            return log_ratio_BT.exp()
        if self.importance_sampling_level == "sequence":
            count_B1 = mask_BT.sum(1, keepdim=True).clamp(min=1.0)
            return ((log_ratio_BT * mask_BT).sum(1, keepdim=True) / count_B1).exp()
        raise ValueError(f"importance_sampling_level is {self.importance_sampling_level!r}")

    def _gain(self, logps_BT: Tensor, ratio: Tensor, advantage: Tensor) -> Tensor:
        """What the policy is to have more of, token by token."""
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.loss_type == "cispo":  # the ratio is a weight, capped; no token loses its gradient
            return ratio.clamp(max=high).detach() * advantage * logps_BT
        if self.loss_type == "sapo":  # a sigmoid in place of the clip, of slope 1 where ratio is 1
            positive, negative = self.sapo_temperature_pos, self.sapo_temperature_neg
            heat = torch.where(advantage > 0, positive, negative)
            return torch.sigmoid(heat * (ratio - 1)) * 4 / heat * advantage
        return clipped_surrogate(ratio, advantage, self.epsilon, high, self.delta)

    @torch.no_grad()
    def vespo_weight(
        self, log_ratio_BT: Tensor, advantage: Tensor, mask_BT: Tensor, weights: Tensor | None
    ) -> Tensor:
        """VESPO's weight of an output, phi(w) = exp(lambda) w^k exp(-lambda w), (B, 1).

        w is the ratio of the whole output, so phi(1) = 1; k and lambda go by the advantage's sign.
        """
        floor = math.log(1e-8)
        log_w = (log_ratio_BT.clamp(-20.0, 20.0) * mask_BT).sum(1, keepdim=True)
        if weights is not None:
            log_w = log_w + weights.log().clamp(floor, 20.0).sum(1, keepdim=True)
        log_w = log_w.clamp(floor, 20.0)
        k = torch.where(advantage >= 0, self.vespo_k_pos, self.vespo_k_neg)
        rate = torch.where(advantage >= 0, self.vespo_lambda_pos, self.vespo_lambda_neg)
        rate = rate.clamp(min=1e-4)
        return (rate + k * log_w - rate * log_w.exp()).exp().nan_to_num(0.0, 0.0, 0.0)

    def _aggregate(
        self, loss: Tensor, mask_BT: Tensor, num_tokens: Tensor | float | None
    ) -> Tensor:
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"loss_type is {self.loss_type!r}; there are {', '.join(LOSS_TYPES)}")
        if self.loss_type == "dr_grpo" and self.max_completion_length is None:
            raise ValueError("dr_grpo divides by max_completion_length, which is None")
        tokens = mask_BT.sum() if num_tokens is None else torch.as_tensor(num_tokens)
        return LOSS_TYPES[self.loss_type](
            loss, mask_BT, tokens.clamp(min=1.0), self.max_completion_length or 0
        )


def _rows(loss: Tensor, mask_BT: Tensor, tokens: Tensor, max_length: int) -> Tensor:
    return mean_of_rows(loss, mask_BT)


def _tokens_here(loss: Tensor, mask_BT: Tensor, tokens: Tensor, max_length: int) -> Tensor:
    return (loss * mask_BT).sum() / mask_BT.sum().clamp(min=1.0)


def _tokens_of_step(loss: Tensor, mask_BT: Tensor, tokens: Tensor, max_length: int) -> Tensor:
    return (loss * mask_BT).sum() / tokens


def _constant(loss: Tensor, mask_BT: Tensor, tokens: Tensor, max_length: int) -> Tensor:
    return (loss * mask_BT).sum() / (mask_BT.size(0) * max_length)


def _sums_of_rows(loss: Tensor, mask_BT: Tensor, tokens: Tensor, max_length: int) -> Tensor:
    return (loss * mask_BT).sum(1).mean()


# How the losses of the tokens become one number; what differs is what a long output weighs.
LOSS_TYPES: Mapping[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = MappingProxyType(
    {
        "grpo": _rows,  # mean over an output's tokens, then over outputs: the paper
        "sapo": _rows,
        "bnpo": _tokens_here,  # mean over the tokens of the micro-batch
        "dapo": _tokens_of_step,  # mean over the tokens of the optimizer step
        "cispo": _tokens_of_step,
        "vespo": _tokens_of_step,
        "dr_grpo": _constant,  # sum over tokens, over a constant length
        "luspo": _sums_of_rows,  # sum over an output's tokens, mean over outputs
    }
)
