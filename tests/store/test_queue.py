"""Owns the queue: who gets which ticket, what pause, stop and caps do to claims, and fencing.
May touch an empty database of each kind.
Never lets a stale number act on a ticket.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from kit import AT, DAY, LATER, MUCH_LATER, booking, check_sums, claim, reserve, rows
from runs_kit import ended, make_event, make_run

from supervisor.errors import NotFound, UsageError
from supervisor.limits.budget import Caps
from supervisor.runs.reasons import StopReason
from supervisor.store.records import Run, RunState, Ticket, TicketState
from supervisor.store.store import Store
from supervisor.store.tickets import Claimed, LeaseLost, Nothing, TicketIsRunning

AFTER = LATER.replace("00.000", "00.001")


@pytest.fixture(autouse=True)
def sums_agree(store: Store) -> Iterator[None]:
    yield
    check_sums(store)


def add(store: Store, key: str, *, project: str = "P", priority: int = 0, at: str = AT) -> Ticket:
    return store.tickets.add(key, project=project, goal=f"do {key}", priority=priority, at=at)


def claimed(store: Store, run: str = "R1", **more: object) -> Claimed:
    found = claim(store, run, **more)  # type: ignore[arg-type]
    assert isinstance(found, Claimed), found
    return found


def nothing(store: Store, **more: object) -> Nothing:
    found = claim(store, "R9", **more)  # type: ignore[arg-type]
    assert isinstance(found, Nothing), found
    return found


def ticket(store: Store, key: str) -> Ticket:
    found = store.ticket(key)
    assert found is not None
    return found


def run_of(found: Claimed) -> Run:
    return msgspec.structs.replace(
        make_run(1, found.ticket.key),
        run_id=found.run_id,
        project=found.ticket.project,
        fence=found.fence,
    )


def start(store: Store, found: Claimed) -> Run:
    run = run_of(found)
    store.create_run(run, make_event(run))
    return run


def test_the_most_urgent_first_then_the_oldest(store: Store) -> None:
    add(store, "A", at="2026-09-01T10:00:02.000Z")
    add(store, "B", at="2026-09-01T10:00:01.000Z")
    add(store, "C", at="2026-09-01T10:00:03.000Z", priority=5)
    assert [found.key for found in store.tickets.listed()] == ["C", "B", "A"]
    assert [claimed(store, f"R{number}").ticket.key for number in range(3)] == ["C", "B", "A"]
    assert nothing(store) == Nothing("empty")


def test_a_claim_says_all_about_it(store: Store) -> None:
    add(store, "A", priority=3)
    found = claimed(store, worker="W7")
    assert found.ticket == ticket(store, "A")
    assert (found.run_id, found.fence, found.ticket.goal) == ("R1", 1, "do A")
    assert (found.ticket.state, found.ticket.worker_id) == (TicketState.CLAIMED, "W7")
    assert (found.ticket.lease_until, found.ticket.priority) == (LATER, 3)


def test_a_ticket_is_added_once(store: Store) -> None:
    add(store, "A")
    with pytest.raises(UsageError, match="A already"):
        add(store, "A", project="Q")
    assert ticket(store, "A").project == "P"


def test_listed_by_state_and_project(store: Store) -> None:
    add(store, "A")
    add(store, "B", project="Q")
    add(store, "C", project="")
    claimed(store, projects=["Q"])
    assert [found.key for found in store.tickets.listed(state="open")] == ["A", "C"]
    assert [found.key for found in store.tickets.listed(project="Q")] == ["B"]
    assert [found.key for found in store.tickets.listed(project="")] == ["C"]


def test_only_the_projects_that_are_wanted(store: Store) -> None:
    add(store, "A")
    assert nothing(store, projects=["Q", "R"]) == Nothing("empty")
    assert claimed(store, projects=["Q", "P"]).ticket.key == "A"


# ------------------------------------------------------------ what holds a claim back


@pytest.mark.parametrize("value", ["true", "1", "yes", "please"])
def test_pause_acts_on_the_claim(store: Store, value: str) -> None:
    add(store, "A")
    store.set_setting("paused", value)
    assert nothing(store).why == "paused"
    store.set_setting("paused", "false")
    claimed(store)


def test_a_paused_project_does_not_keep_the_others_waiting(store: Store) -> None:
    add(store, "A", priority=9)
    add(store, "B", project="Q")
    store.set_setting("paused:P", "true")
    assert claimed(store).ticket.key == "B"
    assert nothing(store).why == "paused"
    store.set_setting("paused:P", "no")
    assert claimed(store).ticket.key == "A"


def test_a_ticket_with_a_stop_is_not_claimed(store: Store) -> None:
    add(store, "A")
    store._db.change("UPDATE tickets SET stop_requested = TRUE WHERE key = 'A'")
    assert nothing(store) == Nothing("empty")
    assert store.clear_flag("A")
    claimed(store)


def test_a_project_at_its_cap_does_not_keep_the_others_waiting(store: Store) -> None:
    caps = Caps(project_day_nanos=100)
    reserve(store, booking("R0", "T0", "P"), 30)
    add(store, "A", priority=9)
    add(store, "B", project="Q")
    assert claimed(store, caps=caps, ceiling=71).ticket.key == "B"
    assert nothing(store, caps=caps, ceiling=71).why == "daily_cap"
    assert claimed(store, "R2", caps=caps, ceiling=70).ticket.key == "A"


def test_the_global_cap_holds_every_claim_back(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    for number in range(20):
        add(store, f"T{number}", project=f"P{number}")
    claimed(store, caps=caps, ceiling=60)
    found = nothing(store, caps=caps, ceiling=41)
    assert found.why == "daily_cap" and "the day has" in found.detail
    assert sum(row["left_nanos"] for row in rows(store, "SELECT * FROM ceilings")) == 60


@pytest.mark.parametrize("ceiling", [None, 0, 1])
def test_a_cap_of_0_gives_nothing_with_or_without_a_ceiling(store: Store, ceiling: int | None) -> None:
    add(store, "A")
    assert nothing(store, caps=Caps(global_day_nanos=0), ceiling=ceiling).why == "daily_cap"


def test_without_a_cap_nothing_has_to_be_held(store: Store) -> None:
    add(store, "A")
    claimed(store)
    assert rows(store, "SELECT * FROM ceilings") == []


# ------------------------------------------------------------ the life of a claimed run


def test_a_claimed_run_from_start_to_end(store: Store) -> None:
    add(store, "A")
    found = claimed(store)
    run = start(store, found)
    assert (ticket(store, "A").state, ticket(store, "A").attempts) == ("running", 1)
    assert store.run("R1") == run
    store.update_run(ended(run), make_event(run))
    over = ticket(store, "A")
    assert (over.state, over.stop_reason, over.worker_id, over.lease_until) == ("ended", "killed", "", "")
    assert nothing(store) == Nothing("empty")


def test_a_claimed_ticket_is_not_run_by_hand(store: Store) -> None:
    add(store, "A")
    found = claimed(store)
    by_hand = make_run(2, "A")
    with pytest.raises(TicketIsRunning):
        store.create_run(by_hand, make_event(by_hand))
    assert store.run(by_hand.run_id) is None
    start(store, found)


def test_a_lease_is_renewed_by_its_own_number_alone(store: Store) -> None:
    add(store, "A")
    found = claimed(store)
    assert not store.tickets.renew_lease("A", found.fence + 1, MUCH_LATER)
    assert store.tickets.renew_lease("A", found.fence, MUCH_LATER)
    assert store.tickets.rescue(AFTER) == []
    start(store, found)
    assert store.tickets.renew_lease("A", found.fence, LATER)
    assert [row.key for row in store.tickets.rescue(AFTER)] == ["A"]
    assert not store.tickets.renew_lease("A", found.fence, MUCH_LATER)


def test_a_rescued_ticket_needs_a_review_and_its_old_worker_is_fenced_off(store: Store) -> None:
    add(store, "A")
    found = claimed(store, ceiling=50)
    run = start(store, found)
    assert store.tickets.rescue(LATER) == [], "a lease holds until it is over"
    (rescued,) = store.tickets.rescue(AFTER)
    assert rescued == ticket(store, "A")
    assert (rescued.state, rescued.fence, rescued.stop_reason) == ("needs_review", 2, "lease_lost")
    assert nothing(store) == Nothing("empty"), "never silently again"
    who = booking("R1", "A", fence=found.fence)
    assert store.ledger.balances(who, DAY).ceiling_nanos == 50
    with pytest.raises(AssertionError, match="lease_lost"):
        reserve(store, who, 1)
    with pytest.raises(TicketIsRunning):
        store.tickets.requeue("A", AT)
    store.update_run(ended(run), make_event(run))
    late = ticket(store, "A")
    assert (late.state, late.stop_reason) == ("needs_review", "lease_lost"), "too late"
    assert store.tickets.requeue("A", AT).state == "open"
    again = claimed(store, "R2")
    assert again.fence == 3
    store.update_run(msgspec.structs.replace(ended(run), applied="applied"), make_event(run))
    assert ticket(store, "A").state == "claimed"


def test_a_claim_that_is_over_starts_nothing(store: Store) -> None:
    add(store, "A")
    found = claimed(store)
    store.tickets.rescue(AFTER)
    run = run_of(found)
    with pytest.raises(LeaseLost):
        store.create_run(run, make_event(run))
    assert store.run("R1") is None and store.events("R1") == []


def test_a_claim_is_given_back_by_its_own_number_alone(store: Store) -> None:
    add(store, "A")
    found = claimed(store)
    assert not store.tickets.give_back("A", found.fence + 1, AT)
    assert store.tickets.give_back("A", found.fence, AT)
    assert not store.tickets.give_back("A", found.fence, AT)
    again = claimed(store, "R2")
    assert again.fence == found.fence + 1
    assert store.tickets.give_back("A", again.fence, AT, review=True)
    assert store.tickets.listed()[0].state == "needs_review"


@pytest.mark.parametrize("reason", [StopReason.SUPERVISOR_LOST, StopReason.UNKILLABLE])
def test_an_unclear_end_needs_a_review(store: Store, reason: StopReason) -> None:
    add(store, "A")
    run = start(store, claimed(store))
    store.update_run(msgspec.structs.replace(ended(run), reason=reason), make_event(run))
    assert ticket(store, "A").state == TicketState.NEEDS_REVIEW


# ------------------------------------------------------------ requeue


def test_what_has_ended_is_requeued(store: Store) -> None:
    run = make_run(1, "A")
    store.create_run(run, make_event(run))
    with pytest.raises(UsageError, match="running"):
        store.tickets.requeue("A", AT)
    store.update_run(ended(run), make_event(run))
    assert store.tickets.requeue("A", AT).state == "open"
    assert store.tickets.requeue("A", AT).state == "open", "it waits already"
    claimed(store)
    with pytest.raises(UsageError, match="claimed"):
        store.tickets.requeue("A", AT)
    with pytest.raises(NotFound):
        store.tickets.requeue("B", AT)


def test_only_what_never_ran_is_taken_out(store: Store) -> None:
    store.tickets.add("A", project="", goal="", priority=0, at=AT)
    assert store.tickets.remove("A").key == "A" and store.tickets.find("A") is None
    with pytest.raises(NotFound):
        store.tickets.remove("A")
    store.tickets.add("B", project="", goal="", priority=0, at=AT)
    claimed(store)
    with pytest.raises(UsageError, match="claimed"):
        store.tickets.remove("B")
    run = make_run(1, "C")
    store.create_run(run, make_event(run))
    store.update_run(ended(run), make_event(run))
    store.tickets.requeue("C", AT)
    with pytest.raises(UsageError, match="has run before"):
        store.tickets.remove("C")


def test_a_stop_that_is_in_force_is_lifted_before_a_requeue(store: Store) -> None:
    run = make_run(1, "A")
    store.create_run(run, make_event(run))
    store.update_run(ended(run), make_event(run))
    store._db.change("UPDATE tickets SET stop_requested = TRUE WHERE key = 'A'")
    with pytest.raises(UsageError, match="stop") as caught:
        store.tickets.requeue("A", AT)
    assert "A" in caught.value.hint
    store.clear_flag("A")
    store.tickets.requeue("A", AT)


def test_a_run_by_hand_that_ends_late_leaves_a_claim_alone(store: Store) -> None:
    """Its row was closed by somebody else before, and written again by itself."""
    run = make_run(1, "A")
    store.create_run(run, make_event(run))
    store.update_run(ended(run), make_event(run))
    store.tickets.requeue("A", AT)
    claimed(store, "R2")
    store.update_run(ended(run), make_event(run))
    assert ticket(store, "A").state == "claimed"
    assert msgspec.structs.replace(run, state=RunState.ENDED).state == "ended"
