"""Owns the shapes of what is booked: a call before it is made, how it was settled, the row it leaves.
May touch nothing.
Never says where they are stored, and never holds a float.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from supervisor.limits.usage import TokenUsage, UsageSource


class ChargeState(StrEnum):
    """held → settled or released; both are final."""

    HELD = "held"
    SETTLED = "settled"
    RELEASED = "released"


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """Who a call is booked on. fence: the number under which the ticket was claimed, 0 without a claim."""

    run_id: str
    ticket: str
    project: str
    worker_id: str
    fence: int = 0


class NewCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that wants a reservation. Instants are RFC 3339 UTC; day is a date (limits/day.py)."""

    charge_id: str
    booking: Booking
    provider: str
    model: str
    day: str
    at: str
    lease_until: str


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. model: as the provider named it. outcome: "ok", "cut", "error 529" and the like."""

    nanos: int
    usage: TokenUsage
    source: UsageSource
    outcome: str
    model: str
    at: str


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """One row of charges, and one upstream attempt. day is the one that it was booked on."""

    charge_id: str
    run_id: str
    ticket: str
    project: str
    worker_id: str
    day: str
    state: ChargeState
    provider: str
    model: str
    held_nanos: int
    held_tokens: int
    spent_nanos: int = 0
    usage: TokenUsage = TokenUsage()
    usage_source: UsageSource | None = None
    outcome: str = ""
    reserved_at: str
    lease_until: str
    settled_at: str | None = None
