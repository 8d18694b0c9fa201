"""Owns turning bytes into lines, however they are cut on their way here.
May touch nothing but memory.
Never holds back more of a line than its limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LineSplitter:
    """Bytes to lines, with a bound on what is held back for a line that does not end.

    limit_bytes should exceed what is kept of a line by the longest secret: the redactor must see a
    secret whole although the line is cut behind it.
    """

    limit_bytes: int
    held: bytearray = field(default_factory=bytearray)
    skipping: bool = False

    def feed(self, chunk: bytes) -> tuple[list[bytes], int]:
        """Complete lines, and how many bytes of overlong lines were thrown away."""
        lines: list[bytes] = []
        dropped = 0
        parts = chunk.split(b"\n")
        for part in parts[:-1]:
            if self.skipping:
                dropped += len(part)
                self.skipping = False
                continue
            self.held += part
            line, lost = self._take()
            dropped += lost
            lines.append(line)
        if self.skipping:
            return lines, dropped + len(parts[-1])
        self.held += parts[-1]
        if len(self.held) > self.limit_bytes:
            line, lost = self._take()
            lines.append(line)
            self.skipping = True
            dropped += lost
        return lines, dropped

    def _take(self) -> tuple[bytes, int]:
        line, lost = bytes(self.held[: self.limit_bytes]), max(0, len(self.held) - self.limit_bytes)
        self.held.clear()
        return line, lost

    def rest(self) -> list[bytes]:
        """What was left without a newline at the end."""
        line, _ = self._take()
        return [line] if line else []
