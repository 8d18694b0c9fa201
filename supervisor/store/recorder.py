"""Owns the order and the thread in which writes reach the database.
May touch one store, from one thread of its own.
Never makes a kill wait for the disk: writes are queued, and only those who must know wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from supervisor.errors import DamagedState, StateError, UnreadableRow
from supervisor.store.database import Contention
from supervisor.store.store import Store, open_store

T = TypeVar("T")
_Outcome = tuple[Any, BaseException | None]

_RETRY_EVERY_S = 0.5
_CLOSING_PATIENCE_S = 0.2
_CONTENTION_TRIES = 5
_TOGETHER = 64
_COMPANY_S = 0.002
_DAMAGED_PATIENCE_S = 30.0
_QUIET_S = 0.2
_TIDY_AFTER = 50
"""Commits. Each is about ten pages of SQLite's log."""

Tell = Callable[[Any, BaseException | None], None]
"""What an action gave, or its error. Called in the recorder's thread; must not fail or block."""


@dataclass(slots=True, eq=False)
class _Write:
    """One action. insist: try until it is written. patient: others may come before it is begun."""

    action: Callable[[Store], Any]
    insist: bool
    patient: bool
    settle: Tell
    begin: Callable[[], bool]
    """False when it was cancelled; from then on it cannot be."""


def _nobody(_result: Any, _error: BaseException | None) -> None:
    """Nobody is told."""


def _always() -> bool:
    """It cannot be cancelled."""
    return True


class Recorder:
    """Writes are carried out in the order they were given; those that wait together share one commit.

    A commit waits for the disk, so what queued up meanwhile is written with the next one. An action is
    one method of the store, which is a transaction of its own and there becomes a part that can fail alone.
    """

    def __init__(self, location: str) -> None:
        """Opens the database in the thread. Raises StateError as open_store does."""
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._closing = threading.Event()
        self._gate = threading.Lock()
        self._is_closed = False
        self._untidy = 0
        self.problem = ""
        self._damaged_since_s = 0.0
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(location, opened), name="recorder", daemon=True
        )
        self._thread.start()
        opened.result()

    def write(self, action: Callable[[Store], T]) -> Future[T]:
        """Try once; the future carries the error."""
        return self._put_with_future(action, insist=False)

    def keep(self, action: Callable[[Store], T]) -> Future[T]:
        """Try until it is written: a database that is locked, full or away must not lose an end."""
        return self._put_with_future(action, insist=True)

    def post(
        self, action: Callable[[Store], Any], tell: Tell = _nobody, *, insist: bool, patient: bool
    ) -> None:
        """As write, or as keep where it insists, for who needs no future.

        patient: nobody waits for it, so it may wait a moment for others whose commit it can share.
        """
        self._put(_Write(action, insist, patient, tell, _always))

    async def call(self, action: Callable[[Store], T]) -> T:
        """As write, for who waits in the loop."""
        return await asyncio.wrap_future(self.write(action))

    def _put_with_future(self, action: Callable[[Store], Any], *, insist: bool) -> Future[Any]:
        future: Future[Any] = Future()

        def settle(result: Any, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._put(_Write(action, insist, False, settle, future.set_running_or_notify_cancel))
        return future

    def _put(self, write: _Write) -> None:
        with self._gate:
            if not self._is_closed:
                self._queue.put(write)
                return
        write.settle(None, StateError("nothing is written any more: the supervisor has shut down"))

    # ------------------------------------------------------------ in the thread

    def _work(self, location: str, opened: Future[None]) -> None:
        try:
            store = open_store(location)
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while (first := self._next(store)) is not None:
                self._carry_out(store, self._with_those_waiting(first))
                self._untidy += 1
        finally:
            store.close()

    def _next(self, store: Store) -> _Write | None:
        """Tidies up where there is something to tidy and nobody has come for a while."""
        if self._untidy >= _TIDY_AFTER:
            with contextlib.suppress(Empty):
                return self._queue.get(timeout=_QUIET_S)
            with contextlib.suppress(StateError):
                store.tidy()
            self._untidy = 0
        return self._queue.get()

    def _with_those_waiting(self, first: _Write) -> list[_Write]:
        together = [first]
        patient_until_s = time.monotonic() + _COMPANY_S if first.patient else 0.0
        while len(together) < _TOGETHER:
            left_s = patient_until_s - time.monotonic() if patient_until_s else 0.0
            try:
                following = self._queue.get(timeout=left_s) if left_s > 0 else self._queue.get_nowait()
            except Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            together.append(following)
            if not following.patient:
                patient_until_s = 0.0
        return together

    def _carry_out(self, store: Store, writes: list[_Write]) -> None:
        """In one transaction. Where one of them fails, again with a part for each, then one by one."""
        wanted = [write for write in writes if write.begin()]
        self._hurry_at_the_end(store)
        for in_parts in (False, True) if len(wanted) > 1 else ():
            outcomes: list[_Outcome] = []
            begun = False
            try:
                with store.transaction(whole=not in_parts):
                    begun = True
                    for write in wanted:
                        outcomes.append(_as_a_part(store, write) if in_parts else (write.action(store), None))
            except StateError as error:
                if not begun or len(outcomes) == len(wanted):
                    wanted = self._give_up(wanted, error)
                    break
            except Exception:
                # One of them, and it is not known which parts of it the others saw.
                continue
            else:
                self._worked()
                for write, outcome in zip(wanted, outcomes, strict=True):
                    write.settle(*outcome)
                return
        for write in wanted:
            self._one(store, write)

    def _hurry_at_the_end(self, store: Store) -> None:
        if self._closing.is_set():
            with contextlib.suppress(StateError):
                store.hurry(_CLOSING_PATIENCE_S)

    def _give_up(self, writes: list[_Write], error: StateError) -> list[_Write]:
        """The database is away, or nobody knows whether it committed: what was to be tried once has been.

        At the end that is everything, or an absent server would be waited for as often as there are writes.
        So it is when the database is damaged and nobody has put it back in time.
        """
        self.problem = error.message
        hopeless = self._closing.is_set() or self._is_lost(error)
        again = [write for write in writes if write.insist and not hopeless]
        for write in writes:
            if write not in again:
                write.settle(None, error)
        return again

    def _is_lost(self, error: StateError) -> bool:
        """Tables may be away for a moment (a restore, a search_path); what ends must not wait for ever."""
        if not isinstance(error, DamagedState) or isinstance(error, UnreadableRow):
            return isinstance(error, UnreadableRow)
        self._damaged_since_s = self._damaged_since_s or time.monotonic()
        return time.monotonic() - self._damaged_since_s > _DAMAGED_PATIENCE_S

    def _worked(self) -> None:
        self.problem = ""
        self._damaged_since_s = 0.0

    def _one(self, store: Store, write: _Write) -> None:
        again = _CONTENTION_TRIES
        while True:
            self._hurry_at_the_end(store)
            try:
                result = write.action(store)
            except Contention as error:
                again -= 1
                if not again and not write.insist:
                    write.settle(None, error)
                    return
            except StateError as error:
                self.problem = error.message
                hopeless = not write.insist or self._is_lost(error)
                if hopeless or self._closing.wait(_RETRY_EVERY_S):
                    write.settle(None, error)
                    return
            except BaseException as error:
                write.settle(None, error)
                return
            else:
                self._worked()
                write.settle(result, None)
                return

    # ------------------------------------------------------------ waiting

    async def settled(self, future: Future[T], patience_s: float) -> bool:
        """Wait for a write, but no longer than that; True when it is on disk."""
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes with its result.
            async with asyncio.timeout(patience_s):
                await asyncio.shield(asyncio.wrap_future(future))
        except (TimeoutError, StateError):
            return False
        return True

    def close(self, patience_s: float = 5.0) -> None:
        """Let queued writes finish; after that nothing waits, and the next start closes what is open."""
        done = self.write(lambda store: None)
        with contextlib.suppress(TimeoutError, StateError):
            done.result(patience_s)
        self._closing.set()
        with self._gate:
            if not self._is_closed:
                self._is_closed = True
                self._queue.put(None)
        self._thread.join()


def _as_a_part(store: Store, write: _Write) -> _Outcome:
    """Undone alone when it fails. Raises StateError when it is the database that fails."""
    try:
        with store.transaction():
            return write.action(store), None
    except StateError:
        raise
    except Exception as error:
        return None, error
