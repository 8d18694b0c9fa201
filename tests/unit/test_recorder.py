"""Owns that writes reach the database in order, wait for it, and never hold up a kill.
May touch a database in a temporary folder.
Never asserts how long something took.
"""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import Future
from pathlib import Path

import pytest

from supervisor.errors import StateError
from supervisor.store.recorder import Recorder
from supervisor.store.store import open_store


def test_in_order(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "db"))
    for number in range(100):
        recorder.keep(lambda store, number=number: store.set_setting("n", str(number)))  # type: ignore[misc]
    recorder.close()
    store = open_store(str(tmp_path / "db"))
    assert store.settings() == {"n": "99"}
    store.close()


def test_a_kept_write_outwaits_a_lock_and_nobody_waits_for_it(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    recorder = Recorder(path)
    recorder.write(lambda store: store.hurry(0.05)).result()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    written = recorder.keep(lambda store: store.set_setting("end", "told"))
    assert asyncio.run(recorder.settled(written, 0.3)) is False
    assert "locked" in recorder.problem
    holder.execute("ROLLBACK")
    holder.close()
    assert asyncio.run(recorder.settled(written, 30)) is True
    recorder.close()
    store = open_store(path)
    assert store.settings() == {"end": "told"}
    store.close()


def test_a_single_try_carries_its_error(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    recorder = Recorder(path)
    recorder.write(lambda store: store.hurry(0.05)).result()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StateError):
        recorder.write(lambda store: store.set_setting("x", "y")).result()
    holder.close()
    recorder.close()


def test_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"no database" * 100)
    with pytest.raises(StateError):
        Recorder(str(tmp_path / "db"))


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_that_comes_with_the_result_is_not_lost(tmp_path: Path, turns: int) -> None:
    """Before Python 3.12 wait_for loses it: a daemon that was to end went on for ever."""
    recorder = Recorder(str(tmp_path / "db"))

    async def attempt() -> bool:
        future: Future[None] = Future()
        waiting = asyncio.ensure_future(recorder.settled(future, 60))
        await asyncio.sleep(0.01)
        future.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.done():
            return True
        waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    try:
        assert asyncio.run(attempt())
    finally:
        recorder.close()


def test_what_comes_after_the_end_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "db"))
    recorder.close()
    recorder.close()
    for late in (recorder.write(lambda store: None), recorder.keep(lambda store: None)):
        with pytest.raises(StateError, match="shut down"):
            late.result(10)
