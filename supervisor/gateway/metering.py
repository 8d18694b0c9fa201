"""Owns the reservations of one run's calls: made before a call, closed exactly once after it.
May touch the ledger it is given and the clock that charges are booked by.
Never forgets a reservation: what is not closed here stays held in the ledger, which charges it in full.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from supervisor.booking import BookingClock
from supervisor.clock import rfc3339
from supervisor.gateway.billing import Bill, Terms, bill
from supervisor.gateway.calls import Api, ModelCall, Reported
from supervisor.gateway.upstreams import Service
from supervisor.identifiers import new_ulid
from supervisor.limits.budget import Ask, Balances, Caps, Grant, Refusal
from supervisor.limits.charges import Booking, NewCall, Settlement
from supervisor.limits.day import Day
from supervisor.limits.pricing import Price
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.runs.reasons import StopReason
from supervisor.store.recorder import Recorder
from supervisor.store.store import Store

T = TypeVar("T")

_OF_BALANCES = frozenset(
    {StopReason.MAX_ITERATIONS, StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.DAILY_CAP}
)


class Ledger(Protocol):
    """Where reservations are kept. Every method hands its work over before it returns its future.

    So what is handed over first is also booked first, whoever awaits it and when. Cancelling such a
    future takes nothing back.
    """

    def reserve(self, call: NewCall, caps: Caps, ask: Ask) -> asyncio.Future[Grant | Refusal]: ...

    def settle(self, charge_id: str, settlement: Settlement) -> asyncio.Future[Balances | None]: ...

    def release(self, charge_id: str, outcome: str, at: str) -> asyncio.Future[bool]: ...


class RecorderLedger:
    """The store's ledger, through the thread that writes. Raises StateError when the database is away.

    A reservation is tried once, an end until it is written.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._woken = False

    def reserve(self, call: NewCall, caps: Caps, ask: Ask) -> asyncio.Future[Grant | Refusal]:
        return self._post(lambda store: store.ledger.reserve(call, caps, ask), ends=False)

    def settle(self, charge_id: str, settlement: Settlement) -> asyncio.Future[Balances | None]:
        return self._post(lambda store: store.ledger.settle(charge_id, settlement), ends=True)

    def release(self, charge_id: str, outcome: str, at: str) -> asyncio.Future[bool]:
        return self._post(lambda store: store.ledger.release(charge_id, outcome, at), ends=True)

    def _post(self, action: Callable[[Store], T], *, ends: bool) -> asyncio.Future[T]:
        """The outcome in the running loop. Cancelling it does not cancel the work.

        For an end nobody waits: the client has its answer, and until then all of the hold is held.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            self._told.append((outcome, result, error))
            # What is committed together is told together: each waking costs a call of the kernel.
            if not self._woken:
                self._woken = True
                # A loop that is closed has nobody left who waits.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._hand_over)

        self._recorder.post(action, tell, insist=ends, patient=ends)
        return outcome

    def _hand_over(self) -> None:
        # Before the look: what is told from now on wakes the loop again.
        self._woken = False
        while self._told:
            outcome, result, error = self._told.popleft()
            if outcome.done():
                continue
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)


class Prices(Protocol):
    """What models cost."""

    def find(self, provider: str, model: str) -> Price | None: ...


@dataclass(frozen=True, slots=True)
class Done:
    """One call that was sent, after it was booked.

    balances: of every scope afterwards; None when nothing was booked (unbilled, or somebody else had
    closed the charge already). left_*: what the run may still use; None where there is no cap.
    first_byte_ms: until the provider's first byte of content; None when there was none.
    """

    charge_id: str
    api: Api
    upstream: str
    provider: str
    model: str
    status: int
    outcome: str
    source: UsageSource
    usage: TokenUsage
    nanos: int
    held_nanos: int
    duration_ms: float
    first_byte_ms: float | None
    balances: Balances | None
    left_iterations: int | None
    left_tokens: int | None
    left_nanos: int | None

    @property
    def iteration(self) -> int:
        """The how-manieth call of the run it was; 0 when it does not count as one."""
        return self.balances.run.calls if self.balances else 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something an operator should know. code: a short name; nothing in it is an agent's or a key."""

    code: str
    message: str
    charge_id: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a run's gateway tells. All are called in the loop and must not block.

    on_limit comes with a refusal whose reason ends the run, after on_refusal, once for every such call.
    """

    on_call: Callable[[Done], None] = lambda _: None
    on_refusal: Callable[[Refusal], None] = lambda _: None
    on_limit: Callable[[Refusal], None] = lambda _: None
    on_problem: Callable[[Problem], None] = lambda _: None


@dataclass(slots=True)
class Hold:
    """One reservation, and what is known of its call. Closed once. sent: was the provider tried?"""

    charge_id: str
    terms: Terms
    api: Api
    upstream: str
    provider: str
    began_s: float
    sent: bool = False
    first_byte_s: float | None = None
    closing: asyncio.Task[None] | None = None


class Books:
    """The reservations of one run."""

    def __init__(
        self,
        ledger: Ledger,
        clock: BookingClock,
        prices: Prices,
        booking: Booking,
        caps: Caps,
        owner: Owner,
        lease_s: float,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._prices = prices
        self._booking = booking
        self._caps = caps
        self._owner = owner
        self._lease = timedelta(seconds=lease_s)
        self._day = clock.day()
        self._open: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed_count = 0
        self._changed = asyncio.Event()

    def price_of(self, provider: str, model: str) -> Price | None:
        return self._prices.find(provider, model)

    async def reserve(
        self, call: ModelCall, ask: Ask, service: Service, still_wanted: Callable[[], bool]
    ) -> Hold | Refusal:
        """Hold the worst case. A limit that is only full of this run's own open calls is waited for.

        What those hold is mostly given back, so a refusal would end a run that has budget left. Raises
        StateError when the database does not answer.
        """
        began_s = asyncio.get_running_loop().time()
        model = service.own_name(call.model)
        while True:
            seen = self._closed_count
            self._changed.clear()
            hold = Hold(new_ulid(), _no_terms(model, ask), call.api, service.name, service.provider, began_s)
            answer = await self._ask(hold, ask)
            if isinstance(answer, Grant):
                self._open.add(hold.charge_id)
                hold.terms = Terms(ask, answer, model, partial(self._prices.find, service.provider))
                return hold
            if answer.reason not in _OF_BALANCES:
                return answer
            if self._closed_count == seen:
                if not self._open:
                    return answer
                await self._changed.wait()
            if not still_wanted():
                return answer

    async def _ask(self, hold: Hold, ask: Ask) -> Grant | Refusal:
        instant = self._clock.read().instant
        new = NewCall(
            charge_id=hold.charge_id,
            booking=self._booking,
            provider=hold.provider,
            model=hold.terms.model,
            day=self._day_at(instant).name,
            at=rfc3339(instant),
            lease_until=rfc3339(instant + self._lease),
        )
        try:
            return await self._ledger.reserve(new, self._caps, ask)
        except BaseException:
            # Cancelled, or the answer of the database was lost: nothing was sent, and there may be a
            # reservation. The release is handed over after it, so it finds it.
            self._finish(hold, None, model="", status=0, outcome="not sent")
            raise

    def _day_at(self, instant: datetime) -> Day:
        """The day is computed once a day."""
        if not self._day.start <= instant < self._day.end:
            self._day = self._clock.day()
        return self._day

    def day_left_s(self) -> float:
        """Until the day's caps are fresh again."""
        instant = self._clock.read().instant
        return (self._day_at(instant).end - instant).total_seconds()

    def close(self, hold: Hold, reported: Reported, *, status: int, outcome: str) -> asyncio.Task[None]:
        """Settle a call that was sent, at once; the task it gives says when that is booked.

        status: of the provider's answer, 0 for none. Closing twice changes nothing.
        """
        charged = bill(hold.terms, reported, status=status)
        return self._finish(hold, charged, model=reported.model, status=status, outcome=outcome)

    def release(self, hold: Hold, *, outcome: str) -> asyncio.Task[None]:
        """Give back what was held for a call that did not reach the provider."""
        return self._finish(hold, None, model="", status=0, outcome=outcome)

    def _finish(
        self, hold: Hold, charged: Bill | None, *, model: str, status: int, outcome: str
    ) -> asyncio.Task[None]:
        if hold.closing is not None:
            return hold.closing
        at = self._clock.now()
        booked: asyncio.Future[Balances | None] | asyncio.Future[bool]
        if charged is None:
            booked = self._ledger.release(hold.charge_id, outcome, at)
        else:
            settlement = Settlement(
                nanos=charged.nanos,
                usage=charged.usage,
                source=charged.source,
                outcome=outcome,
                model=model or hold.terms.model,
                at=at,
            )
            booked = self._ledger.settle(hold.charge_id, settlement)
        hold.closing = asyncio.create_task(self._tell(hold, charged, booked, status, outcome))
        self._closing.add(hold.closing)
        hold.closing.add_done_callback(self._closing.discard)
        return hold.closing

    async def _tell(
        self,
        hold: Hold,
        charged: Bill | None,
        booked: asyncio.Future[Balances | None] | asyncio.Future[bool],
        status: int,
        outcome: str,
    ) -> None:
        try:
            answer = await booked
        except Exception as error:
            # It stays held in the ledger, and whoever finds it there charges the hold.
            self._problem("not_booked", f"the charge could not be booked: {error}", hold)
            return
        finally:
            self._open.discard(hold.charge_id)
            self._closed_count += 1
            self._changed.set()
        balances = answer if isinstance(answer, Balances) else None
        for code, message in charged.problems if charged else ():
            self._problem(code, message, hold)
        if charged is not None and balances is None:
            self._problem("closed_before", "somebody else had closed the charge, at what was held", hold)
        if hold.sent:
            self._owner.on_call(self._done(hold, charged, balances, status, outcome))

    def _done(
        self, hold: Hold, charged: Bill | None, balances: Balances | None, status: int, outcome: str
    ) -> Done:
        now_s = asyncio.get_running_loop().time()
        first = None if hold.first_byte_s is None else round((hold.first_byte_s - hold.began_s) * 1000, 3)
        caps, run = self._caps, balances.run if balances else None
        used_tokens = run.tokens + run.held_tokens if run else 0
        used_nanos = run.spent_nanos + run.held_nanos if run else 0
        return Done(
            charge_id=hold.charge_id,
            api=hold.api,
            upstream=hold.upstream,
            provider=hold.provider,
            model=hold.terms.model,
            status=status,
            outcome=outcome,
            source=charged.source if charged else UsageSource.UNBILLED,
            usage=charged.usage if charged else TokenUsage(),
            nanos=charged.nanos if charged else 0,
            held_nanos=hold.terms.grant.nanos,
            duration_ms=round((now_s - hold.began_s) * 1000, 3),
            first_byte_ms=first,
            balances=balances,
            left_iterations=_left(caps.iterations, run.calls) if run else None,
            left_tokens=_left(caps.tokens, used_tokens) if run else None,
            left_nanos=_left(caps.run_nanos, used_nanos) if run else None,
        )

    def _problem(self, code: str, message: str, hold: Hold) -> None:
        self._owner.on_problem(Problem(code, message, hold.charge_id))

    async def booked(self, patience_s: float) -> bool:
        """Wait until everything that was closed is booked; False when the database takes too long."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=patience_s)
        left = list(self._closing)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return not left


def _left(cap: int | None, used: int) -> int | None:
    return None if cap is None else max(0, cap - used)


def _no_terms(model: str, ask: Ask) -> Terms:
    """Until the ledger has answered."""
    return Terms(ask, Grant(output_tokens=0, nanos=0, tokens=0), model, lambda _: None)
