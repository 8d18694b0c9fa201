"""Owns the clocks: UTC for what people read, boot time for what limits count.
May touch the system's clocks.
Never mixes the two: an instant is UTC, a duration comes from CLOCK_BOOTTIME (clock_gettime(2)).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol

CLOCK_JUMP = "clock_jump"
"""The setting that says by how many seconds the wall clock ran ahead; claims wait until it is cleared."""


class Clock(Protocol):
    """What limits need to know of time; tests give their own."""

    def utc(self) -> datetime: ...

    def boottime_s(self) -> float: ...


class SystemClock:
    """CLOCK_BOOTTIME goes on while the machine sleeps: a sleeping laptop is running out of time."""

    def utc(self) -> datetime:
        return datetime.now(UTC)

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Changes at every boot: a boot time of another boot means nothing (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def rfc3339(instant: datetime) -> str:
    """Milliseconds and Z, as in every event and every JSON answer."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
