"""Owns the two numbers of a profile: posture from its findings, assurance from what probes have proved.
May touch nothing.
Never merges the two, and never lets good settings buy back a hole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.profile.lint.model import Domain, Finding, Outcome, Severity

WEIGHTS: dict[Domain, int] = {
    Domain.FILESYSTEM: 22,
    Domain.NETWORK: 18,
    Domain.KERNEL: 18,
    Domain.PRIVILEGE: 12,
    Domain.SECRETS: 10,
    Domain.LIMITS: 10,
    Domain.AUDIT: 5,
    Domain.HOST: 5,
}
"""What each domain is worth; 100 together."""

SHARE: dict[Severity, float] = {
    Severity.CRITICAL: 0.90,
    Severity.HIGH: 0.45,
    Severity.MEDIUM: 0.18,
    Severity.LOW: 0.06,
    Severity.INFO: 0.0,
}
"""What one finding takes of its domain; the next takes its share of what is left."""

GATES: tuple[tuple[Severity, int], ...] = ((Severity.CRITICAL, 39), (Severity.HIGH, 74))
"""With an open finding of that severity, posture is at most this."""

_GRADES = ((90, "A"), (75, "B"), (60, "C"), (40, "D"))
_ASSURED_PERCENT = 95


@dataclass(frozen=True, slots=True)
class Improvement:
    """One finding that could be mended: how many points that alone would bring."""

    finding: Finding
    points: int


@dataclass(frozen=True, slots=True)
class Score:
    """posture and posture_raw: 0 to 100, with waivers counted as mended and not. gate: what holds it down.

    assurance: percent of claims that were proved, None when nobody tried. disproved: claims that probes
    have shown to be false.
    """

    posture: int
    posture_raw: int
    gate: Severity | None
    assurance: int | None
    disproved: int
    improvements: tuple[Improvement, ...]

    @property
    def grade(self) -> str:
        """A to F; X for a claim that was disproved; "?" behind it while too little is proved."""
        if self.disproved:
            return "X"
        letter = next((grade for least, grade in _GRADES if self.posture >= least), "F")
        return letter if (self.assurance or 0) >= _ASSURED_PERCENT else f"{letter}?"


def score(outcome: Outcome, *, proved: int = 0, provable: int = 0, disproved: int = 0) -> Score:
    """proved, provable, disproved: counts of claims of the last verification, 0 without one."""
    open_ = outcome.open
    posture = _posture(open_)
    gains = [
        Improvement(finding, _posture([f for f in open_ if f is not finding]) - posture) for finding in open_
    ]
    # Where a gate holds, mending one finding may bring nothing yet; the graver ones come first then.
    order = list(Severity)
    gains.sort(
        key=lambda gain: (-gain.points, order.index(gain.finding.rule.severity), gain.finding.rule.rule_id)
    )
    return Score(
        posture=posture,
        posture_raw=_posture(outcome.findings),
        gate=_gate(open_),
        assurance=math.floor(100 * proved / provable) if provable else None,
        disproved=disproved,
        improvements=tuple(gains[:5]),
    )


def _posture(findings: Iterable[Finding]) -> int:
    found = list(findings)
    total = 0.0
    for domain, weight in WEIGHTS.items():
        kept = math.prod(1 - SHARE[f.rule.severity] for f in found if f.rule.domain is domain)
        total += weight * kept
    gate = _gate(found)
    limit = dict(GATES)[gate] if gate is not None else 100
    return min(math.floor(total + 1e-9), limit)


def _gate(findings: Iterable[Finding]) -> Severity | None:
    there = {finding.rule.severity for finding in findings}
    return next((severity for severity, _ in GATES if severity in there), None)
