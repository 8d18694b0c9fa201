"""Owns that writes which wait together share one commit, and that each keeps its own outcome.
May touch an empty database of each kind.
Never asserts how long something took.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from kit import ask, booking, call, check_sums, used

from supervisor.errors import DamagedState, StateError, UnreadableRow
from supervisor.limits.budget import Caps, Grant, Refusal
from supervisor.store.database import Spoilt
from supervisor.store.recorder import Recorder
from supervisor.store.store import Store, open_store


@pytest.fixture
def recorder(location: str) -> Iterator[Recorder]:
    made = Recorder(location)
    yield made
    made.close()


class Gate:
    """Keeps the recorder busy with one write until it is opened."""

    def __init__(self, recorder: Recorder) -> None:
        self._open = threading.Event()
        inside = threading.Event()

        def wait(_: Store) -> None:
            inside.set()
            self._open.wait()

        self.waiting = recorder.write(wait)
        inside.wait()

    def open(self) -> None:
        self._open.set()


def is_inside(store: Store) -> bool:
    """Is there a transaction around the caller?"""
    database: Any = store._db
    return bool(database._undoing if "://" in store.location else database._depth)


def test_what_waited_together_is_one_transaction(recorder: Recorder, location: str) -> None:
    gate = Gate(recorder)
    seen: list[bool] = []

    def action(store: Store) -> None:
        seen.append(is_inside(store))
        store.set_setting(str(len(seen)), "1")

    writes = [recorder.write(action) for _ in range(10)]
    other = open_store(location)
    found: list[int] = []
    writes[0].add_done_callback(lambda _: found.append(len(other.settings())))
    gate.open()
    for write in writes:
        write.result()
    assert seen == [True] * 10
    assert found == [10], "nobody is told before all of it is committed"
    assert recorder.write(is_inside).result() is False, "one alone has its own"
    other.close()


def test_one_that_fails_does_not_undo_the_others(recorder: Recorder) -> None:
    gate = Gate(recorder)

    def fail(store: Store) -> None:
        store.set_setting("half", "1")
        raise RuntimeError("mine")

    before = recorder.write(lambda store: store.set_setting("before", "1"))
    failing: Future[Any] = recorder.write(fail)
    kept = recorder.keep(fail)
    after = recorder.write(lambda store: store.settings())
    gate.open()
    before.result()
    for future in (failing, kept):
        with pytest.raises(RuntimeError, match="mine"):
            future.result()
    assert after.result() == {"before": "1"}


def test_a_database_error_of_one_is_its_own(recorder: Recorder) -> None:
    gate = Gate(recorder)
    before = recorder.write(lambda store: store.set_setting("before", "1"))
    wrong = recorder.write(lambda store: store._db.rows("SELECT x FROM nowhere"))
    after = recorder.write(lambda store: store.set_setting("after", "1"))
    gate.open()
    before.result()
    after.result()
    with pytest.raises(StateError):
        wrong.result()
    assert recorder.write(lambda store: store.settings()).result() == {"before": "1", "after": "1"}


def test_one_that_was_cancelled_in_time_is_not_done(recorder: Recorder) -> None:
    gate = Gate(recorder)
    writes = [recorder.write(lambda store: store.set_setting("x", "1")) for _ in range(3)]
    assert writes[1].cancel()
    gate.open()
    writes[2].result()
    with pytest.raises(CancelledError):
        writes[1].result()


def test_the_last_cents_are_given_once_within_one_transaction(recorder: Recorder) -> None:
    caps = Caps(global_day_nanos=100)
    gate = Gate(recorder)
    calls = [call(booking(f"R{number}", f"T{number}", f"P{number}")) for number in range(30)]
    writes = [
        recorder.write(lambda store, new=new: store.ledger.reserve(new, caps, ask(7)))  # type: ignore[misc]
        for new in calls
    ]
    gate.open()
    answers = [write.result() for write in writes]
    assert [isinstance(answer, Grant) for answer in answers] == [True] * 14 + [False] * 16
    assert {answer.left for answer in answers if isinstance(answer, Refusal)} == {2}
    settled = recorder.write(lambda store: store.ledger.settle(calls[0].charge_id, used(7)))
    assert settled.result() is not None
    recorder.write(check_sums).result()


def test_a_caller_in_the_loop_gets_the_result(recorder: Recorder) -> None:
    async def look() -> dict[str, str]:
        await recorder.call(lambda store: store.set_setting("a", "1"))
        return await recorder.call(lambda store: store.settings())

    assert asyncio.run(look()) == {"a": "1"}


def test_when_nothing_can_be_written_only_what_is_kept_is_tried_again(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    recorder = Recorder(path)
    recorder.write(lambda store: store.hurry(0.05)).result()
    gate = Gate(recorder)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    first = recorder.write(lambda store: store.set_setting("once", "1"))
    kept = [recorder.keep(lambda store, n=n: store.set_setting("n", str(n))) for n in range(3)]  # type: ignore[misc]
    last = recorder.write(lambda store: store.set_setting("once too", "1"))
    gate.open()
    for future in (first, last):
        with pytest.raises(StateError, match="locked"):
            future.result()
    assert "locked" in recorder.problem and not kept[0].done()
    holder.execute("ROLLBACK")
    holder.close()
    for write in kept:
        write.result()
    assert recorder.problem == ""
    recorder.close()
    store = open_store(path)
    assert store.settings() == {"n": "2"}
    store.close()


@pytest.mark.parametrize("together", [1, 3])
def test_a_damaged_database_is_not_waited_for_long(
    recorder: Recorder, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not mend itself: what is kept would be tried for ever, and everything behind it would wait."""
    monkeypatch.setattr("supervisor.store.recorder._DAMAGED_PATIENCE_S", 0.2)
    gate = Gate(recorder)
    kept = [recorder.keep(lambda store: store._db.rows("SELECT x FROM nowhere")) for _ in range(together)]
    after = recorder.keep(lambda store: store.set_setting("after", "1"))
    gate.open()
    for future in kept:
        with pytest.raises(DamagedState, match="nowhere"):
            future.result(10)
    after.result(10)
    assert recorder.write(lambda store: store.settings()).result() == {"after": "1"}


def test_a_table_that_comes_back_in_time_gets_what_is_kept(recorder: Recorder, location: str) -> None:
    """A restore, or a search_path that was wrong for a moment, loses no end and no settlement."""
    other = open_store(location)
    other._db.rows("ALTER TABLE agent_settings RENAME TO elsewhere")
    kept = recorder.keep(lambda store: store.set_setting("kept", "1"))
    while not recorder.problem:
        time.sleep(0.01)
    assert not kept.done()
    other._db.rows("ALTER TABLE elsewhere RENAME TO agent_settings")
    kept.result(10)
    assert other.settings() == {"kept": "1"}
    other.close()


def test_a_row_that_cannot_be_understood_holds_up_nobody(recorder: Recorder) -> None:
    def unreadable(_: Store) -> None:
        raise UnreadableRow("one row")

    refused, after = recorder.keep(unreadable), recorder.keep(lambda store: store.set_setting("a", "1"))
    with pytest.raises(UnreadableRow):
        refused.result(10)
    after.result(10)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE charges RENAME COLUMN tokens TO gone",
        "DROP TABLE caps",
        "ALTER TABLE runs RENAME COLUMN fence TO gone",
    ],
)
def test_a_database_of_another_shape_is_refused_when_it_is_opened(location: str, change: str) -> None:
    store = open_store(location)
    store._db.rows(change)
    store.close()
    with pytest.raises(DamagedState) as caught:
        open_store(location)
    assert caught.value.hint and "password" not in caught.value.message


def test_who_is_patient_waits_for_another_and_shares_its_transaction(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.recorder._COMPANY_S", 600.0)
    told: list[tuple[str, bool, BaseException | None]] = []

    def post(name: str) -> None:
        recorder.post(
            is_inside, lambda inside, error: told.append((name, inside, error)), insist=True, patient=True
        )

    post("one")
    post("two")
    assert recorder.write(is_inside).result(60) is True
    recorder.write(lambda store: None).result(60)
    assert told == [("one", True, None), ("two", True, None)]


def test_who_is_patient_is_written_when_nobody_comes(recorder: Recorder) -> None:
    done = threading.Event()
    recorder.post(lambda store: store.set_setting("a", "1"), lambda *_: done.set(), insist=True, patient=True)
    assert done.wait(60)
    recorder.post(lambda store: store.set_setting("b", "1"), insist=False, patient=True)
    recorder.close()


def test_a_post_that_fails_tells_its_error_and_keeps_the_others(recorder: Recorder) -> None:
    gate = Gate(recorder)
    told: list[BaseException | None] = []

    def fail(store: Store) -> None:
        store.set_setting("half", "1")
        raise RuntimeError("mine")

    recorder.post(fail, lambda _, error: told.append(error), insist=True, patient=True)
    after = recorder.write(lambda store: store.settings())
    gate.open()
    assert after.result(60) == {}
    assert [str(error) for error in told] == ["mine"]


def test_a_whole_transaction_in_which_a_part_failed_is_undone(location: str) -> None:
    store = open_store(location)
    with pytest.raises(Spoilt), store.transaction(whole=True):
        store.set_setting("before", "1")
        with contextlib.suppress(RuntimeError), store.transaction():
            store.set_setting("half", "1")
            raise RuntimeError
    assert store.settings() == {} and not is_inside(store)
    with store.transaction(whole=True):
        store.set_setting("after", "1")
        store.ledger.release_ceiling("R1")
    with store.transaction(), contextlib.suppress(RuntimeError), store.transaction():
        store.set_setting("half", "1")
        raise RuntimeError
    assert store.settings() == {"after": "1"}, "only the whole one has no parts"
    store.close()


def test_what_is_written_reaches_the_file_itself_once_it_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "db"
    recorder = Recorder(str(path))
    for number in range(200):
        recorder.write(lambda store, n=number: store.set_setting(f"only in here {n}", "1")).result()  # type: ignore[misc]
    with contextlib.closing(open_store(str(path))):
        while b"only in here 199" not in path.read_bytes():
            time.sleep(0.01)
    recorder.close()
