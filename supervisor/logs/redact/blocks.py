"""Owns private keys that run over lines: from the first line to the last, over reads and events.
May touch nothing.
Never gives up on a key because something else was written in between, nor waits for its end for ever.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from supervisor.logs.redact.views import COLOURS, View

_BEGIN = re.compile(
    rb"-----BEGIN (?:PGP PRIVATE KEY BLOCK|(?:[A-Z0-9]+ ){0,3}PRIVATE KEY)-----"
    rb"|---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----"
    rb"|Private-Lines: [0-9]{1,3}"
)
_END = re.compile(
    rb"-----END (?:PGP PRIVATE KEY BLOCK|(?:[A-Z0-9]+ ){0,3}PRIVATE KEY)-----"
    rb"|---- END SSH2 (?:ENCRYPTED )?PRIVATE KEY ----"
    rb"|Private-MAC: [0-9a-f]{40,64}"
)
_BODY = re.compile(
    rb"[A-Za-z0-9+/]{40,}={0,2}|(?:\A|"
    rb"(?<=[\s>|:\]]))(?=\S*[0-9+/=])[A-Za-z0-9+/]{4,}={0,2}\s*\Z"
    rb"|(?:Proc-Type|DEK-Info|Comment|Version): [^\r\n]*"
)
_STARTS_BODY = re.compile(
    rb"(?:\\[rn]|[\s\"'+,>|\\]|\x1b\[[0-9;]{0,16}m){0,24}(?:[A-Za-z0-9+/=]{16}|Proc-Type:|DEK-Info:|Comment:|Version:)"
)
_NOTHING = re.compile(rb"(?:\\[rn]|[\s\"'\\]|\x1b\[[0-9;]{0,16}m)*\Z")
PATIENCE = 40
"""Lines without a piece of the key after which one that never ended is given up."""


class Block(NamedTuple):
    """start, end in the text, and the rule. open: the key goes on in the next text."""

    start: int
    end: int
    rule: str
    open: bool


def blocks(text: bytes) -> list[Block]:
    """Every private key that begins in the text."""
    found: list[Block] = []
    at = 0
    while begin := _BEGIN.search(text, at):
        rule = _rule(begin[0])
        at = begin.end()
        if _NOTHING.match(text, at):
            found.append(Block(begin.start(), len(text), rule, True))
            break
        if not _STARTS_BODY.match(text, at):
            continue
        end = _END.search(text, at)
        stop = end.end() if end else len(text)
        found.append(Block(begin.start(), stop, rule, end is None))
        at = stop
    return found


def _rule(first: bytes) -> str:
    if b"PGP" in first:
        return "pgp-private-key"
    if b"SSH2" in first:
        return "ssh2-private-key"
    return "putty-private-key" if first.startswith(b"Private-Lines") else "private-key"


class Watch:
    """One stream's state: is a key open, and what of a text belongs to it?"""

    __slots__ = ("left", "rule")

    def __init__(self) -> None:
        self.left = 0
        self.rule = ""

    def open(self, rule: str) -> None:
        self.left, self.rule = PATIENCE, rule

    def continues(self, text: bytes) -> list[tuple[int, int]]:
        """Pieces of the open key in the next text."""
        view = View(text).through(COLOURS)
        end = _END.search(view.text)
        body = view.text[: end.start()] if end else view.text
        found = [view.source(*match.span()) for match in _BODY.finditer(body)]
        if end:
            self.left = 0
            found.append(view.source(*end.span()))
        elif found:
            self.left = PATIENCE
        else:
            self.left -= 1
        return found
