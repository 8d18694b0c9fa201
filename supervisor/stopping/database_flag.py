"""Owns the database flags: tickets.stop_requested, and the operator's own query.
May touch the store, and the operator's database read-only.
Never lets a database that is away stop the other ways of stopping from working.
"""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.config import StopSettings
from supervisor.errors import StateError
from supervisor.store.flag_query import open_flag_query
from supervisor.store.store import Store


class DatabaseFlags:
    """Asks for the flags of live tickets. problem holds the last failure, for status and doctor."""

    def __init__(self, store: Store, location: str, settings: StopSettings) -> None:
        """Raises StateError when the operator's query cannot be run: then no run may start."""
        self._store = store
        database = settings.database or location
        self._query = open_flag_query(database, settings.query) if settings.query else None
        self.problem = ""

    def look(self, tickets: Iterable[str]) -> dict[str, str]:
        """Tickets whose flag is set, with which flag it was."""
        wanted = list(tickets)
        found: dict[str, str] = {}
        self.problem = ""
        try:
            found |= dict.fromkeys(self._store.flagged_tickets(wanted), "tickets.stop_requested")
            if self._query is not None:
                found |= {t: "the operator's query" for t in wanted if self._query.is_set(t)}
        except StateError as error:
            self.problem = error.message
        return found

    def close(self) -> None:
        if self._query is not None:
            self._query.close()
