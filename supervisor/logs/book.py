"""Owns a run's log on disk: redacted lines, one JSON object each, appended and read back.
May touch log.ndjson in the run's folder.
Never writes a line that has not been through the redactor, and never more than its budget.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from typing import Literal

import msgspec

from supervisor.clock import rfc3339
from supervisor.logs.redact.seam import LineRedactor
from supervisor.logs.sealer import LogSealer, Seal
from supervisor.logs.tail.lines import MarkedLine
from supervisor.ownership import open_file

_MARKER = re.compile(rb"\[redacted:([\w.-]{1,64})")
_MAX_RULES = 200

_Bytes = bytes  # LogTotals has a field of that name

Stream = Literal["out", "err", "file"]


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line as it is stored. s: which stream; f: file name for "file"; cut: bytes taken off.

    partial: its newline never came, because the file was replaced or everything ended.
    """

    at: str
    s: Stream
    t: str
    f: str = ""
    cut: int = 0
    partial: bool = False


@dataclass(slots=True)
class LogTotals:
    """What went through: kept and dropped, in lines and bytes, and how many secrets were replaced."""

    lines: int = 0
    bytes: int = 0
    dropped_lines: int = 0
    dropped_bytes: int = 0
    redacted: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def note(self, clean: _Bytes) -> None:
        """Which rules replaced something in a line, as its markers name them."""
        for marker in _MARKER.finditer(clean):
            name = marker[1].decode("ascii")
            self.rules[name if name in self.rules or len(self.rules) < _MAX_RULES else "other"] += 1

    def as_dict(self) -> dict[str, int | float]:
        return {
            **{f"redacted:{name}": count for name, count in self.rules.items()},
            "log_lines": self.lines,
            "log_bytes": self.bytes,
            "dropped_bytes": self.dropped_bytes,
            "redacted": self.redacted,
        }


@dataclass(slots=True)
class LogBook:
    """The writer. budget_bytes: what is kept in all, as it lies on the disk; past it lines are
    counted and dropped. Lines longer than max_line_bytes come with up to redactor.longest bytes more.
    seal is told the digest of each piece that was written.
    """

    path: str
    redactor: LineRedactor
    budget_bytes: int
    max_line_bytes: int
    seal: Seal = lambda _: None
    totals: LogTotals = field(default_factory=LogTotals)
    written: int = 0
    _fd: int = -1
    _sealer: LogSealer | None = None

    def open(self) -> LogBook:
        self._fd = open_file(self.path, os.O_WRONLY | os.O_APPEND)
        self._sealer = LogSealer(os.fstat(self._fd).st_size, self.seal)
        return self

    @property
    def full(self) -> bool:
        return self.written >= self.budget_bytes

    def add(self, stream: Stream, lines: list[bytes], at: datetime, file: str = "") -> list[LogLine]:
        """Redact, then cut, then write. Returns what was kept, for whoever watches live."""
        kept: list[LogLine] = []
        encoded: list[bytes] = []
        stamp = rfc3339(at)
        cleaned = repeat((None, 0)) if self.full else self.redactor.redact_lines(lines, stream + file)
        for raw, (clean, count) in zip(lines, cleaned, strict=False):
            self.totals.redacted += count
            if clean is None or self.full:
                self.drop(len(raw) + 1 + (raw.cut if isinstance(raw, MarkedLine) else 0), 1)
                continue
            if count:
                self.totals.note(clean)
            room = self.max_line_bytes
            if len(raw) >= room + self.redactor.longest:
                # A secret may have been cut in two where the line was; markers are shorter than secrets.
                room = max(0, min(room, len(clean) - self.redactor.longest))
            text = clean[:room].decode("utf-8", errors="replace")
            cut, partial = max(0, len(clean) - room), False
            if isinstance(raw, MarkedLine):
                cut, partial = cut + raw.cut, raw.partial
            self.totals.dropped_bytes += cut
            line = LogLine(stamp, stream, text, file, cut, partial)
            kept.append(line)
            encoded.append(msgspec.json.encode(line) + b"\n")
            self.totals.lines += 1
            self.totals.bytes += min(len(clean), room) + 1
            self.written += len(encoded[-1])
        if kept:
            self._write(b"".join(encoded))
        return kept

    def drop(self, count: int, lines: int = 0) -> None:
        self.totals.dropped_bytes += count
        self.totals.dropped_lines += lines

    def _write(self, raw: bytes) -> None:
        """A full disk must not stop the run from being watched: what cannot be kept is dropped."""
        try:
            while raw:
                count = os.write(self._fd, raw)
                if self._sealer is not None:
                    self._sealer.wrote(raw[:count])
                raw = raw[count:]
        except OSError:
            self.drop(len(raw))

    def close(self) -> None:
        if self._sealer is not None:
            self._sealer.close()
            self._sealer = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_lines(path: str, offset: int, limit_bytes: int = 1 << 20) -> tuple[list[LogLine], int]:
    """Whole lines from a byte offset on, and the offset to go on from. A missing log is an empty one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return [], offset
    try:
        raw = os.pread(fd, limit_bytes, offset)
        while raw and b"\n" not in raw and len(raw) == limit_bytes:
            limit_bytes *= 2
            raw = os.pread(fd, limit_bytes, offset)
    finally:
        os.close(fd)
    end = raw.rfind(b"\n") + 1
    lines = [msgspec.json.decode(line, type=LogLine) for line in raw[:end].splitlines()]
    return lines, offset + end
