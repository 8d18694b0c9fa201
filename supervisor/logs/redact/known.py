"""Owns the values that a run was given: every form in which a program may print one, and finding them.
May touch nothing: bytes in, bytes out.
Never lets a secret it was given pass, in any of the encodings a program commonly writes.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from supervisor.errors import UsageError
from supervisor.logs.redact.seam import Redacted

MIN_SECRET_LENGTH = 6
_LEAST_PIECE = 8
"""A line, or a member of a secret that is shorter says too little to be looked for by itself."""
_PIECE = 16
"""Base64 is broken into lines of 64 or 76 characters; of a secret in it such a piece stays whole."""
_B64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
_FAR = 4096
_PERCENT = re.compile("%[0-9A-F]{2}")
_UNICODE = re.compile(r"\\u([0-9a-f]{4})")


class KnownSecrets:
    """Replaces the values this run was given. The marker names the variable, never the length."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Raises UsageError for a value so short that replacing it would eat ordinary text."""
        names: dict[bytes, str] = {}
        parts: dict[bytes, str] = {}
        for name, value in secrets.items():
            if len(value) < MIN_SECRET_LENGTH:
                raise UsageError(
                    f"secret {name} is too short to be redacted safely",
                    hint=f"use one of at least {MIN_SECRET_LENGTH} characters",
                )
            for form in _forms(value):
                names.setdefault(form, name)
            for part in _parts(value):
                parts.setdefault(part, name)
        self._names = names
        self._parts = {part: name for part, name in parts.items() if part not in names}
        self.longest = max(map(len, names), default=0)
        ordered = sorted(names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None

    @property
    def forms(self) -> list[bytes]:
        """What is looked for, for an engine that looks for many at once."""
        return [*self._names, *self._parts]

    def redact(self, line: bytes) -> tuple[bytes, int]:
        if self._pattern is None or not self.any_in(line):
            return line, 0
        return self._pattern.subn(lambda match: marker(self._names[match[0]]), line)

    def redact_lines(self, lines: list[bytes], stream: str = "") -> list[Redacted]:
        return [self.redact(line) for line in lines]

    def any_in(self, data: bytes) -> bool:
        """Is any form in it? Also a part of one that was broken into lines."""
        return any(form in data for form in self._names) or any(part in data for part in self._parts)

    def spans(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        """Every place of every form, overlapping ones too: (start, end, name)."""
        for form, name in self._names.items():
            at = data.find(form)
            while at >= 0:
                yield at, at + len(form), name
                at = data.find(form, at + 1)
        for piece, name in self._parts.items():
            at = data.find(piece)
            while at >= 0:
                # What is left of a secret that was broken into lines: all of the run goes.
                before = data[max(0, at - _FAR) : at]
                start = at - len(before) + len(before.rstrip(_B64))
                after = data[at : at + _FAR]
                yield start, at + len(after) - len(after.lstrip(_B64)), name
                at = data.find(piece, at + len(piece))

    def folded(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        """Base64 of a secret that a program broke into lines: (start, end, name)."""
        if not any(part in data for part in self._parts):
            return
        keep = [at for at, byte in enumerate(data) if byte not in b"\r\n"]
        for start, end, name in self.spans(data.translate(None, b"\r\n")):
            yield keep[start], keep[end - 1] + 1, name


class KnownEngine:
    """Finds the lines that hold any form, in one pass. Raises ImportError without the package."""

    def __init__(self, known: KnownSecrets) -> None:
        import hyperscan

        forms = known.forms
        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        expressions = ["".join(f"\\x{byte:02x}" for byte in form).encode() for form in forms]
        self._database.compile(
            expressions=expressions, ids=list(range(len(forms))), flags=hyperscan.HS_FLAG_DOTALL
        )

    def ends(self, data: bytes) -> list[int]:
        """Where forms end, not more than one in the same place."""
        found: list[int] = []
        self._database.scan(data, match_event_handler=lambda _i, _s, end, _f, _c: found.append(end))
        return found


def marker(name: str) -> bytes:
    return f"[redacted:{name}]".encode()


def _pieces(value: str) -> set[str]:
    """The value, trimmed, each of its lines, and each string of it when it is JSON."""
    found = {value, value.strip(), *(line.strip() for line in value.splitlines())}
    if value.lstrip()[:1] in ("{", "["):
        try:
            found |= set(_leaves(json.loads(value)))
        except (ValueError, RecursionError):
            return found
    return found


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) >= _LEAST_PIECE:
        yield value
        yield from (line for line in value.splitlines() if len(line) >= _LEAST_PIECE)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)


def _forms(value: str) -> set[bytes]:
    """Raw, JSON-escaped once and twice, percent, hex, base64 at each of three offsets, of each piece."""
    found: set[bytes] = set()
    for text in _pieces(value):
        if len(text) < MIN_SECRET_LENGTH:
            continue
        raw = text.encode()
        found |= {raw, raw.hex().encode(), raw.hex().upper().encode()}
        once = _json_forms(text)
        found |= {form.encode() for form in once}
        found |= {json.dumps(form)[1:-1].encode() for form in once}
        found |= {repr(text)[1:-1].encode(), html.escape(text).encode()}
        percent = (urllib.parse.quote(text), urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text))
        found |= {form.encode() for form in percent}
        found |= {_PERCENT.sub(lambda m: m[0].lower(), form).encode() for form in percent}
        every = "".join(f"%{byte:02X}" for byte in raw)
        found |= {every.encode(), every.lower().encode()}
        for offset in range(3):
            found |= _base64_at(raw, offset)
    return {form for form in found if len(form) >= MIN_SECRET_LENGTH}


def _parts(value: str) -> set[bytes]:
    """Pieces of its base64, of which some are still whole when it is broken into lines."""
    found: set[bytes] = set()
    for offset in range(3):
        for core in _base64_at(value.encode(), offset):
            found |= {core[at : at + _PIECE] for at in range(0, len(core) - _PIECE + 1, _PIECE)}
    return found


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
