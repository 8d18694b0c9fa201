"""Owns handing records to the writer without making anybody wait for the disk.
May touch one writer, from one thread of its own; note() uses one at once, for short commands.
Never drops a record unseen: what could not be written is counted, and the count is a record.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from supervisor.audit.records import Decision, Draft, GapWhy, RecordKind, SealWhy
from supervisor.clock import rfc3339
from supervisor.errors import StateError
from supervisor.events import Event

if TYPE_CHECKING:
    from supervisor.audit.writer import TrailWriter

_TOGETHER = 256
_GATHER_S = 0.02
_LOOK_EVERY_S = 60.0
_RETRY_EVERY_S = 1.0
_OPEN_PATIENCE_S = 10.0


class Trail:
    """The trail of one supervisor. Records are written in the order they were given.

    problem: why the last write failed, "" when it did not; nothing new is started while there is one.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.problem = ""
        self._lost = 0
        self._queue: SimpleQueue[Draft | None] = SimpleQueue()
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def event(self, event: Event) -> None:
        self._queue.put(
            Draft(
                kind=RecordKind.EVENT,
                what=event.kind,
                at=event.at,
                run_id=event.run_id,
                ticket=event.ticket,
                detail=event.detail,
            )
        )

    def decide(self, what: Decision, detail: dict[str, Any], run_id: str = "", ticket: str = "") -> None:
        self._queue.put(decision(what, detail, run_id, ticket))

    def log(self, run_id: str, ticket: str, detail: dict[str, Any]) -> None:
        """A piece of a run's log, by where it lies and its SHA-256."""
        self._queue.put(
            Draft(kind=RecordKind.LOG, what="written", at=_now(), run_id=run_id, ticket=ticket, detail=detail)
        )

    @property
    def ready(self) -> bool:
        """Is it open, and did the last write succeed?"""
        return self._opened.is_set() and not self.problem

    def check(self) -> None:
        """Raises StateError while the trail cannot be written: what is decided then leaves no trace."""
        if not self._opened.wait(_OPEN_PATIENCE_S):
            raise StateError(f"the audit trail in {self.folder} does not answer", hint="see its file system")
        if self.problem:
            raise StateError(self.problem, hint="nothing is started without the trail")

    def close(self) -> None:
        """Everything that was given is written, and a closing seal behind it."""
        self._queue.put(None)
        self._thread.join()

    # ------------------------------------------------------------ in the thread

    def _work(self) -> None:
        writer: TrailWriter | None = None
        while True:
            # Opening comes first: whoever starts a run waits to know whether there is a trail.
            drafts, ending = self._take() if self._opened.is_set() else ([], False)
            try:
                if writer is None:
                    writer = self._open()
                if drafts or self._lost or ending:
                    self._write(writer, drafts, SealWhy.CLOSING if ending else None)
                elif self._opened.is_set():
                    writer.append([])  # a heartbeat, if one is due
                self.problem = ""
            except Exception as error:
                # A mistake of ours must not end the thread: it shows as a problem, and as a gap.
                self.problem = error.message if isinstance(error, StateError) else f"the trail: {error!r}"
                self._lost += len(drafts)
            self._opened.set()
            if ending:
                if writer is not None:
                    writer.close()
                return

    def _open(self) -> TrailWriter:
        from supervisor.audit.writer import TrailWriter  # its libraries load while the launcher starts

        return TrailWriter(self.folder)

    def _take(self) -> tuple[list[Draft], bool]:
        """What waits, the first for as long as a heartbeat; and whether that was all.

        Events come with every call of a model. Each batch waits for the disk twice, and so do the
        reservations of calls: a moment's events are one batch. A decision does not wait.
        """
        drafts: list[Draft] = []
        try:
            first = self._queue.get(timeout=_RETRY_EVERY_S if self.problem else _LOOK_EVERY_S)
            until_s = time.monotonic() + _GATHER_S
            while first is not None:
                drafts.append(first)
                if len(drafts) >= _TOGETHER:
                    return drafts, False
                if first.kind is RecordKind.DECISION:
                    until_s = 0.0
                first = self._queue.get(timeout=max(0.0, until_s - time.monotonic()))
        except Empty:
            return drafts, False
        return drafts, True

    def _write(self, writer: TrailWriter, drafts: list[Draft], seal: SealWhy | None) -> None:
        if self._lost:
            detail = {"records": self._lost, "why": self.problem}
            gap = Draft(kind=RecordKind.GAP, what=GapWhy.UNWRITTEN, at=_now(), detail=detail)
            writer.append([gap])
            self._lost = 0
        writer.append(drafts, seal)


def decision(what: Decision, detail: dict[str, Any], run_id: str = "", ticket: str = "") -> Draft:
    return Draft(kind=RecordKind.DECISION, what=what, at=_now(), run_id=run_id, ticket=ticket, detail=detail)


def note(folder: str, *drafts: Draft) -> None:
    """Write records now, from a command. Raises StateError."""
    from supervisor.audit.writer import TrailWriter

    writer = TrailWriter(folder)
    try:
        writer.append(drafts)
    finally:
        writer.close()


def _now() -> str:
    return rfc3339(datetime.now(UTC))
