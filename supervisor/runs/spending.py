"""Owns one run's money: its caps, its gateway while it lives, what is told of its calls, when they end it.
May touch the ledger through the recorder, the run's row, and the run by asking it to end.
Never lets a call be made once the run is to end, and never trusts what an agent says of itself unmarked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from supervisor.booking import BookingClock
from supervisor.config import DailySettings
from supervisor.errors import StateError
from supervisor.events import EventKind
from supervisor.identifiers import new_ulid
from supervisor.limits.budget import DAYS, Balances, Caps, Refusal, Scope
from supervisor.limits.caps import crossed, effective
from supervisor.limits.charges import Booking, NewCall, Settlement
from supervisor.limits.money import NANOS_PER_USD, parse_usd, usd_text
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.profile.schema import Profile
from supervisor.runs.reasons import StopReason, StopRequest, limit_request
from supervisor.runs.row import RunRow
from supervisor.store.recorder import Recorder
from supervisor.store.store import Store

if TYPE_CHECKING:
    from supervisor.gateway.hub import GatewayHub
    from supervisor.gateway.metering import Done, Problem
    from supervisor.gateway.server import RunGateway

_MOST_TOLD = 200
"""Of what costs nothing, and so has no limit: refusals, calls that were not billed, problems."""
_MOST_SAID = 5000
"""Events of the agent's own log that are kept; a flood of them is still in the log."""
_MOST_SAID_NANOS = 1000 * NANOS_PER_USD
_MOST_SAID_TOKENS = 1 << 30
"""Of one call that an agent tells of: it is booked for everybody's day, and many such must fit there."""
_SETTLE_PATIENCE_S = 2.0


def profile_caps(profile: Profile) -> Caps:
    """What the profile alone says."""
    limits, daily = profile.limits, profile.daily
    return Caps(
        iterations=limits.iterations,
        tokens=limits.tokens,
        run_nanos=limits.usd_nanos,
        ticket_nanos=limits.ticket_usd_nanos,
        project_day_nanos=daily.project_nanos,
        global_day_nanos=daily.global_nanos,
    )


class Spending:
    """One run's. open() before the agent is released; refuse() when it is to end; close() once it is dead."""

    def __init__(
        self,
        profile: Profile,
        booking: Booking,
        row: RunRow,
        recorder: Recorder,
        clock: BookingClock,
        daily: DailySettings,
        hub: Callable[[], GatewayHub],
        lease_s: float,
        seconds_left: Callable[[], float],
        request_stop: Callable[[StopRequest], None],
    ) -> None:
        self.caps = effective(profile_caps(profile), daily.caps, booking.project)
        self.opening = Balances()
        self.latest = Balances()
        self._profile = profile
        self._booking = booking
        self._row = row
        self._recorder = recorder
        self._clock = clock
        self._daily = daily
        self._hub = hub
        self._lease_s = lease_s
        self._seconds_left = seconds_left
        self._request_stop = request_stop
        self._gateway: RunGateway | None = None
        self._loop = asyncio.get_running_loop()
        self._refused = 0
        self._unbilled = 0
        self._problems = 0
        self._self_reported: set[Future[Balances]] = set()
        self._said = 0
        self._said_nanos = 0

    @property
    def metered(self) -> bool:
        """Is there a gateway, or does only the agent itself say what it uses?"""
        return self._profile.network.mode == "gateway"

    async def prepare(self) -> dict[str, str]:
        """Look at what is spent already, and remember the caps in force; the providers' keys by name.

        The keys are for the redactor alone. Raises UsageError for an upstream that is not configured or
        whose key cannot be fetched, StateError.
        """
        keys: dict[str, str] = {}
        if self.metered:
            keys = await self._hub().ready(self._profile.gateway.upstreams)
        elif self.caps == Caps():
            return keys
        day, caps, booking = self._clock.day().name, self.caps, self._booking

        def look(store: Store) -> Balances:
            for scope, key in ((Scope.PROJECT_DAY, booking.project), (Scope.GLOBAL_DAY, "")):
                cap = caps.nanos(scope)
                if cap is not None:
                    store.ledger.set_cap(scope, key, cap)
            return store.ledger.balances(booking, max(day, store.ledger.latest_day()))

        self.opening = self.latest = await self._recorder.call(look)
        return keys

    async def open(self, listener: int, stack: AsyncExitStack) -> None:
        """Serve the box's listener, if the profile has the gateway."""
        if not self.metered:
            return
        from supervisor.gateway.metering import Owner

        owner = Owner(
            on_call=self._called,
            on_refusal=self._was_refused,
            on_limit=self._limit_reached,
            on_problem=self._had_problem,
        )
        self._gateway = await self._hub().open(
            listener, self._profile, self._booking, self.caps, self._clock, self._lease_s, owner
        )
        stack.push_async_callback(self.close)

    def refuse(self) -> None:
        """Spending stops first: from here on no call is let through."""
        if self._gateway is not None:
            self._gateway.refuse_all("the run is being stopped")

    async def close(self) -> None:
        """Cut what is still streaming and settle it by the rules; what cannot be booked now stays held."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.close(_SETTLE_PATIENCE_S)
        waiting = [asyncio.wrap_future(future) for future in self._self_reported]
        if waiting:
            await asyncio.wait(waiting, timeout=_SETTLE_PATIENCE_S)

    def settle_rest(self) -> None:
        """At the very end: nothing of the run stays held, and what its ceiling has left is free again."""
        run_id, at = self._booking.run_id, self._clock.now()
        if self.metered or self._booking.fence:
            self._recorder.keep(lambda store: store.ledger.settle_run(run_id, "run ended", at))

    def totals(self) -> dict[str, int | float]:
        """For the run's row; empty for a run that has nothing to do with models."""
        run = self.latest.run
        if not self.metered and not run.calls:
            return {}
        return {
            "calls": run.calls,
            "tokens": run.tokens,
            "spent_nanos": run.spent_nanos,
            "calls_refused": self._refused,
        }

    # ------------------------------------------------------------ what the gateway tells

    def _called(self, done: Done) -> None:
        if done.balances is not None:
            self._booked(done.balances, done.nanos)
        if done.source is UsageSource.UNBILLED:
            self._unbilled += 1
            if self._unbilled > _MOST_TOLD:
                return
        usage = done.usage
        self._row.tell(
            EventKind.ITERATION,
            {
                "iteration": done.iteration,
                "model": done.model,
                "upstream": done.upstream,
                "outcome": done.outcome,
                "duration_ms": done.duration_ms,
                "first_byte_ms": done.first_byte_ms,
                "tokens_in": usage.total_input,
                "tokens_cached": usage.cache_read,
                "tokens_out": usage.output,
                "cost_usd": usd_text(done.nanos),
                "usage_source": done.source,
                "charge_id": done.charge_id,
                "budget_left": self._left(done.left_iterations, done.left_tokens, done.left_nanos),
            },
        )

    def _left(self, iterations: int | None, tokens: int | None, nanos: int | None) -> dict[str, Any]:
        """What of each limit is left; a limit that is not set is not there."""
        left: dict[str, Any] = {"seconds": round(self._seconds_left())}
        if iterations is not None:
            left["iterations"] = iterations
        if tokens is not None:
            left["tokens"] = tokens
        if nanos is not None:
            left["usd"] = usd_text(nanos)
        return left

    def _booked(self, balances: Balances, nanos: int) -> None:
        """Tell once when a scope's spending passes 80 % of its cap."""
        self.latest = balances
        for scope in Scope:
            spent, cap = balances.of(scope).spent_nanos, self.caps.nanos(scope)
            if crossed(scope, self.caps, spent - nanos, spent) and cap:
                self._row.tell(
                    EventKind.CAP_WARNING,
                    {
                        "scope": scope,
                        "spent_usd": usd_text(spent),
                        "cap_usd": usd_text(cap),
                        "percent": round(spent * 100 / cap, 1),
                    },
                )

    def _was_refused(self, refusal: Refusal) -> None:
        self._refused += 1
        if self._refused <= _MOST_TOLD:
            self._row.tell(EventKind.CALL_REFUSED, _as_detail(refusal, self._ends_run(refusal)))

    def _ends_run(self, refusal: Refusal) -> bool:
        """Only limits end a run; a daily cap only if the configuration says that it ends runs."""
        if refusal.reason is StopReason.DAILY_CAP:
            return self._daily.on_reached == "end"
        return refusal.reason is not None

    def _limit_reached(self, refusal: Refusal) -> None:
        if refusal.reason is None or not self._ends_run(refusal):
            return
        grace_s = 0.0 if refusal.reason is StopReason.LEASE_LOST else self._profile.limits.stop_grace_s
        run = self.latest.run
        figures: dict[str, int | float | str] = {
            "scope": str(refusal.scope),
            "cap": refusal.cap,
            "needed": refusal.needed,
            "left": refusal.left,
            "calls": run.calls,
            "spent_nanos": run.spent_nanos,
        }
        self._request_stop(limit_request(refusal.reason, grace_s, who=refusal.code, figures=figures))

    def _had_problem(self, problem: Problem) -> None:
        self._problems += 1
        if self._problems > _MOST_TOLD:
            return
        self._row.tell(
            EventKind.METER_PROBLEM,
            {"code": problem.code, "message": problem.message, "charge_id": problem.charge_id},
        )

    # ------------------------------------------------------------ what the agent tells of itself

    def self_reported(self, kind: EventKind, detail: dict[str, Any]) -> None:
        """An event of the agent's own log. Where there is no gateway, its figures are all there are."""
        if kind is not EventKind.ITERATION:
            self._keep_said(kind, detail)
        elif self.metered:
            self._keep_said(EventKind.AGENT_EVENT, {**detail, "said": "iteration"})
        else:
            self._book_self_reported(detail)

    def _keep_said(self, kind: EventKind, detail: dict[str, Any]) -> None:
        """As an event, while there are not too many; what is counted is counted all the same."""
        self._said += 1
        if self._said <= _MOST_SAID:
            self._row.tell(kind, detail)
        elif self._said == _MOST_SAID + 1:
            message = f"the agent told more than {_MOST_SAID} events; the rest is in its log only"
            self._row.tell(EventKind.METER_PROBLEM, {"code": "events_not_kept", "message": message})

    def _book_self_reported(self, detail: dict[str, Any]) -> None:
        if self.caps == Caps() and "cost_usd" not in detail and "tokens_in" not in detail:
            self._keep_said(EventKind.ITERATION, detail)
            return
        at = self._clock.now()
        settlement = Settlement(
            nanos=self._believed_nanos(detail.get("cost_usd")),
            usage=TokenUsage(
                input=_said_count(detail.get("tokens_in")), output=_said_count(detail.get("tokens_out"))
            ),
            source=UsageSource.SELF_REPORTED,
            outcome="self-reported",
            model=str(detail.get("model", ""))[:100],
            at=at,
        )
        call = NewCall(
            charge_id=new_ulid(),
            booking=self._booking,
            provider="",
            model=settlement.model,
            day=self._clock.day().name,
            at=at,
            lease_until=self._clock.later(self._lease_s),
        )
        booked = self._recorder.write(lambda store: store.ledger.record(call, settlement))
        self._self_reported.add(booked)

        def told(future: Future[Balances]) -> None:
            self._loop.call_soon_threadsafe(self._self_report_is_booked, future, detail, settlement.nanos)

        booked.add_done_callback(told)

    def _believed_nanos(self, said: object) -> int:
        """At most a nano-dollar more than what the run may spend: enough to end it, and it alone.

        The day's caps are everybody's; one agent that lies must not use them up.
        """
        nanos, most = _said_nanos(said), self.caps.run_nanos
        if most is not None:
            nanos = min(nanos, max(0, most - self._said_nanos) + 1)
        self._said_nanos += nanos
        return nanos

    def _self_report_is_booked(self, future: Future[Balances], detail: dict[str, Any], nanos: int) -> None:
        """Nobody could refuse that call beforehand, so a limit is reached when it has been passed."""
        self._self_reported.discard(future)
        try:
            balances = future.result()
        except StateError as error:
            self._row.tell(EventKind.METER_PROBLEM, {"code": "not_booked", "message": error.message})
            return
        self._booked(balances, nanos)
        caps, run = self.caps, balances.run
        left = self._left(
            None if caps.iterations is None else max(0, caps.iterations - run.calls),
            None if caps.tokens is None else max(0, caps.tokens - run.tokens),
            None if caps.run_nanos is None else max(0, caps.run_nanos - run.spent_nanos),
        )
        source = UsageSource.SELF_REPORTED
        self._keep_said(EventKind.ITERATION, {**detail, "usage_source": source, "budget_left": left})
        over = _passed(caps, balances)
        if over is not None:
            self._limit_reached(over)


def _as_detail(refusal: Refusal, ends_run: bool) -> dict[str, Any]:
    detail: dict[str, Any] = {"code": refusal.code, "message": refusal.message, "ends_run": ends_run}
    if refusal.cap or refusal.needed:
        detail |= {
            "scope": refusal.scope,
            "cap": refusal.cap,
            "needed": refusal.needed,
            "left": refusal.left,
        }
    return detail


def _said_nanos(value: object) -> int:
    """What an agent says that a call cost, up to what one can; anything but an amount is nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value:.9f}" if 0 <= value < 1e8 else ""
    try:
        return min(parse_usd(value), _MOST_SAID_NANOS)
    except ValueError:
        return 0


def _said_count(value: object) -> int:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_SAID_TOKENS
        else 0
    )


def _passed(caps: Caps, balances: Balances) -> Refusal | None:
    """The first limit that more was used of than it allows."""
    run = balances.run
    for code, reason, cap, used in (
        ("max_iterations", StopReason.MAX_ITERATIONS, caps.iterations, run.calls),
        ("max_tokens", StopReason.MAX_TOKENS, caps.tokens, run.tokens),
    ):
        if cap is not None and used > cap:
            return Refusal(code=code, message="self-reported", reason=reason, cap=cap, needed=used)
    for scope in Scope:
        cap, spent = caps.nanos(scope), balances.of(scope).spent_nanos
        if cap is not None and spent > cap:
            code, reason = "max_cost", StopReason.MAX_COST
            if scope in DAYS:
                code, reason = "daily_cap", StopReason.DAILY_CAP
            return Refusal(
                code=code, message="self-reported", reason=reason, scope=scope, cap=cap, needed=spent
            )
    return None
