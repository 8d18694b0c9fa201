"""Owns the connection to PostgreSQL: reaching it again when it was lost, its transactions and its errors.
May touch one database server, by the URL from the configuration.
Never waits for it without a limit, and never puts the URL's password into a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from supervisor.errors import StateError
from supervisor.store.database import Conflict, Row, schema_files, statements

T = TypeVar("T")

_CONNECT_S = 3
_STATEMENT_S = 5.0
_LOST_AFTER_MS = 6000
_MIGRATION_LOCK = 0x5355_5056
_PASSWORD = re.compile(r"(://[^:/@]*):[^@]*@|(password=)\S+")
_SERIAL = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"


class PostgresDatabase:
    """READ COMMITTED; what must not change meanwhile is locked row by row, always in the same order."""

    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        """Connect and, unless it is only read, bring the schema up to date. Raises StateError."""
        self._url = url
        self._read_only = read_only
        self.location = without_password(url)
        self._statement_s = _STATEMENT_S
        self._depth = 0
        self._db: psycopg.Connection[Row] | None = None
        if not read_only:
            self._migrate()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def hurry(self, patience_s: float) -> None:
        self._statement_s = patience_s
        if self._db is not None and not self._db.closed:
            self.rows(f"SET statement_timeout = {int(patience_s * 1000)}")

    def now(self) -> datetime:
        found: datetime = self.rows("SELECT clock_timestamp() AS now")[0]["now"]
        return found

    def _connection(self) -> psycopg.Connection[Row]:
        """The one that is open; a lost one is made again, but never in the middle of a transaction."""
        if self._db is None or (self._db.closed and self._depth == 0):
            self._db = psycopg.connect(
                self._url,
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=_CONNECT_S,
                application_name="sidecar-supervisor",
                tcp_user_timeout=_LOST_AFTER_MS,
                options=f"-c statement_timeout={int(self._statement_s * 1000)}"
                " -c idle_in_transaction_session_timeout=30000",
            )
            self._db.read_only = self._read_only
            # What is written survives a power cut, whatever the server's default is.
            self._db.execute("SET synchronous_commit = on")
        return self._db

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.UniqueViolation as error:
            raise Conflict(str(error)) from error
        except psycopg.Error as error:
            raise self._state_error(error) from error

    def _once_more(self, act: Callable[[], T]) -> T:
        """A connection that was lost while nobody used it is only noticed when it is: try that again."""
        fresh = self._db is None or self._db.closed
        try:
            return act()
        except psycopg.OperationalError:
            if self._depth or fresh or (self._db is not None and not self._db.closed):
                raise
            return act()

    def rows(self, sql: str, values: Iterable[Any] = ()) -> list[Row]:
        given = tuple(values)

        def act() -> list[Row]:
            cursor = self._connection().execute(_marks(sql), given)
            return cursor.fetchall() if cursor.description is not None else []

        with self._guard():
            return self._once_more(act)

    def change(self, sql: str, values: Iterable[Any] = ()) -> int:
        given = tuple(values)
        with self._guard():
            return self._once_more(lambda: self._connection().execute(_marks(sql), given).rowcount)

    def change_many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        with self._guard(), self._connection().cursor() as cursor:
            cursor.executemany(_marks(sql), list(values))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN, or a savepoint inside one. A failed statement undoes the part that it is in."""
        name = f"part{self._depth}"
        begin, commit, rollback = (
            (f"SAVEPOINT {name}", f"RELEASE {name}", f"ROLLBACK TO {name}")
            if self._depth
            else ("BEGIN", "COMMIT", "ROLLBACK")
        )
        self.rows(begin)
        self._depth += 1
        try:
            yield
            self.rows(commit)
        except BaseException:
            self._undo(rollback)
            raise
        finally:
            self._depth -= 1

    def _undo(self, rollback: str) -> None:
        """Where the connection is gone, the server has undone it already."""
        if self._db is None or self._db.closed:
            return
        try:
            self._db.execute(rollback)
        except psycopg.Error:
            self._db.close()

    def _migrate(self) -> None:
        """Apply the schema files that are newer than the database, one supervisor at a time."""
        with self._guard():
            self._connection().execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        files = schema_files()
        with self.transaction():
            self.rows("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
            found = self.rows("SELECT version FROM schema_version")
            version = found[0]["version"] if found else 0
            if version > len(files):
                raise StateError(
                    f"{self.location} was made by a newer version (schema {version}, not {len(files)})",
                    hint="install the newer version here too",
                )
            for file in files[version:]:
                for statement in statements(file.read_text(encoding="utf-8")):
                    self.rows(statement.replace("INTEGER PRIMARY KEY", _SERIAL))
            if version < len(files):
                self.rows("DELETE FROM schema_version")
                self.rows("INSERT INTO schema_version (version) VALUES (?)", (len(files),))

    def _state_error(self, error: psycopg.Error) -> StateError:
        text = without_password(str(error).strip().splitlines()[0] if str(error).strip() else repr(error))
        if isinstance(error, psycopg.errors.QueryCanceled):
            return StateError(
                f"the database {self.location} did not answer within {self._statement_s:g} s",
                hint="another program holds a lock there, or the server is overloaded",
            )
        if isinstance(error, psycopg.OperationalError):
            return StateError(
                f"the database {self.location} cannot be reached: {text}",
                hint="see store.url in the configuration, and whether the server is up",
            )
        return StateError(
            f"the database {self.location} refuses: {text}",
            hint="the supervisor's role needs to own its tables there",
        )


def without_password(text: str) -> str:
    """A URL or a message about one, fit to be shown."""
    return _PASSWORD.sub(lambda match: f"{match[1]}@" if match[1] else f"{match[2]}***", text)


def _marks(sql: str) -> str:
    """psycopg's marks. No statement of ours holds a question or a per cent sign of its own."""
    return sql.replace("?", "%s")
