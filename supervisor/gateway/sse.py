"""Owns cutting a stream of server-sent events into events, without changing a byte.
May touch nothing: bytes in, events out.
Never holds more than one unfinished event, and never one above its limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_EVENT_BYTES = 16 << 20

# The first group is atomic: CRLF is one end of a line, never two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?:\r\n|\r|\n)")
_DATA = re.compile(rb"(?:\A|[\r\n])data(?=[:\r\n]|\Z)(?:: ?([^\r\n]*))?")
_BOM = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """One event is above the limit; nothing of it was given out."""


class SseEvent(NamedTuple):
    """One event. raw: the bytes as they came, blank line included; all raw in order are the stream.

    data: the values of its data lines joined by LF; None when it has none (a comment, an id).
    """

    raw: bytes
    data: bytes | None


class SseSplitter:
    """Cuts one stream. Follows the WHATWG rules for line ends (LF, CR, CRLF, mixed) and a BOM.

    An LF that comes after an event was closed by a CR belongs to the next event's raw bytes: waiting
    for it would hold back an event that is complete.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._at_start = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes. Raises EventTooLong."""
        kept = self._kept
        if kept:
            # Only the last byte can be half of a blank line.
            search_from = len(kept) - 1
            kept += chunk
            events, done = self._cut(kept, search_from)
            del kept[:done]
        else:
            events, done = self._cut(chunk, 0)
            kept += chunk[done:] if done else chunk
        if len(kept) > self._limit:
            raise EventTooLong(f"an event of more than {self._limit} bytes")
        return events

    def close(self) -> list[SseEvent]:
        """What is left when the stream ends: an event whose blank line never came is one nevertheless."""
        raw = bytes(self._kept)
        self._kept.clear()
        return [self._event(raw)] if raw else []

    def _cut(self, buffer: bytes | bytearray, search_from: int) -> tuple[list[SseEvent], int]:
        events: list[SseEvent] = []
        done = 0
        for end in _ends(buffer, search_from):
            if end - done > self._limit:
                raise EventTooLong(f"an event of more than {self._limit} bytes")
            events.append(self._event(bytes(buffer[done:end])))
            done = end
        return events, done

    def _event(self, raw: bytes) -> SseEvent:
        read = raw
        if self._at_start:
            self._at_start = False
            read = raw.removeprefix(_BOM)
        if read.startswith(b"data: ") and b"\r" not in read and read.find(b"\n") == len(read) - 2:
            # One line and LF, as the providers write them.
            return SseEvent(raw, read[6:-2])
        values = _DATA.findall(read)
        if not values:
            return SseEvent(raw, None)
        return SseEvent(raw, values[0] if len(values) == 1 else b"\n".join(values))


def _ends(buffer: bytes | bytearray, search_from: int) -> Iterator[int]:
    """Where each blank line ends."""
    if b"\r" in buffer:
        for found in _BLANK_LINE.finditer(buffer, search_from):
            yield found.end()
        return
    while (at := buffer.find(b"\n\n", search_from)) >= 0:
        search_from = at + 2
        yield search_from
