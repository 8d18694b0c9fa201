"""Owns what can only happen with a server: it goes away, others hold its locks, it knows a password.
May touch empty databases of the tests' server, and a server of its own that it ends.
Never asserts how long something took.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from kit import DAY, booking, check_sums, reserve, rows, used
from pgserver import PASSWORD, PASSWORD_IN_URL, Server, running

from supervisor.errors import StateError
from supervisor.store.database import Contention
from supervisor.store.flag_query import open_flag_query
from supervisor.store.postgres import PostgresDatabase
from supervisor.store.recorder import Recorder
from supervisor.store.store import Store, open_store


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with postgres.database() as made:
        yield made


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def backend(store: Store) -> int:
    return int(rows(store, "SELECT pg_backend_pid() AS pid")[0]["pid"])


def end(other: psycopg.Connection[tuple[object, ...]], pid: int) -> None:
    """As an administrator does; returns when the connection is gone."""
    other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


# ------------------------------------------------------------ the password


@pytest.mark.parametrize(
    "wrong",
    [
        "postgresql://tester:{given}@127.0.0.1:1/none",
        "postgresql://tester:{given}@host.invalid/none",
        "postgresql://tester:{given}x@127.0.0.1:{port}/postgres",
        "postgresql://tester:{given}@127.0.0.1:{port}/no_such_database",
        "postgresql://127.0.0.1:{port}/postgres?user=nobody&password={given}",
        "postgresql://tester:{plain}@127.0.0.1:{port}/postgres",
        "postgresql://tester:{plain}@127.0.0.1:{port}/postgres?nonsense=1",
        "postgresql://tester:123/Vt5@127.0.0.1:{port}/postgres",
        "postgresql://tester:Xq7?Vt5@127.0.0.1:{port}/postgres",
        "postgresql://tester:{given}@127.0.0.1:{port}/postgres?nonsense=1",
        "postgresql://tester:{given}@127.0.0.1:{port}/postgres?options=-c%20nonsense={given}",
    ],
)
def test_no_message_carries_a_part_of_the_password(postgres: Server, wrong: str) -> None:
    text = wrong.format(given=PASSWORD_IN_URL, plain=PASSWORD, port=postgres.port)
    with pytest.raises(StateError) as caught:
        open_store(text)
    shown = "".join(traceback.format_exception(caught.value)).split("StateError", 1)[1]
    for part in (PASSWORD, PASSWORD_IN_URL, *PASSWORD.replace("/", ":").replace("@", ":").split(":")):
        assert part not in shown + caught.value.hint, shown
    assert caught.value.hint


def test_the_place_is_named_without_the_password(store: Store, postgres: Server) -> None:
    assert store.location.startswith(f"postgresql://tester@127.0.0.1:{postgres.port}/test")


# ------------------------------------------------------------ a server that goes away


def test_a_connection_that_was_lost_is_made_again(
    store: Store, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    end(other, backend(store))
    store.set_setting("a", "1")
    end(other, backend(store))
    assert store.settings() == {"a": "1"}


def test_a_connection_lost_in_the_middle_writes_nothing(
    store: Store, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    with pytest.raises(StateError, match="cannot be reached"), store.transaction():
        store.set_setting("a", "1")
        end(other, backend(store))
        store.set_setting("b", "1")
    assert store.settings() == {}
    with pytest.raises(StateError), store.transaction():
        reserve(store, booking(), 1)
        end(other, backend(store))
    assert check_sums(store) == {}
    reserve(store, booking(), 1)


def test_a_kept_write_outlives_a_crash_of_the_server() -> None:
    with running(durable=True) as server, server.database() as url:
        recorder = Recorder(url)
        recorder.write(lambda store: store.set_setting("before", "1")).result()
        server.crash()
        with pytest.raises(StateError, match="cannot be reached"):
            recorder.write(lambda store: store.set_setting("once", "1")).result()
        kept = recorder.keep(lambda store: store.set_setting("kept", "1"))
        server.start_again()
        kept.result(60)
        assert recorder.problem == ""
        recorder.close()
        again = open_store(url)
        assert again.settings() == {"before": "1", "kept": "1"}
        again.close()


def test_what_is_written_is_durable_whatever_the_servers_default(
    url: str, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    other.execute(f"ALTER DATABASE {other.info.dbname} SET synchronous_commit = off".encode())
    opened = open_store(url)
    assert rows(opened, "SHOW synchronous_commit") == [{"synchronous_commit": "on"}]
    opened.close()


def test_a_commit_that_was_a_rollback_is_an_error(store: Store) -> None:
    database = store._db
    assert isinstance(database, PostgresDatabase) and database._db is not None
    with pytest.raises(StateError, match="did not commit"), store.transaction():
        database.change("INSERT INTO agent_settings (key, value) VALUES ('a', '1')")
        with pytest.raises(psycopg.errors.DivisionByZero):
            database._db.execute("SELECT 1/0")
    assert store.settings() == {}


# ------------------------------------------------------------ others who hold locks


def test_a_lock_that_somebody_holds_is_not_waited_for_without_a_limit(store: Store, url: str) -> None:
    second = open_store(url)
    second.hurry(0.2)
    with store.transaction(alone=True):
        with pytest.raises(StateError, match=r"did not answer within 0\.2 s"):
            reserve(second, booking(), 1)
        assert second.settings() == {}, "reading goes on"
    reserve(second, booking(), 1)
    second.close()


def test_who_stops_in_the_middle_is_thrown_out_before_the_others_give_up(store: Store, url: str) -> None:
    """A supervisor whose machine sleeps must not stop the whole fleet."""
    second = open_store(url)
    with pytest.raises(StateError), store.transaction(alone=True):
        store.set_setting("asleep", "1")
        reserve(second, booking(), 1)
        store.set_setting("awake", "1")
    assert store.settings() == {}
    reserve(store, booking(), 1)
    assert store.ledger.run_totals("R1").calls == 2
    second.close()


def test_being_alone_ends_with_the_part_that_asked_for_it(store: Store, url: str) -> None:
    second = open_store(url)
    second.hurry(0.2)
    with store.transaction():
        with pytest.raises(RuntimeError), store.transaction(alone=True):
            raise RuntimeError
        with second.transaction(alone=True):
            pass
        with store.transaction(alone=True):
            pass
        with pytest.raises(StateError), second.transaction(alone=True):
            pass
        with store.transaction(alone=True), pytest.raises(StateError), second.transaction(alone=True):
            pass
    with second.transaction(alone=True):
        pass
    second.close()


def test_two_that_wait_for_each_other_are_both_done(url: str) -> None:
    """One of them is undone by the server, and the recorder does it again."""
    both_hold = threading.Barrier(2)
    first_time = [True, True]

    def swap(number: int, keys: tuple[str, str]) -> None:
        def action(store: Store) -> None:
            with store.transaction():
                store.set_setting(keys[0], str(number))
                if first_time[number]:
                    first_time[number] = False
                    both_hold.wait(10)
                store.set_setting(keys[1], str(number))

        recorder = Recorder(url)
        recorder.write(action).result(60)
        recorder.close()

    prepared = open_store(url)
    for key in ("a", "b"):
        prepared.set_setting(key, "")
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(swap, 0, ("a", "b")), threads.submit(swap, 1, ("b", "a"))]
        for wait in waits:
            wait.result()
    assert len(set(prepared.settings().values())) == 1
    prepared.close()


def test_a_deadlock_says_that_doing_it_again_is_enough(store: Store, url: str) -> None:
    for key in ("a", "b"):
        store.set_setting(key, "")
    second = open_store(url)

    def crossing() -> None:
        with second.transaction():
            second.set_setting("b", "2")
            held.set()
            second.set_setting("a", "2")

    held = threading.Event()
    undone = []
    with ThreadPoolExecutor(1) as thread:
        try:
            with store.transaction():
                store.set_setting("a", "1")
                waiting = thread.submit(crossing)
                held.wait(10)
                store.set_setting("b", "1")
        except Contention as error:
            undone.append(error)
        try:
            waiting.result()
        except Contention as error:
            undone.append(error)
    assert len(undone) == 1
    second.close()


# ------------------------------------------------------------ the schema


def test_many_that_start_at_once_make_the_schema_once(url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(open_store, [url] * 8))
    for number, store in enumerate(stores):
        store.set_setting(str(number), "1")
    assert len(stores[0].settings()) == 8
    for store in stores:
        store.close()


def test_a_schema_of_a_newer_version_is_left_alone(url: str, store: Store) -> None:
    with store.transaction():
        store._db.change("UPDATE schema_version SET version = 99")
    with pytest.raises(StateError, match="newer version"):
        open_store(url)
    assert rows(store, "SELECT version FROM schema_version") == [{"version": 99}]


# ------------------------------------------------------------ the rest


def test_the_fleet_goes_by_the_servers_clock(store: Store) -> None:
    first, second = store.now(), store.now()
    assert first is not None and second is not None and first.utcoffset() is not None
    assert timedelta(0) <= second - first


def test_a_row_can_be_settled_through_another_supervisor(store: Store, url: str) -> None:
    charge, _ = reserve(store, booking(), 100)
    second = open_store(url)
    assert second.ledger.settle(charge, used(30)) is not None
    assert store.ledger.settle(charge, used(30)) is None
    assert store.ledger.balances(booking(), DAY).run.spent_nanos == 30
    second.close()


def test_the_operators_query_reads_only_and_takes_the_key_as_a_value(
    url: str, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    other.execute("CREATE TABLE q (k TEXT, stop TEXT, about JSONB)")
    other.execute("INSERT INTO q VALUES ('A', 'true', '{\"x\": 1}'), ('B', 'false', '{}')")
    query = open_flag_query(url, "SELECT stop FROM q WHERE k = :ticket AND k LIKE '%'")
    assert [query.is_set(key) for key in ("A", "B", "C", "A' OR 1=1 --")] == [True, False, False, False]
    end(other, query._db._db.info.backend_pid)  # type: ignore[attr-defined]
    assert query.is_set("A"), "after a lost connection too"
    query.close()
    query = open_flag_query(url, "SELECT about ? 'x' FROM q WHERE k = :ticket")
    assert [query.is_set(key) for key in "AB"] == [True, False]
    query.close()
    for wrong in (
        "DELETE FROM q WHERE k <> :ticket",
        "SELECT nothing FROM q WHERE k = :ticket",
        "SELECT 1 FROM q WHERE 7 = CAST(:ticket AS INTEGER)",
    ):
        with pytest.raises(StateError) as caught:
            open_flag_query(url, wrong)
        assert PASSWORD_IN_URL not in caught.value.message
    assert other.execute("SELECT count(*) FROM q").fetchone() == (2,)
