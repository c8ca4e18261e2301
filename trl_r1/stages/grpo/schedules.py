"""Temperature and length limit of generation, by optimizer step.

    temperature_schedule: [{from_step: 1200, value: 0.7}]
    max_completion_length_schedule: [{from_step: 8200, value: 65536}]

Before the first `from_step` the plain keys `temperature` and `max_completion_length` hold. A change
takes effect with the next batch of completions: a batch is trained on with the temperature that it
was sampled with. A value is a function of the step alone, so a resumed run has the right one.
Rewards by step are `from_step` and `until_step` of a recipe's `rewards:`; the learning rate has
schedules of its own in transformers.

With `loss_type: dr_grpo`, whose sum is divided by the length limit, the divisor changes with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

_KEYS = ("from_step", "value")
# What else can set the same thing in TRL, over everything said here.
_OVERRIDES = {
    "temperature": ("temperature",),
    "max_completion_length": ("max_new_tokens", "max_tokens", "max_length"),
}


@dataclass(frozen=True)
class Schedule:
    """A setting that changes at certain optimizer steps.

    Attributes:
        first: its value before the first point.
        points: (from_step, value) pairs, in rising order of steps.
    """

    first: float
    points: tuple[tuple[int, float], ...] = ()

    def at(self, step: int) -> float:
        """The value in optimizer step `step`, from 0."""
        return next((value for start, value in reversed(self.points) if start <= step), self.first)

    @property
    def values(self) -> tuple[float, ...]:
        """Every value it takes."""
        return (self.first, *(value for _, value in self.points))


def read_schedule(
    key: str, first: float, entries: Sequence[Mapping[str, Any]], *, is_count: bool = False
) -> Schedule:
    """The schedule of a recipe key.

    Args:
        key: the key that it is about, for messages: `temperature` of `temperature_schedule`.
        first: value before the first entry.
        entries: mappings of `from_step` and `value`.
        is_count: values are whole numbers of at least 1; otherwise numbers over 0.

    Raises:
        ValueError: an entry is not such a mapping, a value is out of range, or the steps do not
            rise.
    """
    points: list[tuple[int, float]] = []
    for number, entry in enumerate(entries):
        where = f"{key}_schedule [{number}]"
        if not isinstance(entry, Mapping) or sorted(entry) != sorted(_KEYS):
            raise ValueError(f"{where} should look like {{from_step: 100, value: {first}}}")
        step, value = entry["from_step"], entry["value"]
        if not _is_whole(step) or step < 0:
            raise ValueError(f"{where}: from_step should be a whole number from 0, not {step!r}")
        if is_count and not (_is_whole(value) and value >= 1):
            raise ValueError(f"{where}: value should be a whole number from 1, not {value!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{where}: value should be a number, not {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{where}: value should be over 0, not {value!r}")
        if points and step <= points[-1][0]:
            raise ValueError(
                f"{where}: from_step {step} is not after {points[-1][0]}; put the entries in order"
            )
        points.append((step, value))
    return Schedule(first, tuple(points))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class GenerationSchedules:
    """The schedules of one training, and their way into TRL's trainer.

    Attributes:
        temperature, max_completion_length: None where the setting stays as it is.
    """

    def __init__(self, temperature: Schedule | None, max_completion_length: Schedule | None):
        self.temperature = temperature
        self.max_completion_length = max_completion_length
        self._cells: list[CellType] | None = None

    @classmethod
    def from_args(cls, args: Any) -> GenerationSchedules:
        """The schedules of a `GRPOConfig`; none where it is TRL's own.

        Raises:
            ValueError: a schedule makes no sense, by itself or with other settings.
        """
        found: dict[str, Schedule | None] = {}
        for key in _OVERRIDES:
            entries = getattr(args, f"{key}_schedule", None)
            if not entries:
                found[key] = None
                continue
            is_count = key == "max_completion_length"
            found[key] = read_schedule(key, getattr(args, key), entries, is_count=is_count)
            given = getattr(args, "generation_kwargs", None)
            for name in _OVERRIDES[key]:
                if isinstance(given, Mapping) and name in given:
                    raise ValueError(
                        f"{key}_schedule has no effect beside generation_kwargs with {name!r}; "
                        "take one of them out"
                    )
        window, lengths = (
            getattr(args, "vllm_max_model_length", None),
            found["max_completion_length"],
        )
        if window is not None and lengths is not None and max(lengths.values) >= window:
            raise ValueError(
                f"max_completion_length_schedule goes up to {max(lengths.values)}, but vLLM is "
                f"built for prompt and completion of {window} together; raise vllm_max_model_length"
            )
        return cls(**found)

    def apply(self, trainer: Any) -> dict[str, float]:
        """Set what holds in the trainer's current step; called before completions are generated.

        Args:
            trainer: a `GRPOTrainer`.

        Returns:
            The scheduled settings with their values, for the log.
        """
        step, current = int(trainer.state.global_step), {}
        if self.temperature is not None:
            current["temperature"] = value = self.temperature.at(step)
            trainer.temperature = value
            _set_generation(trainer, "temperature", "temperature", value)
            if self._cells is None:
                self._cells = list(_temperature_cells(trainer))
            for cell in self._cells:
                cell.cell_contents = value
        if self.max_completion_length is not None:
            limit = int(self.max_completion_length.at(step))
            current["max_completion_length"] = trainer.max_completion_length = limit
            _set_generation(trainer, "max_completion_length", "max_new_tokens", limit)
        return current


def _set_generation(trainer: Any, vllm_name: str, transformers_name: str, value: float) -> None:
    """vLLM reads it from TRL's wrapper at each call, transformers from a generation config."""
    if trainer.use_vllm:
        setattr(trainer.vllm_generation, vllm_name, value)
    else:
        setattr(trainer.generation_config, transformers_name, value)
        trainer.generation_kwargs[transformers_name] = value


def _temperature_cells(trainer: Any) -> Iterator[CellType]:
    """Where the log-probabilities get their temperature from.

    TRL puts the temperature of the start into the forward pass of policy and reference
    (`add_fused_lm_head`), as a variable of an inner function. A second call of it would stand
    outside of what accelerate has put around the first, so the variable itself is changed.

    Raises:
        RuntimeError: it is not where TRL 1.16 has it.
    """
    for model in (trainer.model, trainer.ref_model):
        if model is None:
            continue
        cells = [cell for module in model.modules() for cell in _cells_of(module)]
        if not cells:
            raise RuntimeError(
                "temperature_schedule needs the log-probability pass of TRL 1.16, and this version "
                "has another; install trl>=1.16,<1.17 or leave the schedule out"
            )
        yield from cells


def _cells_of(module: torch.nn.Module) -> Iterator[CellType]:
    for name in ("forward", "_original_forward"):  # the second is accelerate's
        forward = vars(module).get(name)
        function = forward.__func__ if isinstance(forward, MethodType) else forward
        if isinstance(function, FunctionType) and function.__code__.co_name == "_fused_forward":
            index = function.__code__.co_freevars.index("temperature")
            yield (function.__closure__ or ())[index]
