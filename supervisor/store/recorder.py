"""Owns the order and the thread in which writes reach the database.
May touch one store, from one thread of its own.
Never makes a kill wait for the disk: writes are queued, and only those who must know wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from supervisor.errors import StateError
from supervisor.store.sqlite import SqliteStore

T = TypeVar("T")

_RETRY_EVERY_S = 0.5
_CLOSING_PATIENCE_S = 0.2


class Recorder:
    """Writes are carried out one after the other, in the order they were given."""

    def __init__(self, path: str) -> None:
        """Opens the database in the thread. Raises StateError as SqliteStore does."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recorder")
        self._closing = threading.Event()
        self.problem = ""
        try:
            self._store = self._thread.submit(SqliteStore, path).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def write(self, action: Callable[[SqliteStore], T]) -> Future[T]:
        """Try once; the future carries the error."""
        return self._thread.submit(action, self._store)

    def keep(self, action: Callable[[SqliteStore], None]) -> Future[None]:
        """Try until it is written: a database that is locked, full or away must not lose an end."""
        return self._thread.submit(self._insist, action)

    def _insist(self, action: Callable[[SqliteStore], None]) -> None:
        while True:
            if self._closing.is_set():
                self._store.hurry(_CLOSING_PATIENCE_S)
            try:
                action(self._store)
            except StateError as error:
                self.problem = error.message
                if self._closing.wait(_RETRY_EVERY_S):
                    raise
            else:
                self.problem = ""
                return

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
        done = self._thread.submit(lambda: None)
        with contextlib.suppress(TimeoutError):
            done.result(patience_s)
        self._closing.set()
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=True)
