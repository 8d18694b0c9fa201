"""Owns what a day is: half-open intervals of UTC instants, cut by the calendar of a named zone.
May touch nothing: instants and boot times are arguments.
Never lets a clock that was set back reopen a day, or one that jumped ahead open the next.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

JUMP_S = 300.0
"""A wall clock that runs further ahead of the boot clock than this is not believed."""

_SECOND = timedelta(seconds=1)


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """name: the date, "2026-12-01". start and end: UTC instants, the end not included."""

    name: str
    start: datetime
    end: datetime


def day_of(instant: datetime, zone: ZoneInfo) -> Day:
    """The day an instant belongs to. DST days last 23 or 25 hours; a cap is not scaled with them."""
    found = instant.astimezone(zone).date()
    # Clocks set back across midnight show a date again that is over: it stays over.
    if instant >= _start(found + timedelta(days=1), zone):
        found += timedelta(days=1)
    return _day(found, zone)


def day_named(name: str, zone: ZoneInfo) -> Day:
    """The day of a date like "2026-12-01". Raises ValueError."""
    try:
        return _day(date.fromisoformat(name), zone)
    except OverflowError:
        raise ValueError(f"{name} has no day before or after it") from None


def _day(found: date, zone: ZoneInfo) -> Day:
    return Day(name=found.isoformat(), start=_start(found, zone), end=_start(found + timedelta(days=1), zone))


def _start(wanted: date, zone: ZoneInfo) -> datetime:
    """The first instant of a date. Midnight may not exist (a gap) or come twice (the first counts)."""
    midnight = datetime(wanted.year, wanted.month, wanted.day, tzinfo=zone).astimezone(UTC)
    back = midnight.astimezone(zone)
    if (back.date(), back.hour, back.minute, back.second) == (wanted, 0, 0, 0):
        return midnight
    low, high = midnight - timedelta(days=1, hours=2), midnight + timedelta(days=1)
    while high - low > _SECOND:
        middle = low + (high - low) / 2
        if middle.astimezone(zone).date() >= wanted:
            high = middle
        else:
            low = middle
    return high.replace(microsecond=0)


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """A moment that was believed: UTC beside the boot clock of that boot."""

    utc: datetime
    boottime_s: float
    boot_id: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What to book by. jump_s: how far the wall clock is ahead of what is believed, 0 when it is believed."""

    instant: datetime
    jump_s: float = 0.0


def read_clock(anchor: Anchor, utc: datetime, boottime_s: float, boot_id: str) -> Reading:
    """The wall clock, unless it ran ahead of the boot clock by more than JUMP_S since the anchor.

    Then time goes on by the boot clock until somebody confirms the jump. A clock set back is
    believed here: the ledger books on the latest day it has seen. After another boot there is
    nothing to compare with.
    """
    if boot_id != anchor.boot_id:
        return Reading(instant=utc)
    expected = anchor.utc + timedelta(seconds=max(0.0, boottime_s - anchor.boottime_s))
    ahead_s = (utc - expected).total_seconds()
    return Reading(instant=expected, jump_s=ahead_s) if ahead_s > JUMP_S else Reading(instant=utc)
