"""Owns how values that people write into the database by hand are read.
May touch nothing.
Never takes an unclear flag for one that is not set.
"""

from __future__ import annotations

NOT_SET = ("", "0", "f", "false", "n", "no", "off")
"""Texts that mean that a flag is not set, in any case; every other one means that it is."""


def is_true(value: object) -> bool:
    """What an operator may have written by hand: 1, true, 'true', 'yes', 't'; in doubt it is set."""
    if value is None:
        return False
    if isinstance(value, str):
        return value.strip().lower() not in NOT_SET
    return bool(value)
