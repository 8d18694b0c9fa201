"""Owns the rules about the profile as a document: who may change it, what it inherits, what it accepts.
May touch the profile's files, read-only, for the rules that say so.
Never forgives a finding: a waiver shows it with its reason.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

from supervisor.profile.lint.model import REGISTRY, Domain, Found, Severity, Subject, rule
from supervisor.profile.load import shipped

_AUDIT = Domain.AUDIT
_LONGEST_WAIVER = timedelta(days=366)


def _is_shipped(path: str) -> bool:
    return Path(path).resolve() in {file.resolve() for file in shipped().values()}


@rule(
    "A-01",
    Severity.LOW,
    _AUDIT,
    "the profile is called differently from its file",
    why="records name the profile, and a reviewer looks for the file",
    fix="give both the same name",
)
def other_name(subject: Subject) -> Iterator[Found]:
    stem = Path(subject.loaded.sources[0]).stem
    if stem != subject.profile.name:
        yield Found(f"{subject.profile.name} is in {stem}.toml", ("name",), subject.profile.name)


@rule(
    "A-02",
    Severity.LOW,
    _AUDIT,
    "the profile does not say what it is for",
    why="whoever chooses one has only its name",
    fix="write a description of one line",
)
def no_description(subject: Subject) -> Iterator[Found]:
    if ("description",) not in subject.loaded.origins or subject.loaded.where(
        "description"
    ).file != subject.loaded.sources[0]:
        yield Found("description is not written in this file", ("name",))


@rule(
    "A-03",
    Severity.MEDIUM,
    _AUDIT,
    "the profile does not stand on a shipped one",
    why="what the floor protects and requires is then this file's alone to keep up with",
    fix='write extends = "base"',
)
def no_floor(subject: Subject) -> Iterator[Found]:
    if not any(_is_shipped(source) for source in subject.loaded.sources):
        yield Found("none of the files that it comes from is shipped", ("name",))


@rule(
    "A-04",
    Severity.CRITICAL,
    _AUDIT,
    "others can change the profile, or a file that it extends",
    why="who can change a profile decides what every run of it may do",
    fix="chown it and its folder to root, and take the write bits away",
    looks_at="host",
)
def loose_profile(subject: Subject) -> Iterator[Found]:
    for source in subject.loaded.sources:
        for path in (source, os.path.dirname(source)):
            try:
                found = os.stat(path)
            except OSError:
                continue
            shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
            if shared or found.st_uid not in (0, os.geteuid()):
                yield Found(
                    f"{path} belongs to uid {found.st_uid}, mode {found.st_mode & 0o7777:o}", (), path
                )


@rule(
    "A-05",
    Severity.HIGH,
    _AUDIT,
    "the profile lies in the worktree that it is for",
    why="an agent that is let write there writes the rules of the next run",
    fix="keep profiles where no agent writes",
    looks_at="worktree",
)
def in_worktree(subject: Subject) -> Iterator[Found]:
    root = os.path.realpath(subject.worktree or "/")
    for source in subject.loaded.sources:
        if os.path.realpath(source).startswith(root.rstrip("/") + "/"):
            yield Found(f"{source} is below {root}", (), source)


@rule(
    "A-06",
    Severity.LOW,
    _AUDIT,
    "the profile extends through many files",
    why="what holds is then hard to see",
    fix="extend a shipped profile directly",
)
def deep(subject: Subject) -> Iterator[Found]:
    if len(subject.loaded.sources) > 4:
        yield Found(f"{len(subject.loaded.sources)} files", ("name",))


@rule(
    "A-07",
    Severity.MEDIUM,
    _AUDIT,
    "a waiver is for a rule that does not exist",
    why="it was meant for something, and does nothing",
    fix="correct its rule; `profile lint --rules` lists them",
)
def unknown_rule(subject: Subject) -> Iterator[Found]:
    for number, waiver in enumerate(subject.profile.waive):
        if waiver.rule not in REGISTRY.rules:
            yield Found(f"there is no rule {waiver.rule!a}", ("waive", str(number)), waiver.rule)


@rule(
    "A-08",
    Severity.MEDIUM,
    _AUDIT,
    "a waiver does not say until when",
    why="what was accepted for a while is accepted for ever",
    fix='write until = "YYYY-MM-DD", at most a year ahead',
)
def endless_waiver(subject: Subject) -> Iterator[Found]:
    for number, waiver in enumerate(subject.profile.waive):
        until = until_of(waiver.until)
        if until is None or until > subject.today + _LONGEST_WAIVER:
            said = f"until {waiver.until}" if until else "without an end that can be read"
            yield Found(f"{waiver.rule} is waived {said}", ("waive", str(number)), waiver.rule)


@rule(
    "A-09",
    Severity.MEDIUM,
    _AUDIT,
    "a waiver has no reason",
    why="nobody can tell later whether it still holds",
    fix="write why it is accepted, and by whom",
)
def bare_waiver(subject: Subject) -> Iterator[Found]:
    for number, waiver in enumerate(subject.profile.waive):
        if len(waiver.reason.split()) < 3:
            yield Found(f"{waiver.rule}: {waiver.reason!a} is no reason", ("waive", str(number)), waiver.rule)


@rule(
    "A-10",
    Severity.MEDIUM,
    _AUDIT,
    "a waiver has expired",
    why="what it accepted counts again",
    fix="mend what it was for, or look at it again and say until when",
)
def expired_waiver(subject: Subject) -> Iterator[Found]:
    for number, waiver in enumerate(subject.profile.waive):
        until = until_of(waiver.until)
        if until is not None and until < subject.today:
            yield Found(f"{waiver.rule} was waived until {until}", ("waive", str(number)), waiver.rule)


def until_of(text: str) -> date | None:
    """The last day of a waiver; None for one that does not say."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
