"""Owns taking secrets out of what an agent wrote, before anything is stored or shown.
May touch nothing: bytes in, bytes out.
Never lets a secret it was given pass, in any of the encodings a program commonly writes.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Protocol

from supervisor.errors import UsageError

MIN_SECRET_LENGTH = 6
_PERCENT = re.compile("%[0-9A-F]{2}")
_UNICODE = re.compile(r"\\u([0-9a-f]{4})")


class Redactor(Protocol):
    """The seam: whatever finds secrets replaces them here, line by line."""

    longest: int
    """No match is longer than this many bytes."""

    def redact(self, line: bytes) -> tuple[bytes, int]:
        """The line without secrets, and how many were replaced."""
        ...


class KnownSecrets:
    """Replaces the values this run was given. The marker names the variable, never the length."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Raises UsageError for a value so short that replacing it would eat ordinary text."""
        marked: dict[bytes, bytes] = {}
        for name, value in secrets.items():
            if len(value) < MIN_SECRET_LENGTH:
                raise UsageError(
                    f"secret {name} is too short to be redacted safely",
                    hint=f"use one of at least {MIN_SECRET_LENGTH} characters",
                )
            marker = f"[redacted:{name}]".encode()
            for form in _forms(value):
                marked.setdefault(form, marker)
        self._markers = marked
        self.longest = max(map(len, marked), default=0)
        ordered = sorted(marked, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None

    def redact(self, line: bytes) -> tuple[bytes, int]:
        if self._pattern is None:
            return line, 0
        return self._pattern.subn(lambda match: self._markers[match[0]], line)


def _forms(value: str) -> set[bytes]:
    """Raw, JSON-escaped, percent, hex, base64 at each of three offsets; each line of several."""
    found: set[bytes] = set()
    for text in {value, *(line.strip() for line in value.splitlines())}:
        if len(text) < MIN_SECRET_LENGTH:
            continue
        raw = text.encode()
        found |= {raw, raw.hex().encode(), raw.hex().upper().encode()}
        found |= {form.encode() for form in _json_forms(text)}
        found |= {repr(text)[1:-1].encode(), html.escape(text).encode()}
        percent = (urllib.parse.quote(text), urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text))
        found |= {form.encode() for form in percent}
        found |= {_PERCENT.sub(lambda m: m[0].lower(), form).encode() for form in percent}
        for offset in range(3):
            found |= _base64_at(raw, offset)
    return {form for form in found if len(form) >= MIN_SECRET_LENGTH}


def _json_forms(text: str) -> set[str]:
    """As the usual encoders write a string: ASCII or not, \\/ or /, and < > & ' + as they are or escaped."""
    forms = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    for escaped in ("/", "<>&", "<>&'+"):
        for form in list(forms):
            spelled = {"/": "\\/"} if escaped == "/" else {c: f"\\u{ord(c):04x}" for c in escaped}
            forms.add("".join(spelled.get(c, c) for c in form))
    return forms | {_UNICODE.sub(lambda m: "\\u" + m[1].upper(), form) for form in forms}


def _base64_at(raw: bytes, offset: int) -> set[bytes]:
    """The part of the base64 text that depends on nothing but the secret, whatever stands around it."""
    encoded = base64.b64encode(b"\0" * offset + raw)
    first = -(-offset * 8 // 6)
    last = (offset + len(raw)) * 8 // 6
    core = encoded[first:last]
    return {core, core.translate(bytes.maketrans(b"+/", b"-_"))}
