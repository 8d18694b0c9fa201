"""Owns turning bytes into lines, however they are cut on their way here.
May touch nothing but memory.
Never holds back more of a line than its limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NUL_RUN = 16
"""So many NUL bytes in a row are a hole that a truncation left, not text; they are counted, not kept."""

_NULS = re.compile(rb"\0{%d,}" % NUL_RUN)


class MarkedLine(bytes):
    """A line that is not as it was written. cut: bytes taken off it, partial: its newline never came.

    Lines that are whole are plain bytes: nearly all are, and nothing is made for them.
    """

    cut: int
    partial: bool


def marked(raw: bytes, cut: int, partial: bool) -> bytes:
    if not cut and not partial:
        return raw
    line = MarkedLine(raw)
    line.cut, line.partial = cut, partial
    return line


def cut_bytes(lines: list[bytes]) -> int:
    """How many bytes were taken off these lines in all."""
    return sum(line.cut for line in lines if isinstance(line, MarkedLine))


@dataclass(slots=True)
class LineSplitter:
    """Bytes to lines; what comes past limit_bytes of one line is counted and thrown away.

    limit_bytes should exceed what is kept of a line by the longest secret: the redactor must see a
    secret whole although the line is cut behind it.
    """

    limit_bytes: int
    held: bytearray = field(default_factory=bytearray)
    _lost: int = 0
    _nuls: int = 0
    _squeezed: int = -1

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now; a line that was cut is a MarkedLine."""
        parts = chunk.split(b"\n")
        last = parts.pop()
        if not parts:
            self._add(last)
            return []
        self._add(parts[0])
        lines = [self._end(partial=False)]
        if b"\0" in chunk or max(map(len, parts)) > self.limit_bytes:
            for part in parts[1:]:
                self._add(part)
                lines.append(self._end(partial=False))
        else:
            lines += parts[1:]
        self._add(last)
        return lines

    def skip_nuls(self, count: int) -> None:
        """As feeding that many NUL bytes: a hole in a file is not read to know what is in it."""
        self._nuls += count

    def squeeze(self) -> None:
        """Hold no more of this line than is held already: others need the memory."""
        self._squeezed = len(self.held)

    def rest(self) -> list[bytes]:
        """What was left without a newline at the end."""
        return [self._end(partial=True)] if self.held or self._lost or self._nuls else []

    def _add(self, part: bytes) -> None:
        if self._nuls or b"\0" in part:
            part = self._without_nuls(part)
        limit = self.limit_bytes if self._squeezed < 0 else self._squeezed
        room = max(0, limit - len(self.held))
        if len(part) > room:
            self._lost += len(part) - room
            part = part[:room]
        self.held += part

    def _without_nuls(self, part: bytes) -> bytes:
        """NULs at the end wait for what follows them: a run is one wherever it was cut."""
        body = part.rstrip(b"\0")
        following = len(part) - len(body)
        if not body:
            self._nuls += following
            return b""
        text = body.lstrip(b"\0")
        before = self._nuls + len(body) - len(text)
        kept = _NULS.sub(b"", text)
        self._lost += len(text) - len(kept)
        if before >= NUL_RUN:
            self._lost += before
        else:
            kept = b"\0" * before + kept
        self._nuls = following
        return kept

    def _end(self, *, partial: bool) -> bytes:
        if self._nuls:
            count, self._nuls = self._nuls, 0
            if count >= NUL_RUN:
                self._lost += count
            else:
                limit = self.limit_bytes if self._squeezed < 0 else self._squeezed
                room = min(count, max(0, limit - len(self.held)))
                self.held += b"\0" * room
                self._lost += count - room
        line = marked(bytes(self.held), self._lost, partial)
        self.held.clear()
        self._lost, self._squeezed = 0, -1
        return line
