"""Owns amounts of money: how they are written, read and shown.
May touch nothing.
Never holds a float: every amount is an integer of nano-dollars (10⁻⁹ US dollars).
"""

from __future__ import annotations

import re

NANOS_PER_USD = 1_000_000_000

_USD = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_CENT_NANOS = NANOS_PER_USD // 100


def parse_usd(text: object) -> int:
    """ "0.50" to nano-dollars. Only a string is taken: TOML's 0.1 is a float. Raises ValueError."""
    match = _USD.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{text!r} is not an amount of US dollars; write it like "0.50" or "20"')
    return int(match[1]) * NANOS_PER_USD + int((match[2] or "").ljust(9, "0"))


def usd_text(nanos: int) -> str:
    """The exact amount as a decimal string for JSON: "0.04512", "-0.2", "20"."""
    sign, whole, part = "-" if nanos < 0 else "", abs(nanos) // NANOS_PER_USD, abs(nanos) % NANOS_PER_USD
    return f"{sign}{whole}.{part:09d}".rstrip("0").rstrip(".")


def show_usd(nanos: int) -> str:
    """For people: $20, $0.50, $3.10, $0.0451 and, below a hundredth of a cent, two digits that count."""
    sign, amount = ("-", -nanos) if nanos < 0 else ("", nanos)
    if amount % _CENT_NANOS == 0:
        whole, cents = divmod(amount // _CENT_NANOS, 100)
        return f"{sign}${whole}.{cents:02d}" if cents else f"{sign}${whole}"
    places = 4
    while places < 9 and amount < 10 ** (10 - places):
        places += 1
    unit = 10 ** (9 - places)
    whole, part = divmod((amount + unit // 2) // unit, 10**places)
    return f"{sign}${whole}.{part:0{places}d}"
