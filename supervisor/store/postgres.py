"""Owns the connection to PostgreSQL: reaching it again when it was lost, its transactions and its errors.
May touch one database server, by the URL from the configuration.
Never waits for it without a limit, and never puts the URL's password into a message.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from supervisor.errors import DamagedState, StateError
from supervisor.store.database import Conflict, Contention, Row, SamePart, Spoilt, schema_files, statements
from supervisor.store.shape import check_shape

T = TypeVar("T")

_CONNECT_S = 3
_STATEMENT_S = 5.0
_LOST_AFTER_MS = 6000
_IDLE_MS = 3000
"""Less than _STATEMENT_S: who stops in the middle of a transaction loses it before those behind give up."""

_MIGRATION_LOCK = 0x5355_5056
_ALONE_LOCK = _MIGRATION_LOCK + 1
_SERIAL = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"


class PostgresDatabase:
    """READ COMMITTED. What must not change meanwhile is done alone, or its rows are locked."""

    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        """Connect and, unless it is only read, bring the schema up to date. Raises StateError."""
        self._url = url
        self._read_only = read_only
        self._secrets, self.location = _secrets_and_place(url)
        self._statement_s = _STATEMENT_S
        self._undoing: list[str] = []
        self._unsaid = ""
        self._is_untouched = False
        self._is_alone = False
        self._same_part: SamePart | None = None
        self._db: psycopg.Connection[Row] | None = None
        try:
            if not read_only:
                self._migrate()
                check_shape(self.rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def hurry(self, patience_s: float) -> None:
        self._statement_s = patience_s
        if self._db is not None and not self._db.closed:
            self.rows(f"SET statement_timeout = {int(patience_s * 1000)}")

    def tidy(self) -> None:
        """The server does that by itself."""

    def now(self) -> datetime:
        found: datetime = self.rows("SELECT clock_timestamp() AS now")[0]["now"]
        return found

    # ------------------------------------------------------------ the connection

    def _connection(self) -> psycopg.Connection[Row]:
        """The one that is open; a lost one is made again, but never in the middle of a transaction."""
        if self._db is None or (self._db.closed and not self._undoing):
            self._db = psycopg.connect(
                self._url,
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=_CONNECT_S,
                application_name="sidecar-supervisor",
                tcp_user_timeout=_LOST_AFTER_MS,
                keepalives_idle=2,
                keepalives_interval=1,
                keepalives_count=3,
            )
            for setting, value in (
                ("statement_timeout", int(self._statement_s * 1000)),
                ("idle_in_transaction_session_timeout", _IDLE_MS),
                ("default_transaction_read_only", "on" if self._read_only else "off"),
            ):
                self._db.execute(f"SET {setting} = {value}")
            # What is written survives a power cut, whatever the server's default is.
            self._db.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        return self._db

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Errors as ours, without a cause: psycopg's texts may quote the URL."""
        try:
            yield
        except psycopg.IntegrityError as error:
            raise Conflict(str(error)) from None
        except psycopg.DataError as error:
            raise ValueError(str(error)) from None
        except psycopg.Error as error:
            raise self._state_error(error) from None

    def _once_more(self, act: Callable[[], T]) -> T:
        """A connection that was lost while nobody used it is only noticed when it is: try that again."""
        fresh = self._db is None or self._db.closed
        try:
            return act()
        except psycopg.OperationalError:
            if self._undoing or fresh or (self._db is not None and not self._db.closed):
                raise
            return act()

    # ------------------------------------------------------------ statements

    def rows(self, sql: str, values: Iterable[Any] = ()) -> list[Row]:
        given = _fit(values)
        self._is_untouched = False

        def act() -> list[Row]:
            cursor = self._connection().execute(_marks(sql), given)
            return cursor.fetchall() if cursor.description is not None else []

        with self._guard():
            return self._once_more(act)

    def ask(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """A statement that somebody else wrote, with psycopg's own marks: %(name)s."""
        with self._guard():
            return self._once_more(lambda: self._connection().execute(sql.encode(), values).fetchall())

    def change(self, sql: str, values: Iterable[Any] = ()) -> int:
        given = _fit(values)
        self._is_untouched = False
        with self._guard():
            return self._once_more(lambda: self._connection().execute(_marks(sql), given).rowcount)

    # ------------------------------------------------------------ transactions

    def transaction(self, *, alone: bool = False, whole: bool = False) -> AbstractContextManager[None]:
        """BEGIN, or a savepoint inside one. A failed statement undoes the part that it is in.

        Who wants to be alone takes one lock first, for as long as the transaction lasts: many actions
        share a commit, so rows locked in a fixed order within each of them would still make two
        supervisors wait for each other.
        """
        if self._same_part is None:
            return self._part(alone, whole)
        if alone and not self._is_alone:
            self._say(f"SELECT pg_advisory_xact_lock({_ALONE_LOCK})")
            self._is_alone = True
        return self._same_part

    @contextmanager
    def _part(self, alone: bool, whole: bool) -> Iterator[None]:
        say, undo = self._opening()
        if alone and not self._is_alone:
            say.append(f"SELECT pg_advisory_xact_lock({_ALONE_LOCK})")
        try:
            if say:
                self._say(*say)
        except BaseException:
            self._undo(undo)
            raise
        self._undoing.append(undo)
        self._is_alone = alone or self._is_alone
        inside = self._same_part = SamePart() if whole else None
        try:
            yield
            if inside is not None and inside.failed:
                raise Spoilt
            self._close_part()
        except BaseException:
            self._undo(undo)
            # The lock goes with the part that took it.
            self._is_alone = False
            raise
        finally:
            self._undoing.pop()
            self._same_part = None
            self._is_alone = self._is_alone and bool(self._undoing)

    def _opening(self) -> tuple[list[str], str]:
        """What opens a transaction or a part of one, and what undoes it.

        A part that begins where another has just begun is the same part, and the end of the one before
        is said together with the beginning of the next: each message costs a round trip.
        """
        if not self._undoing:
            return ["BEGIN"], "ROLLBACK"
        if len(self._undoing) > 1 and self._is_untouched:
            return [], self._undoing[-1]
        name = f"part{len(self._undoing)}"
        return [f"SAVEPOINT {name}"], f"ROLLBACK TO {name}"

    def _close_part(self) -> None:
        self._is_untouched = False
        if len(self._undoing) == 1:
            self._commit()
        elif self._undoing[-1] != self._undoing[-2]:
            self._unsaid = f"RELEASE {self._undoing[-1].removeprefix('ROLLBACK TO ')}; "

    def _say(self, *statements: str) -> psycopg.Cursor[Row]:
        """One message; several statements in one cannot be prepared. The cursor is at the last one."""
        text = self._unsaid + "; ".join(statements)

        def act() -> psycopg.Cursor[Row]:
            cursor = self._connection().execute(text.encode(), prepare=False)
            while cursor.nextset():
                pass
            return cursor

        with self._guard():
            said = self._once_more(act)
        self._unsaid = ""
        self._is_untouched = True
        return said

    def _commit(self) -> None:
        """A transaction that failed is rolled back by COMMIT, without an error (PostgreSQL, COMMIT)."""
        if self._say("COMMIT").statusmessage != "COMMIT":
            raise StateError(f"{self.location} did not commit", hint="the log of the server says why")

    def _undo(self, undo: str) -> None:
        """Where the connection is gone, the server has undone it already."""
        self._unsaid = ""
        self._is_untouched = False
        if self._db is None or self._db.closed:
            return
        try:
            self._db.execute(undo.encode(), prepare=False)
        except psycopg.Error:
            self._db.close()

    def _migrate(self) -> None:
        """Apply the schema files that are newer than the database, one supervisor at a time."""
        files = schema_files()
        with self.transaction():
            # Before anything is made: CREATE TABLE IF NOT EXISTS fails when two do it at once.
            self.rows("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
            self.rows("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
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

    # ------------------------------------------------------------ errors

    def _state_error(self, error: psycopg.Error) -> StateError:
        text = (str(error).strip() or repr(error)).splitlines()[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        if isinstance(error, (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)):
            return Contention(
                f"a transaction on {self.location} was undone for another one: {text}",
                hint="do it again",
            )
        if isinstance(error, (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)):
            return StateError(
                f"the database {self.location} did not answer within {self._statement_s:g} s",
                hint="another program holds a lock there, or the server is overloaded",
            )
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StateError(
                f"the database {self.location} cannot be reached: {text}",
                hint="see store.url in the configuration, and whether the server is up",
            )
        if isinstance(error, (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)):
            return DamagedState(
                f"in {self.location}: {text}",
                hint="restore that database, or give another one in store.url",
            )
        return StateError(
            f"the database {self.location} refuses: {text}",
            hint="the supervisor's role needs to own its tables there",
        )


def _secrets_and_place(url: str) -> tuple[list[str], str]:
    """What no message may contain, and what may be shown instead of the URL."""
    unreadable = StateError(
        "the URL of the PostgreSQL database cannot be read",
        hint="write postgresql://user:password@host:port/database, with %40 for @ and %2F for /",
    )
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value}
    except psycopg.Error:
        # Its text quotes what it could not read, and that may be a part of the password.
        raise unreadable from None
    user, host, port, database = (given.get(name, "") for name in ("user", "host", "port", "dbname"))
    # libpq takes a password with a / in it for a port and a database.
    if "@" in host + database or not re.fullmatch(r"[\d,]*", port, re.ASCII):
        raise unreadable
    secrets = [given[name] for name in ("password", "sslpassword") if name in given]
    secrets += [urllib.parse.quote(secret, safe="") for secret in secrets]
    place = f"{user}@{host}" if user else host
    return secrets, f"postgresql://{place}{f':{port}' if port else ''}/{database}"


def _fit(values: Iterable[Any]) -> tuple[Any, ...]:
    """PostgreSQL's text cannot hold a NUL, and a value must not make a write fail for ever."""
    return tuple(v.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(v, str) else v for v in values)


def _marks(sql: str) -> str:
    """psycopg's marks. No statement of ours holds a question or a per cent sign of its own."""
    return sql.replace("?", "%s")
