"""Owns linting a profile: every rule that can look, what is waived, what is left.
May touch nothing itself; rules touch what they say.
Never lets a rule that fails pass for one that found nothing.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from datetime import date

from supervisor.config import Config
from supervisor.errors import SupervisorError
from supervisor.profile.lint import environment, files, hygiene, kernel, limits, network
from supervisor.profile.lint.model import REGISTRY, Finding, Found, HostFacts, Outcome, Rule, Subject
from supervisor.profile.load import Loaded
from supervisor.profile.schema import Waiver

MODULES = (environment, files, hygiene, kernel, limits, network)
"""Importing them registers their rules."""

_SETTINGS = (
    "kernel/unprivileged_bpf_disabled kernel/kptr_restrict kernel/dmesg_restrict kernel/perf_event_paranoid "
    "dev/tty/legacy_tiocsti fs/protected_symlinks fs/protected_hardlinks fs/protected_fifos "
    "fs/protected_regular kernel/core_pattern"
).split()


def lint(
    loaded: Loaded,
    today: date,
    *,
    config: Config | None = None,
    host: HostFacts | None = None,
    worktree: str | None = None,
) -> Outcome:
    """Look at a profile with every rule whose things are given. Findings come in the order of the text."""
    subject = Subject(loaded, today, config, host, worktree)
    there = {"profile": True, "config": config is not None, "host": host is not None}
    there["worktree"] = worktree is not None
    findings: list[Finding] = []
    passed: list[Rule] = []
    not_looked: list[Rule] = []
    for rule in REGISTRY:
        if not there[rule.looks_at]:
            not_looked.append(rule)
            continue
        found = [_finding(rule, said, subject) for said in _look(rule, subject)]
        findings += found
        if not found:
            passed.append(rule)
    order = {source: number for number, source in enumerate(loaded.sources)}
    findings.sort(key=lambda f: (order[f.position.file], f.position.line, f.rule.rule_id, f.value))
    return Outcome(loaded, tuple(findings), tuple(passed), tuple(not_looked))


def _look(rule: Rule, subject: Subject) -> Iterable[Found]:
    try:
        return list(rule.check(subject))
    except OSError as error:
        raise SupervisorError(
            f"rule {rule.rule_id} cannot look at {error.filename}: {error.strerror}",
            hint="run it as a user who may",
        ) from error


def _finding(rule: Rule, said: Found, subject: Subject) -> Finding:
    position = subject.loaded.where(*said.path) if said.path else subject.loaded.where("name")
    waiver = next((w for w in subject.profile.waive if _waives(w, rule, said, subject.today)), None)
    return Finding(
        rule=rule,
        message=said.message,
        path=said.path,
        position=position,
        value=said.value,
        waived=waiver.reason if waiver is not None else "",
    )


def _waives(waiver: Waiver, rule: Rule, said: Found, today: date) -> bool:
    """Rules about waivers cannot be waived: a waiver does not speak for itself."""
    if waiver.rule != rule.rule_id or said.path[:1] == ("waive",):
        return False
    until = hygiene.until_of(waiver.until)
    if until is not None and until < today:
        return False
    return not waiver.key or ".".join(said.path[: waiver.key.count(".") + 1]) == waiver.key


def host_facts(missing: dict[str, str] | None = None) -> HostFacts:
    """This host. missing: what a real box could not arm, from whoever has tried."""
    settings = {}
    for path in _SETTINGS:
        try:
            with open(f"/proc/sys/{path}", encoding="utf-8", errors="replace") as file:
                settings[path] = file.read().strip()
        except OSError:
            continue
    numbers = re.findall(r"\d+", platform.release())
    return HostFacts(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cores=os.cpu_count() or 1,
        kernel=(int(numbers[0]), int(numbers[1])),
        settings=settings,
        missing=missing,
    )
