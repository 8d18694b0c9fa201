"""Owns which instant and which day charges are booked on, and noticing that the wall clock jumped.
May touch the clock it is given, and two settings in the store through the caller.
Never opens the next day because the wall clock ran ahead: somebody confirms that first.
"""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

import msgspec

from supervisor.clock import CLOCK_JUMP, Clock, rfc3339
from supervisor.limits.day import Anchor, Day, Reading, day_of, read_clock

ANCHOR = "clock_anchor"
"""The setting with the last moment that was believed."""

_WRITE_EVERY_S = 60.0


class BookingClock:
    """One per supervisor. look() is called about once a second with the settings of the store."""

    def __init__(self, clock: Clock, boot_id: str, zone: ZoneInfo, settings: dict[str, str]) -> None:
        """settings: of the store; an anchor of this boot that another supervisor left is taken over."""
        self._clock = clock
        self._boot_id = boot_id
        self._zone = zone
        self._offset_s = 0.0
        self._jump_s = 0.0
        self._jump_was_told = False
        self._written_s: float | None = None
        self._anchor = self._here()
        left = settings.get(ANCHOR)
        if left is not None:
            anchor = msgspec.json.decode(left, type=Anchor)
            if anchor.boot_id == boot_id:
                self._anchor = anchor

    @property
    def jump_s(self) -> float:
        """How far the wall clock is ahead of what is believed; 0 when all is well."""
        return self._jump_s

    def use_offset(self, offset_s: float) -> None:
        """A fleet books by the database's clock: how far that is ahead of this host's."""
        self._offset_s = offset_s

    def _here(self) -> Anchor:
        utc = self._clock.utc() + timedelta(seconds=self._offset_s)
        return Anchor(utc=utc, boottime_s=self._clock.boottime_s(), boot_id=self._boot_id)

    def read(self) -> Reading:
        """The instant to book by. One that is believed becomes what the next is compared with."""
        here = self._here()
        reading = read_clock(self._anchor, here.utc, here.boottime_s, self._boot_id)
        self._jump_s = reading.jump_s
        if not reading.jump_s:
            self._anchor = here
        return reading

    def now(self) -> str:
        """RFC 3339 UTC, as it is booked."""
        return rfc3339(self.read().instant)

    def later(self, seconds: float) -> str:
        """An instant from now on, for leases."""
        return rfc3339(self.read().instant + timedelta(seconds=seconds))

    def day(self) -> Day:
        return day_of(self.read().instant, self._zone)

    def look(self, settings: dict[str, str]) -> dict[str, str]:
        """Settings to write: the anchor while it is believed, the jump when there is one.

        A jump that was written and is no longer there was confirmed by somebody: time is believed
        from here on.
        """
        if self._jump_was_told and not settings.get(CLOCK_JUMP):
            self._anchor = self._here()
            self._jump_was_told = False
        reading = self.read()
        if reading.jump_s:
            # Told is what was read back: a write that failed, or is done twice, must not look confirmed.
            self._jump_was_told = self._jump_was_told or bool(settings.get(CLOCK_JUMP))
            return {} if settings.get(CLOCK_JUMP) else {CLOCK_JUMP: f"{reading.jump_s:.0f}"}
        if self._written_s is not None and self._anchor.boottime_s - self._written_s < _WRITE_EVERY_S:
            return {}
        self._written_s = self._anchor.boottime_s
        return {ANCHOR: msgspec.json.encode(self._anchor).decode()}
