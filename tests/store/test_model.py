"""Owns the ledger and the queue beside a model that is too simple to be wrong: lists, and sums over them.
May touch one database of each kind, emptied for every example.
Never predicts anything from what the store answered before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kit import ask, booking, call, check_sums, claim, rows, used
from runs_kit import ended, make_event, make_run

from supervisor.limits.budget import Balance, Caps, Grant, Refusal, Scope
from supervisor.limits.charges import Booking
from supervisor.limits.usage import UsageSource
from supervisor.store.records import Run
from supervisor.store.store import Store, open_store
from supervisor.store.tickets import Claimed

CAPS = Caps(
    iterations=9,
    tokens=420,
    run_nanos=300,
    ticket_nanos=400,
    project_day_nanos=320,
    global_day_nanos=450,
)
LEASE = 10
PROJECTS = ("P", "Q")
BY_HAND = ("H1", "H2")
TABLES = ("events", "runs", "charges", "ceilings", "balances", "tickets", "caps", "agent_settings", "workers")


def day_name(number: int) -> str:
    return f"2026-09-{number + 1:02}"


def instant(second: int) -> str:
    return f"2026-09-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"


@dataclass
class Call:
    """One charge. state: held, settled or released."""

    number: int
    run: str
    ticket: str
    project: str
    day: int
    held: int
    from_ceiling: int
    lease: int
    state: str = "held"
    spent: int = 0
    tokens: int = 0


@dataclass
class Ceiling:
    project: str
    day: int
    left: int
    lease: int


@dataclass
class Queued:
    """A ticket. run: who claimed it last."""

    project: str
    priority: int
    age: int
    state: str = "open"
    fence: int = 0
    lease: int = 0
    run: str = ""


@dataclass
class Model:
    calls: list[Call] = field(default_factory=list)
    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    tickets: dict[str, Queued] = field(default_factory=dict)
    latest: int = -1

    def balance(self, scope: Scope, key: str, day: int) -> Balance:
        """A sum over everything."""
        mine = [c for c in self.calls if self._is_of(c, scope, key, day) and c.state != "released"]
        held = [c for c in mine if c.state == "held"]
        ceilings = [
            c.left
            for c in self.ceilings.values()
            if c.day == day and scope in (Scope.PROJECT_DAY, Scope.GLOBAL_DAY) and key in ("", c.project)
        ]
        return Balance(
            spent_nanos=sum(c.spent for c in mine),
            held_nanos=sum(c.held for c in held) + sum(ceilings),
            tokens=sum(c.tokens for c in mine),
            held_tokens=sum(c.held for c in held),
            calls=len(mine),
        )

    @staticmethod
    def _is_of(c: Call, scope: Scope, key: str, day: int) -> bool:
        return {
            Scope.RUN: c.run == key,
            Scope.TICKET: c.ticket == key,
            Scope.PROJECT_DAY: c.project == key and c.day == day,
            Scope.GLOBAL_DAY: c.day == day,
        }[scope]

    def day_room(self, project: str, day: int) -> dict[Scope, int]:
        rooms = {}
        for scope, key, cap in (
            (Scope.PROJECT_DAY, project, CAPS.project_day_nanos),
            (Scope.GLOBAL_DAY, "", CAPS.global_day_nanos),
        ):
            found = self.balance(scope, key, day)
            assert cap is not None
            rooms[scope] = cap - found.spent_nanos - found.held_nanos
        return rooms

    def finish(self, c: Call, spent: int, tokens: int) -> None:
        c.state, c.spent, c.tokens = "settled", spent, tokens
        self._give_back(c, c.from_ceiling - spent)

    def release(self, c: Call) -> None:
        c.state = "released"
        self._give_back(c, c.from_ceiling)

    def _give_back(self, c: Call, nanos: int) -> None:
        ceiling = self.ceilings.get(c.run)
        if ceiling is not None and ceiling.day == c.day:
            ceiling.left += max(0, nanos)


class Machine(RuleBasedStateMachine):
    """Every rule does one thing to both, and compares the answers."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.today = 0
        self.now = 0
        self.numbers = 0
        self.overshot = False

    @initialize()
    def empty(self) -> None:
        with self.store.transaction():
            for table in TABLES:
                self.store._db.change(f"DELETE FROM {table}")

    # ------------------------------------------------------------ who calls

    def _whos(self) -> list[Booking]:
        """Everybody who may call: runs by hand, and claimed ones, also those that lost their ticket."""
        found = [booking(run, f"T-{run}", PROJECTS[n % 2], "W1") for n, run in enumerate(BY_HAND)]
        for key, ticket in self.model.tickets.items():
            if ticket.run:
                fence = int(ticket.run.rpartition(".")[2])
                found.append(booking(ticket.run, key, ticket.project, "W2", fence))
        return found

    def _held(self) -> list[Call]:
        return [c for c in self.model.calls if c.state == "held"]

    # ------------------------------------------------------------ calls

    @rule(pick=st.integers(0, 99), wanted=st.integers(1, 260), least=st.integers(1, 260))
    def reserve(self, pick: int, wanted: int, least: int) -> None:
        whos = self._whos()
        who = whos[pick % len(whos)]
        self.numbers += 1
        new = call(
            who,
            charge=f"C{self.numbers:06}",
            day=day_name(self.today),
            lease=instant(self.now + LEASE),
        )
        answer = self.store.ledger.reserve(new, CAPS, ask(wanted, min(least, wanted)))
        expected = self._expected(who, wanted, min(least, wanted))
        if isinstance(answer, Refusal):
            assert answer.code == expected
            return
        assert isinstance(answer, Grant) and answer.nanos == answer.tokens == expected
        day = max(self.today, self.model.latest)
        ceiling = self.model.ceilings.get(who.run_id) if who.fence else None
        from_ceiling = min(ceiling.left, answer.nanos) if ceiling else 0
        if ceiling:
            ceiling.left -= from_ceiling
        self.model.calls.append(
            Call(
                self.numbers,
                who.run_id,
                who.ticket,
                who.project,
                day,
                answer.nanos,
                from_ceiling,
                self.now + LEASE,
            )
        )
        self.model.latest = day

    def _expected(self, who: Booking, wanted: int, least: int) -> int | str:
        """The amount, or the code of the refusal. Moves the ceiling of a day that is over."""
        model, day = self.model, max(self.today, self.model.latest)
        if who.fence and model.tickets[who.ticket].fence != who.fence:
            return "lease_lost"
        own = 0
        ceiling = model.ceilings.get(who.run_id) if who.fence else None
        if ceiling is not None:
            if ceiling.day != day:
                room = min(model.day_room(who.project, day).values())
                ceiling.day, ceiling.left = day, min(ceiling.left, max(0, room))
                model.latest = day
            own = ceiling.left
        run = model.balance(Scope.RUN, who.run_id, 0)
        ticket = model.balance(Scope.TICKET, who.ticket, 0)
        if run.calls >= (CAPS.iterations or 0):
            return "max_iterations"
        amount = min(wanted, (CAPS.tokens or 0) - run.tokens - run.held_tokens)
        if amount < least:
            return "max_tokens"
        amount = min(amount, (CAPS.run_nanos or 0) - run.spent_nanos - run.held_nanos)
        amount = min(amount, (CAPS.ticket_nanos or 0) - ticket.spent_nanos - ticket.held_nanos)
        if amount < least:
            return "max_cost"
        amount = min(amount, *(room + own for room in model.day_room(who.project, day).values()))
        return "daily_cap" if amount < least else amount

    @precondition(lambda self: self._held())
    @rule(pick=st.integers(0, 99), part=st.integers(0, 100), unknown=st.booleans())
    def settle(self, pick: int, part: int, unknown: bool) -> None:
        c = self._held()[pick % len(self._held())]
        spent = c.held * part // 100
        source = UsageSource.HOLD if unknown else UsageSource.PROVIDER
        answer = self.store.ledger.settle(f"C{c.number:06}", used(spent, source=source))
        self.model.finish(c, spent, c.held if unknown else spent)
        assert answer is not None
        assert answer.run == self.model.balance(Scope.RUN, c.run, 0)
        assert answer.global_day == self.model.balance(Scope.GLOBAL_DAY, "", c.day)

    @precondition(lambda self: self._held())
    @rule(pick=st.integers(0, 99), more=st.integers(1, 50))
    def settle_beyond_the_hold(self, pick: int, more: int) -> None:
        c = self._held()[pick % len(self._held())]
        assert self.store.ledger.settle(f"C{c.number:06}", used(c.held + more)) is not None
        self.model.finish(c, c.held + more, c.held + more)
        self.overshot = True

    @precondition(lambda self: self._held())
    @rule(pick=st.integers(0, 99))
    def release(self, pick: int) -> None:
        c = self._held()[pick % len(self._held())]
        assert self.store.ledger.release(f"C{c.number:06}", "error 529", instant(self.now))
        self.model.release(c)

    @precondition(lambda self: len(self._held()) < len(self.model.calls))
    @rule(pick=st.integers(0, 99))
    def complete_what_is_over(self, pick: int) -> None:
        over = [c for c in self.model.calls if c.state != "held"]
        name = f"C{over[pick % len(over)].number:06}"
        assert self.store.ledger.settle(name, used(1)) is None
        assert not self.store.ledger.release(name, "late", instant(self.now))

    @rule(pick=st.integers(0, 99), nanos=st.integers(0, 20))
    def record(self, pick: int, nanos: int) -> None:
        whos = self._whos()
        who = whos[pick % len(whos)]
        self.numbers += 1
        new = call(who, charge=f"C{self.numbers:06}", day=day_name(self.today))
        self.store.ledger.record(new, used(nanos, source=UsageSource.SELF_REPORTED))
        day = self.model.latest = max(self.today, self.model.latest)
        ceiling = self.model.ceilings.get(who.run_id) if who.fence else None
        if ceiling is not None and ceiling.day == day:
            ceiling.left -= min(ceiling.left, nanos)
        booked = Call(self.numbers, who.run_id, who.ticket, who.project, day, 0, 0, 0)
        booked.state, booked.spent, booked.tokens = "settled", nanos, nanos
        self.model.calls.append(booked)
        self.overshot = True

    # ------------------------------------------------------------ time

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(days=st.sampled_from([1, 1, 2, -1, -2]))
    def the_clock_goes_to_another_day(self, days: int) -> None:
        self.today = max(0, min(25, self.today + days))

    @rule(worker=st.sampled_from(["W1", "W2"]))
    def renew(self, worker: str) -> None:
        self.store.ledger.renew(worker, instant(self.now + LEASE))
        for c in self._held():
            if (c.run in BY_HAND) == (worker == "W1"):
                c.lease = self.now + LEASE
        if worker == "W2":
            for ceiling in self.model.ceilings.values():
                ceiling.lease = self.now + LEASE
            for key, ticket in self.model.tickets.items():
                if ticket.state in ("claimed", "running"):
                    assert self.store.tickets.renew_lease(key, ticket.fence, instant(self.now + LEASE))
                    ticket.lease = self.now + LEASE

    @rule()
    def reap(self) -> None:
        found = self.store.ledger.reap(instant(self.now))
        late = [c for c in self._held() if c.lease < self.now]
        assert {row.charge_id for row in found} == {f"C{c.number:06}" for c in late}
        for c in late:
            self.model.finish(c, c.held, c.held)
        for run in [run for run, c in self.model.ceilings.items() if c.lease < self.now]:
            del self.model.ceilings[run]

    @rule()
    def rescue(self) -> None:
        found = {ticket.key for ticket in self.store.tickets.rescue(instant(self.now))}
        late = {
            key
            for key, t in self.model.tickets.items()
            if t.state in ("claimed", "running") and t.lease < self.now
        }
        assert found == late
        for key in late:
            self.model.tickets[key].state = "needs_review"
            self.model.tickets[key].fence += 1

    # ------------------------------------------------------------ the queue

    @precondition(lambda self: len(self.model.tickets) < 6)
    @rule(project=st.sampled_from(PROJECTS), priority=st.integers(0, 2))
    def add(self, project: str, priority: int) -> None:
        self.numbers += 1
        key = f"Q{self.numbers:06}"
        self.store.tickets.add(key, project=project, goal="", priority=priority, at=instant(self.now))
        self.model.tickets[key] = Queued(project, priority, self.numbers)

    @rule(ceiling=st.sampled_from([None, 60, 150, 290]))
    def claim(self, ceiling: int | None) -> None:
        self.numbers += 1
        run = f"C{self.numbers}"
        expected = self._next_claim(ceiling or 0)
        wanted = [key for key in [expected] if key is not None]
        fence = self.model.tickets[wanted[0]].fence + 1 if wanted else 0
        run = f"{run}.{fence}"
        found = claim(
            self.store,
            run,
            worker="W2",
            ceiling=ceiling,
            caps=CAPS,
            day=day_name(self.today),
            lease=instant(self.now + LEASE),
            now=instant(self.now),
        )
        assert isinstance(found, Claimed) == bool(wanted)
        if not isinstance(found, Claimed):
            return
        assert (found.ticket.key, found.fence) == (wanted[0], fence)
        ticket = self.model.tickets[wanted[0]]
        ticket.state, ticket.fence, ticket.run = "claimed", fence, run
        ticket.lease = self.now + LEASE
        if ceiling:
            day = self.model.latest = max(self.today, self.model.latest)
            self.model.ceilings[run] = Ceiling(ticket.project, day, ceiling, self.now + LEASE)

    def _next_claim(self, nanos: int) -> str | None:
        day = max(self.today, self.model.latest)
        waiting = [(-t.priority, t.age, key) for key, t in self.model.tickets.items() if t.state == "open"]
        for _, _, key in sorted(waiting):
            if min(self.model.day_room(self.model.tickets[key].project, day).values()) >= max(nanos, 1):
                return key
        return None

    @precondition(lambda self: any(t.state == "claimed" for t in self.model.tickets.values()))
    @rule()
    def start(self) -> None:
        key = min(key for key, t in self.model.tickets.items() if t.state == "claimed")
        run = self._row(key)
        self.store.create_run(run, make_event(run))
        self.model.tickets[key].state = "running"

    def _row(self, key: str) -> Run:
        t = self.model.tickets[key]
        fence = int(t.run.rpartition(".")[2])
        return msgspec.structs.replace(
            make_run(1, key), run_id=t.run, project=t.project, fence=fence, worker_id="W2"
        )

    @precondition(lambda self: bool(self.store.live_runs()))
    @rule(pick=st.integers(0, 99))
    def end(self, pick: int) -> None:
        """Also of runs that were fenced off: they settle, but leave the ticket alone."""
        live = self.store.live_runs()
        run = live[pick % len(live)]
        self.store.ledger.settle_run(run.run_id, "ended", instant(self.now))
        self.store.update_run(ended(run), make_event(run))
        for c in self._held():
            if c.run == run.run_id:
                self.model.finish(c, c.held, c.held)
        self.model.ceilings.pop(run.run_id, None)
        ticket = self.model.tickets[run.ticket]
        if ticket.fence == run.fence:
            ticket.state = "ended"

    @precondition(lambda self: any(t.state == "claimed" for t in self.model.tickets.values()))
    @rule()
    def give_back(self) -> None:
        key = min(key for key, t in self.model.tickets.items() if t.state == "claimed")
        ticket = self.model.tickets[key]
        self.store.ledger.release_ceiling(ticket.run)
        assert self.store.tickets.give_back(key, ticket.fence, instant(self.now))
        self.model.ceilings.pop(ticket.run, None)
        ticket.state = "open"

    @rule(pick=st.integers(0, 99))
    def requeue(self, pick: int) -> None:
        live = {row["ticket"] for row in rows(self.store, "SELECT ticket FROM runs WHERE state <> 'ended'")}
        over = [
            key
            for key, t in self.model.tickets.items()
            if t.state in ("ended", "needs_review") and key not in live
        ]
        if over:
            key = over[pick % len(over)]
            self.store.tickets.requeue(key, instant(self.now))
            self.model.tickets[key].state = "open"

    # ------------------------------------------------------------ what always holds

    @invariant()
    def balances_are_sums(self) -> None:
        for (scope, key, day), balance in check_sums(self.store).items():
            number = int(day[-2:]) - 1 if day else 0
            assert balance == self.model.balance(Scope(scope), key, number), (scope, key, day)

    @invariant()
    def no_cap_is_passed(self) -> None:
        if self.overshot:
            return
        for row in rows(self.store, "SELECT * FROM balances"):
            cap = CAPS.nanos(Scope(row["scope"]))
            assert cap is not None and 0 <= row["spent_nanos"] + row["held_nanos"] <= cap, row

    @invariant()
    def nothing_is_negative(self) -> None:
        for row in rows(self.store, "SELECT * FROM balances"):
            assert min(row[name] for name in Balance.__struct_fields__) >= 0, row
        for row in rows(self.store, "SELECT * FROM ceilings"):
            expected = self.model.ceilings[row["run_id"]]
            assert (row["left_nanos"], row["day"]) == (expected.left, day_name(expected.day))
        assert len(rows(self.store, "SELECT run_id FROM ceilings")) == len(self.model.ceilings)

    @invariant()
    def tickets_are_as_they_should_be(self) -> None:
        found = {
            t.key: (t.state.value, t.fence) for t in self.store.tickets.listed() if t.key.startswith("Q")
        }
        assert found == {key: (t.state, t.fence) for key, t in self.model.tickets.items()}


@pytest.mark.parametrize("overshoots", [False, True], ids=["within the holds", "beyond them too"])
def test_any_order_of_anything_agrees_with_the_model(location: str, overshoots: bool) -> None:
    opened = open_store(location)
    often = 120 if location.startswith("/") else 15

    class Bound(Machine):
        store = opened

    if not overshoots:
        Bound.settle_beyond_the_hold = None  # type: ignore[assignment]
        Bound.record = None  # type: ignore[assignment]
    try:
        run_state_machine_as_test(
            Bound,
            settings=settings(
                max_examples=often,
                stateful_step_count=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        opened.close()
