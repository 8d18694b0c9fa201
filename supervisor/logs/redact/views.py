"""Owns seeing text as its reader will: without terminal colours, escapes undone, percent codes decoded.
May touch nothing.
Never loses where a byte came from: what is found in a view can be cut out of the source.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

_SEQUENCE = re.compile(
    rb"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\^_()#][0-9A-Za-z]?)"
)
_ESCAPE = re.compile(
    rb"""\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf"'/\\]))"""
)
_PERCENT = re.compile(rb"%([0-9a-fA-F]{2})")
_SHORT = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}

Rewrite = tuple[re.Pattern[bytes], Callable[[re.Match[bytes]], bytes]]


def _unescaped(match: re.Match[bytes]) -> bytes:
    high, low, unit, byte, short = match.groups()
    if high:
        point = 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)
        return chr(point).encode()
    if unit:
        return chr(int(unit, 16)).encode("utf-8", "replace")
    if byte:
        return bytes([int(byte, 16)])
    return _SHORT.get(short, short)


COLOURS: Rewrite = (_SEQUENCE, lambda _: b"")
ESCAPES: Rewrite = (_ESCAPE, _unescaped)
PERCENTS: Rewrite = (_PERCENT, lambda match: bytes([int(match[1], 16)]))


class View:
    """text, and where its bytes stand in the source. Without a parent it is the source itself."""

    __slots__ = ("_at", "_source", "_wide", "parent", "text")

    def __init__(self, text: bytes, parent: View | None = None) -> None:
        self.text = text
        self.parent = parent
        # Piece by piece: where it begins here, where there, how much of the source one byte here is.
        self._at: list[int] = [0]
        self._source: list[int] = [0]
        self._wide: list[int] = [0]

    def through(self, rewrite: Rewrite) -> View:
        """The view in which every match is replaced; self where there is none."""
        pattern, made = rewrite
        view = View(b"", self)
        out: list[bytes] = []
        size = last = 0
        for match in pattern.finditer(self.text):
            out.append(self.text[last : match.start()])
            size += match.start() - last
            piece = made(match)
            if piece:
                view._add(size, match.start(), match.end() - match.start())
                out.append(piece)
                size += len(piece)
            last = match.end()
            view._add(size, last, 0)
        if not out:
            return self
        out.append(self.text[last:])
        view.text = b"".join(out)
        return view

    def _add(self, at: int, source: int, wide: int) -> None:
        self._at.append(at)
        self._source.append(source)
        self._wide.append(wide)

    def source(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the source that start..end of the text came from."""
        if self.parent is None or end <= start:
            return start, end
        first = bisect_right(self._at, start) - 1
        last = bisect_right(self._at, end - 1) - 1
        begin = self._source[first] + (0 if self._wide[first] else start - self._at[first])
        wide = self._wide[last]
        stop = self._source[last] + (wide or end - self._at[last])
        return self.parent.source(begin, stop)
