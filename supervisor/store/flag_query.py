"""Owns running an operator's own statement for the stop flag of a ticket.
May touch the database file it is given, read-only.
Never writes there, and never puts a ticket key into the text of a statement.
"""

from __future__ import annotations

import sqlite3
import urllib.parse

from supervisor.errors import StateError
from supervisor.store.sqlite import is_true

_TIMEOUT_S = 1.0


class FlagQuery:
    """One SELECT with :ticket in it; the first column of its first row is the flag."""

    def __init__(self, path: str, sql: str) -> None:
        """Tries the statement once. Raises StateError when it cannot be run."""
        self._path = path
        self._sql = sql
        self._db = self._open()
        self.is_set("")

    def _open(self) -> sqlite3.Connection:
        try:
            uri = f"file:{urllib.parse.quote(self._path)}?mode=ro"
            return sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def is_set(self, ticket: str) -> bool:
        try:
            row = self._db.execute(self._sql, {"ticket": ticket}).fetchone()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return row is not None and is_true(row[0])

    def _failure(self, error: sqlite3.Error) -> StateError:
        return StateError(
            f"the stop query on {self._path} fails: {error}", hint="correct [stop] in the configuration"
        )

    def close(self) -> None:
        self._db.close()
