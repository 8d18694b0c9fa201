"""Owns how a command reaches what it asks about: the database here, or a supervisor's socket.
May touch the state folder where this user owns it, and control sockets.
Never asks a hung supervisor for what can be read without it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from supervisor import workers
from supervisor.clock import rfc3339
from supervisor.control.client import ask
from supervisor.errors import (
    NoSupervisor,
    NotAnswering,
    NotFound,
    StateError,
    SupervisorError,
    UsageError,
)
from supervisor.limits.caps import DailyCaps
from supervisor.observe.queries import Queries
from supervisor.paths import Paths, config_path, locate, prepare, system_socket
from supervisor.store.records import Run
from supervisor.store.store import Store, open_store


class Access:
    """Answers questions from the database if this user may read it, else through the daemon."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._store: Store | None = None
        self._zone = "UTC"
        self._caps: DailyCaps | None = None
        location = self._configured()
        try:
            if location:
                self._store = open_store(location)
            elif os.access(paths.database, os.R_OK | os.W_OK):
                self._store = open_store(paths.database)
            elif _mine(paths.state) and not self.sockets():
                prepare(paths)
                self._store = open_store(paths.database)
        except StateError:
            if not self.sockets():
                raise

    @property
    def local(self) -> Queries | None:
        return Queries(self._store, self.paths, self._zone, self._caps) if self._store else None

    def _configured(self) -> str:
        """The URL of a fleet's database; "" where the state folder's own is used, the usual case."""
        if config_path() is None:
            return ""
        from supervisor.config import load_config  # it knows every upstream's settings, which takes a while

        config = load_config()
        self._zone, self._caps = config.daily.zone, config.daily.caps
        location = config.store_location(self.paths.database)
        return location if location != self.paths.database else ""

    @property
    def store(self) -> Store:
        """Raises UsageError when this user may not read the database."""
        if self._store is None:
            raise UsageError(f"{self.paths.state} cannot be read by this user", hint="try with sudo")
        return self._store

    def query(self, op: str, **arguments: Any) -> Any:
        """One of the questions of Queries, by the name it has on the control socket."""
        queries = self.local
        if queries is None:
            return ask((self.sockets() or [self.paths.control_socket])[0], op, **arguments)
        elsewhere = system_daemon(self.paths)
        if op == "ps":
            more = ask(elsewhere, op, **arguments) if elsewhere else []
            return [*queries.ps(bool(arguments.get("all"))), *more]
        try:
            return self._ask_here(queries, op, arguments)
        except NotFound:
            if elsewhere is None:
                raise
            return ask(elsewhere, op, **arguments)

    def _ask_here(self, queries: Queries, op: str, arguments: dict[str, Any]) -> Any:
        if op == "status":
            return queries.status(arguments["ticket"])
        if op == "events":
            return queries.events(arguments["ticket"], arguments.get("after", 0))
        if op == "log":
            return queries.log(arguments["ticket"], arguments.get("offset", 0))
        if op == "spend":
            return queries.spend(arguments.get("day", ""))
        return queries.report(arguments.get("since", "7d"))

    def socket_of(self, run: Run) -> str:
        """Where the supervisor of a run takes requests. Raises NoSupervisor when it is gone."""
        worker = self.store.worker(run.worker_id)
        if worker is not None and workers.is_alive(worker, rfc3339(datetime.now(UTC))):
            return worker.socket
        raise NoSupervisor(
            f"the supervisor of {run.ticket} is gone", hint=f"supervisorctl kill --force {run.ticket}"
        )

    def sockets(self) -> list[str]:
        """Control sockets of this state that somebody answers on, the daemon's first."""
        try:
            workers_ = sorted(os.listdir(self.paths.worker_sockets))
        except OSError:
            workers_ = []
        every = [self.paths.control_socket, *(f"{self.paths.worker_sockets}/{name}" for name in workers_)]
        found = [path for path in every if _connects(path)]
        elsewhere = system_daemon(self.paths)
        return [*found, elsewhere] if elsewhere else found

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def system_daemon(paths: Paths) -> str | None:
    """Root's daemon, for an ordinary user whom its control group lets in; None if there is none."""
    path = system_socket()
    if os.geteuid() == 0 or path == paths.control_socket or not _connects(path):
        return None
    return path


def _connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(path)
        except OSError:
            return False
    return True


def _mine(folder: str) -> bool:
    """May this user make or use that folder?"""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK)


@contextmanager
def open_access() -> Iterator[Access]:
    access = Access(locate())
    try:
        yield access
    finally:
        access.close()


def daemon_answers(paths: Paths) -> bool:
    """Is there a daemon that answers? One that is hung counts as one: it owns the tickets."""
    if not os.path.exists(paths.control_socket):
        return False
    try:
        ask(paths.control_socket, "ping", timeout_s=5.0)
    except NotAnswering:
        raise
    except NoSupervisor:
        return False
    return True


def complete_ticket(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the tickets that are running."""
    try:
        with open_access() as access:
            return [row["ticket"] for row in access.query("ps") if row["ticket"].startswith(incomplete)]
    except SupervisorError:
        return []


def complete_any_ticket(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the tickets that run, and those that ended in the last day."""
    try:
        with open_access() as access:
            tickets = dict.fromkeys(row["ticket"] for row in reversed(access.query("ps", all=True)))
    except SupervisorError:
        return []
    return [ticket for ticket in tickets if ticket.startswith(incomplete)]


def complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion: the shipped profiles; files where none begins so."""
    from supervisor.profile.load import shipped

    found = [CompletionItem(name) for name in shipped() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]
