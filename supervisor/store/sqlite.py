"""Owns the SQLite database: schema, and every statement that reads or writes it.
May touch one database file in the state folder, and SQL, which no other module may.
Never holds a transaction over anything but its own statements, and never sees an unredacted line.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from supervisor.errors import StateError, UsageError
from supervisor.events import Event
from supervisor.store.records import Run, RunState, Ticket, Worker

T = TypeVar("T", bound=msgspec.Struct)

_SCHEMA = Path(__file__).with_name("schema")
_BUSY_TIMEOUT_S = 10.0
_NETWORK_TYPES = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "fuse.sshfs", "fuse.glusterfs", "afs")
_JSON = ("command", "figures", "limits", "totals", "kill", "attestation", "cgroups")


class TicketIsRunning(UsageError):
    """A live run of the same ticket exists; two at once are never started."""


class SqliteStore:
    """One connection, used from one thread. WAL lets others read and flag meanwhile (sqlite.org/wal)."""

    def __init__(self, path: str) -> None:
        """Open or make the database. Raises StateError with what to do."""
        self.path = path
        _refuse_network(path)
        try:
            _create_private(path)
            self._db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise _state_error(path, error) from error
        self._db.row_factory = sqlite3.Row
        with self._guard():
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()

    def close(self) -> None:
        self._db.close()

    def hurry(self, patience_s: float) -> None:
        """Wait no longer than that for another program's lock: somebody waits for a kill."""
        with self._guard():
            self._db.execute(f"PRAGMA busy_timeout = {int(patience_s * 1000)}")

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise _state_error(self.path, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """BEGIN IMMEDIATE: whoever will write says so first, so nobody deadlocks upgrading."""
        with self._guard():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, values: Iterable[Any] = ()) -> list[sqlite3.Row]:
        with self._guard():
            return self._db.execute(sql, tuple(values)).fetchall()

    def _migrate(self) -> None:
        """Apply the schema files newer than user_version, each in a transaction of its own."""
        files = sorted(_SCHEMA.glob("*.sql"))
        while True:
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(files):
                raise StateError(
                    f"{self.path} was made by a newer version (schema {version}, not {len(files)})",
                    hint="install the newer version again, or give another SUPERVISOR_STATE_DIR",
                )
            if version == len(files):
                return
            script = files[version].read_text(encoding="utf-8")
            with self._transaction() as db:
                if db.execute("PRAGMA user_version").fetchone()[0] == version:
                    for statement in _statements(script):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {version + 1}")

    # ------------------------------------------------------------ runs and events

    def create_run(self, run: Run, event: Event) -> None:
        """The run, its ticket and its first event at once. Raises TicketIsRunning."""
        columns = list(Run.__struct_fields__)
        marks = ", ".join("?" * len(columns))
        try:
            with self._transaction() as db:
                db.execute(
                    "INSERT INTO tickets (key, project, state, attempts, updated_at)"
                    " VALUES (?, ?, 'running', 1, ?)"
                    " ON CONFLICT (key) DO UPDATE SET state = 'running', attempts = attempts + 1,"
                    " updated_at = excluded.updated_at",
                    (run.ticket, run.project, run.created_at),
                )
                db.execute(f"INSERT INTO runs ({', '.join(columns)}) VALUES ({marks})", _to_row(run))
                _insert_events(db, [event])
        except sqlite3.IntegrityError:
            raise TicketIsRunning(
                f"ticket {run.ticket} has a live run already",
                hint=f"supervisorctl status {run.ticket} · supervisorctl kill {run.ticket}",
            ) from None

    def update_run(self, run: Run, *events: Event) -> None:
        """The whole row and its events in one transaction, so that state and history agree.

        A run that has ended is never opened again: what comes too late for it is not written.
        """
        columns = list(Run.__struct_fields__)
        assignments = ", ".join(f"{column} = ?" for column in columns)
        with self._transaction() as db:
            done = db.execute(
                f"UPDATE runs SET {assignments} WHERE run_id = ? AND (state <> 'ended' OR ? = 'ended')",
                (*_to_row(run), run.run_id, run.state),
            )
            if done.rowcount == 0:
                return
            if run.state is RunState.ENDED:
                db.execute(
                    "UPDATE tickets SET state = 'ended', stop_reason = ?, updated_at = ? WHERE key = ?",
                    (run.reason, run.ended_at, run.ticket),
                )
            _insert_events(db, events)

    def add_events(self, events: Iterable[Event]) -> None:
        with self._transaction() as db:
            _insert_events(db, events)

    def run(self, run_id: str) -> Run | None:
        return _first(Run, self._rows("SELECT * FROM runs WHERE run_id = ?", (run_id,)))

    def latest_run(self, ticket: str) -> Run | None:
        rows = self._rows("SELECT * FROM runs WHERE ticket = ? ORDER BY run_id DESC LIMIT 1", (ticket,))
        return _first(Run, rows)

    def live_runs(self) -> list[Run]:
        return _all(Run, self._rows("SELECT * FROM runs WHERE state <> 'ended' ORDER BY run_id"))

    def ended_runs(self, since: str, limit: int = 100_000) -> list[Run]:
        """Newest first. since is an instant in RFC 3339 UTC."""
        sql = "SELECT * FROM runs WHERE state = 'ended' AND ended_at >= ? ORDER BY ended_at DESC LIMIT ?"
        return _all(Run, self._rows(sql, (since, limit)))

    def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, Event]]:
        """Events in the order they were written, with their numbers, for reading on from one."""
        sql = "SELECT * FROM events WHERE run_id = ? AND event_id > ? ORDER BY event_id LIMIT ?"
        found = []
        for row in self._rows(sql, (run_id, after, limit)):
            detail = msgspec.json.decode(row["detail"])
            values = {"at": row["at"], "run_id": run_id, "ticket": row["ticket"], "kind": row["kind"]}
            found.append((row["event_id"], msgspec.convert({**values, "detail": detail}, Event)))
        return found

    # ------------------------------------------------------------ tickets, flags, workers

    def ticket(self, key: str) -> Ticket | None:
        rows = self._rows("SELECT * FROM tickets WHERE key = ?", (key,))
        if not rows:
            return None
        return msgspec.convert(
            {**dict(rows[0]), "stop_requested": is_true(rows[0]["stop_requested"])}, Ticket
        )

    def flagged_tickets(self, keys: Iterable[str]) -> set[str]:
        """Which of these tickets have stop_requested set."""
        wanted = list(keys)
        if not wanted:
            return set()
        marks = ", ".join("?" * len(wanted))
        rows = self._rows(f"SELECT key, stop_requested FROM tickets WHERE key IN ({marks})", wanted)
        return {row["key"] for row in rows if is_true(row["stop_requested"])}

    def clear_flag(self, key: str) -> bool:
        with self._transaction() as db:
            row = db.execute("SELECT stop_requested FROM tickets WHERE key = ?", (key,)).fetchone()
            db.execute("UPDATE tickets SET stop_requested = 0 WHERE key = ?", (key,))
            return row is not None and is_true(row["stop_requested"])

    def settings(self) -> dict[str, str]:
        return {row["key"]: row["value"] for row in self._rows("SELECT key, value FROM agent_settings")}

    def set_setting(self, key: str, value: str) -> None:
        with self._transaction() as db:
            db.execute(
                "INSERT INTO agent_settings (key, value) VALUES (?, ?)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, value),
            )

    def add_worker(self, worker: Worker) -> None:
        columns = list(Worker.__struct_fields__)
        sql = f"INSERT INTO workers ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        with self._transaction() as db:
            db.execute(sql, msgspec.structs.astuple(worker))

    def remove_worker(self, worker_id: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM workers WHERE worker_id = ?", (worker_id,))

    def workers(self) -> list[Worker]:
        return _all(Worker, self._rows("SELECT * FROM workers ORDER BY started_at"))


def _statements(script: str) -> list[str]:
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


def is_true(value: object) -> bool:
    """What an operator may have written by hand: 1, true, 'true', 'yes', 't'; in doubt it is set."""
    if value is None:
        return False
    if isinstance(value, str):
        return value.strip().lower() not in ("", "0", "f", "false", "n", "no", "off")
    return bool(value)


def _insert_events(db: sqlite3.Connection, events: Iterable[Event]) -> None:
    db.executemany(
        "INSERT INTO events (run_id, ticket, at, kind, detail) VALUES (?, ?, ?, ?, ?)",
        [(e.run_id, e.ticket, e.at, e.kind, msgspec.json.encode(e.detail).decode()) for e in events],
    )


def _to_row(run: Run) -> tuple[Any, ...]:
    values = []
    for name in Run.__struct_fields__:
        value = getattr(run, name)
        values.append(msgspec.json.encode(value).decode() if name in _JSON and value is not None else value)
    return tuple(values)


def _all(kind: type[T], rows: list[sqlite3.Row]) -> list[T]:
    return [_from_row(kind, row) for row in rows]


def _first(kind: type[T], rows: list[sqlite3.Row]) -> T | None:
    return _from_row(kind, rows[0]) if rows else None


def _from_row(kind: type[T], row: sqlite3.Row) -> T:
    values = dict(row)
    for name in _JSON:
        if values.get(name) is not None:
            values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, kind)


def _state_error(path: str, error: Exception) -> StateError:
    text = str(error)
    if "malformed" in text or "not a database" in text or "no such table" in text or "no such column" in text:
        return StateError(
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
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
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
