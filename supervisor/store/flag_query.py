"""Owns running an operator's own statement for the stop flag of a ticket.
May touch the database it is given, read-only.
Never writes there, and never puts a ticket key into the text of a statement.
"""

from __future__ import annotations

import sqlite3
import urllib.parse
from typing import Protocol

from supervisor.errors import StateError
from supervisor.store.values import is_true

_TIMEOUT_S = 1.0
_HINT = "correct [stop] in the configuration"


class FlagQuery(Protocol):
    """One SELECT with :ticket in it; the first column of its first row is the flag."""

    def is_set(self, ticket: str) -> bool:
        """Raises StateError when the statement fails."""
        ...

    def close(self) -> None: ...


def open_flag_query(location: str, sql: str) -> FlagQuery:
    """A path is SQLite, a postgresql:// URL is PostgreSQL. Tries the statement once; raises StateError."""
    if location.startswith(("postgresql://", "postgres://")):
        query: FlagQuery = _PostgresFlag(location, sql)
    else:
        query = _SqliteFlag(location, sql)
    try:
        query.is_set("")
    except StateError:
        query.close()
        raise
    return query


class _SqliteFlag:
    def __init__(self, path: str, sql: str) -> None:
        self._path = path
        self._sql = sql
        try:
            uri = f"file:{urllib.parse.quote(path)}?mode=ro"
            self._db = sqlite3.connect(
                uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def is_set(self, ticket: str) -> bool:
        try:
            row = self._db.execute(self._sql, {"ticket": ticket}).fetchone()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return row is not None and is_true(row[0])

    def _failure(self, error: sqlite3.Error) -> StateError:
        return StateError(f"the stop query on {self._path} fails: {error}", hint=_HINT)

    def close(self) -> None:
        self._db.close()


class _PostgresFlag:
    def __init__(self, url: str, sql: str) -> None:
        from supervisor.store.postgres import PostgresDatabase

        self._db = PostgresDatabase(url, read_only=True)
        self._db.hurry(_TIMEOUT_S)
        self._sql = sql.replace("%", "%%").replace(":ticket", "%(ticket)s")

    def is_set(self, ticket: str) -> bool:
        try:
            rows = self._db.ask(self._sql, {"ticket": ticket})
        except (StateError, ValueError) as error:
            raise StateError(f"the stop query on {self._db.location} fails: {error}", hint=_HINT) from error
        return bool(rows) and is_true(next(iter(rows[0].values())))

    def close(self) -> None:
        self._db.close()
