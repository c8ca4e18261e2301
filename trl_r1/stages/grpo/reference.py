"""Replacing the reference of the KL penalty by the policy every N steps, so that it outlasts kills.

The paper does so every 400 steps of R1-Zero: a policy that may never go far from its first model
can't go on learning for thousands of steps. TRL's `sync_ref_model` refuses adapters and leaves a
synced reference out of checkpoints, so a resumed run silently goes on with the first one. Here:

- Full weights: `ref_model` gets the policy's weights, and every checkpoint after that has it under
  `reference/`, each process with its shard (torch.distributed.checkpoint). A reference that
  `sync_ref_model` has mixed is kept in the same way.
- LoRA and QLoRA: the reference is a frozen adapter `ref` on the same base, made when the trainer is
  built, so a replacement copies the adapter alone. PEFT keeps it in the checkpoint by itself.

Completions that are still being trained on keep the old reference: the new one comes in with the
next batch. Left out: DeepSpeed ZeRO-3, which is refused; FSDP takes the same way but is untried.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.trainer.callbacks import SyncRefModelCallback

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Base
else:
    _Base = object

REFERENCE_ADAPTER = "ref"  # the name that TRL looks for
REFERENCE_FOLDER = "reference"


class ReferenceReplacement(_Base):  # type: ignore[misc, unused-ignore]
    """A part of `R1GRPOTrainer`: `args.reference_replacement_steps`, None for never.

    Raises:
        ValueError: `sync_ref_model` is set too.
        NotImplementedError: under DeepSpeed ZeRO-3.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings: Any = self.args
        every = getattr(settings, "reference_replacement_steps", None)
        if every is None or self.beta == 0.0:  # without a penalty there is no reference
            return
        if settings.sync_ref_model:
            raise ValueError(
                "reference_replacement_steps and sync_ref_model both change the reference; take "
                "one out"
            )
        self._refuse_sharded_reference()
        if is_peft_model(self.model):
            add_reference_adapter(self.model)
        self.add_callback(_EveryNSteps(every, self))

    def _refuse_sharded_reference(self) -> None:
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        if plugin is not None and plugin.zero_stage == 3:
            raise NotImplementedError(
                "reference_replacement_steps can't keep a reference that ZeRO-3 has sharded; use "
                "FSDP or ZeRO-2, or set reference_replacement_steps: null"
            )

    def replace_reference(self) -> None:
        """Make the policy, as it is now, the reference. Called by every process."""
        policy: Any = self.accelerator.unwrap_model(self.model)
        if is_peft_model(policy):
            copy_to_reference_adapter(policy)
        elif self.ref_model is not None:
            reference = self.accelerator.unwrap_model(self.ref_model)
            callback: Any = SyncRefModelCallback
            callback.sync_target_model(policy, reference, alpha=1.0)

    def _is_reference_another(self, step: int) -> bool:
        """Whether `ref_model` is no longer the start model after that many optimizer steps."""
        args: Any = self.args
        every: int | None = getattr(args, "reference_replacement_steps", None)
        if every is None and args.sync_ref_model:
            every = args.ref_model_sync_steps
        if every is None or self.ref_model is None:
            return False
        return step >= every

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # First, since the file that marks a checkpoint as complete is written at the end.
        if self._is_reference_another(self.state.global_step):
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder = Path(self._get_output_dir(trial=trial)) / name / REFERENCE_FOLDER
            save(get_model_state_dict(self._reference()), checkpoint_id=folder)
        super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        checkpoint = Path(resume_from_checkpoint)
        folder = checkpoint / REFERENCE_FOLDER
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if self._is_reference_another(state.global_step):
            if not folder.is_dir():
                raise FileNotFoundError(
                    f"{folder} is missing: at step {state.global_step} the reference was no longer "
                    "the start model; go on from an earlier checkpoint, or begin anew"
                )
            weights = get_model_state_dict(self._reference())
            load(weights, checkpoint_id=folder)
            set_model_state_dict(self._reference(), weights)

    def _reference(self) -> torch.nn.Module:
        assert self.ref_model is not None
        reference: torch.nn.Module = self.ref_model
        return reference


class _EveryNSteps(TrainerCallback):
    def __init__(self, every: int, trainer: ReferenceReplacement) -> None:
        self.every, self.trainer = every, trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step % self.every == 0:
            self.trainer.replace_reference()


def add_reference_adapter(model: Any) -> None:
    """Give a PEFT model a frozen copy of its adapter, named `ref`, where it has none.

    A new adapter changes nothing yet, so its copy is the base model, which TRL's own reference
    (adapters switched off) would be as well.
    """
    if REFERENCE_ADAPTER in model.peft_config:
        return
    policy = model.active_adapters[0]
    with torch.random.fork_rng():  # the copy's first, random weights must cost nobody's numbers
        model.add_adapter(REFERENCE_ADAPTER, model.peft_config[policy])
    copy_to_reference_adapter(model)


def copy_to_reference_adapter(model: Any) -> None:
    """Copy the weights of the active adapter, in their type, to `ref`."""
    policy = model.active_adapters[0]
    for name, parameter in list(model.named_parameters()):
        if f".{policy}." in name:
            copied = model.get_parameter(name.replace(f".{policy}.", f".{REFERENCE_ADAPTER}."))
            copied.data = parameter.detach().clone()
            copied.requires_grad_(False)
