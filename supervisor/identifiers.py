"""Owns names that people and files share: run ids and ticket keys.
May touch the clock and the system's randomness.
Never lets a ticket key through that could be a path, a hidden file or an escape sequence.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque

from supervisor.errors import UsageError

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_SUPPLY = 100
_supply: deque[bytes] = deque()
_TICKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,119}")


def new_ulid() -> str:
    """48 bits of milliseconds, 80 of randomness, 26 characters that sort by time (ULID spec)."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(_random())
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def _random() -> bytes:
    """Ten bytes out of a supply: asking the kernel lets another thread go first, which costs a call more."""
    try:
        return _supply.popleft()
    except IndexError:
        fresh = os.urandom(_SUPPLY * 10)
        _supply.extend(fresh[at : at + 10] for at in range(10, len(fresh), 10))
        return fresh[:10]


# A child must not give out what its parent does.
os.register_at_fork(after_in_child=_supply.clear)


def check_ticket(key: str) -> str:
    """The key itself, or UsageError. It becomes a file name and is printed in many places."""
    if _TICKET.fullmatch(key):
        return key
    shown = ascii(key if len(key) <= 40 else key[:37] + "...")
    raise UsageError(
        f"{shown} cannot be a ticket key",
        hint="letters, digits and . _ : @ + - only, starting with a letter or digit, at most 120",
    )
