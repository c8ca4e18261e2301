"""What the check of a reward has found, one finding a line."""

from __future__ import annotations

from dataclasses import dataclass, field

OK, NOTE, FAULT = "ok", "note", "FAULT"


@dataclass(frozen=True)
class Finding:
    """One line of the table: what was looked at, `ok`, `note` or `FAULT`, and what was seen."""

    check: str
    level: str
    seen: str


@dataclass
class CheckReport:
    """Everything that was found out about a reward.

    Attributes:
        reference: the reward.
        findings: one a check, in order.
    """

    reference: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """1 where there is a fault."""
        return int(any(finding.level == FAULT for finding in self.findings))

    def add(self, check: str, level: str, seen: str) -> None:
        """Add a line."""
        self.findings.append(Finding(check, level, seen))
