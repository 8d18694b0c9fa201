"""Owns the part of a pattern that has one length only: for every position the bytes that may stand there.
May touch nothing.
Never narrows a pattern: wherever the pattern matches, its anchor does.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator
from math import log2

Anchor = tuple[frozenset[int], ...]

LONGEST = 32
"""More positions than this say nothing new, and make both engines larger."""

_ESCAPES = {
    "d": frozenset(map(ord, string.digits)),
    "w": frozenset(map(ord, string.ascii_letters + string.digits + "_")),
    "s": frozenset(b" \t\n\r\f\v"),
    "n": frozenset(b"\n"),
    "t": frozenset(b"\t"),
}


class NotFixed(Exception):
    """Here the pattern stops being of one length."""


def anchor_of(pattern: str) -> Anchor:
    """The longest beginning of the pattern that has one length. Reads a small part of re's language:
    characters, classes, {n}, {n,m}, and groups whose alternatives are of equal length.
    """
    found: list[frozenset[int]] = []
    reader = _Reader(pattern)
    try:
        for part, whole in reader.parts():
            found += part
            if not whole or len(found) >= LONGEST:
                break
    except NotFixed:
        pass
    return tuple(found[:LONGEST])


def as_regex(anchor: Anchor) -> str:
    """The same in the language of re and of hyperscan, runs of one set folded."""
    out: list[str] = []
    for members, count in folded(anchor):
        out.append(_class_text(members) + (f"{{{count}}}" if count > 1 else ""))
    return "".join(out)


def folded(anchor: Anchor) -> Iterator[tuple[frozenset[int], int]]:
    """(set, how often it stands there in a row)"""
    start = 0
    for end in range(1, len(anchor) + 1):
        if end == len(anchor) or anchor[end] != anchor[start]:
            yield anchor[start], end - start
            start = end


def longest_run(anchor: Anchor, allowed: frozenset[int]) -> int:
    """How many positions in a row are within the allowed bytes whatever the match is."""
    best = current = 0
    for members in anchor:
        current = current + 1 if members <= allowed else 0
        best = max(best, current)
    return best


def probe(anchor: Anchor, most: int = 10) -> tuple[int, Anchor]:
    """(offset, window): the piece of the anchor that says most and begins with one certain byte."""
    best = (0.0, 0)
    for offset, members in enumerate(anchor):
        if len(members) == 1:
            says = sum(log2(256 / len(found)) for found in anchor[offset : offset + most])
            best = max(best, (says, -offset))
    offset = -best[1]
    return offset, anchor[offset : offset + most]


def literals_in(anchor: Anchor) -> tuple[int, bytes]:
    """(offset, bytes): the longest stretch of certain bytes."""
    best = (0, b"")
    start = 0
    while start < len(anchor):
        end = start
        while end < len(anchor) and len(anchor[end]) == 1:
            end += 1
        if end - start > len(best[1]):
            best = (start, bytes(next(iter(members)) for members in anchor[start:end]))
        start = end + 1
    return best


def _class_text(members: frozenset[int]) -> str:
    ordered = sorted(members)
    if len(ordered) == 1:
        return f"\\x{ordered[0]:02x}"
    spans: list[list[int]] = []
    for member in ordered:
        if spans and spans[-1][1] == member - 1:
            spans[-1][1] = member
        else:
            spans.append([member, member])
    return "[" + "".join(f"\\x{a:02x}" + (f"-\\x{b:02x}" if b > a else "") for a, b in spans) + "]"


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0

    def parts(self) -> Iterator[tuple[list[frozenset[int]], bool]]:
        """Each piece as sets, and whether the pattern goes on with one certain length behind it."""
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            piece = self._group() if self.text[self.at] == "(" else [self._one()]
            yield self._times(piece)

    def _times(self, piece: list[frozenset[int]]) -> tuple[list[frozenset[int]], bool]:
        mark = self.text[self.at : self.at + 1]
        if mark in ("?", "*"):
            return [], False
        if mark == "+":
            return piece, False
        if mark != "{":
            return piece, True
        end = self.text.index("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        self.at = end + 1
        return piece * int(low), not comma or low == high

    def _one(self) -> frozenset[int]:
        mark = self.text[self.at]
        self.at += 1
        if mark == "[":
            return self._class()
        if mark == "\\":
            return self._escape()
        if mark in ".^$":
            raise NotFixed
        return frozenset(mark.encode())

    def _escape(self) -> frozenset[int]:
        mark = self.text[self.at]
        self.at += 1
        return _ESCAPES.get(mark) or frozenset(mark.encode())

    def _class(self) -> frozenset[int]:
        members: set[int] = set()
        if self.text[self.at] == "^":
            raise NotFixed
        while self.text[self.at] != "]":
            mark = self.text[self.at]
            self.at += 1
            if mark == "\\":
                members |= self._escape()
            elif self.text[self.at] == "-" and self.text[self.at + 1] != "]":
                members |= set(range(ord(mark), ord(self.text[self.at + 1]) + 1))
                self.at += 2
            else:
                members.add(ord(mark))
        self.at += 1
        return frozenset(members)

    def _group(self) -> list[frozenset[int]]:
        """Alternatives of one length become one row of sets. Raises NotFixed for any other group."""
        if not self.text.startswith("(?:", self.at):
            raise NotFixed
        self.at += 3
        rows: list[list[frozenset[int]]] = []
        while True:
            row: list[frozenset[int]] = []
            for part, whole in self.parts():
                if not whole:
                    raise NotFixed
                row += part
            rows.append(row)
            self.at += 1
            if self.text[self.at - 1] == ")":
                break
        if len({len(row) for row in rows}) != 1:
            raise NotFixed
        return [frozenset().union(*column) for column in zip(*rows, strict=True)]


_B64 = (string.ascii_uppercase + string.ascii_lowercase + string.digits).encode()
_SEXTETS = [frozenset([byte]) for byte in _B64] + [frozenset(b"+-"), frozenset(b"/_")]


MOST_BYTES = 12


def in_base64(anchor: Anchor, offset: int) -> Anchor:
    """What base64 and base64url make of text that holds the anchor's beginning, offset bytes (0..2)
    behind a group of three: the characters that depend on nothing before it.
    """
    sets = anchor[:MOST_BYTES]
    bits: list[tuple[frozenset[int], int]] = [
        (members, shift) for members in sets for shift in range(7, -1, -1)
    ]
    skipped = -offset * 8 % 6
    found: list[frozenset[int]] = []
    for at in range(skipped, len(bits) - 5, 6):
        six = tuple(bits[at : at + 6])
        found.append(_characters(six))
    return tuple(found)


def first_sextet(offset: int) -> int:
    """Which character of its group of four the result of in_base64 begins with."""
    return -(-offset * 8 // 6) % 4


@functools.lru_cache(4096)
def _characters(six: tuple[tuple[frozenset[int], int], ...]) -> frozenset[int]:
    """What six bits of one or two bytes can become."""
    values = {0}
    start = 0
    while start < len(six):
        end = start
        while end < len(six) and (end == start or six[end][1] < six[end - 1][1]):
            end += 1
        low = six[end - 1][1]
        mask = (1 << (end - start)) - 1
        pieces = {(member >> low) & mask for member in six[start][0]}
        values = {value << (end - start) | piece for value in values for piece in pieces}
        start = end
    return frozenset().union(*(_SEXTETS[value] for value in values))


def text_group() -> Anchor:
    """The four characters that base64 makes of three printable ones."""
    return in_base64((frozenset(range(0x20, 0x7F)),) * 3, 0)
