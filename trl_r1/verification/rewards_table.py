"""Prints what `trl-r1 rewards list` and `trl-r1 rewards check` have to say."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from trl_r1.verification import trl_rewards
from trl_r1.verification.check_report import FAULT, CheckReport
from trl_r1.verification.description import describe_reward
from trl_r1.verification.loading import builtin_rewards, load_reward
from trl_r1.verification.rewards_check import check_reward

# Always passed, so not columns that a data set must have.
_PASSED = ("prompts", "completions", "completion_ids")
_MAX_NAME_WIDTH = 28


def list_rewards(out: TextIO) -> int:
    """Print the built-in rewards (first line of the docstring, columns, arguments), and TRL's.

    Returns:
        0, the exit status.
    """
    for name in builtin_rewards():
        function = load_reward(name)
        about = describe_reward(function)
        columns = [column for column in about.required if column not in _PASSED]
        arguments = [f"{key}={about.defaults[key]}" for key in about.optional if key not in _PASSED]
        _write(out, name, _first_sentence(function.__doc__ or ""))
        _write(out, "", f"needs: {', '.join(columns) or 'nothing but completions'}")
        if arguments:
            _write(out, "", f"optional: {', '.join(arguments)}")
    for name, summary in trl_rewards.SUMMARIES.items():
        _write(out, f"{trl_rewards.MODULE}:{name}", "")
        _write(out, "", summary)
    return 0


def print_check(
    reference: str,
    out: TextIO,
    data: Path | None = None,
    args: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    timeout: float = 5.0,
    memory_mb: int = 1024,
) -> int:
    """Check a reward and print the table.

    Args:
        out: where to.
        reference, data, args, base_dir, timeout, memory_mb: see
            `trl_r1.verification.rewards_check.check_reward`.

    Returns:
        The exit status: 1 where there is a fault.
    """
    report = check_reward(reference, data, args, base_dir, timeout, memory_mb)
    print_report(report, out)
    return report.exit_status


def print_report(report: CheckReport, out: TextIO) -> None:
    """Print a report as a table that fits the terminal."""
    out.write(f"{report.reference}\n")
    names = [len(finding.check) for finding in report.findings]
    width = min(max(names, default=0), _MAX_NAME_WIDTH)
    seen_width = max(_terminal_width() - width - 11, 30)
    for finding in report.findings:
        checks = textwrap.wrap(finding.check, width)
        levels = [finding.level]
        seen = textwrap.wrap(finding.seen, seen_width)
        for check, level, line in itertools.zip_longest(checks, levels, seen, fillvalue=""):
            out.write(f"  {check:<{width}}  {level:<5}  {line}".rstrip() + "\n")
    num_faults = sum(finding.level == FAULT for finding in report.findings)
    faults = "no faults" if not num_faults else f"{num_faults} fault{'s' * (num_faults > 1)}"
    out.write(f"{len(report.findings)} checks, {faults}\n")


def _write(out: TextIO, name: str, text: str) -> None:
    lead = f"{name:<22}"
    lines = textwrap.wrap(text, max(_terminal_width() - len(lead), 30)) or [""]
    out.write(f"{lead}{lines[0]}".rstrip() + "\n")
    for line in lines[1:]:
        out.write(f"{'':<{len(lead)}}{line}\n")


def _terminal_width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _first_sentence(doc: str) -> str:
    """The docstring's first paragraph on one line."""
    return " ".join(doc.strip().split("\n\n")[0].split())
