"""Owns small calls, caps and bookings for tests of the store, and the sums that balances must agree with.
May touch the store it is given.
Never trusts the ledger's own arithmetic: sums are made from the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

from supervisor.limits.budget import Ask, Balance, Caps, Grant, Refusal, Scope
from supervisor.limits.charges import Booking, NewCall, Settlement
from supervisor.limits.pricing import Price, Rates
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.store.store import Store
from supervisor.store.tickets import Claim, Claimed, Nothing

DAY = "2026-09-01"
NEXT_DAY = "2026-09-02"
AT = "2026-09-01T10:00:00.000Z"
LATER = "2026-09-01T10:01:00.000Z"
MUCH_LATER = "2026-09-01T11:00:00.000Z"

# One token of output is one nano-dollar, input is free: a call of n nano-dollars asks for n tokens.
PRICE = Price(
    provider="p",
    model="m",
    rates=Rates(input=0, output=1_000_000, cache_read=0, cache_write_5m=0, cache_write_1h=0),
)
_numbers = itertools.count(1)


def booking(
    run: str = "R1", ticket: str = "T1", project: str = "P", worker: str = "W1", fence: int = 0
) -> Booking:
    return Booking(run_id=run, ticket=ticket, project=project, worker_id=worker, fence=fence)


def call(who: Booking, *, charge: str = "", day: str = DAY, lease: str = LATER) -> NewCall:
    return NewCall(
        charge_id=charge or f"C{next(_numbers):09}",
        booking=who,
        provider="p",
        model="m",
        day=day,
        at=AT,
        lease_until=lease,
    )


def ask(nanos: int, least: int | None = None) -> Ask:
    """A call of exactly that much, or of anything from least on."""
    return Ask(
        input_bound=0, output_wanted=nanos, output_least=nanos if least is None else least, price=PRICE
    )


def used(nanos: int, *, source: UsageSource = UsageSource.PROVIDER, model: str = "m-2026") -> Settlement:
    return Settlement(
        nanos=nanos, usage=TokenUsage(output=nanos), source=source, outcome="ok", model=model, at=AT
    )


def reserve(
    store: Store,
    who: Booking,
    nanos: int,
    caps: Caps = Caps(),  # noqa: B008  # frozen
    *,
    day: str = DAY,
    lease: str = LATER,
) -> tuple[str, Grant]:
    """A reservation that is granted."""
    new = call(who, day=day, lease=lease)
    answer = store.ledger.reserve(new, caps, ask(nanos))
    assert isinstance(answer, Grant), answer
    return new.charge_id, answer


def refused(
    store: Store,
    who: Booking,
    nanos: int,
    caps: Caps = Caps(),  # noqa: B008  # frozen
    *,
    day: str = DAY,
) -> Refusal:
    answer = store.ledger.reserve(call(who, day=day), caps, ask(nanos))
    assert isinstance(answer, Refusal), answer
    return answer


def claim(
    store: Store,
    run: str = "R1",
    *,
    worker: str = "W1",
    ceiling: int | None = None,
    caps: Caps = Caps(),  # noqa: B008  # frozen
    projects: Collection[str] = (),
    day: str = DAY,
    lease: str = LATER,
    now: str = AT,
) -> Claimed | Nothing:
    return store.tickets.claim(
        Claim(
            worker_id=worker,
            run_id=run,
            now=now,
            day=day,
            lease_until=lease,
            projects=projects,
            ceiling_nanos=ceiling,
            caps_of=lambda _: caps,
        )
    )


def claimed_run(
    store: Store,
    run: str = "R1",
    ticket: str = "T1",
    *,
    project: str = "P",
    ceiling: int,
    caps: Caps = Caps(),  # noqa: B008  # frozen
) -> Booking:
    """A ticket that was added and claimed with a ceiling: who its calls are booked on."""
    store.tickets.add(ticket, project=project, goal="", priority=0, at=AT)
    found = claim(store, run, ceiling=ceiling, caps=caps)
    assert isinstance(found, Claimed) and found.ticket.key == ticket
    return booking(run, ticket, project, fence=found.fence)


def rows(store: Store, sql: str) -> list[dict[str, Any]]:
    return store._db.rows(sql)


def check_sums(store: Store) -> dict[tuple[str, str, str], Balance]:
    """Every balance is what the charges and ceilings say, and there is none too many; those that count."""
    expected: dict[tuple[str, str, str], dict[str, int]] = {}

    def add(keys: list[tuple[str, str, str]], **amounts: int) -> None:
        for key in keys:
            found = expected.setdefault(key, dict.fromkeys(Balance.__struct_fields__, 0))
            for name, amount in amounts.items():
                found[name] += amount

    for row in rows(store, "SELECT * FROM charges"):
        days = [
            (Scope.PROJECT_DAY.value, row["project"], row["day"]),
            (Scope.GLOBAL_DAY.value, "", row["day"]),
        ]
        keys = [(Scope.RUN.value, row["run_id"], ""), (Scope.TICKET.value, row["ticket"], ""), *days]
        if row["state"] == "held":
            assert row["spent_nanos"] == 0 and row["settled_at"] is None
            add(keys, held_nanos=row["held_nanos"], held_tokens=row["held_tokens"], calls=1)
        elif row["state"] == "settled":
            add(keys, spent_nanos=row["spent_nanos"], tokens=row["tokens"], calls=1)
        else:
            assert row["state"] == "released" and row["spent_nanos"] == row["tokens"] == 0
    for row in rows(store, "SELECT * FROM ceilings"):
        assert row["left_nanos"] >= 0
        add(
            [(Scope.PROJECT_DAY.value, row["project"], row["day"]), (Scope.GLOBAL_DAY.value, "", row["day"])],
            held_nanos=row["left_nanos"],
        )
    nothing = Balance()
    wanted = {key: Balance(**values) for key, values in expected.items()}
    found = {
        (row["scope"], row["key"], row["day"]): Balance(
            **{name: row[name] for name in Balance.__struct_fields__}
        )
        for row in rows(store, "SELECT * FROM balances")
    }
    assert {key: value for key, value in found.items() if value != nothing} == {
        key: value for key, value in wanted.items() if value != nothing
    }
    return found


def check_cap(store: Store, scope: Scope, cap: int) -> None:
    for row in rows(store, f"SELECT * FROM balances WHERE scope = '{scope.value}'"):
        assert row["spent_nanos"] + row["held_nanos"] <= cap, row
