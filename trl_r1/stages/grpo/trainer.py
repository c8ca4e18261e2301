"""`R1GRPOTrainer`: TRL's `GRPOTrainer` for less work, that keeps every rollout and watches itself.

With a plain `GRPOConfig` it trains as TRL does: the update is TRL's up to rounding, though made in
other micro-batches (`update.py`), and the logged entropy of skipped rows is sampled. What changes
the training (`R1GRPOConfig`: dynamic sampling, reference replacement, schedules) is off unless
asked for. Private methods of TRL are extended here, with `super()` and without copies; a test holds
their signatures. Each part is a file beside this one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from trl_r1.stages.grpo.adapter_sync import adapters_by_request
from trl_r1.stages.grpo.dynamic_sampling import DynamicSampling
from trl_r1.stages.grpo.epoch_order import EpochOrder
from trl_r1.stages.grpo.online_metrics import OnlineMetrics
from trl_r1.stages.grpo.overlapped_grading import OverlappedGrading
from trl_r1.stages.grpo.reference import ReferenceReplacement
from trl_r1.stages.grpo.rollouts import RolloutStore, features_of, remove_rollouts_from
from trl_r1.stages.grpo.schedules import GenerationSchedules
from trl_r1.stages.grpo.update import MicroBatchedUpdate
from trl_r1.stages.grpo.verdicts import row_verdicts
from trl_r1.stages.grpo.watching import Watch, read_monitors
from trl_r1.stages.grpo.weights_hash import weights_hash
from trl_r1.training.adapter_resume import AdapterResume
from trl_r1.training.callbacks import SaveBetweenGenerations
from trl_r1.training.data import RolloutPlan


class R1GRPOTrainer(
    OverlappedGrading,
    MicroBatchedUpdate,
    ReferenceReplacement,
    EpochOrder,
    AdapterResume,
    GRPOTrainer,
):
    """A drop-in for TRL's `GRPOTrainer`.

    Args:
        rollouts_dir: folder to keep every training completion in, as parquet; None to keep none.
            What it holds of the steps that a training makes is replaced, so that steps trained
            again after a kill are not in it twice: a new training takes a new folder.
        monitors_file: where alarms are kept; `monitors.jsonl` in `args.output_dir` by default.
        phase_starts: rows of the data set at which another mixture of prompts begins; what dynamic
            sampling draws is of the same phase as the batch.
        args, kwargs: TRL's. `args=R1GRPOConfig(...)` brings the paper's objective; a plain
            `GRPOConfig` is taken as it is.
    """

    _tag_names = ["trl", "grpo", "trl-r1"]  # noqa: RUF012 - TRL declares it so

    def __init__(
        self,
        *args: Any,
        rollouts_dir: str | Path | None = None,
        monitors_file: str | Path | None = None,
        phase_starts: Sequence[int] = (0,),
        **kwargs: Any,
    ) -> None:
        _check_reward_names(inspect.signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments)
        with adapters_by_request(_weight_sync(*args, **kwargs)):
            super().__init__(*args, **kwargs)
        self.plan = RolloutPlan.from_args(self.args)
        self.accuracy_name = self._choose_accuracy()
        self.rollouts: RolloutStore | None = None
        self.last_rewards: torch.Tensor | None = None
        self._graded: tuple[Any, ...] | None = None
        self._rounds: list[tuple[tuple[Any, ...], torch.Tensor]] = []
        self.dynamic_sampling = DynamicSampling(self, phase_starts)
        if rollouts_dir is not None:
            self.rollouts = RolloutStore(
                Path(rollouts_dir),
                self.reward_func_names,
                features_of(self.train_dataset),
                self.accelerator.process_index,
            )
        self.add_callback(SaveBetweenGenerations(self._has_used_completions))
        self.schedules = GenerationSchedules.from_args(self.args)
        self.online_metrics = OnlineMetrics(
            self.reward_funcs,
            self.reward_func_names,
            self.accuracy_name,
            getattr(self.args, "metrics_language", None),
        )
        output_dir = Path(str(self.args.output_dir))
        self.watch = Watch(
            read_monitors(getattr(self.args, "monitors", {})),
            Path(monitors_file or output_dir / "monitors.jsonl"),
            self.accuracy_name,
        )
        self.add_callback(self.watch)

    def _choose_accuracy(self) -> str | None:
        names: list[str] = self.reward_func_names
        wanted = getattr(self.args, "accuracy_reward", None)
        if wanted is None:
            graders = [name for name in names if "math_answer" in name]
            return next(iter([*graders, *names]), None)
        _check_reward_name("accuracy_reward", wanted, names)
        return str(wanted)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's; raises `AlarmError` where a monitor that is set to `stop` ends it."""
        self._has_checked_rollouts = False
        result = super().train(*args, **kwargs)
        self.watch.raise_if_ended(Path(str(self.args.output_dir)))
        return result

    def _has_used_completions(self) -> bool:
        # TRL's own count: the last step of an epoch may have fewer micro-steps than others.
        return bool(self._step % self.plan.micro_steps_per_generation == 0)

    def _is_training(self) -> bool:
        model: Any = self.model
        return bool(model.training)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        arguments = (inputs, prompts, completions, completion_ids_list)
        started = self._started
        rewards_BF: torch.Tensor = super()._calculate_rewards(*arguments)
        self.last_rewards = rewards_BF
        self.online_metrics.log(self, inputs, completions, completion_ids_list, rewards_BF)
        if self.rollouts is not None and self._is_training():
            is_used = started is not None and started.was_given(*arguments)
            pending = started.pending if started is not None and is_used else {}
            known = {i: reward.verdicts for i, reward in pending.items()}
            self._graded = (inputs, completions, completion_ids_list, rewards_BF, known)
        return rewards_BF

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self._is_training():
            return self._generate_round(inputs)
        for name, value in self.schedules.apply(self).items():
            self._metrics["train"][name].append(value)
        self._rounds = []
        output, uses = self.dynamic_sampling.complete(inputs)
        rounds, self._rounds = self._rounds, []
        for index, (graded, advantages) in enumerate(rounds):
            self._keep_rollouts(graded, advantages, index, uses[index])
        return output

    def _generate_round(self, inputs: Any) -> dict[str, Any]:
        """Completions, scores and rewards of these rows, by TRL."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._graded is not None:
            self._rounds.append((self._graded, output["advantages"]))
            self._graded = None
        return output

    def _keep_rollouts(
        self, graded: tuple[Any, ...], advantages: torch.Tensor, index: int, is_used: list[bool]
    ) -> None:
        """Store a round of completions; `advantages` are this process's, of shape (B,)."""
        assert self.rollouts is not None
        inputs, completions, ids, gathered_BF, known = graded
        step = int(self.state.global_step)
        if not self._has_checked_rollouts:
            # The first batch after a resume: what the killed attempt left beyond it goes.
            if self.accelerator.is_main_process:
                remove_rollouts_from(self.rollouts.folder, step)
            self.rollouts.forget_from(step)
            self.accelerator.wait_for_everyone()
            self._has_checked_rollouts = True
        first = self.accelerator.process_index * len(inputs)
        rewards_BF = gathered_BF[first : first + len(inputs)].float().cpu()
        totals = (rewards_BF * self.reward_weights.unsqueeze(0)).nansum(dim=1)
        totals[torch.isnan(rewards_BF).all(dim=1)] = torch.nan
        rewards = [_none_for_nan(row) for row in rewards_BF.tolist()]
        policy: Any = self.model
        self.rollouts.write(
            step,
            self._step % self.plan.micro_steps_per_update,
            inputs,
            completions,
            ids,
            {*self.eos_token_ids, self._tokenizer.pad_token_id},
            rewards,
            _none_for_nan(totals.tolist()),
            advantages.float().cpu().tolist(),
            row_verdicts(self.reward_funcs, rewards, inputs, step, known),
            weights_hash(policy),
            index,
            is_used,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        values = self._metrics["train" if self._is_training() else "eval"]
        means = values.get(f"rewards/{self.accuracy_name}/mean")
        if means:
            values["accuracy"] = list(means)
        super().log(logs, start_time)


def _check_reward_names(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that names no reward, before a model is loaded.

    Only where all rewards are functions; TRL finds the names of others while it loads them.
    """
    given = arguments.get("reward_funcs") or []
    rewards = given if isinstance(given, list) else [given]
    names = [getattr(reward, "__name__", None) for reward in rewards]
    if names and None not in names:
        for key in ("accuracy_reward", "dynamic_sampling_reward"):
            wanted = getattr(arguments.get("args"), key, None)
            if wanted is not None:
                _check_reward_name(key, wanted, names)


def _check_reward_name(key: str, wanted: Any, names: Sequence[Any]) -> None:
    if wanted not in names:
        raise ValueError(f"{key} {wanted!r} is no reward; there are: {', '.join(map(str, names))}")


def _none_for_nan(values: list[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def _weight_sync(*args: Any, **kwargs: Any) -> str:
    """How vLLM is to get weights; plain `GRPOConfig`s do not say."""
    given = inspect.signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments
    return str(getattr(given.get("args"), "vllm_weight_sync", "auto"))
