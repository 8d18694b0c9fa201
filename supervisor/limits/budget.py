"""Owns the decision whether one more model call fits, and how much it may answer.
May touch nothing: balances and caps are arguments.
Never grants what could pass a cap, and never reads a cap of 0 as none.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from supervisor.limits.pricing import (
    CacheWrite,
    Price,
    affordable_output,
    worst_input_nanos,
    worst_output_nanos,
)
from supervisor.runs.reasons import StopReason


class Scope(StrEnum):
    """What a balance is kept for, in the order in which they are looked at."""

    RUN = "run"
    TICKET = "ticket"
    PROJECT_DAY = "project_day"
    GLOBAL_DAY = "global_day"


DAYS = (Scope.PROJECT_DAY, Scope.GLOBAL_DAY)
_SCOPES = tuple(Scope)
_CAPS = {scope: f"{scope}_nanos" for scope in Scope}


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is checked against. None: no such cap. 0: nothing is allowed."""

    iterations: int | None = None
    tokens: int | None = None
    run_nanos: int | None = None
    ticket_nanos: int | None = None
    project_day_nanos: int | None = None
    global_day_nanos: int | None = None

    def nanos(self, scope: Scope) -> int | None:
        """The money cap of a scope."""
        found: int | None = getattr(self, _CAPS[scope])
        return found

    @property
    def any_money(self) -> bool:
        return any(self.nanos(scope) is not None for scope in Scope)


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """What one scope has used. held: reserved by calls (and ceilings) that are not settled yet.

    calls counts settled and held ones; a released call is taken out again.
    """

    spent_nanos: int = 0
    held_nanos: int = 0
    tokens: int = 0
    held_tokens: int = 0
    calls: int = 0


class Balances(msgspec.Struct, frozen=True, kw_only=True):
    """All that a call is booked on. ceiling_nanos: what of the days' holds belongs to this run already."""

    run: Balance = Balance()
    ticket: Balance = Balance()
    project_day: Balance = Balance()
    global_day: Balance = Balance()
    ceiling_nanos: int = 0

    def of(self, scope: Scope) -> Balance:
        found: Balance = getattr(self, scope)
        return found

    def left_nanos(self, scope: Scope, caps: Caps) -> int | None:
        """What a call of this run may still take of a scope; None where there is no cap."""
        cap = caps.nanos(scope)
        if cap is None:
            return None
        balance = self.of(scope)
        own = self.ceiling_nanos if scope in DAYS else 0
        return cap - balance.spent_nanos - balance.held_nanos + own


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One call before it is made: the most it can read, and what it would like to write.

    input_bound: tokens. output_wanted: tokens per answer, what the request asks for, clamped to
    the profile and the model. output_least: fewer would be of no use to the client. answers: how
    many are generated at once (n, candidateCount). tools: the most uses of billed tools, by name.
    price: None for a model without one.
    """

    input_bound: int
    output_wanted: int
    output_least: int
    answers: int = 1
    cache_write: CacheWrite = CacheWrite.NONE
    tools: dict[str, int] = {}
    price: Price | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The call may be made with that many tokens of output per answer; nanos and tokens are held for it."""

    output_tokens: int
    nanos: int
    tokens: int


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The call may not be made. reason: the stop reason of the limit, None when no limit was reached.

    code: a short name for programs. scope: whose cap it is. needed and left: nano-dollars, tokens or
    calls, as the limit counts.
    """

    code: str
    message: str
    reason: StopReason | None = None
    scope: Scope = Scope.RUN
    cap: int = 0
    needed: int = 0
    left: int = 0


def decide(ask: Ask, caps: Caps, balances: Balances) -> Grant | Refusal:
    """The whole rule of admission: calls, then tokens, then money in every scope."""
    run = balances.run
    if caps.iterations is not None and run.calls >= caps.iterations:
        return Refusal(
            code="max_iterations",
            message=f"{run.calls} of {caps.iterations} model calls were made",
            reason=StopReason.MAX_ITERATIONS,
            cap=caps.iterations,
            needed=1,
            left=max(0, caps.iterations - run.calls),
        )
    output = ask.output_wanted
    least = min(ask.output_least, output)
    if caps.tokens is not None:
        left = caps.tokens - run.tokens - run.held_tokens
        output = min(output, (left - ask.input_bound) // ask.answers)
        if output < least:
            return Refusal(
                code="max_tokens",
                message=f"the next call could use {ask.input_bound + least * ask.answers} tokens; "
                f"{max(0, left)} of {caps.tokens} are left",
                reason=StopReason.MAX_TOKENS,
                cap=caps.tokens,
                needed=ask.input_bound + least * ask.answers,
                left=max(0, left),
            )
    if ask.price is None:
        if caps.any_money:
            return Refusal(code="model_not_priced", message="the model has no known price")
        return Grant(output_tokens=output, nanos=0, tokens=ask.input_bound + output * ask.answers)
    return _within_money(ask, ask.price, caps, balances, output, least)


def _within_money(
    ask: Ask, price: Price, caps: Caps, balances: Balances, output: int, least: int
) -> Grant | Refusal:
    try:
        input_nanos = worst_input_nanos(price, ask.input_bound, ask.cache_write, ask.tools)
    except KeyError as error:
        return Refusal(code="tool_not_priced", message=f"the provider's tool {error} has no known price")

    def nanos_with(tokens: int) -> int:
        return input_nanos + worst_output_nanos(price, ask.input_bound, tokens * ask.answers)

    for scope in _SCOPES:
        left = balances.left_nanos(scope, caps)
        if left is None:
            continue
        output = min(output, affordable_output(price, ask.input_bound, left - input_nanos) // ask.answers)
        if output < least:
            return Refusal(
                code="daily_cap" if scope in DAYS else "max_cost",
                message="the next call could cost more than is left",
                reason=StopReason.DAILY_CAP if scope in DAYS else StopReason.MAX_COST,
                scope=scope,
                cap=caps.nanos(scope) or 0,
                needed=nanos_with(least),
                left=max(0, left),
            )
    return Grant(
        output_tokens=output,
        nanos=nanos_with(output),
        tokens=ask.input_bound + output * ask.answers,
    )
