"""Owns the rule table: reading it, and proving of every rule that it does what it says.
May touch rules.toml beside it, read-only, or a file that the caller names.
Never accepts a rule with a key nobody knows, an example it misses or a near-miss it takes.
"""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from supervisor.errors import UsageError
from supervisor.logs.redact.anchors import Anchor, anchor_of, as_regex, literals_in
from supervisor.logs.redact.samples import sample

SHIPPED = Path(__file__).with_name("rules.toml")
LEAST_ANCHOR = 7
"""A shorter beginning of certain length would let ordinary text through the gate."""

Kind = Literal["token", "assignment", "flag", "header", "url", "block"]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One credential type. rules.toml says what each key means."""

    id: str
    title: str
    pattern: str
    literals: tuple[str, ...]
    example: str
    near_miss: str
    source: str
    kind: Kind = "token"
    before: str = ""
    blob: bool = True

    @functools.cached_property
    def anchor(self) -> Anchor:
        return anchor_of(self.pattern)

    @functools.cached_property
    def regex(self) -> re.Pattern[bytes]:
        """Case counts only where the rule goes by its own form."""
        return re.compile(self.pattern.encode(), 0 if self.kind in ("token", "block") else re.IGNORECASE)

    @functools.cached_property
    def behind(self) -> re.Pattern[bytes] | None:
        """Ends where the pattern begins."""
        return re.compile(b"(?:" + self.before.encode() + rb")\Z") if self.before else None

    @functools.cached_property
    def words(self) -> tuple[bytes, ...]:
        return tuple(literal.lower().encode() for literal in self.literals)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[Rule]


@functools.cache
def shipped() -> tuple[Rule, ...]:
    """The rules of this version, in their order: of two that match the same text the earlier one names it."""
    return read(SHIPPED)


def read(path: Path) -> tuple[Rule, ...]:
    """Raises UsageError that names the file and the rule."""
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return tuple(msgspec.convert(raw, _File).rule)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}", hint="docs/redaction.md lists the keys of a rule") from None


def faults(rules: tuple[Rule, ...], samples: int = 3) -> list[str]:
    """What is wrong with rules by themselves, one line each. What a whole redactor makes of the
    examples is the tests' and `supervisorctl redact --rules --check`'s to say.
    """
    found: list[str] = []
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen or not re.fullmatch(r"[a-z][a-z0-9-]{1,40}", rule.id):
            found.append(f"{rule.id}: the id is not unique, or not of a-z, 0-9 and -")
        seen.add(rule.id)
        found += (f"{rule.id}: {text}" for text in _faults_of(rule, samples))
    return found


def _faults_of(rule: Rule, samples: int) -> list[str]:
    empty = [
        key for key in ("title", "pattern", "literals", "example", "near_miss") if not getattr(rule, key)
    ]
    if empty:
        return [f"{key} is empty" for key in empty]
    if not rule.source.startswith("https://"):
        return ["source is no address"]
    try:
        regex = rule.regex
    except re.error as error:
        return [f"the pattern cannot be compiled: {error}"]
    found = []
    for seed in range(samples):
        example, near = (sample(text, seed).encode() for text in (rule.example, rule.near_miss))
        if not any(word in example.lower() for word in rule.words):
            found.append("the example holds none of the literals")
        if rule.kind in ("token", "block"):
            if not regex.search(example):
                found.append("the example is not matched")
            if regex.search(near):
                found.append("the near-miss is matched")
    if rule.kind == "token":
        found += _anchor_faults(rule)
    return found


def _anchor_faults(rule: Rule) -> list[str]:
    if len(rule.anchor) < LEAST_ANCHOR or not literals_in(rule.anchor)[1]:
        return [f"the pattern must begin with at least {LEAST_ANCHOR} characters of certain number"]
    if re.compile(as_regex(rule.anchor).encode()).groups:
        return ["the anchor has groups"]
    return []
