"""Owns the money: reserving before a call, settling after it, and the balances that both agree on.
May touch the tables charges, balances, ceilings and caps, each time in one transaction.
Never decides by itself: whether a call fits is said by limits/budget.py, inside the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from supervisor.limits.budget import DAYS, Ask, Balance, Balances, Caps, Grant, Refusal, Scope, decide
from supervisor.limits.charges import Booking, Charge, ChargeState, NewCall, Settlement
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.runs.reasons import StopReason
from supervisor.store.database import Database, Row
from supervisor.store.values import understood

BalanceKey = tuple[Scope, str, str]
"""Scope, whose, and the day ("" for a run and a ticket)."""

Changes = list[tuple[BalanceKey, Balance]]

_FIGURES = ("spent_nanos", "held_nanos", "tokens", "held_tokens", "calls")
_ORDER = {scope: number for number, scope in enumerate(Scope)}
_INSERT = f"INSERT INTO balances (scope, key, day, {', '.join(_FIGURES)})"
_OR_ADD = "ON CONFLICT (scope, key, day) DO UPDATE SET " + ", ".join(
    f"{name} = balances.{name} + excluded.{name}" for name in _FIGURES
)
_MOST_CHANGES = 6
"""Two days, each with a project's balance and everybody's, a run and a ticket."""
_ADD = [
    f"{_INSERT} VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?)'] * count)} {_OR_ADD} RETURNING *"
    for count in range(_MOST_CHANGES + 1)
]
_LET_GO = (
    "RETURNING run_id, ticket, project, day, held_nanos, held_tokens, ceiling_nanos, spent_nanos, tokens"
)
"""What is needed of a charge that is over; most of its columns are not."""
_figures: Callable[[Balance], tuple[int, ...]] = attrgetter(*_FIGURES)


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
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a claimed run has. day: the one on which its ceiling is held, "" when it has none."""

    fence: int
    day: str
    left_nanos: int


class Ledger:
    """Every method that writes is one transaction, alone in the whole fleet.

    They would wait for each other anyway, at the balance of the day; so nobody can wait in a circle.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    # ------------------------------------------------------------ a call

    def reserve(self, call: NewCall, caps: Caps, ask: Ask) -> Grant | Refusal:
        """Hold the worst case of a call against every scope, or say why not.

        A clock that was set back books on the latest day there is. Asking twice for one charge_id is
        answered alike while it is held, so that a commit whose answer was lost can be repeated.
        """
        booking = call.booking
        with self._db.transaction(alone=True):
            day, balances = self._look(booking, call.day)
            ceiling = self._claim_of(booking)
            if booking.fence and (ceiling is None or ceiling.fence != booking.fence):
                return Refusal(
                    code="lease_lost",
                    message=f"another worker owns {booking.ticket} now",
                    reason=StopReason.LEASE_LOST,
                )
            changes, balances = self._with_ceiling(booking, day, caps, balances, ceiling)
            answer = decide(ask, caps, balances)
            if isinstance(answer, Grant):
                from_ceiling = min(balances.ceiling_nanos, answer.nanos)
                if self._insert_held(call, day, answer, from_ceiling):
                    self._take_from_ceiling(booking.run_id, from_ceiling)
                    own = Balance(held_nanos=answer.nanos, held_tokens=answer.tokens, calls=1)
                    changes += _everywhere(_keys(booking, day), own, from_ceiling)
                else:
                    answer = self._granted_before(call.charge_id)
            if changes:
                self._add(changes)
            return answer

    def settle(self, charge_id: str, settlement: Settlement) -> Balances | None:
        """Book what a call really used; None when it is settled already, so that nothing counts twice.

        More than was held is charged in full: it was spent. What was not used of the run's ceiling goes
        back there. A call whose usage nobody reported has used all the tokens that were held for it.
        """
        with self._db.transaction(alone=True):
            rows = self._db.rows(
                "UPDATE charges SET state = 'settled', spent_nanos = ?,"
                " tokens = CASE WHEN ? THEN held_tokens ELSE ? END,"
                " usage = ?, usage_source = ?, outcome = ?, model = ?, settled_at = ?"
                f" WHERE charge_id = ? AND state = 'held' {_LET_GO}",
                (
                    settlement.nanos,
                    settlement.source is UsageSource.HOLD,
                    settlement.usage.total,
                    msgspec.json.encode(settlement.usage).decode(),
                    settlement.source,
                    settlement.outcome,
                    settlement.model,
                    settlement.at,
                    charge_id,
                ),
            )
            return self._let_go(rows[0]) if rows else None

    def release(self, charge_id: str, outcome: str, at: str) -> bool:
        """Undo a reservation: the provider did not bill the call, and it does not count as one."""
        with self._db.transaction(alone=True):
            rows = self._db.rows(
                "UPDATE charges SET state = 'released', usage_source = ?, outcome = ?, settled_at = ?"
                f" WHERE charge_id = ? AND state = 'held' {_LET_GO}",
                (UsageSource.UNBILLED, outcome, at, charge_id),
            )
            if rows:
                self._let_go(rows[0], calls=-1)
            return bool(rows)

    def record(self, call: NewCall, settlement: Settlement) -> Balances:
        """Book what an agent says of itself: nothing was held for it, and nobody checked it."""
        booking = call.booking
        with self._db.transaction(alone=True):
            day, balances = self._look(booking, call.day)
            ceiling = self._claim_of(booking)
            own = ceiling.left_nanos if ceiling is not None and ceiling.day == day else 0
            from_ceiling = min(own, settlement.nanos)
            nothing = Grant(output_tokens=0, nanos=0, tokens=0)
            if not self._insert_held(call, day, nothing, from_ceiling):
                return balances
            self._take_from_ceiling(booking.run_id, from_ceiling)
            self._add(_everywhere(_keys(booking, day), Balance(calls=1), from_ceiling))
            booked = self.settle(call.charge_id, settlement)
            assert booked is not None
            return booked

    # ------------------------------------------------------------ ceilings

    def hold_ceiling(
        self, booking: Booking, day: str, nanos: int, caps: Caps, lease_until: str
    ) -> Refusal | None:
        """Hold the most that a run may spend against the day's caps, before it starts; None when held.

        0 holds nothing, and is refused all the same where a cap is used up.
        """
        with self._db.transaction(alone=True):
            self.release_ceiling(booking.run_id)
            day, balances = self._look(booking, day)
            for scope in DAYS:
                left = balances.left_nanos(scope, caps)
                if left is not None and left < max(nanos, 1):
                    return Refusal(
                        code="daily_cap",
                        message="the day's cap does not leave what a run may spend",
                        reason=StopReason.DAILY_CAP,
                        scope=scope,
                        cap=caps.nanos(scope) or 0,
                        needed=nanos,
                        left=max(0, left),
                    )
            if nanos:
                values = (booking.run_id, booking.ticket, booking.project, booking.worker_id)
                self._db.change(
                    "INSERT INTO ceilings (run_id, ticket, project, worker_id, day, left_nanos, lease_until)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*values, day, nanos, lease_until),
                )
                self._add([(key, Balance(held_nanos=nanos)) for key in _day_keys(booking.project, day)])
            return None

    def release_ceiling(self, run_id: str) -> None:
        """Let go of what the run did not use of it."""
        with self._db.transaction(alone=True):
            self._drop_ceilings("run_id = ?", run_id)

    def _drop_ceilings(self, condition: str, value: str) -> None:
        for row in self._db.rows(f"DELETE FROM ceilings WHERE {condition} RETURNING *", (value,)):
            freed = Balance(held_nanos=-row["left_nanos"])
            self._add([(key, freed) for key in _day_keys(row["project"], row["day"])])

    def _claim_of(self, booking: Booking) -> _Claim | None:
        """The ticket's fencing number, and the run's ceiling: only a claimed run has one."""
        if not booking.fence:
            return None
        rows = self._db.rows(
            "SELECT t.fence, c.day, c.left_nanos FROM tickets t LEFT JOIN ceilings c ON c.run_id = ?"
            " WHERE t.key = ?",
            (booking.run_id, booking.ticket),
        )
        if not rows:
            return None
        row = rows[0]
        return _Claim(fence=row["fence"], day=row["day"] or "", left_nanos=row["left_nanos"] or 0)

    def _with_ceiling(
        self, booking: Booking, day: str, caps: Caps, balances: Balances, claim: _Claim | None
    ) -> tuple[Changes, Balances]:
        """The balances with the run's ceiling; that of a day that is over moves here as far as it fits."""
        if claim is None or not claim.day:
            return [], balances
        if claim.day == day:
            return [], msgspec.structs.replace(balances, ceiling_nanos=claim.left_nanos)
        room = [balances.left_nanos(scope, caps) for scope in DAYS]
        moved = min([claim.left_nanos, *(max(0, left) for left in room if left is not None)])
        self._db.change(
            "UPDATE ceilings SET day = ?, left_nanos = ? WHERE run_id = ?", (day, moved, booking.run_id)
        )
        off, on = Balance(held_nanos=-claim.left_nanos), Balance(held_nanos=moved)
        changes: Changes = [(key, off) for key in _day_keys(booking.project, claim.day)]
        changes += [(key, on) for key in _day_keys(booking.project, day)]
        return changes, msgspec.structs.replace(
            balances,
            ceiling_nanos=moved,
            project_day=_sum(balances.project_day, on),
            global_day=_sum(balances.global_day, on),
        )

    def _take_from_ceiling(self, run_id: str, nanos: int) -> None:
        if nanos:
            self._db.change(
                "UPDATE ceilings SET left_nanos = left_nanos - ? WHERE run_id = ?", (nanos, run_id)
            )

    # ------------------------------------------------------------ leases, and what the dead left

    def renew(self, worker_id: str, lease_until: str) -> None:
        """The worker lives: so does everything it holds."""
        with self._db.transaction(alone=True):
            for table, held in (("charges", " AND state = 'held'"), ("ceilings", "")):
                self._db.change(
                    f"UPDATE {table} SET lease_until = ? WHERE worker_id = ?{held}", (lease_until, worker_id)
                )

    def reap(self, now: str, at: str = "") -> list[Charge]:
        """Settle at the hold what nobody renewed: the call may have been made, so it is not free.

        now: by the clock that leases are counted by. at: what is written down, now when it is empty.
        """
        with self._db.transaction(alone=True):
            found = self._settle_at_hold("lease_until < ?", now, "lease expired", at or now)
            self._drop_ceilings("lease_until < ?", now)
            return found

    def settle_run(self, run_id: str, outcome: str, at: str) -> list[Charge]:
        """A run is over: what it still holds is settled at the hold, and its ceiling goes."""
        with self._db.transaction(alone=True):
            found = self._settle_at_hold("run_id = ?", run_id, outcome, at)
            self._drop_ceilings("run_id = ?", run_id)
            return found

    def _settle_at_hold(self, condition: str, value: str, outcome: str, at: str) -> list[Charge]:
        rows = self._db.rows(
            "UPDATE charges SET state = 'settled', spent_nanos = held_nanos, tokens = held_tokens,"
            " usage_source = ?, outcome = ?, settled_at = ?"
            f" WHERE state = 'held' AND {condition} RETURNING *",
            (UsageSource.HOLD, outcome, at, value),
        )
        for row in rows:
            self._let_go(row)
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
        """All that a call of this run would be booked on, if it were made on that day."""
        day, found = self._look(booking, day)
        rows = self._db.rows(
            "SELECT left_nanos FROM ceilings WHERE run_id = ? AND day = ?", (booking.run_id, day)
        )
        return msgspec.structs.replace(found, ceiling_nanos=rows[0]["left_nanos"]) if rows else found

    def _look(self, booking: Booking, day: str) -> tuple[str, Balances]:
        """The day to book on, which is never earlier than one that was booked on, and its balances."""
        rows = self._db.rows(
            "SELECT * FROM balances WHERE (scope = 'run' AND key = ? AND day = '')"
            " OR (scope = 'ticket' AND key = ? AND day = '')"
            " OR (scope = 'project_day' AND key = ? AND day = ?)"
            " OR (scope = 'global_day' AND key = '' AND day >= ?)",
            (booking.run_id, booking.ticket, booking.project, day, day),
        )
        latest = max([day, *(row["day"] for row in rows if row["scope"] == "global_day")])
        return (day, _balances(rows)) if latest == day else self._look(booking, latest)

    def run_totals(self, run_id: str) -> Balance:
        rows = self._db.rows("SELECT * FROM balances WHERE scope = 'run' AND key = ? AND day = ''", (run_id,))
        return _balances(rows).run

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
            f"SELECT {by} AS name, SUM(spent_nanos) AS spent, COUNT(*) AS calls, SUM(tokens) AS tokens"
            " FROM charges WHERE reserved_at >= ? AND state <> 'released'"
            f" GROUP BY {by} ORDER BY spent DESC, name",
            (since,),
        )
        return [
            CostRow(name=r["name"], spent_nanos=int(r["spent"]), calls=r["calls"], tokens=int(r["tokens"]))
            for r in rows
        ]

    # ------------------------------------------------------------ rows

    def _holds_ticket(self, booking: Booking) -> bool:
        sql = "SELECT fence FROM tickets WHERE key = ?"
        rows = self._db.rows(sql, (booking.ticket,))
        return bool(rows) and rows[0]["fence"] == booking.fence

    def _add(self, changes: Changes) -> Balances:
        """Add to each balance, made if it is missing, in one statement; those of the last day afterwards."""
        sums: dict[BalanceKey, Balance] = {}
        for key, change in changes:
            sums[key] = _sum(sums[key], change) if key in sums else change
        values: list[str | int] = []
        for key, change in sums.items():
            values += key
            values += _figures(change)
        return _balances(self._db.rows(_ADD[len(sums)], values))

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
        """Raises ValueError for one that is over: a call under it would be free."""
        row = self._db.rows("SELECT * FROM charges WHERE charge_id = ?", (charge_id,))[0]
        if row["state"] != ChargeState.HELD:
            raise ValueError(f"charge {charge_id} is {row['state']} already")
        return Grant(output_tokens=row["output_tokens"], nanos=row["held_nanos"], tokens=row["held_tokens"])

    def _let_go(self, row: Row, *, calls: int = 0) -> Balances:
        """Move a charge from held to spent in every balance; what of its ceiling is left goes back there."""
        back = max(0, row["ceiling_nanos"] - row["spent_nanos"])
        if back and not self._db.change(
            "UPDATE ceilings SET left_nanos = left_nanos + ? WHERE run_id = ? AND day = ?",
            (back, row["run_id"], row["day"]),
        ):
            back = 0
        own = Balance(
            spent_nanos=row["spent_nanos"],
            held_nanos=-row["held_nanos"],
            tokens=row["tokens"],
            held_tokens=-row["held_tokens"],
            calls=calls,
        )
        keys = (
            (Scope.RUN, row["run_id"], ""),
            (Scope.TICKET, row["ticket"], ""),
            *_day_keys(row["project"], row["day"]),
        )
        return self._add(_everywhere(keys, own, -back))


def _keys(booking: Booking, day: str) -> tuple[BalanceKey, ...]:
    return (
        (Scope.RUN, booking.run_id, ""),
        (Scope.TICKET, booking.ticket, ""),
        *_day_keys(booking.project, day),
    )


def _day_keys(project: str, day: str) -> tuple[BalanceKey, BalanceKey]:
    return (Scope.PROJECT_DAY, project, day), (Scope.GLOBAL_DAY, "", day)


def _everywhere(keys: tuple[BalanceKey, ...], change: Balance, from_ceiling: int) -> Changes:
    """One change for all scopes of a call. The days hold what comes from the run's ceiling already."""
    of_day = msgspec.structs.replace(change, held_nanos=change.held_nanos - from_ceiling)
    return [(key, of_day if key[0] in DAYS else change) for key in keys]


def _sum(one: Balance, other: Balance) -> Balance:
    return Balance(
        **{name: a + b for name, a, b in zip(_FIGURES, _figures(one), _figures(other), strict=True)}
    )


def _balances(rows: list[Row]) -> Balances:
    found: dict[str, Any] = {}
    for row in rows:
        found[row["scope"]] = Balance(
            spent_nanos=row["spent_nanos"],
            held_nanos=row["held_nanos"],
            tokens=row["tokens"],
            held_tokens=row["held_tokens"],
            calls=row["calls"],
        )
    return Balances(**found)


def _charge(row: Row) -> Charge:
    values = {name: row[name] for name in Charge.__struct_fields__ if name != "usage"}
    with understood("charge", row["charge_id"]):
        usage = msgspec.json.decode(row["usage"], type=TokenUsage)
        return msgspec.convert({**values, "usage": usage}, Charge)
