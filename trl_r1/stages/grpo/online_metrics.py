"""What a batch of completions says about the policy, for the log of each step.

    pass@1, pass@2, pass@4 ...      chance that one of k answers to a prompt is right
    majority_accuracy               share of prompts whose most frequent answer is right
    best_of_group                   best weighted reward of a group, mean over prompts
    language_share                  words of the reasoning in the wanted language
    completions/length_p10 ... p99  percentiles of the length in tokens
    rewards/NAME/not_gradable       share of the rows a reward applies to that it gave None

All are over the batch of all processes. They need no further sampling: the group of a prompt is
there. Sampled at training temperature on prompts that are trained on, they follow a run; held-out
scores are an evaluation's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from trl_r1.rewards.language_consistency import LANGUAGES, language_share, reasoning_text
from trl_r1.rewards.math_answer import answers_match, completion_text, final_answer
from trl_r1.stages.grpo.verdicts import recipe_entry, reward_applies

PERCENTILES = (10, 50, 90, 99)
_MAX_ANSWER_CHARS = 200  # longer ones are no votes: they go through the network at every step


@dataclass(frozen=True)
class RowFigures:
    """What is known of one completion besides its rewards.

    Attributes:
        length: in tokens.
        answer: its final answer, None where there is none.
        language_share: of its reasoning; None where no language is wanted or there is no reasoning.
        applies: for each reward, whether the row is one of those it grades.
    """

    length: int
    answer: str | None
    language_share: float | None
    applies: tuple[bool, ...]


def pass_at_k(correct_PG: torch.Tensor, k: int) -> float:
    """Mean over prompts of the chance that one of k answers, drawn without putting back, is right.

    The unbiased estimate 1 - C(n - c, k) / C(n, k) of Chen et al. (arXiv 2107.03374, equation 1),
    for c right answers of n.

    Args:
        correct_PG: 1 for right and 0 for wrong, NaN for an answer that was not graded; of shape
            (prompts, answers).
        k: answers that may be tried.

    Returns:
        The mean over the prompts with at least k graded answers; NaN where there is none.
    """
    chances = []
    for row in correct_PG:
        graded = row[~torch.isnan(row)]
        n, c = len(graded), int((graded > 0).sum())
        if n >= k:
            chances.append(1.0 - math.comb(n - c, k) / math.comb(n, k))
    return sum(chances) / len(chances) if chances else math.nan


def best_of_group(rewards_PG: torch.Tensor) -> float:
    """Best reward of each prompt, mean over prompts; NaN rewards do not count.

    Args:
        rewards_PG: of shape (prompts, answers).

    Returns:
        The mean; NaN where nothing was graded.
    """
    best = rewards_PG.nan_to_num(nan=-math.inf).max(dim=1).values
    best = best[torch.isfinite(best)]
    return float(best.mean()) if len(best) else math.nan


def majority_accuracy(
    answers_PG: Sequence[Sequence[str | None]], correct_PG: torch.Tensor
) -> float:
    """Share of prompts whose most frequent answer is right (the paper's cons@k, with k the group).

    Answers that are equal as `math_answer` compares them are one. Missing answers have no vote;
    where several answers have the most votes, the mean over them counts.

    Args:
        answers_PG: final answers, P lists of G.
        correct_PG: 1 or 0 for each, NaN where it was not graded; prompts without a graded answer
            are left out.

    Returns:
        The share; NaN where no prompt is left.
    """
    shares = []
    for answers, correct in zip(answers_PG, correct_PG.tolist(), strict=True):
        votes = [(a, c) for a, c in zip(answers, correct, strict=True) if not math.isnan(c)]
        if votes:
            shares.append(_majority([(a, c) for a, c in votes if a is not None]))
    return sum(shares) / len(shares) if shares else math.nan


def _majority(votes: Sequence[tuple[str, float]]) -> float:
    """How right the most frequent answer is; 0 where there is no vote."""
    parties: list[list[float]] = []
    party_of: dict[str, int] = {}
    for answer, correct in votes:
        if answer not in party_of:
            party_of[answer] = next(
                (party_of[other] for other in party_of if answers_match(other, answer)),
                len(parties),
            )
            if party_of[answer] == len(parties):
                parties.append([])
        parties[party_of[answer]].append(correct)
    most = max((len(party) for party in parties), default=0)
    winners = [sum(party) / len(party) for party in parties if len(party) == most]
    return sum(winners) / len(winners) if winners else 0.0


def length_percentiles(lengths_B: Sequence[int]) -> dict[int, float]:
    """Percentiles of lengths, by their number; between two lengths in a straight line."""
    lengths = torch.tensor(lengths_B, dtype=torch.float64)
    return {p: float(torch.quantile(lengths, p / 100)) for p in PERCENTILES}


def group_sizes(group_size: int) -> list[int]:
    """The k of pass@k: powers of two up to the size of a group, and that size."""
    powers = [2**i for i in range(group_size.bit_length()) if 2**i <= group_size]
    return sorted({*powers, group_size})


class OnlineMetrics:
    """The figures of a batch, for a trainer with these rewards.

    Args:
        reward_funcs: the trainer's.
        names: of the rewards.
        accuracy: name of the one that says what is right, with 1.0; None where there is none.
        language: wanted language where rows have no `language`; None for no language there.

    Raises:
        ValueError: an unknown language.
    """

    def __init__(
        self,
        reward_funcs: Sequence[Any],
        names: Sequence[str],
        accuracy: str | None,
        language: str | None = None,
    ) -> None:
        if language is not None and language not in LANGUAGES:
            raise ValueError(f"unknown language {language!r}; known: {', '.join(LANGUAGES)}")
        self.reward_funcs = list(reward_funcs)
        self.names = list(names)
        self.accuracy = accuracy
        self.language = language
        arguments: dict[str, Any] = {}
        for function in self.reward_funcs:
            given = getattr(recipe_entry(function), "args", None)
            arguments.update(given if isinstance(given, Mapping) else {})
        # As the stage's rewards read a response.
        self._prefilled = bool(arguments.get("prefilled", False))
        self._extraction = str(arguments.get("extraction", "marked"))

    def rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        completions: Sequence[Any],
        token_ids: Sequence[Sequence[int]],
        step: int,
    ) -> list[RowFigures]:
        """The figures of this process's B completions.

        Args:
            rows: their data set rows.
            completions: texts or messages.
            token_ids: as generated.
            step: optimizer step.
        """
        applies = [reward_applies(function, rows, step) for function in self.reward_funcs]
        figures = []
        for i, (row, completion, ids) in enumerate(zip(rows, completions, token_ids, strict=True)):
            text = completion_text(completion)
            answer = final_answer(text, self._extraction, self._prefilled)
            if answer is not None and len(answer) > _MAX_ANSWER_CHARS:
                answer = None
            share = self._language_share(text, row.get("language") or self.language)
            figures.append(RowFigures(len(ids), answer, share, tuple(a[i] for a in applies)))
        return figures

    def _language_share(self, text: str, language: Any) -> float | None:
        reasoning = reasoning_text(text, self._prefilled)
        if language not in LANGUAGES or not reasoning.strip():
            return None
        return float(language_share(reasoning, language))

    def batch(
        self,
        figures: Sequence[RowFigures],
        rewards_BF: torch.Tensor,
        weights_F: torch.Tensor,
        group_size: int,
    ) -> dict[str, float]:
        """The metrics of B completions in groups of `group_size`.

        Args:
            figures: B of them, of all processes in their order.
            rewards_BF: rewards of all processes, NaN for None; of shape (B, rewards).
            weights_F: of the rewards.
            group_size: completions a prompt.

        Returns:
            Values by name; what can't be told is left out.
        """
        rewards_BF = rewards_BF.detach().float().cpu()
        found: dict[str, float] = {}
        totals_B = (rewards_BF * weights_F.float().cpu()).nansum(dim=1)
        totals_B[torch.isnan(rewards_BF).all(dim=1)] = math.nan
        found["best_of_group"] = best_of_group(totals_B.view(-1, group_size))
        if self.accuracy is not None:
            scores_B = rewards_BF[:, self.names.index(self.accuracy)]
            correct_B = torch.where(torch.isnan(scores_B), scores_B, (scores_B >= 1.0).float())
            found.update(_accuracies(figures, correct_B.view(-1, group_size)))
        shares = [f.language_share for f in figures if f.language_share is not None]
        if shares:
            found["language_share"] = sum(shares) / len(shares)
        for p, length in length_percentiles([f.length for f in figures]).items():
            found[f"completions/length_p{p}"] = length
        for i, name in enumerate(self.names):
            mine = [r for f, r in zip(figures, rewards_BF[:, i].tolist(), strict=True)
                    if f.applies[i]]  # fmt: skip
            if mine:
                found[f"rewards/{name}/not_gradable"] = sum(map(math.isnan, mine)) / len(mine)
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def log(
        self,
        trainer: Any,
        rows: Sequence[Mapping[str, Any]],
        completions: Sequence[Any],
        token_ids: Sequence[Sequence[int]],
        rewards_BF: torch.Tensor,
    ) -> None:
        """Put the metrics of a batch among a trainer's. Called by every process.

        Args:
            trainer: a `GRPOTrainer`.
            rows, completions, token_ids: this process's.
            rewards_BF: of all processes, as `_calculate_rewards` returns them.
        """
        is_training = trainer.model.training
        figures = gather_object(self.rows(rows, completions, token_ids, trainer.state.global_step))
        size = trainer.num_generations if is_training else trainer.num_generations_eval
        metrics = trainer._metrics["train" if is_training else "eval"]
        for name, value in self.batch(figures, rewards_BF, trainer.reward_weights, size).items():
            if not (name.endswith("/not_gradable") and name in trainer._pending_metrics):
                metrics[name].append(value)  # else the pool's own count, which knows more


def _accuracies(figures: Sequence[RowFigures], correct_PG: torch.Tensor) -> dict[str, float]:
    group_size = correct_PG.shape[1]
    found = {f"pass@{k}": pass_at_k(correct_PG, k) for k in group_sizes(group_size)}
    answers = [figure.answer for figure in figures]
    if any(answer is not None for answer in answers):
        groups = [answers[i : i + group_size] for i in range(0, len(answers), group_size)]
        found["majority_accuracy"] = majority_accuracy(groups, correct_PG)
    return found
