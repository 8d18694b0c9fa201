"""Owns proving that this supervisor lives, to those who share its database, and finding those who do not.
May touch the recorder, and the runs of this supervisor by asking them to end.
Never lets a run go on whose ticket, or whose place among the living, this supervisor could not renew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from supervisor.booking import BookingClock
from supervisor.clock import Clock, rfc3339
from supervisor.errors import StateError
from supervisor.limits.charges import Charge
from supervisor.runs.life import LiveRun
from supervisor.runs.reasons import StopReason, StopRequest
from supervisor.runs.reconcile import close_lost_elsewhere
from supervisor.store.recorder import Recorder
from supervisor.store.records import Run, Ticket
from supervisor.store.store import Store

_RENEWALS = 3
_SAFETY_S = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at the others found: charges settled, tickets rescued, runs closed."""

    charges: list[Charge]
    tickets: list[Ticket]
    runs: list[Run]


class Leases:
    """Renews at a third of the lease. With the database away, runs end before others could take over.

    shared: other hosts use the same database. Where none does, the lock of this process says that it
    lives, and only claimed tickets depend on the lease.
    """

    def __init__(
        self,
        recorder: Recorder,
        clock: Clock,
        booking: BookingClock,
        worker_id: str,
        lease_s: float,
        shared: bool,
        runs: Callable[[], Iterable[LiveRun]],
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._booking = booking
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._shared = shared
        self._runs = runs
        self._renewed_s = clock.boottime_s()

    def until(self) -> str:
        """When a lease taken now is over; by the believed clock, which every host shares."""
        return rfc3339(self._booking.read().instant + timedelta(seconds=self._lease_s))

    async def keep(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._lease_s / _RENEWALS)
            await self.look()

    async def look(self) -> Found | None:
        """Renew, then take care of what the dead have left. None when the database did not answer."""
        asked_s = self._clock.boottime_s()
        patience_s = max(0.1, self._renewed_s + self._lease_s - _SAFETY_S - asked_s)
        try:
            async with asyncio.timeout(patience_s):
                claimed = {run.order.ticket: run.run.fence for run in self._runs() if run.run.fence}
                lost, found = await self._recorder.call(lambda store: self._renew(store, claimed))
        except (StateError, TimeoutError):
            self._end_what_cannot_be_renewed()
            return None
        self._renewed_s = asked_s
        for run in self._runs():
            if run.order.ticket in lost:
                run.request_stop(_lease_lost("another worker owns the ticket now"))
        return found

    def _renew(self, store: Store, claimed: dict[str, int]) -> tuple[set[str], Found]:
        until, now = self.until(), self._booking.now()
        store.renew_worker(self._worker_id, until)
        lost = {key for key, fence in claimed.items() if not store.tickets.renew_lease(key, fence, until)}
        runs = close_lost_elsewhere(store, now) if self._shared else []
        return lost, Found(store.ledger.reap(now), store.tickets.rescue(now), runs)

    def _end_what_cannot_be_renewed(self) -> None:
        if self._clock.boottime_s() < self._renewed_s + self._lease_s - 2 * _SAFETY_S:
            return
        for run in self._runs():
            if self._shared or run.run.fence:
                run.request_stop(_lease_lost("the database cannot be reached to renew the lease"))


def _lease_lost(note: str) -> StopRequest:
    return StopRequest(
        by="limit",
        on_force=StopReason.LEASE_LOST,
        on_exit=StopReason.LEASE_LOST,
        grace_s=0.0,
        who="lease",
        note=note,
    )
