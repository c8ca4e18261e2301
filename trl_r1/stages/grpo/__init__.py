"""RL with GRPO: R1-Zero, reasoning RL and RL for all scenarios, by preset.

`config.py` has the settings, `trainer.py` the trainer, `rollouts.py` the store of completions,
`stage.py` the way from a recipe to artifacts.
"""

from __future__ import annotations

from trl_r1.stages.grpo.config import PRESETS, R1GRPOConfig
from trl_r1.stages.grpo.stage import SPEC, run
from trl_r1.stages.grpo.trainer import R1GRPOTrainer

__all__ = ["PRESETS", "SPEC", "R1GRPOConfig", "R1GRPOTrainer", "run"]
