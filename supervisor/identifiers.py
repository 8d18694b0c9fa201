"""Owns what people call things by: run ids, ticket keys, projects, and what a goal may be.
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
_MOST_OF_PROJECT = 120
_MOST_OF_GOAL = 100_000
"""Bytes. It becomes a word of a command and a variable, for which Linux has 131,072 (execve(2))."""
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


def check_project(project: str) -> str:
    """The name itself, or UsageError. It is stored, printed, and a part of the key that pauses it."""
    if len(project) <= _MOST_OF_PROJECT and project.isprintable():
        return project
    raise UsageError(
        f"{project[:40]!a} cannot be a project",
        hint=f"at most {_MOST_OF_PROJECT} characters, and none that cannot be printed",
    )


def check_goal(goal: str) -> str:
    """The text itself, or UsageError: an agent has to be told of it."""
    try:
        fits = "\0" not in goal and len(goal.encode()) <= _MOST_OF_GOAL
    except UnicodeEncodeError:
        fits = False
    if fits:
        return goal
    raise UsageError(
        f"{goal[:40]!a} cannot be a goal", hint=f"UTF-8 of at most {_MOST_OF_GOAL} bytes, without NUL"
    )
