"""Owns instants as text, and when a run has had its time.
May touch nothing.
Never mixes an instant with a duration.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.clock import SystemClock, boot_id, parse_rfc3339, rfc3339
from supervisor.limits.wall_clock import WallClock


def test_rfc3339() -> None:
    instant = datetime(2026, 9, 1, 4, 14, 7, 512_999, timezone(timedelta(hours=2)))
    assert rfc3339(instant) == "2026-09-01T02:14:07.512Z"


@settings(deadline=None)
@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 2)))
def test_back_and_forth(instant: datetime) -> None:
    text = rfc3339(instant)
    assert text.endswith("Z")
    assert timedelta(0) <= instant - parse_rfc3339(text) < timedelta(milliseconds=1)


def test_the_boot_clock_goes_on_and_the_boot_is_known() -> None:
    clock = SystemClock()
    assert clock.boottime_s() <= clock.boottime_s()
    assert len(boot_id()) == 36


@settings(deadline=None)
@given(start=st.floats(0, 1e9), limit=st.floats(0.001, 1e7), later=st.floats(0, 1e8))
def test_wall_clock(start: float, limit: float, later: float) -> None:
    clock = WallClock(start, limit)
    now = start + later
    assert clock.used_s(now) >= 0 and clock.left_s(now) >= 0
    assert clock.is_up(now) == (now - start >= limit)
    if clock.is_up(now):
        assert clock.left_s(now) == 0
    assert clock.used_s(start - 5) == 0, "a clock that went back uses nothing up"
