"""Owns what is stored about runs: rows, events, settings, workers; the ledger and the queue beside them.
May touch the database it is given, through statements of its own.
Never holds a transaction over anything but its own statements, and never sees an unredacted line.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from supervisor.events import Event, EventKind
from supervisor.store.database import Conflict, Database, Row
from supervisor.store.ledger import Ledger
from supervisor.store.records import Run, RunState, Ticket, Worker
from supervisor.store.tickets import TicketIsRunning, Tickets
from supervisor.store.values import is_true, understood

T = TypeVar("T", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode
_JSON = ("command", "figures", "limits", "totals", "kill", "attestation", "cgroups")


def open_store(location: str) -> Store:
    """A path is SQLite, a postgresql:// URL is PostgreSQL. Raises StateError with what to do."""
    if location.startswith(("postgresql://", "postgres://")):
        from supervisor.store.postgres import PostgresDatabase

        return Store(PostgresDatabase(location))
    from supervisor.store.sqlite import SqliteDatabase

    return Store(SqliteDatabase(location))


class Store:
    """One connection, used from one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.location = database.location
        self.ledger = Ledger(database)
        self.tickets = Tickets(database, self.ledger)
        self.hurry = database.hurry
        self.close = database.close
        self.tidy = database.tidy
        self.transaction = database.transaction

    def now(self) -> datetime | None:
        """The clock that hosts share, when there is one."""
        return self._db.now()

    # ------------------------------------------------------------ runs and events

    def create_run(self, run: Run, event: Event) -> None:
        """The run, its ticket and its first event at once.

        Raises TicketIsRunning, and LeaseLost when the run is of a claim that is over.
        """
        columns = list(Run.__struct_fields__)
        marks = ", ".join("?" * len(columns))
        try:
            with self._db.transaction():
                self.tickets.start(run)
                self._db.change(f"INSERT INTO runs ({', '.join(columns)}) VALUES ({marks})", _to_row(run))
                self._insert_events([event])
        except Conflict:
            raise TicketIsRunning(run.ticket) from None

    def update_run(self, run: Run, *events: Event) -> None:
        """The whole row and its events in one transaction, so that state and history agree.

        A run that has ended is never opened again: what comes too late for it is not written.
        """
        columns = list(Run.__struct_fields__)
        assignments = ", ".join(f"{column} = ?" for column in columns)
        with self._db.transaction():
            before = self._db.rows(
                f"SELECT state FROM runs WHERE run_id = ?{self._db.for_update}", (run.run_id,)
            )
            changed = self._db.change(
                f"UPDATE runs SET {assignments} WHERE run_id = ? AND (state <> 'ended' OR ? = 'ended')",
                (*_to_row(run), run.run_id, run.state),
            )
            if not changed:
                return
            if run.state is RunState.ENDED and before[0]["state"] != RunState.ENDED:
                self.tickets.end(run)
            self._insert_events(events)

    def add_events(self, events: Iterable[Event]) -> None:
        with self._db.transaction():
            self._insert_events(events)

    def run(self, run_id: str) -> Run | None:
        return _first(Run, self._db.rows("SELECT * FROM runs WHERE run_id = ?", (run_id,)))

    def latest_run(self, ticket: str) -> Run | None:
        rows = self._db.rows("SELECT * FROM runs WHERE ticket = ? ORDER BY run_id DESC LIMIT 1", (ticket,))
        return _first(Run, rows)

    def live_runs(self) -> list[Run]:
        return _all(Run, self._db.rows("SELECT * FROM runs WHERE state <> 'ended' ORDER BY run_id"))

    def ended_runs(self, since: str, limit: int = 100_000) -> list[Run]:
        """Newest first. since is an instant in RFC 3339 UTC."""
        sql = "SELECT * FROM runs WHERE state = 'ended' AND ended_at >= ? ORDER BY ended_at DESC LIMIT ?"
        return _all(Run, self._db.rows(sql, (since, limit)))

    def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, Event]]:
        """Events in the order they were written, with their numbers, for reading on from one."""
        sql = "SELECT * FROM events WHERE run_id = ? AND event_id > ? ORDER BY event_id LIMIT ?"
        found = []
        for row in self._db.rows(sql, (run_id, after, limit)):
            values = {"at": row["at"], "run_id": run_id, "ticket": row["ticket"], "kind": row["kind"]}
            with understood("event", row["event_id"]):
                detail = msgspec.json.decode(row["detail"])
                found.append((row["event_id"], msgspec.convert({**values, "detail": detail}, Event)))
        return found

    def event_details(self, kind: EventKind, since: str, limit: int = 100_000) -> list[dict[str, Any]]:
        """The details of all runs' events of one kind from an instant on, in no order."""
        sql = "SELECT detail FROM events WHERE kind = ? AND at >= ? LIMIT ?"
        with understood("an event", kind):
            return [msgspec.json.decode(row["detail"]) for row in self._db.rows(sql, (kind, since, limit))]

    # ------------------------------------------------------------ tickets, flags, workers

    def ticket(self, key: str) -> Ticket | None:
        return self.tickets.find(key)

    def flagged_tickets(self, keys: Iterable[str]) -> set[str]:
        """Which of these tickets have stop_requested set."""
        wanted = list(keys)
        if not wanted:
            return set()
        marks = ", ".join("?" * len(wanted))
        rows = self._db.rows(f"SELECT key, stop_requested FROM tickets WHERE key IN ({marks})", wanted)
        return {row["key"] for row in rows if is_true(row["stop_requested"])}

    def set_flag(self, key: str) -> None:
        with self._db.transaction():
            self._db.change("UPDATE tickets SET stop_requested = TRUE WHERE key = ?", (key,))

    def clear_flag(self, key: str) -> bool:
        with self._db.transaction():
            rows = self._db.rows("SELECT stop_requested FROM tickets WHERE key = ?", (key,))
            self._db.change("UPDATE tickets SET stop_requested = FALSE WHERE key = ?", (key,))
            return bool(rows) and is_true(rows[0]["stop_requested"])

    def settings(self) -> dict[str, str]:
        return {row["key"]: row["value"] for row in self._db.rows("SELECT key, value FROM agent_settings")}

    def set_setting(self, key: str, value: str) -> None:
        with self._db.transaction():
            self._db.change(
                "INSERT INTO agent_settings (key, value) VALUES (?, ?)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, value),
            )

    def add_worker(self, worker: Worker) -> None:
        columns = list(Worker.__struct_fields__)
        sql = f"INSERT INTO workers ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        with self._db.transaction():
            self._db.change(sql, msgspec.structs.astuple(worker))

    def renew_worker(self, worker_id: str, lease_until: str) -> None:
        """It lives, and so does what it holds of money."""
        with self._db.transaction():
            self._db.change(
                "UPDATE workers SET lease_until = ? WHERE worker_id = ?", (lease_until, worker_id)
            )
            self.ledger.renew(worker_id, lease_until)

    def remove_worker(self, worker_id: str) -> None:
        with self._db.transaction():
            self._db.change("DELETE FROM workers WHERE worker_id = ?", (worker_id,))

    def worker(self, worker_id: str) -> Worker | None:
        return _first(Worker, self._db.rows("SELECT * FROM workers WHERE worker_id = ?", (worker_id,)))

    def workers(self) -> list[Worker]:
        return _all(Worker, self._db.rows("SELECT * FROM workers ORDER BY started_at"))

    def _insert_events(self, events: Iterable[Event]) -> None:
        for event in events:
            self._db.change(
                "INSERT INTO events (run_id, ticket, at, kind, detail) VALUES (?, ?, ?, ?, ?)",
                (event.run_id, event.ticket, event.at, event.kind, _encode(event.detail).decode()),
            )


def _to_row(run: Run) -> tuple[Any, ...]:
    values = []
    for name in Run.__struct_fields__:
        value = getattr(run, name)
        values.append(msgspec.json.encode(value).decode() if name in _JSON and value is not None else value)
    return tuple(values)


def _all(kind: type[T], rows: list[Row]) -> list[T]:
    return [_from_row(kind, row) for row in rows]


def _first(kind: type[T], rows: list[Row]) -> T | None:
    return _from_row(kind, rows[0]) if rows else None


def _from_row(kind: type[T], row: Row) -> T:
    values = dict(row)
    with understood(kind.__name__.lower(), values[kind.__struct_fields__[0]]):
        for name in _JSON:
            if values.get(name) is not None:
                values[name] = msgspec.json.decode(values[name])
        return msgspec.convert(values, kind)
