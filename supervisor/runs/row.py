"""Owns what is written down about one run: its row and its events, always together.
May touch the recorder, and the callback of whoever watches the run.
Never makes the run wait for the disk, except where it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from supervisor.clock import Clock, rfc3339
from supervisor.events import Event, EventKind
from supervisor.store.recorder import Recorder
from supervisor.store.records import Run


class RunRow:
    """The run as it stands; every change is queued for the database with the event that tells of it."""

    def __init__(
        self,
        run: Run,
        recorder: Recorder,
        clock: Clock,
        on_event: Callable[[Event], None],
        audit: Callable[[Event], None],
    ) -> None:
        self.run = run
        self._recorder = recorder
        self._clock = clock
        self._on_event = on_event
        self._audit = audit

    def now(self) -> str:
        return rfc3339(self._clock.utc())

    def make_event(self, kind: EventKind, detail: dict[str, Any]) -> Event:
        return Event(at=self.now(), run_id=self.run.run_id, ticket=self.run.ticket, kind=kind, detail=detail)

    def tell(self, kind: EventKind, detail: dict[str, Any]) -> None:
        """An event that does not change the row."""
        event = self.make_event(kind, detail)
        self._recorder.post(lambda store: store.add_events([event]), insist=True, patient=True)
        self._show(event)

    def change(self, kind: EventKind | None, detail: dict[str, Any], **changes: Any) -> Future[None]:
        """New values of columns and their event, in one transaction, in the order of the calls."""
        self.run = run = msgspec.structs.replace(self.run, **changes)
        events = [self.make_event(kind, detail)] if kind is not None else []
        written = self._recorder.keep(lambda store: store.update_run(run, *events))
        for event in events:
            self._show(event)
        return written

    def _show(self, event: Event) -> None:
        """To the trail, then to the watcher: one that fails must not change how the run ends."""
        self._audit(event)
        try:
            self._on_event(event)
        except Exception:
            self._on_event = lambda _: None

    async def settled(self, written: Future[None], patience_s: float) -> bool:
        return await self._recorder.settled(written, patience_s)
