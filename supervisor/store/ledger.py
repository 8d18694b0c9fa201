"""Owns the money: reserving before a call, settling after it, and the balances that both agree on.
May touch the tables charges, balances, ceilings and caps, each time in one transaction.
Never decides by itself: whether a call fits is said by limits/budget.py, inside the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from supervisor.limits.budget import Ask, Balance, Balances, Caps, Grant, Refusal, Scope, decide
from supervisor.limits.charges import Booking, Charge, ChargeState, NewCall, Settlement
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.runs.reasons import StopReason
from supervisor.store.database import Database, Row

BalanceKey = tuple[Scope, str, str]
"""Scope, whose, and the day ("" for a run and a ticket)."""

_FIGURES = ("spent_nanos", "held_nanos", "tokens", "held_tokens", "calls")
_ORDER = {scope: number for number, scope in enumerate(Scope)}


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `spend`: a scope of a day with what is spent and held, and its cap if it has one."""

    scope: Scope
    key: str
    spent_nanos: int
    held_nanos: int
    cap_nanos: int | None
    tokens: int
    calls: int


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """What something cost in a span of time: a ticket, a project, a model or a day."""

    name: str
    spent_nanos: int
    calls: int


class Ledger:
    """Every method is one transaction. Rows are locked in the order of Scope, so nobody waits in a circle."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # ------------------------------------------------------------ a call

    def reserve(self, call: NewCall, caps: Caps, ask: Ask) -> Grant | Refusal:
        """Hold the worst case of a call against every scope, or say why not.

        A clock that was set back books on the latest day there is. Asking twice for one charge_id is
        answered alike, so that a commit whose answer was lost can be repeated.
        """
        with self._db.transaction():
            if call.booking.fence and not self._holds_ticket(call.booking):
                return Refusal(
                    code="lease_lost",
                    message=f"another worker owns {call.booking.ticket} now",
                    reason=StopReason.LEASE_LOST,
                )
            day = max(call.day, self.latest_day())
            keys = _keys(call.booking, day)
            balances = self._lock(keys)
            ceiling = self._ceiling_for(call.booking, day, caps, balances)
            if ceiling:
                balances = msgspec.structs.replace(self._lock(keys), ceiling_nanos=ceiling)
            answer = decide(ask, caps, balances)
            if isinstance(answer, Refusal):
                return answer
            from_ceiling = min(ceiling, answer.nanos)
            if not self._insert_held(call, day, answer, from_ceiling):
                return self._granted_before(call.charge_id)
            if from_ceiling:
                self._db.change(
                    "UPDATE ceilings SET left_nanos = left_nanos - ? WHERE run_id = ?",
                    (from_ceiling, call.booking.run_id),
                )
            run, ticket, project, everything = keys
            own = Balance(held_nanos=answer.nanos, held_tokens=answer.tokens, calls=1)
            of_day = msgspec.structs.replace(own, held_nanos=answer.nanos - from_ceiling)
            self._add({run: own, ticket: own, project: of_day, everything: of_day})
            return answer

    def settle(self, charge_id: str, settlement: Settlement) -> Balances | None:
        """Book what a call really used; None when it is settled already, so that nothing counts twice.

        More than was held is charged in full: it was spent. Less goes back, to the run's ceiling first.
        """
        with self._db.transaction():
            rows = self._db.rows(
                "UPDATE charges SET state = 'settled', spent_nanos = ?, usage = ?, usage_source = ?,"
                " outcome = ?, model = ?, settled_at = ? WHERE charge_id = ? AND state = 'held' RETURNING *",
                (
                    settlement.nanos,
                    msgspec.json.encode(settlement.usage).decode(),
                    settlement.source,
                    settlement.outcome,
                    settlement.model,
                    settlement.at,
                    charge_id,
                ),
            )
            if not rows:
                return None
            return self._let_go(rows[0], spent=settlement.nanos, tokens=settlement.usage.total, calls=0)

    def release(self, charge_id: str, outcome: str, at: str) -> bool:
        """Undo a reservation: the provider did not bill the call, and it does not count as one."""
        with self._db.transaction():
            rows = self._db.rows(
                "UPDATE charges SET state = 'released', usage_source = ?, outcome = ?, settled_at = ?"
                " WHERE charge_id = ? AND state = 'held' RETURNING *",
                (UsageSource.UNBILLED, outcome, at, charge_id),
            )
            if rows:
                self._let_go(rows[0], spent=0, tokens=0, calls=-1)
            return bool(rows)

    def record(self, call: NewCall, settlement: Settlement) -> Balances:
        """Book what an agent says of itself: nothing was held for it, and nobody checked it."""
        with self._db.transaction():
            day = max(call.day, self.latest_day())
            keys = _keys(call.booking, day)
            self._lock(keys)
            nothing = Grant(output_tokens=0, nanos=0, tokens=0)
            if self._insert_held(call, day, nothing, 0):
                booked = self.settle(call.charge_id, settlement)
                assert booked is not None
                one = Balance(calls=1)
                return self._add(dict.fromkeys(keys, one))
            return self._lock(keys)

    # ------------------------------------------------------------ ceilings

    def hold_ceiling(
        self, booking: Booking, day: str, nanos: int, caps: Caps, lease_until: str
    ) -> Refusal | None:
        """Hold the most that a run may spend against the day's caps, before it starts; None when held."""
        with self._db.transaction():
            day = max(day, self.latest_day())
            keys = _keys(booking, day)[2:]
            balances = self._lock(keys)
            for scope, _, _ in keys:
                left = balances.left_nanos(scope, caps)
                if left is not None and left < nanos:
                    return Refusal(
                        code="daily_cap",
                        message="the day's cap does not leave what a run may spend",
                        reason=StopReason.DAILY_CAP,
                        scope=scope,
                        cap=caps.nanos(scope) or 0,
                        needed=nanos,
                        left=max(0, left),
                    )
            self._db.change(
                "INSERT INTO ceilings (run_id, ticket, project, worker_id, day, left_nanos, lease_until)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    booking.run_id,
                    booking.ticket,
                    booking.project,
                    booking.worker_id,
                    day,
                    nanos,
                    lease_until,
                ),
            )
            self._add(dict.fromkeys(keys, Balance(held_nanos=nanos)))
            return None

    def release_ceiling(self, run_id: str) -> None:
        """Let go of what the run did not use of it."""
        with self._db.transaction():
            rows = self._db.rows("DELETE FROM ceilings WHERE run_id = ? RETURNING *", (run_id,))
            self._drop_ceilings(rows)

    def _drop_ceilings(self, rows: list[Row]) -> None:
        for row in rows:
            keys = _day_keys(row["project"], row["day"])
            self._add(dict.fromkeys(keys, Balance(held_nanos=-row["left_nanos"])))

    def _ceiling_for(self, booking: Booking, day: str, caps: Caps, balances: Balances) -> int:
        """What is left of the run's ceiling; one of a day that is over moves here as far as it fits."""
        if not booking.fence:
            return 0
        sql = f"SELECT * FROM ceilings WHERE run_id = ?{self._db.for_update}"
        rows = self._db.rows(sql, (booking.run_id,))
        if not rows:
            return 0
        left = int(rows[0]["left_nanos"])
        if rows[0]["day"] == day:
            return left
        fits = [left]
        for scope in (Scope.PROJECT_DAY, Scope.GLOBAL_DAY):
            room = balances.left_nanos(scope, caps)
            fits += [] if room is None else [max(0, room)]
        moved = min(fits)
        self._db.change(
            "UPDATE ceilings SET day = ?, left_nanos = ? WHERE run_id = ?", (day, moved, booking.run_id)
        )
        self._add(
            dict.fromkeys(_day_keys(booking.project, rows[0]["day"]), Balance(held_nanos=-left))
            | dict.fromkeys(_day_keys(booking.project, day), Balance(held_nanos=moved))
        )
        return moved

    # ------------------------------------------------------------ leases, and what the dead left

    def renew(self, worker_id: str, lease_until: str) -> None:
        """The worker lives: so does everything it holds."""
        with self._db.transaction():
            for table, held in (("charges", " AND state = 'held'"), ("ceilings", "")):
                self._db.change(
                    f"UPDATE {table} SET lease_until = ? WHERE worker_id = ?{held}", (lease_until, worker_id)
                )

    def reap(self, now: str) -> list[Charge]:
        """Settle at the hold what nobody renewed: the call may have been made, so it is not free."""
        with self._db.transaction():
            found = self._settle_at_hold("lease_until < ?", (now,), "lease expired", now)
            self._drop_ceilings(
                self._db.rows("DELETE FROM ceilings WHERE lease_until < ? RETURNING *", (now,))
            )
            return found

    def settle_run(self, run_id: str, outcome: str, at: str) -> list[Charge]:
        """A run is over: what it still holds is settled at the hold, and its ceiling goes."""
        with self._db.transaction():
            found = self._settle_at_hold("run_id = ?", (run_id,), outcome, at)
            self._drop_ceilings(self._db.rows("DELETE FROM ceilings WHERE run_id = ? RETURNING *", (run_id,)))
            return found

    def _settle_at_hold(self, condition: str, values: tuple[Any, ...], outcome: str, at: str) -> list[Charge]:
        rows = self._db.rows(
            "UPDATE charges SET state = 'settled', spent_nanos = held_nanos, usage_source = ?,"
            f" outcome = ?, settled_at = ? WHERE state = 'held' AND {condition} RETURNING *",
            (UsageSource.HOLD, outcome, at, *values),
        )
        for row in sorted(rows, key=lambda row: str(row["charge_id"])):
            self._let_go(row, spent=row["held_nanos"], tokens=row["held_tokens"], calls=0)
        return [_charge(row) for row in rows]

    # ------------------------------------------------------------ looking

    def latest_day(self) -> str:
        """The latest day that anything was booked on; "" before the first."""
        rows = self._db.rows(
            "SELECT day FROM balances WHERE scope = ? AND key = '' ORDER BY day DESC LIMIT 1",
            (Scope.GLOBAL_DAY,),
        )
        return rows[0]["day"] if rows else ""

    def balances(self, booking: Booking, day: str) -> Balances:
        """All that a call of this run would be booked on that day."""
        marks = " OR ".join(["(scope = ? AND key = ? AND day = ?)"] * len(Scope))
        values = [part for key in _keys(booking, day) for part in key]
        return _balances(self._db.rows(f"SELECT * FROM balances WHERE {marks}", values))

    def spend(self, day: str) -> list[SpendRow]:
        """The day of everything first, then of each project that has spent or has a cap."""
        rows = self._db.rows(
            "SELECT b.scope, b.key, b.spent_nanos, b.held_nanos, b.tokens, b.calls, c.cap_nanos"
            " FROM balances b LEFT JOIN caps c ON c.scope = b.scope AND c.key = b.key WHERE b.day = ?"
            " UNION ALL SELECT c.scope, c.key, 0, 0, 0, 0, c.cap_nanos FROM caps c WHERE NOT EXISTS"
            " (SELECT 1 FROM balances b WHERE b.scope = c.scope AND b.key = c.key AND b.day = ?)",
            (day, day),
        )
        found = [msgspec.convert(row, SpendRow) for row in rows]
        return sorted(found, key=lambda row: (-_ORDER[row.scope], row.key))

    def set_cap(self, scope: Scope, key: str, cap_nanos: int | None) -> None:
        """Remember which cap was last in force, so that `spend` can show it."""
        with self._db.transaction():
            self._db.change(
                "INSERT INTO caps (scope, key, cap_nanos) VALUES (?, ?, ?)"
                " ON CONFLICT (scope, key) DO UPDATE SET cap_nanos = excluded.cap_nanos",
                (scope, key, cap_nanos),
            )

    def charges(self, run_id: str) -> list[Charge]:
        rows = self._db.rows("SELECT * FROM charges WHERE run_id = ? ORDER BY charge_id", (run_id,))
        return [_charge(row) for row in rows]

    def costs(self, by: str, since: str) -> list[CostRow]:
        """Sums over charges since an instant, the dearest first. by: ticket, project, model or day."""
        if by not in ("ticket", "project", "model", "day"):
            raise ValueError(by)
        rows = self._db.rows(
            f"SELECT {by} AS name, SUM(spent_nanos) AS spent, COUNT(*) AS calls FROM charges"
            f" WHERE reserved_at >= ? AND state <> 'released' GROUP BY {by} ORDER BY spent DESC, name",
            (since,),
        )
        return [CostRow(name=r["name"], spent_nanos=int(r["spent"]), calls=r["calls"]) for r in rows]

    # ------------------------------------------------------------ rows

    def _holds_ticket(self, booking: Booking) -> bool:
        sql = "SELECT fence FROM tickets WHERE key = ?"
        rows = self._db.rows(sql, (booking.ticket,))
        return bool(rows) and rows[0]["fence"] == booking.fence

    def _lock(self, keys: Iterable[BalanceKey]) -> Balances:
        """The balances as they are, made if they are missing, and locked until the end of the transaction."""
        return self._add(dict.fromkeys(keys, Balance()))

    def _add(self, changes: dict[BalanceKey, Balance]) -> Balances:
        """Add to each balance, in one statement and in one order; the balances afterwards."""
        ordered = sorted(changes.items(), key=lambda item: (_ORDER[item[0][0]], item[0][1], item[0][2]))
        marks = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * len(ordered))
        sums = ", ".join(f"{name} = balances.{name} + excluded.{name}" for name in _FIGURES)
        values = [part for key, change in ordered for part in (*key, *msgspec.structs.astuple(change))]
        return _balances(
            self._db.rows(
                f"INSERT INTO balances (scope, key, day, {', '.join(_FIGURES)}) VALUES {marks}"
                f" ON CONFLICT (scope, key, day) DO UPDATE SET {sums} RETURNING *",
                values,
            )
        )

    def _insert_held(self, call: NewCall, day: str, grant: Grant, from_ceiling: int) -> bool:
        booking = call.booking
        return bool(
            self._db.change(
                "INSERT INTO charges (charge_id, run_id, ticket, project, worker_id, day, state, provider,"
                " model, output_tokens, held_nanos, held_tokens, ceiling_nanos, reserved_at, lease_until)"
                " VALUES (?, ?, ?, ?, ?, ?, 'held', ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (charge_id) DO NOTHING",
                (
                    call.charge_id,
                    booking.run_id,
                    booking.ticket,
                    booking.project,
                    booking.worker_id,
                    day,
                    call.provider,
                    call.model,
                    grant.output_tokens,
                    grant.nanos,
                    grant.tokens,
                    from_ceiling,
                    call.at,
                    call.lease_until,
                ),
            )
        )

    def _granted_before(self, charge_id: str) -> Grant:
        row = self._db.rows("SELECT * FROM charges WHERE charge_id = ?", (charge_id,))[0]
        return Grant(output_tokens=row["output_tokens"], nanos=row["held_nanos"], tokens=row["held_tokens"])

    def _let_go(self, row: Row, *, spent: int, tokens: int, calls: int) -> Balances:
        """Move a charge from held to spent in every balance, and what it left back to the run's ceiling."""
        held = row["held_nanos"]
        back = min(row["ceiling_nanos"], max(0, held - spent))
        if back and not self._db.change(
            "UPDATE ceilings SET left_nanos = left_nanos + ? WHERE run_id = ? AND day = ?",
            (back, row["run_id"], row["day"]),
        ):
            back = 0
        own = Balance(
            spent_nanos=spent, held_nanos=-held, tokens=tokens, held_tokens=-row["held_tokens"], calls=calls
        )
        of_day = msgspec.structs.replace(own, held_nanos=back - held)
        run, ticket = (Scope.RUN, row["run_id"], ""), (Scope.TICKET, row["ticket"], "")
        return self._add(
            {run: own, ticket: own} | dict.fromkeys(_day_keys(row["project"], row["day"]), of_day)
        )


def _keys(booking: Booking, day: str) -> tuple[BalanceKey, ...]:
    return (
        (Scope.RUN, booking.run_id, ""),
        (Scope.TICKET, booking.ticket, ""),
        *_day_keys(booking.project, day),
    )


def _day_keys(project: str, day: str) -> tuple[BalanceKey, BalanceKey]:
    return (Scope.PROJECT_DAY, project, day), (Scope.GLOBAL_DAY, "", day)


def _balances(rows: list[Row]) -> Balances:
    found = {row["scope"]: Balance(**{name: int(row[name]) for name in _FIGURES}) for row in rows}
    return Balances(
        run=found.get(Scope.RUN, Balance()),
        ticket=found.get(Scope.TICKET, Balance()),
        project_day=found.get(Scope.PROJECT_DAY, Balance()),
        global_day=found.get(Scope.GLOBAL_DAY, Balance()),
    )


def _charge(row: Row) -> Charge:
    values = {name: row[name] for name in Charge.__struct_fields__ if name != "usage"}
    usage = msgspec.json.decode(row["usage"], type=TokenUsage)
    return msgspec.convert({**values, "state": ChargeState(row["state"]), "usage": usage}, Charge)
