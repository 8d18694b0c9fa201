"""Owns that amounts of money are read exactly or not at all, and shown with the digits that matter.
May touch nothing.
Never compares floats.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.limits.money import NANOS_PER_USD, parse_usd, show_usd, usd_text

AMOUNTS = st.integers(0, 10**18 - 1)


@given(AMOUNTS)
def test_an_amount_survives_being_written_and_read(nanos: int) -> None:
    assert parse_usd(usd_text(nanos)) == nanos


@pytest.mark.parametrize("text", ["", "-1", "+1", ".5", "1.", "1e3", "1,5", "0.1234567891", "$1", " 1", "١"])
def test_what_is_not_plainly_an_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        parse_usd(text)


@pytest.mark.parametrize("value", [0.5, 1, True, None, ["1"]])
def test_only_a_string_is_an_amount(value: object) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        parse_usd(value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "$0"),
        ("20", "$20"),
        ("0.5", "$0.50"),
        ("3.102", "$3.1020"),
        ("0.0451249", "$0.0451"),
        ("0.0013", "$0.0013"),
        ("0.000001234", "$0.0000012"),
        ("0.000000001", "$0.000000001"),
        ("86.649", "$86.6490"),
    ],
)
def test_people_see_the_digits_that_matter(text: str, shown: str) -> None:
    assert show_usd(parse_usd(text)) == shown


def test_what_is_owed_has_its_sign() -> None:
    assert (show_usd(-NANOS_PER_USD // 2), usd_text(-NANOS_PER_USD // 2)) == ("-$0.50", "-0.5")
