"""Owns the database: what is written together, what is refused, and what other processes may do to it.
May touch databases in temporary folders, from this process and others.
Never loses a write, and never makes a new database where an old one cannot be read.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from runs_kit import AT, make_event, make_run

from supervisor.errors import StateError
from supervisor.store.flag_query import open_flag_query
from supervisor.store.store import open_store
from supervisor.store.tickets import Claim, Claimed, Nothing
from supervisor.store.values import is_true

PROBE = (
    "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM runs'); c.close()"
)


def test_writes_stay_visible_when_another_process_opens_and_closes(tmp_path: Path) -> None:
    """Opening the file beside SQLite once dropped this process's locks: the other one then took the
    log of the last connection for its own to delete, and writes after that were lost."""
    path = str(tmp_path / "db")
    first, second = open_store(path), open_store(path)
    for number in range(1, 6):
        run = make_run(number, f"T-{number}")
        (first if number % 2 else second).create_run(run, make_event(run))
        open_store(path).close()
        subprocess.run([sys.executable, "-c", PROBE, path], check=True)
        assert len(first.live_runs()) == len(second.live_runs()) == number
        outside = sqlite3.connect(path)
        assert outside.execute("SELECT count(*) FROM runs").fetchone() == (number,)
        outside.close()
    first.close()
    second.close()
    again = open_store(path)
    assert len(again.live_runs()) == 5
    again.close()


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    open_store(str(tmp_path / "db")).close()
    assert os.stat(tmp_path / "db").st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 4096],
    ids=["text", "header only"],
)
def test_a_damaged_database_is_kept_and_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "db"
    path.write_bytes(content)
    with pytest.raises(StateError) as caught:
        open_store(str(path))
    assert str(path) in caught.value.message and caught.value.hint
    assert path.read_bytes() == content


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StateError) as caught:
        open_store(str(path))
    assert "newer version" in caught.value.message


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StateError):
        open_store(str(tmp_path / "none/db"))


def test_a_locked_database_fails_and_works_again(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    store = open_store(path)
    store.hurry(0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    run = make_run()
    with pytest.raises(StateError) as caught:
        store.create_run(run, make_event(run))
    assert "locked" in caught.value.message
    assert store.live_runs() == [], "reading goes on"
    holder.execute("ROLLBACK")
    holder.close()
    store.create_run(run, make_event(run))
    assert store.live_runs() == [run]
    store.close()


def test_a_transaction_that_fails_leaves_the_connection_usable(tmp_path: Path) -> None:
    """A full database rolls back by itself; our own rollback must not hide why."""
    store = open_store(str(tmp_path / "db"))
    pages = store._db.rows("PRAGMA page_count")[0]["page_count"]
    store._db.rows(f"PRAGMA max_page_count = {pages}")
    run = make_run()
    big = msgspec.structs.replace(run, command=["x" * 500_000])
    with pytest.raises(StateError) as caught:
        store.create_run(big, make_event(run))
    assert "no space" in caught.value.message
    store._db.rows("PRAGMA max_page_count = 100000")
    store.create_run(run, make_event(run))
    store.close()


@pytest.mark.parametrize("value", [1, 2, "1", "true", "TRUE", "t", "yes", " on ", "stop", b"x"])
def test_set_flags(tmp_path: Path, value: object) -> None:
    assert is_true(value)


@pytest.mark.parametrize("value", [None, 0, "", "0", "false", "False", "f", "no", "n", "off", " ", b""])
def test_flags_that_are_not_set(value: object) -> None:
    assert not is_true(value)


def test_flags_are_those_of_the_tickets_asked_for(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "db"))
    for number in (1, 2, 3):
        run = make_run(number, f"T-{number}")
        store.create_run(run, make_event(run))
    store._db.rows("UPDATE tickets SET stop_requested = 'yes' WHERE key IN ('T-1', 'T-3')")
    assert store.flagged_tickets(["T-1", "T-2"]) == {"T-1"}
    assert store.flagged_tickets([]) == set()
    assert store.clear_flag("T-1") and not store.clear_flag("T-1")
    assert store.flagged_tickets(["T-1"]) == set()
    store.close()


def test_the_operators_query_reads_only_and_takes_the_key_as_a_value(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE q (k TEXT, stop TEXT)")
    connection.execute("INSERT INTO q VALUES ('A', 'true'), ('B', 'false')")
    connection.commit()
    query = open_flag_query(str(path), "SELECT stop FROM q WHERE k = :ticket")
    assert [query.is_set(key) for key in ("A", "B", "C", "A' OR 1=1 --")] == [True, False, False, False]
    query.close()
    with pytest.raises(StateError):
        open_flag_query(str(path), "DELETE FROM q WHERE k <> :ticket")
    with pytest.raises(StateError):
        open_flag_query(str(tmp_path / "none.db"), "SELECT 1")
    assert connection.execute("SELECT count(*) FROM q").fetchone() == (2,)
    connection.close()


@pytest.mark.parametrize("value", ["yes", "stop", "TRUE", 1, 7])
def test_a_flag_written_by_hand_in_any_words_keeps_a_ticket_from_being_claimed(
    tmp_path: Path, value: object
) -> None:
    store = open_store(str(tmp_path / "db"))
    store.tickets.add("T", project="", goal="", priority=0, at=AT)
    claim = Claim(worker_id="W", run_id="R", now=AT, day="2026-09-01", lease_until=AT)
    store._db.change("UPDATE tickets SET stop_requested = ?", (value,))
    assert isinstance(store.tickets.claim(claim), Nothing)
    store._db.change("UPDATE tickets SET stop_requested = ' No '")
    assert isinstance(store.tickets.claim(claim), Claimed)
    store.close()
