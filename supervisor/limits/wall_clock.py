"""Owns when a run has had its time.
May touch nothing: the time is an argument.
Never counts in anything but seconds of the boot clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WallClock:
    """limit_s seconds from started_s on (CLOCK_BOOTTIME)."""

    started_s: float
    limit_s: float

    def used_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.started_s)

    def left_s(self, now_s: float) -> float:
        """0 when the time is up."""
        return max(0.0, self.limit_s - self.used_s(now_s))

    def is_up(self, now_s: float) -> bool:
        return now_s - self.started_s >= self.limit_s
