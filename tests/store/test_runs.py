"""Owns runs, events, settings and workers: written together, read back alike on both databases.
May touch an empty database of each kind.
Never loses a write.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from runs_kit import AT, ended, make_event, make_run

from supervisor.errors import StateError, UsageError
from supervisor.events import EventKind
from supervisor.store.database import Conflict
from supervisor.store.records import RunState, Worker
from supervisor.store.store import Store
from supervisor.store.tickets import TicketIsRunning


def test_a_run_is_read_back_as_it_was_written(store: Store) -> None:
    run = make_run()
    store.create_run(run, make_event(run))
    assert store.run("R0001") == run == store.latest_run("T-1")
    assert store.live_runs() == [run]
    closed = ended(run)
    store.update_run(closed, make_event(run, EventKind.RUN_ENDED))
    assert store.run("R0001") == closed
    assert store.live_runs() == []
    assert [event.kind for _, event in store.events("R0001")] == ["run_created", "run_ended"]
    assert store.events("R0001")[0][1] == make_event(run)
    ticket = store.ticket("T-1")
    assert ticket is not None
    assert (ticket.state, ticket.stop_reason, ticket.attempts) == ("ended", "killed", 1)


def test_two_live_runs_of_a_ticket_are_refused_and_leave_no_trace(store: Store) -> None:
    store.create_run(make_run(1), make_event(make_run(1)))
    with pytest.raises(TicketIsRunning) as caught:
        store.create_run(make_run(2), make_event(make_run(2)))
    assert isinstance(caught.value, UsageError) and "T-1" in caught.value.message
    assert store.run("R0002") is None and store.events("R0002") == []
    ticket = store.ticket("T-1")
    assert ticket is not None and ticket.attempts == 1
    store.create_run(make_run(3, "T-2"), make_event(make_run(3, "T-2")))


def test_an_ended_run_stays_ended(store: Store) -> None:
    run = make_run()
    store.create_run(run, make_event(run))
    store.update_run(ended(run), make_event(run, EventKind.RUN_ENDED))
    late = msgspec.structs.replace(run, state=RunState.STOPPING, reason_by="operator")
    store.update_run(late, make_event(run, EventKind.STOP_REQUESTED))
    assert store.run("R0001") == ended(run)
    assert len(store.events("R0001")) == 2
    applied = msgspec.structs.replace(ended(run), applied="applied")
    store.update_run(applied, make_event(run, EventKind.WORKTREE_APPLIED))
    assert store.run("R0001") == applied


def test_settings_and_workers(store: Store) -> None:
    store.set_setting("paused", "true")
    store.set_setting("paused", "false")
    assert store.settings() == {"paused": "false"}
    worker = Worker(worker_id="W", host="h", boot_id="b", pid=1, kind="daemon", socket="/s", started_at=AT)
    store.add_worker(worker)
    assert store.workers() == [worker]
    store.remove_worker("W")
    assert store.workers() == []


def test_flags_are_those_of_the_tickets_asked_for(store: Store) -> None:
    for number in (1, 2, 3):
        run = make_run(number, f"T-{number}")
        store.create_run(run, make_event(run))
    store._db.change("UPDATE tickets SET stop_requested = TRUE WHERE key IN ('T-1', 'T-3')")
    assert store.flagged_tickets(["T-1", "T-2"]) == {"T-1"}
    assert store.flagged_tickets([]) == set()
    assert store.clear_flag("T-1") and not store.clear_flag("T-1")
    assert store.flagged_tickets(["T-1"]) == set()


def test_runs_by_time_and_by_ticket(store: Store) -> None:
    for number in (1, 2, 3):
        run = make_run(number)
        store.create_run(run, make_event(run))
        at = AT.replace("02:14", f"02:1{number}")
        store.update_run(msgspec.structs.replace(ended(run), ended_at=at), make_event(run))
    assert [run.run_id for run in store.ended_runs("")] == ["R0003", "R0002", "R0001"]
    assert [run.run_id for run in store.ended_runs(AT.replace("02:14", "02:12"), limit=1)] == ["R0003"]
    latest = store.latest_run("T-1")
    assert latest is not None and latest.run_id == "R0003"
    assert store.latest_run("T-9") is None and store.run("R9") is None


def test_events_are_read_on_from_a_number(store: Store) -> None:
    run = make_run()
    store.create_run(run, make_event(run))
    store.add_events([make_event(run, EventKind.BOX_ARMED), make_event(run, EventKind.RUN_STARTED)])
    (first, _), *_ = store.events("R0001", limit=1)
    assert [event.kind for _, event in store.events("R0001", after=first)] == ["box_armed", "run_started"]


def test_an_event_of_no_run_is_an_error_that_is_not_tried_for_ever(store: Store) -> None:
    """What a recorder keeps trying is a StateError; this would never succeed."""
    with pytest.raises(Conflict):
        store.add_events([make_event(make_run())])


def test_any_text_can_be_stored(store: Store) -> None:
    """Notes come from stop-files that anybody writes; PostgreSQL's text holds no NUL."""
    run = msgspec.structs.replace(make_run(), reason_note="a\0b\nü%s?'--", command=["\0", "%", "?"])
    store.create_run(run, make_event(run))
    found = store.run("R0001")
    assert found is not None and found.command == run.command
    assert found.reason_note.replace("\ufffd", "\0") == run.reason_note


def test_a_part_that_fails_is_undone_alone(store: Store) -> None:
    with store.transaction():
        store.set_setting("before", "1")
        with pytest.raises(RuntimeError), store.transaction():
            store.set_setting("inside", "1")
            raise RuntimeError
        with pytest.raises(TicketIsRunning):
            for _ in range(2):
                store.create_run(make_run(), make_event(make_run()))
        store.set_setting("after", "1")
    assert store.settings() == {"before": "1", "after": "1"}
    assert [run.run_id for run in store.live_runs()] == ["R0001"]
    with pytest.raises(RuntimeError), store.transaction():
        store.set_setting("all", "1")
        raise RuntimeError
    assert "all" not in store.settings()


@pytest.mark.parametrize("first", ["nothing", "a write", "a failure", "a write that fails"])
@pytest.mark.parametrize("then", ["a write", "a failure", "a write that fails"])
def test_parts_within_parts_are_undone_each_by_itself(store: Store, first: str, then: str) -> None:
    """A part may share its beginning with the one around it, but never what is undone with it."""

    def part(key: str, what: str) -> None:
        with suppress(RuntimeError), store.transaction(alone=True):
            if "write" in what:
                store.set_setting(key, "1")
            if "fail" in what:
                raise RuntimeError

    with store.transaction():
        for outer in "abc":
            with suppress(RuntimeError), store.transaction():
                part(f"{outer}1", first)
                part(f"{outer}2", then)
                store.set_setting(outer, "1")
                part(f"{outer}3", first)
                part(f"{outer}4", then)
                if outer == "b":
                    raise RuntimeError
    kept = {
        name for name, what in (("1", first), ("2", then), ("3", first), ("4", then)) if what == "a write"
    }
    assert set(store.settings()) == {outer + name for outer in "ac" for name in {"", *kept}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ('UPDATE runs SET totals = \'{"seconds": "x"}\'', "run R0001"),
        ("UPDATE runs SET state = 'asleep'", "run R0001"),
        ("UPDATE runs SET limits = '{'", "run R0001"),
        ("UPDATE events SET detail = '['", "event "),
        ("UPDATE events SET kind = 'guessed'", "event "),
        ("UPDATE tickets SET state = 'Open'", "ticket T-1"),
    ],
)
def test_a_row_that_cannot_be_understood_is_named(store: Store, change: str, named: str) -> None:
    """By hand or by another version: no reader takes it for something else, or ends in a traceback."""
    run = make_run()
    store.create_run(run, make_event(run))
    assert [store.run("R0001"), len(store.events("R0001")), store.ticket("T-1") is None] == [run, 1, False]
    store._db.change(change, ())
    with pytest.raises(StateError) as caught:
        store.run("R0001"), store.events("R0001"), store.ticket("T-1")
    assert f"the row of {named}" in caught.value.message and "SQL" in caught.value.hint
