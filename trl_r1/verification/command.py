"""`trl-r1 rewards`: its options and what it prints. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_rewards_command(commands: Any) -> None:
    """Add `rewards` to the command's subcommands."""
    rewards = commands.add_parser("rewards", help="rewards that recipes can name")
    actions = rewards.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the built-in ones")
    listing.set_defaults(run=_list_rewards)
    trial = actions.add_parser("check", help="try a reward: what it returns, stands, falls for")
    trial.add_argument("reward", metavar="REF", help="name, module:function or file.py:function")
    trial.add_argument("--data", type=Path, metavar="FILE.jsonl", help="rows with its columns")
    trial.add_argument("--args", default="{}", metavar="YAML", help="its arguments, as in a recipe")
    trial.add_argument(
        "--timeout",
        type=_positive,
        default=5.0,
        metavar="SECONDS",
        help="what a call may take, like a recipe's reward_timeout (default: 5)",
    )
    trial.add_argument(
        "--memory_mb",
        type=_positive,
        default=1024,
        metavar="MB",
        help="what a worker may take, like reward_memory_mb (default: 1024)",
    )
    trial.set_defaults(run=_check_reward)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def _list_rewards(options: argparse.Namespace) -> int:
    from trl_r1.verification.rewards_table import list_rewards

    return list_rewards(sys.stdout)


def _check_reward(options: argparse.Namespace) -> int:
    from trl_r1.pipeline.mistakes import PipelineError
    from trl_r1.pipeline.yaml_files import parse_yaml
    from trl_r1.verification.rewards_table import print_check

    arguments, mistakes = parse_yaml(options.args, f"--args {options.args}")
    if mistakes:
        raise PipelineError(str(mistakes[0]))
    try:
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise ValueError(f"--args {options.args}: write a mapping, as '{{name: value}}'")
        return print_check(
            options.reward,
            sys.stdout,
            data=options.data,
            args=arguments,
            timeout=options.timeout,
            memory_mb=int(options.memory_mb),
        )
    except ValueError as error:
        raise PipelineError(str(error)) from error
