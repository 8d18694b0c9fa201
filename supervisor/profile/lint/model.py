"""Owns what a lint rule is, what it finds, and what it is given to look at.
May touch nothing.
Never knows a single rule: those are registered by the modules beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from supervisor.config import Config
from supervisor.profile.load import Loaded
from supervisor.profile.positions import KeyPath, Position
from supervisor.profile.schema import Profile


class Severity(StrEnum):
    """How bad it is. critical and high are errors, medium is a warning, low and info are notes."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"

    @property
    def level(self) -> str:
        """SARIF's word for it: error, warning or note."""
        return {"critical": "error", "high": "error", "medium": "warning"}.get(self.value, "note")


SECURITY_SEVERITY: dict[Severity, str] = {
    Severity.CRITICAL: "9.5",
    Severity.HIGH: "8.0",
    Severity.MEDIUM: "5.5",
    Severity.LOW: "3.0",
    Severity.INFO: "0.0",
}
"""The number that code scanning sorts by (0.0 to 10.0, as text)."""


class Domain(StrEnum):
    """What a rule is about; the score weighs each domain."""

    FILESYSTEM = "filesystem"
    NETWORK = "network"
    KERNEL = "kernel"
    PRIVILEGE = "privilege"
    SECRETS = "secrets"
    LIMITS = "limits"
    AUDIT = "audit"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of a host: its size, what it can arm, and settings of its kernel by their /proc/sys path.

    missing: controls that cannot be armed here, with why; None when nobody tried.
    """

    memory_bytes: int
    cores: int
    kernel: tuple[int, int]
    settings: Mapping[str, str]
    missing: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """All that rules look at. config, host and worktree are None where the caller does not want them seen."""

    loaded: Loaded
    today: date
    config: Config | None = None
    host: HostFacts | None = None
    worktree: str | None = None

    @property
    def profile(self) -> Profile:
        return self.loaded.profile


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule says: message, and the key it is about. value: what it is about in that key."""

    message: str
    path: KeyPath
    value: str = ""


Check = Callable[[Subject], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. why and fix are sentences; looks_at: "profile", "config", "host" or "worktree"."""

    rule_id: str
    severity: Severity
    domain: Domain
    title: str
    why: str
    fix: str
    looks_at: str
    check: Check


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule, what it says here, and where. waived: the reason that was given, "" without one."""

    rule: Rule
    message: str
    path: KeyPath
    position: Position
    value: str = ""
    waived: str = ""

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def fingerprint(self) -> str:
        """The same for the same finding although its line moved: rule, key and value."""
        said = "\0".join((self.rule.rule_id, self.key, self.value))
        return hashlib.sha256(said.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What linting one profile came to. passed: rules that looked and found nothing."""

    loaded: Loaded
    findings: tuple[Finding, ...]
    passed: tuple[Rule, ...]
    not_looked: tuple[Rule, ...]

    @property
    def open(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.waived)


@dataclass(slots=True)
class Registry:
    """The rules by id."""

    rules: dict[str, Rule] = field(default_factory=dict)

    def rule(
        self,
        rule_id: str,
        severity: Severity,
        domain: Domain,
        title: str,
        *,
        why: str,
        fix: str,
        looks_at: str = "profile",
    ) -> Callable[[Check], Check]:
        """Register the decorated function under an id that nobody has yet."""

        def register(check: Check) -> Check:
            assert rule_id not in self.rules, rule_id
            self.rules[rule_id] = Rule(rule_id, severity, domain, title, why, fix, looks_at, check)
            return check

        return register

    def __iter__(self) -> Iterator[Rule]:
        return iter(sorted(self.rules.values(), key=lambda rule: rule.rule_id))


REGISTRY = Registry()
rule = REGISTRY.rule
