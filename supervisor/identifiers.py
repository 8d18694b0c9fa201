"""Owns names that people and files share: run ids and ticket keys.
May touch the clock and the system's randomness.
Never lets a ticket key through that could be a path, a hidden file or an escape sequence.
"""

from __future__ import annotations

import os
import re
import time

from supervisor.errors import UsageError

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TICKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,119}")


def new_ulid() -> str:
    """48 bits of milliseconds, 80 of randomness, 26 characters that sort by time (ULID spec)."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10))
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def check_ticket(key: str) -> str:
    """The key itself, or UsageError. It becomes a file name and is printed in many places."""
    if _TICKET.fullmatch(key):
        return key
    shown = ascii(key if len(key) <= 40 else key[:37] + "...")
    raise UsageError(
        f"{shown} cannot be a ticket key",
        hint="letters, digits and . _ : @ + - only, starting with a letter or digit, at most 120",
    )
