"""Resuming of adapters on quantised weights in the type they were trained in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class AdapterResume(_Base):  # type: ignore[misc, unused-ignore]
    """A part of trainers: a checkpoint's weights come back in the type the model has them in.

    TRL trains adapters on quantised weights in bfloat16; peft loads them from a checkpoint as
    float32, so that a resumed run would go on in another precision than it began in.
    """

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        target: Any = self.model if model is None else model
        dtypes = {name: parameter.dtype for name, parameter in target.named_parameters()}
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        for name, parameter in target.named_parameters():
            dtype = dtypes.get(name, parameter.dtype)
            if parameter.dtype != dtype:
                parameter.data = parameter.data.to(dtype)
