"""Owns the seam between whoever reads lines and whatever takes the secrets out of them.
May touch nothing.
Never promises more than every implementation keeps.
"""

from __future__ import annotations

from typing import Protocol

Redacted = tuple[bytes | None, int]
"""A line without secrets and how many were replaced. None: the line is dropped, its digest is in the last
line before it that is not."""


class LineRedactor(Protocol):
    """Whatever finds secrets replaces them here, line by line."""

    @property
    def longest(self) -> int:
        """Nothing needs more bytes than this to be recognised: so much of a cut line is not shown."""
        ...

    def redact(self, line: bytes) -> tuple[bytes, int]:
        """The line without secrets, and how many were replaced."""
        ...

    def redact_lines(self, lines: list[bytes], stream: str = "") -> list[Redacted]:
        """One entry per line. What runs over lines is followed within one stream."""
        ...
