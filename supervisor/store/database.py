"""Owns what the store asks of a database, whichever one it is.
May touch nothing.
Never knows a table: only how statements, transactions and locks are said to one kind of database.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from supervisor.errors import StateError

SCHEMA = Path(__file__).with_name("schema")

Row = dict[str, Any]


class Database(Protocol):
    """One connection, used from one thread at a time. Every failure is a StateError with a hint.

    Statements are written with ? marks, in the part of SQL that SQLite and PostgreSQL share.
    """

    location: str
    """What people are shown: a path, or the URL without its password."""

    for_update: str
    """Ends a SELECT whose rows are to be locked; "" where every transaction is alone."""

    skip_locked: str
    """The same, passing over rows that another transaction holds."""

    def rows(self, sql: str, values: Iterable[Any] = ()) -> list[Row]:
        """Run one statement, inside or outside a transaction; the rows it gives."""
        ...

    def change(self, sql: str, values: Iterable[Any] = ()) -> int:
        """Run one statement; how many rows it changed."""
        ...

    def transaction(self, *, alone: bool = False, whole: bool = False) -> AbstractContextManager[None]:
        """All or nothing, durable when it is left; inside another one, a part that can fail alone.

        alone: from here to the end of the outermost one no other connection's transaction is alone.
        whole: of the outermost one, whose parts then cost nothing and cannot fail alone. One that fails
        undoes it all; who goes on nevertheless gets Spoilt at the end.
        """
        ...

    def now(self) -> datetime | None:
        """The database's own clock where several hosts share one, else None."""
        ...

    def hurry(self, patience_s: float) -> None:
        """From now on wait no longer than that for anything."""
        ...

    def tidy(self) -> None:
        """Do now, while nobody waits, what a later commit would have to do."""
        ...

    def close(self) -> None: ...


class Conflict(Exception):
    """A row is there already, or one that it belongs to is not."""


class Spoilt(Exception):
    """A part of a transaction failed that has no parts which can."""


class Contention(StateError):
    """Two transactions waited for each other, and this one was undone: doing it again is enough."""


class SamePart:
    """What a transaction gives for one inside it when it is to be whole: nothing, but for remembering."""

    def __init__(self) -> None:
        self.failed = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.failed = self.failed or kind is not None


def statements(script: str) -> list[str]:
    """The statements of a schema file; comments are whole lines, and no statement holds a semicolon."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


def schema_files() -> list[Path]:
    return sorted(SCHEMA.glob("*.sql"))
