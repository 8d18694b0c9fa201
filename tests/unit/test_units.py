"""Owns how durations and sizes are written and shown.
May touch nothing.
Never guesses a unit.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.profile.units import parse_duration, parse_size, show_duration, show_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("15m", 900), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("2d", 172800), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "15",
        15,
        1.5,
        None,
        True,
        "15 m",
        "m",
        "-5s",
        "5sec",
        "1e3s",
        "٣s",
        "5s ",
        " 5s",
        "5S",
        "inf",
        "nans",
        [],
    ],
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0B", 0),
        ("1KiB", 1024),
        ("4GiB", 4 << 30),
        ("1.5MiB", 3 << 19),
        ("512 MiB", 512 << 20),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text", ["", "4", 4, "4GB", "4G", "4gib", "-1B", "GiB", None, "4GiB ", "1e3B", "٤GiB"]
)
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.009, "9 ms"),
        (8.44, "8.4 s"),
        (31, "31 s"),
        (90, "1 min 30 s"),
        (900, "15 min"),
        (3600, "1 h"),
        (13_620, "3 h 47 min"),
        (187_200, "2 d 4 h"),
        (86_400, "1 d"),
    ],
)
def test_shown_durations(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (4 << 30, "4 GiB"),
        (1 << 41, "2 TiB"),
    ],
)
def test_shown_sizes(count: int, shown: str) -> None:
    assert show_size(count) == shown


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1e9))
def test_any_duration_can_be_shown(seconds: float) -> None:
    assert show_duration(seconds)


@settings(deadline=None)
@given(st.integers(0, 1 << 50))
def test_what_is_shown_is_close(count: int) -> None:
    number, unit = show_size(count).split()
    assert abs(parse_size(f"{number}{unit}") - count) <= count * 0.05 + 1
