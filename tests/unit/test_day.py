"""Owns that days follow each other without a gap or an overlap, in every zone, and that clocks cannot lie.
May touch the zone data of this machine.
Never uses the clock of this machine.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.booking import ANCHOR, BookingClock
from supervisor.clock import CLOCK_JUMP
from supervisor.limits.day import JUMP_S, Anchor, day_named, day_of, read_clock

ZONES = ["UTC", "Europe/Madrid", "America/Havana", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia"]
INSTANTS = st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))


@given(INSTANTS, st.sampled_from(ZONES))
def test_an_instant_is_in_its_day_and_days_touch(instant: datetime, name: str) -> None:
    zone = ZoneInfo(name)
    day = day_of(instant, zone)
    assert day.start <= instant < day.end
    assert day_of(day.start, zone) == day
    assert day_of(day.end, zone).start == day.end
    assert day_of(day.start - timedelta(microseconds=1), zone).end == day.start
    assert day_named(day.name, zone) == day


@pytest.mark.parametrize(
    ("zone", "name", "hours"),
    [
        ("Europe/Madrid", "2026-03-29", 23),
        ("Europe/Madrid", "2026-10-25", 25),
        ("America/Havana", "2026-03-08", 23),  # midnight does not exist
        ("America/Havana", "2026-11-01", 25),  # midnight comes twice
        ("UTC", "2026-10-25", 24),
    ],
)
def test_a_day_on_which_clocks_change_is_shorter_or_longer(zone: str, name: str, hours: int) -> None:
    day = day_named(name, ZoneInfo(zone))
    assert day.end - day.start == timedelta(hours=hours)


def test_a_date_that_comes_back_when_clocks_go_back_is_still_over() -> None:
    zone = ZoneInfo("America/Havana")
    start = day_named("2026-11-01", zone).start
    assert day_of(start + timedelta(minutes=59), zone).name == "2026-11-01"
    assert day_of(start + timedelta(minutes=61), zone).name == "2026-11-01"


NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
ANCHORED = Anchor(utc=NOON, boottime_s=1000.0, boot_id="b")


def test_time_that_passed_on_the_boot_clock_is_believed() -> None:
    later = NOON + timedelta(hours=30)
    assert read_clock(ANCHORED, later, 1000.0 + 30 * 3600, "b").instant == later


def test_a_clock_that_jumped_ahead_is_not_believed() -> None:
    reading = read_clock(ANCHORED, NOON + timedelta(hours=13), 1010.0, "b")
    assert reading.instant == NOON + timedelta(seconds=10)
    assert reading.jump_s == 13 * 3600 - 10


def test_a_small_step_is_an_ordinary_correction() -> None:
    step = NOON + timedelta(seconds=JUMP_S)
    assert read_clock(ANCHORED, step, 1000.0, "b").instant == step


def test_after_another_boot_there_is_nothing_to_compare_with() -> None:
    later = NOON + timedelta(days=9)
    assert read_clock(ANCHORED, later, 5.0, "another").instant == later


class HandClock:
    """Set by hand."""

    def __init__(self) -> None:
        self.now, self.boottime = NOON, 1000.0

    def utc(self) -> datetime:
        return self.now

    def boottime_s(self) -> float:
        return self.boottime

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.boottime += seconds


def test_a_jump_opens_no_new_day_until_somebody_confirms_it() -> None:
    clock = HandClock()
    booking = BookingClock(clock, "b", ZoneInfo("UTC"), {})
    settings: dict[str, str] = {}
    settings |= booking.look(settings)
    clock.now += timedelta(hours=14)
    assert booking.day().name == "2026-12-01"  # seen by a charge before anybody looked
    settings |= booking.look(settings)
    assert settings[CLOCK_JUMP] == str(14 * 3600)
    clock.pass_time(60)
    settings |= booking.look(settings)
    assert booking.day().name == "2026-12-01" and booking.jump_s == 14 * 3600
    settings[CLOCK_JUMP] = ""
    settings |= booking.look(settings)
    assert booking.day().name == "2026-12-02" and booking.jump_s == 0


def test_a_jump_that_could_not_be_written_down_is_not_confirmed() -> None:
    clock = HandClock()
    booking = BookingClock(clock, "b", ZoneInfo("UTC"), {})
    clock.now += timedelta(hours=1)
    assert booking.look({}) == booking.look({}) == {CLOCK_JUMP: "3600"}
    assert booking.jump_s == 3600


def test_a_supervisor_that_starts_after_the_jump_sees_it_too() -> None:
    clock = HandClock()
    left = BookingClock(clock, "b", ZoneInfo("UTC"), {}).look({})
    assert set(left) == {ANCHOR}
    clock.now += timedelta(hours=14)
    assert BookingClock(clock, "b", ZoneInfo("UTC"), left).day().name == "2026-12-01"
    assert BookingClock(clock, "c", ZoneInfo("UTC"), left).day().name == "2026-12-02"


def test_a_fleet_books_by_the_clock_of_its_database() -> None:
    booking = BookingClock(HandClock(), "b", ZoneInfo("UTC"), {})
    booking.use_offset(-60.0)
    assert booking.now() == "2026-12-01T11:59:00.000Z"
