"""Owns what the raw scan looks for: anchors of rules, plain and in base64, and shapes that name or hide.
May touch nothing.
Never decides that something is a secret: a gate only says where to look.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import NamedTuple

from supervisor.logs.redact.anchors import MOST_BYTES, Anchor, anchor_of, first_sextet, in_base64, literals_in
from supervisor.logs.redact.table import Rule


class Gate(IntEnum):
    """What an event is about. ANCHOR and BASE64 say in `which` what was found; the others stand alone."""

    ANCHOR = 0
    """A rule's own form begins at position; which: the rule's number."""
    BASE64 = 1
    """Base64 of something that a rule would look at; which: the sextet that position is of its group."""
    NAMED = 2
    """A short value behind a name such as password; position: where the value begins."""
    NAMED_LONG = 3
    """A value of at least 16 token characters behind a name such as token or key."""
    OPTION = 4
    """A value behind --password and its like, or a password in a .netrc file."""
    SCHEME = 5
    """Bearer and 16 characters; position: where these begin."""
    URL = 6
    """Something and @ behind ://; position: that of ://."""
    BLOCK = 7
    """The first or last line of a private key."""
    CURL = 8
    """-u user:password."""
    ESCAPE = 9
    """An escaped printable character, a slash, or a percent code: text that does not show what it says."""
    COLOUR = 10
    """A terminal sequence with nothing but token characters on both sides, or next to a name."""
    TREE = 11
    """An object or an array under a name such as password."""


class Event(NamedTuple):
    """gate, which (see Gate), position in the data."""

    gate: int
    which: int
    position: int


class Enough(Exception):
    """More events than were asked for: the buffer is a flood."""


VALUE = rb"""[^\s"'`\\,;&<>(){}\[\]$=:][^\s"'`\\,;&<>(){}\[\]$]{5}"""
"""The beginning of a value. It ends in one place only, so that every engine finds the same one."""
LONG_VALUE = rb"[\w/+.%-]{16}"
_BETWEEN = rb"""[\\"'`\]]{0,20}[ \t]{0,3}(?:=>|:=|[=:])[\\"'`\[{ \t]{0,20}"""
SHORT = 6
LONG = 16
NAMED = rb"(?:passw(?:or)?d|passphrase|pwd|secret)" + _BETWEEN + VALUE
AUTHORIZATION = rb"authorization" + _BETWEEN + rb"[A-Za-z]{3}"
NAMED_LONG = rb"(?:key|token|pat|jwt|pass|cred(?:ential)?s?|auth|key-data|\"[dk])" + _BETWEEN + LONG_VALUE
OPTION = (
    rb"(?:-(?:passw(?:or)?d|passphrase|secret)|login[ \t]{1,4}[^\s]{1,64}[ \t]{1,4}password)"
    rb"[ \t]{1,3}[\\\"']{0,4}" + VALUE
)
OPTION_LONG = rb"-(?:token|key|pat|pass)[ \t]{1,3}[\\\"']{0,4}" + LONG_VALUE
COOKIE = rb"""cookie[\\"]{0,3}:[ \t]{0,2}[\\"]{0,3}[ \t]{0,2}[\w.-]{1,32}=""" + LONG_VALUE
SCHEME = rb"bearer[ \t]{1,3}" + LONG_VALUE
URL = rb"""://[^\s"'<>`\\/?#]{3,256}@"""
BLOCK = rb"(?:PRIVATE KEY|Private-Lines: )"
CURL = rb""" -u[ \t]?[\\"']{0,2}[^\s:"'\\$]{1,64}:[^\s@/$"'\\]{4}"""
ESCAPE = rb"(?:\\u00[2-7][0-9A-Fa-f]|\\/|%[2-7][0-9A-Fa-f]|\\{16})"
_BROKEN = rb"[\w+/=.~$%@!-]"
COLOUR = rb"[^\\][\w+/=.~$%@!:-]" + rb"(?:(?:\x1b|\\{1,8}u001b)\[[0-9;:?]{0,24}[@-~]){1,4}" + _BROKEN
NAMED_COLOUR = (
    rb"(?:passw(?:or)?d|passphrase|pwd|pass|secret|authorization|key|token|pat|jwt|cred(?:ential)?s?|auth|cookie)"
    rb"[\\\"'`\] \t=:]{0,6}(?:\x1b|\\u001b)\["
)
TREE = rb"""(?:passw(?:or)?d|passphrase|pwd|secret)[\\"]{1,20}[ \t]{0,2}:[ \t]{0,2}[\[{]"""

TOKEN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/.%~$")
"""What runs are made of. A rule whose anchor has a run of at least RUN of these is looked for in runs."""
RUN = 16

CASED = {Gate.BLOCK, Gate.ESCAPE}
SHAPES: tuple[tuple[Gate, bytes], ...] = (
    (Gate.NAMED, NAMED),
    (Gate.NAMED, AUTHORIZATION),
    (Gate.NAMED_LONG, NAMED_LONG),
    (Gate.OPTION, OPTION),
    (Gate.OPTION, OPTION_LONG),
    (Gate.NAMED_LONG, COOKIE),
    (Gate.SCHEME, SCHEME),
    (Gate.URL, URL),
    (Gate.BLOCK, BLOCK),
    (Gate.CURL, CURL),
    (Gate.ESCAPE, ESCAPE),
    (Gate.COLOUR, COLOUR),
    (Gate.COLOUR, NAMED_COLOUR),
    (Gate.TREE, TREE),
)
TAIL = {
    NAMED: SHORT,
    AUTHORIZATION: 3,
    NAMED_LONG: LONG,
    OPTION: SHORT,
    OPTION_LONG: LONG,
    SCHEME: LONG,
    COOKIE: LONG,
}
"""How many bytes before the end of such a match the value begins."""

_NAMES = (
    "passw",
    "passph",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "accesskey",
    "private_key",
    "authoriz",
    "bearer ",
    "cookie:",
    "_auth",
    '"auth',
    "://",
    "PRIVATE KEY",
    "Private-Lines",
    "login ",
    "pwd=",
    "credent",
    "ing_key",
    "secret_key",
    "account",
    "ion_key",
    "curl ",
    "_pat",
    "-key",
    "jwt",
    "key=",
    "key =",
    "key:",
    'key":',
    "app_key",
    '"kty"',
    '"d":',
    "pass=",
    "_pass",
)
_MOST_SPELLINGS = 16
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b">?~")
"""What follows a name. Without these three no base64 of it has a + or a /."""


class Anchored(NamedTuple):
    """One row of the gate: gate and which as in Event."""

    gate: Gate
    which: int
    anchor: Anchor


def anchored(rules: tuple[Rule, ...]) -> list[Anchored]:
    """The anchor of every rule that has a form of its own."""
    return [
        Anchored(Gate.ANCHOR, number, _within_run(rule.anchor))
        for number, rule in enumerate(rules)
        if rule.kind == "token"
    ]


@functools.cache
def hidden(rules: tuple[Rule, ...]) -> tuple[Anchored, ...]:
    """What base64 makes of every anchor and of the names that values stand behind, at three offsets."""
    found: dict[Anchor, Anchored] = {}
    for rule in rules:
        if rule.kind == "token":
            # Without a certain piece of its own a rule is found in base64 by what stands before it.
            known = (
                rule.anchor
                if len(literals_in(rule.anchor)[1]) > 1 or not rule.before
                else anchor_of(rule.before)
            )
            for spelled in _spelled_out(known):
                _hide(found, spelled)
    for name in _NAMES:
        for cased in {name, name.upper(), name.capitalize(), name.title()}:
            _hide(found, anchor_of(cased) + (_PLAIN,) * (MOST_BYTES - len(cased)))
    return tuple(found.values())


def _within_run(anchor: Anchor) -> Anchor:
    """Without what may stand behind a run that is long enough by itself."""
    run = 0
    for at, members in enumerate(anchor):
        if members <= TOKEN:
            run += 1
        elif run >= RUN:
            return anchor[:at]
        else:
            run = 0
    return anchor


def _spelled_out(anchor: Anchor) -> list[Anchor]:
    """The first characters one by one where few are possible: engines like certain bytes best."""
    found: list[Anchor] = [()]
    for at, members in enumerate(anchor[:4]):
        if len(found) * len(members) > _MOST_SPELLINGS:
            return [(*row, *anchor[at:]) for row in found]
        found = [(*row, frozenset([member])) for row in found for member in sorted(members)]
    return [(*row, *anchor[4:]) for row in found]


def _hide(found: dict[Anchor, Anchored], anchor: Anchor) -> None:
    at, certain = literals_in(anchor)
    telling = anchor[max(0, at + len(certain) + 1 - MOST_BYTES) :]
    telling += (_PLAIN,) * (MOST_BYTES - len(telling))
    for offset in range(3):
        core = in_base64(telling, offset)
        found.setdefault(core, Anchored(Gate.BASE64, first_sextet(offset), core))
