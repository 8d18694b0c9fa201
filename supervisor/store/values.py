"""Owns how values that people write into the database by hand are read.
May touch nothing.
Never takes an unclear flag for one that is not set, nor a row it does not understand for another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from supervisor.errors import UnreadableRow

NOT_SET = ("", "0", "f", "false", "n", "no", "off")
"""Texts that mean that a flag is not set, in any case; every other one means that it is."""


def is_true(value: object) -> bool:
    """What an operator may have written by hand: 1, true, 'true', 'yes', 't'; in doubt it is set."""
    if value is None:
        return False
    if isinstance(value, str):
        return value.strip().lower() not in NOT_SET
    return bool(value)


@contextmanager
def understood(what: str, key: object) -> Iterator[None]:
    """Around the reading of one row: a value of another type, or one unknown here, is an UnreadableRow."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise UnreadableRow(
            f"the row of {what} {key} in the database cannot be read: {error}",
            hint="it was written by hand or by another version; correct it with SQL, nothing was changed",
        ) from error
