"""Owns rewriting the strings of one JSON text and nothing else of it: numbers and spaces stay as written.
May touch nothing.
Never makes valid JSON invalid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]++', re.DOTALL)

Scrub = Callable[[bytes, bytes, bytes, bool], bytes | None]
"""(value, its name, the name of what it stands in, is it a string) -> what to write instead, or None.
A name is a value without one.
"""


def is_json(text: bytes) -> bool:
    """An object, an array or a string, and nothing else."""
    if text.lstrip(b" \t\r\n")[:1] not in (b"{", b"[", b'"'):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def rewritten(text: bytes, scrub: Scrub) -> bytes:
    """The same document with other strings. text must be valid JSON."""
    out: list[bytes] = []
    last = 0
    walk = _Walk()
    for match in _TOKEN.finditer(text):
        token = match[0]
        names = walk.step(token)
        if names is None:
            continue
        string = token[:1] == b'"'
        new = scrub(decoded(token) if string else token, *names, string)
        if new is not None:
            out += (text[last : match.start()], encoded(new, ascii_only=token.isascii()))
            last = match.end()
    return b"".join((*out, text[last:])) if out else text


def decoded(token: bytes) -> bytes:
    """A JSON string's value in UTF-8."""
    if b"\\" not in token:
        return token[1:-1]
    value: str = json.loads(token)
    return value.encode("utf-8", "surrogatepass")


def encoded(value: bytes, ascii_only: bool) -> bytes:
    text = value.decode("utf-8", "surrogatepass")
    # Half of a surrogate pair can be escaped, but not written.
    return json.dumps(text, ensure_ascii=ascii_only or not _writable(text)).encode()


def _writable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


class _Walk:
    """Where in the document a token stands."""

    def __init__(self) -> None:
        self._inside: list[tuple[bool, bytes]] = [(False, b"")]
        self._name = b""
        self._want_name = False

    def step(self, token: bytes) -> tuple[bytes, bytes] | None:
        """(name, outer name) of a value; None for all that is none."""
        mark = token[:1]
        if mark in (b"{", b"["):
            self._inside.append((mark == b"{", self._name or self._inside[-1][1]))
            self._name, self._want_name = b"", mark == b"{"
        elif mark in (b"}", b"]"):
            self._inside.pop()
            self._name = b""
        elif mark == b",":
            self._name, self._want_name = b"", self._inside[-1][0]
        elif mark != b":":
            outer = self._inside[-1][1]
            if not self._want_name:
                return self._name, outer
            self._name, self._want_name = decoded(token), False
            return b"", b""
        return None
