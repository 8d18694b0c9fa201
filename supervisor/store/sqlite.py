"""Owns the connection to SQLite: opening it safely, its transactions, and what its errors mean.
May touch one database file in the state folder.
Never holds a transaction over anything but the statements of its caller.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from supervisor.errors import DamagedState, StateError
from supervisor.ownership import open_file
from supervisor.store.database import Conflict, Row, SamePart, Spoilt, schema_files, statements
from supervisor.store.shape import check_shape

_BUSY_TIMEOUT_S = 10.0
_WAL_PAGES = 4000
"""16 MiB. The commit that passes this also copies the log into the database; tidy() does it before."""

_OLDEST = (3, 35)
_NETWORK_TYPES = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "fuse.sshfs", "fuse.glusterfs", "afs")


class SqliteDatabase:
    """WAL lets others read and flag meanwhile (sqlite.org/wal); one writer at a time."""

    for_update = ""
    skip_locked = ""

    def __init__(self, path: str) -> None:
        """Open or make the database. Raises StateError with what to do."""
        self.location = path
        self._depth = 0
        self._same_part: SamePart | None = None
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StateError(
                f"SQLite {sqlite3.sqlite_version} is too old: RETURNING came with 3.35",
                hint="use a Python that is linked with a newer one",
            )
        _refuse_network(path)
        try:
            _create_private(path)
            self._db = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise _state_error(path, error) from error
        self.rows("PRAGMA journal_mode = WAL")
        self.rows("PRAGMA synchronous = FULL")
        self.rows("PRAGMA foreign_keys = ON")
        self.rows(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        self._migrate()
        check_shape(self.rows)

    def close(self) -> None:
        self._db.close()

    def hurry(self, patience_s: float) -> None:
        self.rows(f"PRAGMA busy_timeout = {int(patience_s * 1000)}")

    def tidy(self) -> None:
        """Whoever reads or writes meanwhile is not waited for."""
        self.rows("PRAGMA wal_checkpoint(PASSIVE)")

    def now(self) -> None:
        """The host's clock is the only one there is."""

    def rows(self, sql: str, values: Iterable[Any] = ()) -> list[Row]:
        try:
            cursor = self._db.execute(sql, tuple(values))
            found = cursor.fetchall()
        except sqlite3.Error as error:
            raise self._ours(error) from error
        if not found:
            return []
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in found]

    def change(self, sql: str, values: Iterable[Any] = ()) -> int:
        try:
            return self._db.execute(sql, tuple(values)).rowcount
        except sqlite3.Error as error:
            raise self._ours(error) from error

    def _ours(self, error: sqlite3.Error) -> Exception:
        if isinstance(error, sqlite3.IntegrityError):
            return Conflict(str(error))
        return _state_error(self.location, error)

    def transaction(self, *, alone: bool = False, whole: bool = False) -> AbstractContextManager[None]:
        """BEGIN IMMEDIATE: whoever will write says so first, so nobody deadlocks upgrading.

        There is one writer at a time, so every transaction is alone.
        """
        return self._same_part or self._part(whole)

    @contextmanager
    def _part(self, whole: bool) -> Iterator[None]:
        name = f"part{self._depth}"
        begin, commit, rollback = (
            (f"SAVEPOINT {name}", f"RELEASE {name}", f"ROLLBACK TO {name}")
            if self._depth
            else ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
        )
        self.rows(begin)
        self._depth += 1
        inside = self._same_part = SamePart() if whole else None
        try:
            yield
            if inside is not None and inside.failed:
                raise Spoilt
            self.rows(commit)
        except BaseException:
            if self._db.in_transaction:
                self.rows(rollback)
            raise
        finally:
            self._depth -= 1
            self._same_part = None

    def _migrate(self) -> None:
        """Apply the schema files newer than user_version, each in a transaction of its own."""
        files = schema_files()
        while True:
            version = self.rows("PRAGMA user_version")[0]["user_version"]
            if version > len(files):
                raise StateError(
                    f"{self.location} was made by a newer version (schema {version}, not {len(files)})",
                    hint="install the newer version again, or give another SUPERVISOR_STATE_DIR",
                )
            if version == len(files):
                return
            script = files[version].read_text(encoding="utf-8")
            with self.transaction():
                if self.rows("PRAGMA user_version")[0]["user_version"] == version:
                    for statement in statements(script):
                        self.rows(statement)
                    self.rows(f"PRAGMA user_version = {version + 1}")


def _state_error(path: str, error: Exception) -> StateError:
    text = str(error)
    if "malformed" in text or "not a database" in text or "no such table" in text or "no such column" in text:
        return DamagedState(
            f"the database {path} is damaged: {text}",
            hint=f"move it away (mv {path} {path}.damaged); runs start with a new one, and the logs stay",
        )
    if "full" in text or "No space" in text or ("I/O error" in text and _is_full(os.path.dirname(path))):
        return StateError(
            f"no space left for {path}", hint="free space on that file system; nothing was lost"
        )
    if "locked" in text or "busy" in text:
        return StateError(
            f"{path} was locked for {_BUSY_TIMEOUT_S:.0f} s",
            hint="another program holds a transaction open on it; end that program",
        )
    hint = "make the folder writable for this user, or set SUPERVISOR_STATE_DIR to one that is"
    return StateError(f"the database {path} cannot be used: {text}", hint=hint)


def _is_full(folder: str) -> bool:
    """Shared memory that cannot grow is an I/O error to SQLite, not a full disk."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < 1 << 16


def _create_private(path: str) -> None:
    """Make the file with mode 600 before SQLite would make it wider.

    An existing file is not opened at all: closing a descriptor of it would drop the locks that other
    connections of this process hold on it (sqlite.org/howtocorrupt.html, section 2.2).
    """
    try:
        os.close(open_file(path, os.O_RDWR, exclusive=True))
    except FileExistsError:
        return


def _refuse_network(path: str) -> None:
    """WAL needs shared memory, which network file systems do not give (sqlite.org/wal.html)."""
    folder = os.path.dirname(path) or "."
    try:
        device = os.stat(folder).st_dev
    except OSError as error:
        raise _state_error(path, error) from error
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split(" ")[2] == wanted and after.split(" ")[0] in _NETWORK_TYPES:
                raise StateError(
                    f"{folder} is on a network file system ({after.split(' ')[0]}), where SQLite loses data",
                    hint="set SUPERVISOR_STATE_DIR to a local folder",
                )
