"""Owns the order and the thread in which writes reach the database.
May touch one store, from one thread of its own.
Never makes a kill wait for the disk: writes are queued, and only those who must know wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from supervisor.errors import StateError
from supervisor.store.sqlite import SqliteStore

T = TypeVar("T")

_RETRY_EVERY_S = 0.5


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
        """Let queued writes finish; those that still fail then are left to the next start."""
        done = self._thread.submit(lambda: None)
        try:
            done.result(patience_s)
        except TimeoutError:
            self._closing.set()
        self._closing.set()
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=True)
