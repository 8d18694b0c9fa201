"""Owns the money: reserving, settling, releasing, ceilings, days, leases, the same on both databases.
May touch an empty database of each kind.
Never leaves a balance that differs from the sums of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit import (
    AT,
    DAY,
    LATER,
    MUCH_LATER,
    NEXT_DAY,
    ask,
    booking,
    call,
    check_sums,
    claimed_run,
    refused,
    reserve,
    rows,
    used,
)

from supervisor.limits.budget import Balance, Caps, Grant, Refusal, Scope
from supervisor.limits.charges import ChargeState
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.runs.reasons import StopReason
from supervisor.store.store import Store


@pytest.fixture(autouse=True)
def sums_agree(store: Store) -> Iterator[None]:
    yield
    check_sums(store)


def test_a_call_is_held_then_settled_in_every_scope(store: Store) -> None:
    who = booking()
    charge, grant = reserve(store, who, 100)
    assert (grant.nanos, grant.tokens, grant.output_tokens) == (100, 100, 100)
    held = Balance(held_nanos=100, held_tokens=100, calls=1)
    found = store.ledger.balances(who, DAY)
    assert [found.of(scope) for scope in Scope] == [held] * 4
    settled = store.ledger.settle(charge, used(30))
    spent = Balance(spent_nanos=30, tokens=30, calls=1)
    assert settled is not None
    assert [settled.of(scope) for scope in Scope] == [spent] * 4
    assert store.ledger.run_totals("R1") == spent
    (row,) = store.ledger.charges("R1")
    assert (row.state, row.spent_nanos, row.held_nanos, row.model) == ("settled", 30, 100, "m-2026")
    assert row.usage == TokenUsage(output=30) and row.usage_source is UsageSource.PROVIDER
    assert (row.reserved_at, row.settled_at, row.day) == (AT, AT, DAY)


def test_a_late_or_second_completion_changes_nothing(store: Store) -> None:
    charge, _ = reserve(store, booking(), 100)
    assert store.ledger.settle(charge, used(30)) is not None
    before = check_sums(store)
    assert store.ledger.settle(charge, used(99)) is None
    assert store.ledger.release(charge, "late", AT) is False
    assert store.ledger.settle("unknown", used(1)) is None
    assert check_sums(store) == before


def test_more_than_was_held_is_charged_in_full(store: Store) -> None:
    caps = Caps(run_nanos=100)
    charge, _ = reserve(store, booking(), 100, caps)
    settled = store.ledger.settle(charge, used(150))
    assert settled is not None and settled.run == Balance(spent_nanos=150, tokens=150, calls=1)
    assert refused(store, booking(), 1, caps).left == 0


def test_a_call_that_was_not_billed_is_no_call(store: Store) -> None:
    caps = Caps(iterations=1, run_nanos=100)
    charge, _ = reserve(store, booking(), 100, caps)
    assert refused(store, booking(), 1, caps).code == "max_iterations"
    assert store.ledger.release(charge, "error 529", AT) is True
    assert store.ledger.run_totals("R1") == Balance()
    (row,) = store.ledger.charges("R1")
    assert (row.state, row.usage_source, row.outcome) == ("released", UsageSource.UNBILLED, "error 529")
    reserve(store, booking(), 100, caps)


def test_what_nobody_reported_uses_what_was_held(store: Store) -> None:
    charge, grant = reserve(store, booking(), 100)
    settlement = used(grant.nanos, source=UsageSource.HOLD)
    settled = store.ledger.settle(charge, settlement)
    assert settled is not None and settled.run == Balance(spent_nanos=100, tokens=100, calls=1)
    charge, _ = reserve(store, booking(), 100)
    unknown = used(0, source=UsageSource.HOLD)
    settled = store.ledger.settle(charge, unknown)
    assert settled is not None and settled.run.tokens == 200


@pytest.mark.parametrize(
    ("caps", "scope", "reason"),
    [
        (Caps(run_nanos=100), Scope.RUN, StopReason.MAX_COST),
        (Caps(ticket_nanos=100), Scope.TICKET, StopReason.MAX_COST),
        (Caps(project_day_nanos=100), Scope.PROJECT_DAY, StopReason.DAILY_CAP),
        (Caps(global_day_nanos=100), Scope.GLOBAL_DAY, StopReason.DAILY_CAP),
    ],
)
def test_every_cap_is_read_back(store: Store, caps: Caps, scope: Scope, reason: StopReason) -> None:
    """A cap that is accepted and then not looked at is the worst kind."""
    reserve(store, booking(), 60, caps)
    found = refused(store, booking(), 41, caps)
    assert (found.scope, found.reason, found.cap, found.needed, found.left) == (scope, reason, 100, 41, 40)
    reserve(store, booking(), 40, caps)
    assert refused(store, booking(), 1, caps).left == 0


@pytest.mark.parametrize("name", ["run_nanos", "ticket_nanos", "project_day_nanos", "global_day_nanos"])
def test_a_cap_of_0_allows_nothing(store: Store, name: str) -> None:
    caps = Caps(**{name: 0})
    assert refused(store, booking(), 1, caps).needed == 1
    assert store.ledger.charges("R1") == []


def test_scopes_are_shared_by_those_they_are_for(store: Store) -> None:
    caps = Caps(ticket_nanos=100, project_day_nanos=150, global_day_nanos=220)
    reserve(store, booking("R1", "T1", "P"), 100, caps)
    assert refused(store, booking("R2", "T1", "P"), 1, caps).scope is Scope.TICKET
    reserve(store, booking("R3", "T3", "P"), 50, caps)
    assert refused(store, booking("R4", "T4", "P"), 1, caps).scope is Scope.PROJECT_DAY
    reserve(store, booking("R5", "T5", "Q"), 70, caps)
    assert refused(store, booking("R6", "T6", "Q"), 1, caps).scope is Scope.GLOBAL_DAY
    reserve(store, booking("R6", "T6", "Q"), 100, caps, day=NEXT_DAY)


def test_the_output_is_cut_to_what_is_left(store: Store) -> None:
    caps = Caps(run_nanos=100)
    new = call(booking())
    assert store.ledger.reserve(new, caps, ask(1000, least=10)) == Grant(
        output_tokens=100, nanos=100, tokens=100
    )
    assert isinstance(store.ledger.reserve(call(booking()), caps, ask(1000, least=10)), Refusal)


def test_a_run_that_was_answered_twice_holds_once(store: Store) -> None:
    caps = Caps(run_nanos=250)
    new = call(booking())
    first = store.ledger.reserve(new, caps, ask(100))
    assert store.ledger.reserve(new, caps, ask(100)) == first
    assert store.ledger.run_totals("R1") == Balance(held_nanos=100, held_tokens=100, calls=1)


@pytest.mark.parametrize("over", ["settled", "released"])
def test_a_charge_that_is_over_is_not_granted_again(store: Store, over: str) -> None:
    """A call under its number would be free."""
    new = call(booking())
    store.ledger.reserve(new, Caps(), ask(100))
    if over == "settled":
        store.ledger.settle(new.charge_id, used(1))
    else:
        store.ledger.release(new.charge_id, "error 500", AT)
    with pytest.raises(ValueError, match=over):
        store.ledger.reserve(new, Caps(), ask(100))


def test_what_an_agent_says_of_itself_is_booked_once(store: Store) -> None:
    new = call(booking())
    report = used(70, source=UsageSource.SELF_REPORTED)
    expected = Balance(spent_nanos=70, tokens=70, calls=1)
    for _ in range(2):
        found = store.ledger.record(new, report)
        assert [found.of(scope) for scope in Scope] == [expected] * 4
    (row,) = store.ledger.charges("R1")
    assert row.usage_source is UsageSource.SELF_REPORTED and row.state is ChargeState.SETTLED


def test_very_large_amounts(store: Store) -> None:
    million_dollars = 10**15
    charge, _ = reserve(store, booking(), million_dollars)
    store.ledger.settle(charge, used(million_dollars - 1))
    assert store.ledger.run_totals("R1").spent_nanos == million_dollars - 1


# ------------------------------------------------------------ days


def test_a_clock_that_was_set_back_does_not_reopen_a_day(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    reserve(store, booking(), 100, caps)
    reserve(store, booking(), 60, caps, day=NEXT_DAY)
    assert store.ledger.latest_day() == NEXT_DAY
    found = refused(store, booking(), 41, caps)
    assert (found.scope, found.left) == (Scope.GLOBAL_DAY, 40)
    charge, _ = reserve(store, booking(), 40, caps)
    assert {row.charge_id: row.day for row in store.ledger.charges("R1")}[charge] == NEXT_DAY
    store.ledger.record(call(booking()), used(1, source=UsageSource.SELF_REPORTED))
    assert store.ledger.balances(booking(), DAY).global_day.spent_nanos == 1


def test_a_call_over_midnight_is_settled_on_its_own_day(store: Store) -> None:
    charge, _ = reserve(store, booking(), 100)
    reserve(store, booking(), 5, day=NEXT_DAY)
    store.ledger.settle(charge, used(80))
    spent = {row.key: row for row in store.ledger.spend(DAY)}
    assert spent["P"].spent_nanos == 80 and spent["P"].held_nanos == 0
    assert {row.key: row.held_nanos for row in store.ledger.spend(NEXT_DAY)} == {"": 5, "P": 5}


# ------------------------------------------------------------ ceilings


def held_of_day(store: Store, day: str = DAY) -> int:
    return store.ledger.balances(booking(), day).global_day.held_nanos


def test_a_call_uses_the_ceiling_of_its_run_first(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    who = claimed_run(store, ceiling=80, caps=caps)
    other = booking("R2", "T2", "P")
    assert held_of_day(store) == 80
    assert refused(store, other, 21, caps).left == 20
    charge, _ = reserve(store, who, 50, caps)
    assert held_of_day(store) == 80, "taken out of the ceiling"
    settled = store.ledger.settle(charge, used(30))
    assert settled is not None
    assert (settled.global_day.spent_nanos, settled.global_day.held_nanos) == (30, 50)
    assert store.ledger.balances(who, DAY).ceiling_nanos == 50, "what was not used is its own again"
    reserve(store, other, 20, caps)
    assert refused(store, other, 1, caps).left == 0


def test_a_call_may_use_more_than_the_ceiling_if_the_day_has_it(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    who = claimed_run(store, ceiling=40, caps=caps)
    charge, _ = reserve(store, who, 70, caps)
    assert held_of_day(store) == 70
    settled = store.ledger.settle(charge, used(60))
    assert settled is not None
    assert (settled.global_day.spent_nanos, settled.global_day.held_nanos) == (60, 0)
    charge, _ = reserve(store, who, 40, caps)
    assert refused(store, who, 1, caps).left == 0
    store.ledger.release(charge, "error 500", AT)
    assert held_of_day(store) == 0


def test_a_ceiling_never_grows_beyond_what_was_held(store: Store) -> None:
    who = claimed_run(store, ceiling=40)
    charge, _ = reserve(store, who, 70)
    store.ledger.settle(charge, used(10))
    assert store.ledger.balances(who, DAY).ceiling_nanos == 30
    charge, _ = reserve(store, who, 70)
    store.ledger.release(charge, "error 500", AT)
    assert store.ledger.balances(who, DAY).ceiling_nanos == 30


def test_a_ceiling_is_refused_whole_and_given_back_whole(store: Store) -> None:
    caps = Caps(project_day_nanos=100)
    assert store.ledger.hold_ceiling(booking(), DAY, 60, caps, LATER) is None
    found = store.ledger.hold_ceiling(booking("R2", "T2"), DAY, 41, caps, LATER)
    assert found is not None and (found.scope, found.reason, found.left) == (
        Scope.PROJECT_DAY,
        StopReason.DAILY_CAP,
        40,
    )
    assert store.ledger.hold_ceiling(booking("R2", "T2"), DAY, 40, caps, LATER) is None
    assert store.ledger.hold_ceiling(booking("R3", "T3"), DAY, 0, caps, LATER) is not None
    store.ledger.release_ceiling("R1")
    store.ledger.release_ceiling("R1")
    store.ledger.release_ceiling("R2")
    assert held_of_day(store) == 0


def test_holding_a_ceiling_again_replaces_it(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    assert store.ledger.hold_ceiling(booking(), DAY, 80, caps, LATER) is None
    assert store.ledger.hold_ceiling(booking(), DAY, 90, caps, LATER) is None
    assert held_of_day(store) == 90


def test_a_ceiling_moves_over_midnight_as_far_as_it_fits(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    who = claimed_run(store, ceiling=80, caps=caps)
    yesterdays, _ = reserve(store, who, 10, caps)
    reserve(store, booking("R2", "T2"), 60, caps, day=NEXT_DAY)
    charge, _ = reserve(store, who, 30, caps, day=NEXT_DAY)
    assert (held_of_day(store), held_of_day(store, NEXT_DAY)) == (100, 100), "seen from the latest day"
    assert [row["left_nanos"] for row in rows(store, "SELECT * FROM ceilings")] == [10]
    store.ledger.settle(yesterdays, used(4))
    assert [row["left_nanos"] for row in rows(store, "SELECT * FROM ceilings")] == [10]
    store.ledger.settle(charge, used(5))
    assert [row["left_nanos"] for row in rows(store, "SELECT * FROM ceilings")] == [35]
    days = {row["day"]: row for row in rows(store, "SELECT * FROM balances WHERE scope = 'global_day'")}
    assert (days[DAY]["spent_nanos"], days[DAY]["held_nanos"]) == (4, 0)
    assert (days[NEXT_DAY]["spent_nanos"], days[NEXT_DAY]["held_nanos"]) == (5, 95)


def test_a_new_day_without_room_leaves_the_run_no_ceiling(store: Store) -> None:
    caps = Caps(global_day_nanos=100)
    who = claimed_run(store, ceiling=80, caps=caps)
    reserve(store, booking("R2", "T2"), 100, caps, day=NEXT_DAY)
    found = refused(store, who, 1, caps, day=NEXT_DAY)
    assert (found.reason, found.left) == (StopReason.DAILY_CAP, 0)
    check_sums(store)
    assert [row["day"] for row in rows(store, "SELECT * FROM ceilings")] == [NEXT_DAY]


def test_what_an_agent_says_of_itself_comes_out_of_its_ceiling(store: Store) -> None:
    who = claimed_run(store, ceiling=80)
    store.ledger.record(call(who), used(30, source=UsageSource.SELF_REPORTED))
    assert (held_of_day(store), store.ledger.balances(who, DAY).ceiling_nanos) == (50, 50)
    store.ledger.record(call(who), used(70, source=UsageSource.SELF_REPORTED))
    assert held_of_day(store) == 0


# ------------------------------------------------------------ leases


def test_a_number_that_is_not_the_tickets_reserves_nothing(store: Store) -> None:
    who = claimed_run(store, ceiling=80)
    for fence in (who.fence - 1, who.fence + 1):
        if fence:
            found = refused(store, booking(fence=fence), 1)
            assert (found.code, found.reason) == ("lease_lost", StopReason.LEASE_LOST)
    assert refused(store, booking(ticket="unknown", fence=1), 1).code == "lease_lost"


def test_what_nobody_renews_is_settled_at_the_hold(store: Store) -> None:
    who = claimed_run(store, ceiling=80)
    charge, _ = reserve(store, who, 50)
    mine, _ = reserve(store, booking("R2", "T2", worker="W2"), 7)
    store.ledger.renew("W2", MUCH_LATER)
    assert store.ledger.reap(LATER) == [], "a lease holds until it is over"
    after = LATER.replace("00.000", "00.001")
    (found,) = store.ledger.reap(after, AT)
    assert (found.charge_id, found.spent_nanos, found.usage_source) == (charge, 50, UsageSource.HOLD)
    assert (found.outcome, found.settled_at) == ("lease expired", AT)
    assert store.ledger.reap(after) == []
    assert store.ledger.settle(charge, used(1)) is None
    found_balances = store.ledger.balances(who, DAY)
    assert found_balances.global_day == Balance(
        spent_nanos=50, held_nanos=7, tokens=50, held_tokens=7, calls=2
    )
    assert store.ledger.settle(mine, used(7)) is not None


def test_a_dead_run_is_settled_and_lets_go_of_its_ceiling(store: Store) -> None:
    who = claimed_run(store, ceiling=80)
    charges = {reserve(store, who, 10)[0] for _ in range(3)}
    other, _ = reserve(store, booking("R2", "T2"), 5)
    found = store.ledger.settle_run("R1", "supervisor lost", MUCH_LATER)
    assert {row.charge_id for row in found} == charges
    assert {(row.spent_nanos, row.outcome, row.settled_at) for row in found} == {
        (10, "supervisor lost", MUCH_LATER)
    }
    assert store.ledger.settle_run("R1", "again", MUCH_LATER) == []
    assert store.ledger.balances(who, DAY).global_day.held_nanos == 5
    assert store.ledger.settle(other, used(5)) is not None


# ------------------------------------------------------------ looking


def test_spend_shows_everything_first_then_each_project(store: Store) -> None:
    store.ledger.set_cap(Scope.GLOBAL_DAY, "", 1000)
    store.ledger.set_cap(Scope.GLOBAL_DAY, "", 500)
    store.ledger.set_cap(Scope.PROJECT_DAY, "idle", 7)
    store.ledger.set_cap(Scope.PROJECT_DAY, "P", None)
    charge, _ = reserve(store, booking(), 100)
    reserve(store, booking("R2", "T2", "Q"), 50)
    store.ledger.settle(charge, used(30))
    found = [
        (row.scope.value, row.key, row.spent_nanos, row.held_nanos, row.cap_nanos)
        for row in store.ledger.spend(DAY)
    ]
    assert found == [
        ("global_day", "", 30, 50, 500),
        ("project_day", "P", 30, 0, None),
        ("project_day", "Q", 0, 50, None),
        ("project_day", "idle", 0, 0, 7),
    ]
    assert [row.spent_nanos for row in store.ledger.spend(NEXT_DAY)] == [0, 0, 0]


def test_costs_are_summed_by_what_is_asked_for(store: Store) -> None:
    for number, (project, nanos) in enumerate([("P", 10), ("Q", 70), ("P", 20)]):
        charge, _ = reserve(store, booking("R1", f"T{number}", project), 100)
        store.ledger.settle(charge, used(nanos))
    charge, _ = reserve(store, booking(), 100)
    store.ledger.release(charge, "error 500", AT)
    found = [(row.name, row.spent_nanos, row.calls) for row in store.ledger.costs("project", AT)]
    assert found == [("Q", 70, 1), ("P", 30, 2)]
    assert [row.name for row in store.ledger.costs("ticket", AT)] == ["T1", "T2", "T0"]
    assert [(row.name, row.calls) for row in store.ledger.costs("day", AT)] == [(DAY, 3)]
    assert [row.name for row in store.ledger.costs("model", AT)] == ["m-2026"]
    assert store.ledger.costs("model", LATER) == []
    with pytest.raises(ValueError):
        store.ledger.costs("day; DROP TABLE charges", AT)


def test_before_the_first_charge(store: Store) -> None:
    assert store.ledger.latest_day() == ""
    assert store.ledger.run_totals("R1") == Balance()
    assert store.ledger.spend(DAY) == [] and store.ledger.charges("R1") == []
    assert store.ledger.reap(MUCH_LATER) == []
