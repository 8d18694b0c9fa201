"""Owns telling the audit trail what was written to a run's log, piece by piece.
May touch nothing: bytes in, digests out.
Never sees a line that was not redacted: it hashes what lies on the disk.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

_PIECE_BYTES = 4 << 20
_PIECE_S = 60.0

Seal = Callable[[dict[str, Any]], None]
"""Takes from, to (byte offsets in the log) and sha256 of what lies between them."""


class LogSealer:
    """One hash over each piece: a piece ends when it is large or old, and when the log is closed."""

    def __init__(self, offset: int, seal: Seal) -> None:
        self._from = self._to = offset
        self._seal = seal
        self._digest = hashlib.sha256()
        self._began_s = time.monotonic()

    def wrote(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._to += len(raw)
        if self._to - self._from >= _PIECE_BYTES or time.monotonic() - self._began_s >= _PIECE_S:
            self.close()

    def close(self) -> None:
        """End the piece; another may begin behind it."""
        if self._to > self._from:
            self._seal({"from": self._from, "to": self._to, "sha256": self._digest.hexdigest()})
        self._from = self._to
        self._digest = hashlib.sha256()
        self._began_s = time.monotonic()
