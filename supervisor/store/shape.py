"""Owns what tables and columns a database must have once its schema files are applied.
May touch those files, and a database in memory that they are applied to.
Never changes the database it looks at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache

from supervisor.errors import StateError
from supervisor.store.database import Row, schema_files, statements


def check_shape(rows: Callable[[str], list[Row]]) -> None:
    """Raises DamagedState when a table or a column is not there: found now, not when a run ends."""
    for table, columns in _expected().items():
        rows(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0")


@cache
def _expected() -> dict[str, tuple[str, ...]]:
    memory = sqlite3.connect(":memory:")
    try:
        for file in schema_files():
            for statement in statements(file.read_text(encoding="utf-8")):
                memory.execute(statement)
        tables = [name for (name,) in memory.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            table: tuple(row[1] for row in memory.execute(f"PRAGMA table_info({table})"))
            for table in tables
            if not table.startswith("sqlite_")
        }
    except sqlite3.Error as error:
        raise StateError(
            f"the schema files cannot be used: {error}", hint="install the package anew"
        ) from error
    finally:
        memory.close()
