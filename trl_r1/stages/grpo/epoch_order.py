"""The order of prompts in later epochs, the same after a resume.

TRL shuffles each epoch with one generator that starts from the seed when a training begins, so a
run resumed in its third epoch would go through the prompts of the first again. Here the generator
is brought to where an undisturbed run has it. Streams keep their own account of epochs, and a stage
has its whole schedule as one epoch.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer


class EpochOrder(GRPOTrainer):
    """The part of the trainer that goes on with the order of prompts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._train_sampler: Any = None
        super().__init__(*args, **kwargs)
        self.add_callback(_SkipsEpochs(self))

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler


class _SkipsEpochs(TrainerCallback):
    def __init__(self, trainer: EpochOrder) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        sampler = self.trainer._train_sampler
        if sampler is None or not sampler.shuffle:
            return
        for _ in range(int((state.epoch or 0) + 1e-6)):  # rounding must not cost an epoch
            torch.randperm(sampler.num_samples, generator=sampler.generator)
